"""NMSE and CPU time of compression without privacy beside peers, at the same bits, in one run.

    python benchmarks/peers_compression.py [--environment FOLDER] [--dim 65536] [--users 10]

EDEN runs through its authors' package `srrcomp` in an environment of its own (made on first use),
if it installs. QUIC-FL has no package: it is `hushbit.field.quicfl`, from the paper's definition,
and so is a second EDEN. CPA without randomized response (rotated, subtractive dither) has its
radius at 1.5 (one bit) and 2 (two bits) times the rms entry; vectors are log-normal.
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
from hushbit.arrays import Floats
from hushbit.field import eden, quicfl
from hushbit.field.carried import Carried

HERE = Path(__file__).parent
EDEN = "srrcomp==0.1.3"
RADII = {1: 1.5, 2: 2.0}
TURNS = 3


def environment(folder: Path) -> Path | None:
    """The Python of srrcomp's environment, made if absent; None where it does not install."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    probe = [str(python), "-c", "import srrcomp"]
    if python.exists() and subprocess.run(probe, capture_output=True).returncode == 0:
        return python
    venv.create(folder, with_pip=True)
    torch = importlib.metadata.version("torch").split("+")[0]
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    # Its setup script imports torch, so torch comes first and the build sees it.
    for packages in (["setuptools<80", "wheel", "numpy", f"torch=={torch}"],
                     ["--no-build-isolation", EDEN]):  # fmt: skip
        if subprocess.run([*pip, *packages]).returncode:
            return None
    return python


def peer(python: Path, file: Path, bits: int) -> dict[str, Any]:
    """What the package's worker says."""
    command = [str(python), str(HERE / "eden_worker.py"), str(file), str(bits), "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def timed(carry: Callable[[Floats, int], Carried], rows: Floats) -> dict[str, Any]:
    """Error, bits and the best CPU time of a few turns, after one to warm up."""
    carry(rows[:1], 0)
    spent, errors = [], []
    for turn in range(TURNS):
        begun = time.process_time()
        found = carry(rows, turn)
        spent.append(time.process_time() - begun)
        gap = ((found.mean - rows.mean(axis=0)) ** 2).sum()
        errors.append(float(gap / (rows**2).sum(axis=1).mean()))
    return {"nmse": float(np.mean(errors)), "bits": found.bits_per_entry, "cpu": min(spent)}


def cpa(bits: int, rows: Floats, seed: int) -> Carried:
    """Rotated CPA without randomized response and with subtractive dither."""
    users, dim = rows.shape
    radius = RADII[bits] * float(np.sqrt(np.mean(rows**2)))
    inner = (
        hb.CPA(dim, math.inf, radius, rounding="subtractive") if bits == 1
        else hb.NestedCPA(dim, math.inf, radius, stages=(2,) * bits, rounding="subtractive")
    )  # fmt: skip
    mechanism, key = hb.Rotated(inner), hb.RoundKey(bytes(32), seed)
    tally = mechanism.tally(key, histogram=False)
    coins = hb.SeededCoins(seed)
    tally.add_many(mechanism.encode_many(rows, key.users(np.arange(users)), coins))
    return Carried(mechanism.estimate(tally).mean, mechanism.payload_bits / dim)


def measure(python: Path | None, rows: Floats, bits: int) -> dict[str, dict[str, Any]]:
    """All of them at the same bits."""
    found = {
        "CPA w/o RR": timed(lambda part, seed: cpa(bits, part, seed), rows),
        "QUIC-FL (here)": timed(
            lambda part, seed: quicfl.mean_estimate(part, bits, np.random.default_rng(seed)), rows
        ),
        "EDEN (here)": timed(
            lambda part, seed: eden.mean_estimate(part, bits, np.random.default_rng(seed)), rows
        ),
    }
    if python is not None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "vectors.npy"
            np.save(file, rows)
            found["EDEN (srrcomp)"] = peer(python, file, bits)
    return found


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--environment", type=Path, help="srrcomp's environment; else a cache")
    asked.add_argument("--dim", type=int, default=65536)
    asked.add_argument("--users", type=int, default=10)
    asked.add_argument("--json", action="store_true")
    options = asked.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = environment(options.environment or cache / "hushbit-benchmarks" / "srrcomp")
    rows = np.random.default_rng(0).lognormal(0, 1, (options.users, options.dim))
    found = {bits: measure(python, rows, bits) for bits in RADII}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{options.users} users, {options.dim} log-normal entries, one thread")
    if python is None:
        print("EDEN's package did not install here: only the one written from its definition")
    else:
        print(found[1]["EDEN (srrcomp)"]["version"])
    print(f"{'':16}{'bits':>8}{'NMSE':>12}{'CPU ms a user':>16}")
    for rows_of_bits in found.values():
        for name, row in rows_of_bits.items():
            each = 1000 * row["cpu"] / options.users
            print(f"{name:16}{row['bits']:8.3f}{row['nmse']:12.5f}{each:16.3f}")


if __name__ == "__main__":
    main()
