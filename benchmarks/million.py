"""Rounds of 10 000 and of 1 000 000 users: time per user and peak memory of all processes.

    python benchmarks/million.py [--users 10000 1000000] [--workers 2] [--rounds 1] [--json]

Each run is `hushbit run` in processes of its own: linear model on MNIST, five samples per user
drawn with replacement, one private bit per weight. Memory is sampled from /proc (Linux) during the
run; file pages that processes share count once.
"""

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from processes import Peak


def command(users: int, workers: int, rounds: int) -> list[str]:
    """The command line of the run."""
    options = {
        "dataset": "mnist",
        "model": "linear",
        "users": users,
        "rounds": rounds,
        "workers": workers,
        "mechanism": "cpa",
        "epsilon-per-bit": 0.5,
        "radius": 0.02,
        "evaluate-every": rounds,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "hushbit", "run", *words, "--replace", "--json"]


def measure(users: int, workers: int, rounds: int) -> dict[str, Any]:
    """Run once; return figures of its summary, its memory and its CPU time."""
    before = os.times()
    running = subprocess.Popen(command(users, workers, rounds), stdout=subprocess.PIPE, text=True)
    peak = Peak(running.pid)
    answer, _ = running.communicate()
    held, after = peak.end(), os.times()
    if running.returncode:
        sys.exit(f"the run of {users} users failed")
    summary = json.loads(answer)
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return {
        "users": users,
        "workers": workers,
        "rounds": rounds,
        "peak_mb": held,
        "seconds": summary["seconds"],
        "cpu_seconds": cpu,
        "microseconds_per_user": 1e6 * summary["seconds"] / (users * rounds),
        "snr_db": summary["snr_db"],
        "test_accuracy": summary["test_accuracy"],
    }


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--users", type=int, nargs="+", default=[10_000, 1_000_000])
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--rounds", type=int, default=1)
    asked.add_argument("--json", action="store_true")
    options = asked.parse_args()
    found = [measure(users, options.workers, options.rounds) for users in options.users]
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'users':>10}{'seconds':>10}{'CPU s':>10}{'us/user':>10}{'peak MB':>10}{'SNR dB':>10}")
    for row in found:
        print(
            f"{row['users']:10}{row['seconds']:10.1f}{row['cpu_seconds']:10.1f}"
            f"{row['microseconds_per_user']:10.1f}{row['peak_mb']:10.0f}{row['snr_db']:10.2f}"
        )
    if len(found) > 1:
        first, last = found[0], found[-1]
        growth = last["peak_mb"] / first["peak_mb"] - 1
        print(f"{last['users'] / first['users']:g} times the users: memory {growth:+.1%}")


if __name__ == "__main__":
    main()
