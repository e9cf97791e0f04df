"""NMSE and CPU time of compressors without privacy at the same bits, measured in one run.

    python benchmarks/peers_compression.py [--environment FOLDER] [--dim 65536] [--users 10]

EDEN runs through its authors' package `srrcomp` in a virtual environment of its own (created on
first use), if the package installs. QUIC-FL has no package: `hushbit.lab.estimators.compressors`
implements it from the paper, and EDEN a second time. CPA without randomized response (rotated,
subtractive dither) has radius 1.5 (one bit) and 2 (two bits) times the rms entry. The vectors are
log-normal.
"""

import argparse
import importlib.metadata
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hushbit as hb
from hushbit.checks import Floats
from hushbit.lab.estimators import MeanEstimate
from hushbit.lab.estimators.compressors import Eden, QuicFl

HERE = Path(__file__).parent
EDEN_PACKAGE = "srrcomp==0.1.3"
RADII = {1: 1.5, 2: 2.0}
REPEATS = 3


def environment(folder: Path) -> Path | None:
    """The Python of srrcomp's environment, created if absent; None if srrcomp does not install."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    probe = [str(python), "-c", "import srrcomp"]
    if python.exists() and subprocess.run(probe, capture_output=True).returncode == 0:
        return python
    venv.create(folder, with_pip=True)
    torch = importlib.metadata.version("torch").split("+")[0]
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    # The setup script of srrcomp imports torch, so torch is installed first.
    for packages in (
        ["setuptools<80", "wheel", "numpy", f"torch=={torch}"],
        ["--no-build-isolation", EDEN_PACKAGE],
    ):
        if subprocess.run([*pip, *packages]).returncode:
            return None
    return python


def measure_srrcomp(python: Path, file: Path, bits: int) -> dict[str, Any]:
    """The figures that `eden_worker.py` prints."""
    command = [str(python), str(HERE / "eden_worker.py"), str(file), str(bits), "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def timed(estimate: Callable[[Floats, int], MeanEstimate], rows: Floats) -> dict[str, Any]:
    """Error, bits and the best CPU time of a few repeats, after a warm-up."""
    estimate(rows[:1], 0)
    seconds, errors = [], []
    for seed in range(REPEATS):
        start = time.process_time()
        found = estimate(rows, seed)
        seconds.append(time.process_time() - start)
        gap = ((found.mean - rows.mean(axis=0)) ** 2).sum()
        errors.append(float(gap / (rows**2).sum(axis=1).mean()))
    return {"nmse": float(np.mean(errors)), "bits": found.bits_per_entry, "cpu": min(seconds)}


def cpa(bits: int, rows: Floats, seed: int) -> MeanEstimate:
    """Rotated CPA without randomized response and with subtractive dither."""
    users, dim = rows.shape
    radius = RADII[bits] * float(np.sqrt(np.mean(rows**2)))
    inner = (
        hb.CPA(dim, math.inf, radius, rounding="subtractive")
        if bits == 1
        else hb.NestedCPA(dim, math.inf, radius, stages=(2,) * bits, rounding="subtractive")
    )
    mechanism, key = hb.Rotated(inner), hb.RoundKey(bytes(32), seed)
    tally = mechanism.tally(key, histogram=False)
    coins = hb.SeededCoins(seed)
    tally.add_many(mechanism.encode_many(rows, key.users(np.arange(users)), coins))
    return MeanEstimate(mechanism.estimate(tally).mean, mechanism.payload_bits / dim)


def measure(python: Path | None, rows: Floats, bits: int) -> dict[str, dict[str, Any]]:
    """All compressors at the same bits."""
    found = {
        "CPA w/o RR": timed(lambda part, seed: cpa(bits, part, seed), rows),
        "QUIC-FL (here)": timed(
            lambda part, seed: QuicFl(bits).mean_estimate(part, np.random.default_rng(seed)), rows
        ),
        "EDEN (here)": timed(
            lambda part, seed: Eden(bits).mean_estimate(part, np.random.default_rng(seed)), rows
        ),
    }
    if python is not None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "vectors.npy"
            np.save(file, rows)
            found["EDEN (srrcomp)"] = measure_srrcomp(python, file, bits)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--environment", type=Path, help="virtual environment of srrcomp (default: a cache folder)"
    )
    parser.add_argument("--dim", type=int, default=65536)
    parser.add_argument("--users", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = environment(options.environment or cache / "hushbit-benchmarks" / "srrcomp")
    rows = np.random.default_rng(0).lognormal(0, 1, (options.users, options.dim))
    found = {bits: measure(python, rows, bits) for bits in RADII}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{options.users} users, {options.dim} log-normal entries, one thread")
    if python is None:
        print("srrcomp did not install: EDEN (here) only")
    else:
        print(found[1]["EDEN (srrcomp)"]["version"])
    print(f"{'':16}{'bits':>8}{'NMSE':>12}{'CPU ms per user':>18}")
    for rows_of_bits in found.values():
        for name, row in rows_of_bits.items():
            each = 1000 * row["cpu"] / options.users
            print(f"{name:16}{row['bits']:8.3f}{row['nmse']:12.5f}{each:18.3f}")


if __name__ == "__main__":
    main()
