"""CPU seconds of one round next to pfl 0.6: 1 000 users, linear 784-10, 5 samples each.

    python benchmarks/pfl_round.py [--environment FOLDER] [--repeats 2] [--threads 1] [--json]

pfl runs in a virtual environment of its own (created on first use) with the same torch and without
privacy; hushbit runs once without privacy (fedavg) and once with one private bit per weight (cpa).
The processes take turns; each figure is the best round of all turns.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PFL = "pfl==0.6.*"
USERS, SAMPLES, RATE = 1000, 5, 0.03


def environment(folder: Path) -> Path:
    """The Python of pfl's environment, which is created if absent."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if (
        subprocess.run([python, "-c", "import pfl, torch"], capture_output=True).returncode
        if python.exists()
        else True
    ):
        venv.create(folder, with_pip=True)
        torch = importlib.metadata.version("torch").split("+")[0]
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", PFL, f"torch=={torch}"], check=True
        )
    return python


def store_data(path: Path) -> None:
    """Store the samples of all users: random images, since only the time matters."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (USERS, SAMPLES, 784), dtype=np.uint8)
    labels = rng.integers(0, 10, (USERS, SAMPLES))
    images = (pixels.astype(np.float32) - 127.5) / 127.5
    np.savez(path, pixels=pixels, images=images, labels=labels, rate=RATE)


def one_turn(command: list[Any]) -> dict[str, Any]:
    """The JSON object in the last line of a worker."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def measure(python: Path, repeats: int, rounds: int, threads: int) -> dict[str, Any]:
    """Run all three in turns."""
    best: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        store_data(data)
        ours = [sys.executable, HERE / "our_worker.py"]
        commands = {
            "pfl": [python, HERE / "pfl_worker.py", data, rounds, threads],
            "hushbit fedavg": [*ours, "fedavg", "linear", USERS, rounds, threads, data],
            "hushbit cpa": [*ours, "cpa", "linear", USERS, rounds, threads, data],
        }
        for _ in range(repeats):
            for name, command in commands.items():
                found = one_turn(command)
                known = best.setdefault(name, found)
                for figure in ("wall", "cpu", "cpu_median", "peak_mb"):
                    known[figure] = min(known[figure], found[figure])
    return best


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--environment", type=Path, help="pfl's environment; else a cache folder")
    asked.add_argument("--repeats", type=int, default=2)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--threads", type=int, default=1, help="0: as many as torch takes")
    asked.add_argument("--json", action="store_true")
    options = asked.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = environment(options.environment or cache / "hushbit-benchmarks" / "pfl")
    found = measure(python, options.repeats, options.rounds, options.threads)
    found["hushbit fedavg"]["hushbit"] = importlib.metadata.version("hushbit")
    if options.json:
        print(json.dumps(found, indent=2))
        return
    versions = f"pfl {found['pfl']['pfl']}, torch {found['pfl']['torch']}"
    print(f"{USERS} users, linear, {SAMPLES} samples each; {versions}; {options.threads} threads")
    print(f"{'':16}{'CPU s':>10}{'wall s':>10}{'peak MB':>10}{'pfl ratio':>10}")
    for name, row in found.items():
        times = found["pfl"]["cpu"] / row["cpu"]
        print(f"{name:16}{row['cpu']:10.3f}{row['wall']:10.3f}{row['peak_mb']:10.0f}{times:10.1f}")


if __name__ == "__main__":
    main()
