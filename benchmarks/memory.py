"""Peak memory of one round of CNN3 (169 578 weights) with 1 000 users on images of CIFAR's shape.

    python benchmarks/memory.py [--users 1000] [--samples 40] [--memory-mb 256] [--json]

The round runs in a process of its own. The peak is that of the operating system (ru_maxrss) and
includes the interpreter, torch, Numba and the data set.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

LIMIT_MB = 1536.0


def worker(users: int, samples: int, memory_mb: float) -> None:
    """Run one round and print a JSON line."""
    import numpy as np

    from hushbit.lab.sim import setup as lab
    from hushbit.lab.sim.datasets import Dataset
    from hushbit.lab.sim.rounds import initial_state, one_round
    from hushbit.lab.sim.settings import PAPER_TRAINING, Settings

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (max(50_000, users * samples), 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, len(images))
    lab.load_dataset = lambda *_, **__: Dataset(
        "cifar10", 10, images, labels, images[:100], labels[:100]
    )
    setup = lab.build_setup(
        Settings(
            **PAPER_TRAINING,
            dataset="cifar10",
            model="cnn3",
            users=users,
            samples_per_user=samples,
            rounds=9,
            mechanism="cpa",
            epsilon_per_bit=0.5,
            radius=0.01,
            memory_mb=memory_mb,
            evaluate_every=9,
        )
    )
    begun = time.perf_counter()
    one_round(setup, initial_state(setup))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps(
            {
                "peak_mb": peak,
                "seconds": time.perf_counter() - begun,
                "users": users,
                "dim": setup.task.model.dim,
                "limit_mb": LIMIT_MB,
            }
        )
    )


def main() -> None:
    """Start the worker and compare its peak with the limit."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--users", type=int, default=1000)
    asked.add_argument("--samples", type=int, default=40)
    asked.add_argument("--memory-mb", type=float, default=256.0)
    asked.add_argument("--json", action="store_true")
    asked.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = asked.parse_args()
    if options.worker:
        worker(options.users, options.samples, options.memory_mb)
        return
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--worker"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(
            f"{found['users']} users, {found['dim']} weights: peak {found['peak_mb']:.0f} MB "
            f"(limit {LIMIT_MB:.0f}), {found['seconds']:.1f} s"
        )
    sys.exit(found["peak_mb"] > LIMIT_MB)


if __name__ == "__main__":
    main()
