"""Timed rounds of hushbit, in a process of their own.

    python our_worker.py MECHANISM MODEL USERS ROUNDS THREADS [DATA.npz]   ->   one JSON line

With DATA.npz (images (users, samples, 784) as bytes, labels), users train on these samples.
"""

import json
import resource
import sys
import time

import numpy as np
import torch

from hushbit.kernels import threads as kernels
from hushbit.lab.sim import setup as lab
from hushbit.lab.sim.datasets import Dataset
from hushbit.lab.sim.rounds import initial_state, one_round
from hushbit.lab.sim.settings import PAPER_TRAINING, Settings


def stored_dataset(path: str) -> Dataset:
    """The stored samples of all users, one after the other."""
    stored = np.load(path)
    images = stored["pixels"].reshape(-1, 1, 28, 28)
    labels = stored["labels"].reshape(-1).astype(np.int64)
    return Dataset("mnist", 10, images, labels, images[:100], labels[:100])


def main() -> None:
    """Run and print the best seconds of a round."""
    mechanism, model = sys.argv[1:3]
    users, rounds, threads = (int(word) for word in sys.argv[3:6])
    if threads:
        torch.set_num_threads(threads)
        kernels.set_threads(threads)
    if len(sys.argv) > 6:
        lab.load_dataset = lambda *_, **__: stored_dataset(sys.argv[6])
    private = {} if mechanism == "fedavg" else {"epsilon_per_bit": 0.5, "radius": 0.02}
    setup = lab.build_setup(
        Settings(
            **PAPER_TRAINING,
            dataset="mnist",
            model=model,
            users=users,
            samples_per_user=5,
            rounds=10**6,
            rate=0.03,
            mechanism=mechanism,
            evaluate_every=10**6,
            **private,
        )
    )
    progress = initial_state(setup)
    one_round(setup, progress)
    wall, cpu = [], []
    for _ in range(rounds):
        begun = time.perf_counter(), time.process_time()
        one_round(setup, progress)
        wall.append(time.perf_counter() - begun[0])
        cpu.append(time.process_time() - begun[1])
    print(
        json.dumps(
            {
                "wall": min(wall),
                "cpu": min(cpu),
                "cpu_median": float(np.median(cpu)),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "dim": setup.task.model.dim,
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
