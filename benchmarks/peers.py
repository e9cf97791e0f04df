"""Seconds of one user in one round, beside pfl 0.6 and Flower's Ray simulation, in one run.

    python benchmarks/peers.py [--environments FOLDER] [--users 100000] [--json]

Each peer runs in a virtual environment of its own, made on first use, at a size that it finishes:
pfl with 1 000 users and no privacy (pfl_worker.py), Flower with 200 clients that do nothing
(flower_worker.py). hushbit trains, encodes and tallies (`hushbit run`, million.py); its start-up
is not counted, as it is not for the others. Everything is wall time on the cores that are there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import pfl_round

HERE = Path(__file__).parent
FLOWER = "flwr[simulation]==1.41.0"
FLOWER_USERS = 200
QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}  # fmt: skip


def flower_environment(folder: Path) -> Path:
    """The Python of Flower's environment; made if absent."""
    python = folder / "bin" / "python"
    known = (
        python.exists()
        and not subprocess.run([python, "-c", "import flwr, ray"], capture_output=True).returncode
    )
    if not known:
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", FLOWER], check=True)
    return python


def last_line(command: list[Any], environment: dict[str, str]) -> dict[str, Any]:
    """What a worker's last line says."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        sys.exit(f"{' '.join(words)} failed:\n{done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def ours(users: int, workers: int, data: str | None) -> dict[str, Any]:
    """Two rounds of hushbit, of which the second is timed."""
    code = (
        "import math, time, sys, json\n"
        "from hushbit.engine import chosen_engine\n"
        "from hushbit.fl.rounds import one_round, start\n"
        "from hushbit.fl.settings import Settings\n"
        "from hushbit.fl.setup import prepare\n"
        "if __name__ == '__main__':\n"
        f"    setup = prepare(Settings(dataset='mnist', users={users}, replace=True, rounds=9,\n"
        "        mechanism='cpa', epsilon_per_bit=0.5, radius=0.02, evaluate_every=9))\n"
        "    progress = start(setup)\n"
        f"    with chosen_engine('local', {workers}, 99) as engine:\n"
        "        one_round(setup, progress, engine)\n"
        "        begun = time.perf_counter()\n"
        "        one_round(setup, progress, engine)\n"
        "        print(json.dumps({'wall': time.perf_counter() - begun}))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "ours.py"
        program.write_text(code)
        extra = {"HUSHBIT_DATA": data} if data else {}
        return last_line([sys.executable, program], extra) | {"users": users, "workers": workers}


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """All three, one after the other."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = options.environments or cache / "hushbit-benchmarks"
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        pfl_round.store_data(data)
        pfl = pfl_round.environment(home / "pfl")
        found = {
            "pfl": last_line([pfl, HERE / "pfl_worker.py", data, 3, 0], {})
            | {"users": pfl_round.USERS},
            "flower": last_line(
                [options.flower_python or flower_environment(home / "flower"),
                 HERE / "flower_worker.py", FLOWER_USERS, 2],
                QUIET | {"FLWR_HOME": folder, "PYTHONPATH": str(HERE)},
            ),
            "hushbit": ours(options.users, options.workers, options.data),
        }  # fmt: skip
    for row in found.values():
        row["microseconds_a_user"] = 1e6 * row["wall"] / row["users"]
    return found


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--environments", type=Path, help="folder of the peers' environments")
    asked.add_argument("--flower-python", type=Path, help="an existing Python that has Flower")
    asked.add_argument("--users", type=int, default=100_000)
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--data", help="data folder; else HUSHBIT_DATA")
    asked.add_argument("--json", action="store_true")
    options = asked.parse_args()
    found = measure(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    own = found["hushbit"]["microseconds_a_user"]
    print(f"{'':10}{'users':>10}{'us/user':>12}{'times ours':>12}")
    for name, row in found.items():
        each = row["microseconds_a_user"]
        print(f"{name:10}{row['users']:10}{each:12.1f}{each / own:12.1f}")


if __name__ == "__main__":
    main()
