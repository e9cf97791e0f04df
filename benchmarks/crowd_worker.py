"""Timed rounds of many users on an engine, in a process of their own; see peers.py.

    python crowd_worker.py DATA.npz USERS ROUNDS WORKERS   ->   one JSON line

Users draw their five samples with replacement from the stored ones, train, and send one private bit
per weight. The first round, which compiles, is not timed.
"""

import importlib.metadata
import json
import os
import sys
import time

from our_worker import stored_dataset
from processes import cpu_seconds

from hushbit.lab.sim import setup as lab
from hushbit.lab.sim.engines import open_engine
from hushbit.lab.sim.rounds import initial_state, one_round
from hushbit.lab.sim.settings import PAPER_TRAINING, Settings


def main() -> None:
    """Run and print the best round."""
    users, rounds, workers = (int(word) for word in sys.argv[2:5])
    lab.load_dataset = lambda *_, **__: stored_dataset(sys.argv[1])
    setup = lab.build_setup(
        Settings(
            **PAPER_TRAINING,
            dataset="mnist",
            users=users,
            replace=True,
            rounds=10**6,
            mechanism="cpa",
            epsilon_per_bit=0.5,
            radius=0.02,
            evaluate_every=10**6,
        )
    )
    progress = initial_state(setup)
    wall, cpu = [], []
    with open_engine("local", workers, users) as engine:
        one_round(setup, progress, engine)
        for _ in range(rounds):
            begun = time.perf_counter(), cpu_seconds(os.getpid())
            one_round(setup, progress, engine)
            wall.append(time.perf_counter() - begun[0])
            cpu.append(cpu_seconds(os.getpid()) - begun[1])
    print(
        json.dumps(
            {
                "users": users,
                "wall": min(wall),
                "cpu": min(cpu),
                "workers": workers,
                "hushbit": importlib.metadata.version("hushbit"),
            }
        )
    )


if __name__ == "__main__":  # workers import this file
    main()
