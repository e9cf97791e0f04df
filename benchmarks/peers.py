"""Time of one user in one round next to pfl 0.6 and Flower's Ray simulation, in one run.

    python benchmarks/peers.py [--environments FOLDER] [--turns 2] [--json]

Each peer runs in a virtual environment of its own, created on first use, at a size that it can
finish: pfl with 1 000 users and no privacy, once with its defaults and once as two processes with
half of the users each (pfl_worker.py); Flower with 400 clients that do nothing (flower_worker.py).
hushbit trains, encodes one private bit per weight and tallies, in two processes (crowd_worker.py).
All may use all cores, and start-up is not timed. They take turns (Flower, the slowest, has one);
the best turn of each is printed, as wall and as CPU time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import pfl_round

HERE = Path(__file__).parent
FLOWER = "flwr[simulation]==1.41.0"
LIMIT = 300  # seconds until a worker is stopped
TARGET_RATIOS = {"pfl": 20, "pfl, two processes": 20, "Flower on Ray": 200}
QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
Row = dict[str, Any]


def log(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def flower_environment(folder: Path) -> Path:
    """The Python of Flower's environment, which is created if absent."""
    python = folder / "bin" / "python"
    probe = [python, "-c", "import flwr, ray"]
    if not python.exists() or subprocess.run(probe, capture_output=True).returncode:
        log(f"making {folder} with {FLOWER}")
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", FLOWER], check=True)
    return python


def start(command: list[Any], environment: dict[str, str]) -> "subprocess.Popen[str]":
    """Start a worker."""
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def result_of(worker: "subprocess.Popen[str]") -> Row:
    """The JSON object in the last line of a worker."""
    try:
        out, errors = worker.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        worker.kill()
        sys.exit(f"{worker.args} took longer than {LIMIT} s")
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if worker.returncode or not lines:
        sys.exit(f"{worker.args} failed:\n{errors[-3000:]}")
    found: Row = json.loads(lines[-1])
    return found


def two_halves(python: Path, data: Path, rounds: int) -> Row:
    """Two pfl processes with half of the users each, as if merging their results cost nothing."""
    half = pfl_round.USERS // 2
    command = [python, HERE / "pfl_worker.py", data, rounds, 1, half]
    rows = [result_of(worker) for worker in [start(command, {}) for _ in range(2)]]
    # The median, since the other process may not run during the fastest round.
    return rows[0] | {
        "users": 2 * half,
        "wall": max(row["wall_median"] for row in rows),
        "cpu": sum(row["cpu"] for row in rows),
    }


def one_turn(
    options: argparse.Namespace, pfl: Path, flower: Path, folder: Path, first: bool
) -> dict[str, Row]:
    """Run all of them one after the other; Flower in the first turn only."""
    data, rounds = folder / "data.npz", options.rounds
    here = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    jobs = {
        "pfl": lambda: result_of(start([pfl, HERE / "pfl_worker.py", data, rounds, 0], {})),
        "pfl, two processes": lambda: two_halves(pfl, data, rounds),
        "Flower on Ray": lambda: result_of(
            start(
                [flower, HERE / "flower_worker.py", options.flower_users, 2],
                QUIET | {"FLWR_HOME": str(folder), "PYTHONPATH": str(HERE)},
            )
        ),
        "hushbit": lambda: result_of(
            start(
                [sys.executable, HERE / "crowd_worker.py", data, options.users, 2, options.workers],
                here,
            )
        ),
    }
    found: dict[str, Row] = {}
    for name, job in jobs.items():
        if name == "Flower on Ray" and not first:
            continue
        begun = time.perf_counter()
        found[name] = job()
        log(f"{name}: {time.perf_counter() - begun:.0f} s")
    return found


def measure(options: argparse.Namespace) -> dict[str, Row]:
    """The best turn of each, in microseconds per user."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = options.environments or cache / "hushbit-benchmarks"
    pfl, flower = pfl_round.environment(home / "pfl"), flower_environment(home / "flower")
    best: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pfl_round.store_data(folder / "data.npz")
        for turn in range(options.turns):
            for peer, row in one_turn(options, pfl, flower, folder, turn == 0).items():
                known = best.setdefault(peer, row)
                for figure in ("wall", "cpu"):
                    known[figure] = min(known[figure], row[figure])
    ours = best["hushbit"]
    for row in best.values():
        for figure in ("wall", "cpu"):
            row[f"{figure}_us_per_user"] = 1e6 * row[figure] / row["users"]
            row[f"{figure}_ratio"] = row[figure] / row["users"] / (ours[figure] / ours["users"])
    return best


def main() -> None:
    """Measure, print, and compare wall times with the targets."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--environments", type=Path, help="folder of the peers' environments")
    asked.add_argument("--users", type=int, default=100_000)
    asked.add_argument("--flower-users", type=int, default=400)
    asked.add_argument("--rounds", type=int, default=5, help="timed rounds of pfl")
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--turns", type=int, default=2)
    asked.add_argument("--json", action="store_true")
    options = asked.parse_args()
    found = measure(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'':20}{'users':>9}{'wall us/user':>14}{'ratio':>12}{'CPU us/user':>13}{'ratio':>12}")
    for name, row in found.items():
        print(
            f"{name:20}{row['users']:9}{row['wall_us_per_user']:14.1f}"
            f"{row['wall_ratio']:12.1f}{row['cpu_us_per_user']:13.1f}"
            f"{row['cpu_ratio']:12.1f}"
        )
    for name, times in TARGET_RATIOS.items():
        reached = found[name]["wall_ratio"]
        print(f"{name}: ratio {reached:.0f}, target {times}")
    versions = {
        key: value
        for row in found.values()
        for key, value in row.items()
        if key in ("pfl", "torch", "flwr", "ray", "hushbit")
    }
    print(", ".join(f"{name} {version}" for name, version in versions.items()))


if __name__ == "__main__":
    main()
