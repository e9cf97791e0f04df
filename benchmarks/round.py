"""One round of 1 000 users next to the same round as in the published code, in one run.

    python benchmarks/round.py [--users 1000] [--repeats 5] [--threads N] [--json]

The two take turns; each figure is the best of its repeats. "aggregation" is the work of the server
from received bits to the decoded mean, timed on its own on both sides: words are drawn again, votes
are counted, the mean is decoded. "in_round" is the aggregation of hushbit inside the round, where
training has just used the caches, against that of the peer on its own. "vote" is everything between
local updates and the mean: encoding and aggregation.

The peer has the same two points as hushbit; --points 3 gives it the published codebook for one bit,
which has 2^R + 1 = 3 points.
"""

import argparse
import json
import os
import platform
import time
from typing import Any

import hushbit.lab  # noqa: F401 - before torch: sets how idle OpenMP threads wait, as the command does

# isort: split
import numpy as np
import published_round
import torch

from hushbit.errors import HushbitError
from hushbit.kernels import threads
from hushbit.lab.sim import setup as lab
from hushbit.lab.sim.datasets import Dataset
from hushbit.lab.sim.rounds import RunState, initial_state, one_round
from hushbit.lab.sim.settings import Settings
from hushbit.mechanism import Mechanism
from hushbit.wire.coins import SimulationCoins
from hushbit.wire.keys import RoundKey

RATE, RADIUS, EPSILON, SAMPLES, BATCH = 0.03, 0.02, 0.5, 5, 16
VOTE, AGGREGATION = ("encode", "tally", "estimate"), ("tally", "estimate")


def prepare(users: int, data: str | None) -> tuple[lab.Setup, str]:
    """The simulated round, on MNIST if it is available, else on random images of its shape."""
    settings = Settings(
        dataset="mnist",
        users=users,
        samples_per_user=SAMPLES,
        rounds=10**6,
        mechanism="cpa",
        epsilon_per_bit=EPSILON,
        radius=RADIUS,
        rate=RATE,
        pixels="symmetric",
        batch_size=BATCH,
        evaluate_every=10**6,
    )
    try:
        return lab.build_setup(settings, data), "mnist"
    except HushbitError:
        lab.load_dataset = lambda *_, **__: noise(users * SAMPLES)
        return lab.build_setup(settings), "random images of MNIST's shape"


def noise(samples: int) -> Dataset:
    """Random images, since only the time matters."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (samples, 1, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, samples)
    return Dataset("mnist", 10, images, labels, images[:100], labels[:100])


def our_round(setup: lab.Setup, state: RunState) -> dict[str, float]:
    """Wall and CPU seconds of a round and of its aggregation."""
    key = RoundKey(setup.secret, state.round)
    wall, cpu = time.perf_counter(), time.process_time()
    made = one_round(setup, state)
    spent = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    return (
        spent
        | our_aggregation(setup.mechanism, key, setup.task.federation.users)
        | {
            "vote_wall": sum(made.seconds[phase] for phase in VOTE),
            "vote_cpu": sum(made.cpu_seconds[phase] for phase in VOTE),
            "in_round_wall": sum(made.seconds[phase] for phase in AGGREGATION),
            "in_round_cpu": sum(made.cpu_seconds[phase] for phase in AGGREGATION),
            **{f"{phase}_wall": spent for phase, spent in made.seconds.items()},
        }
    )


def our_aggregation(mechanism: Mechanism, key: RoundKey, users: int) -> dict[str, float]:
    """Seconds of the server on its own: count all bits and decode the mean."""
    rng = np.random.default_rng(key.round)
    updates = rng.normal(0.0, RADIUS / 4, (users, mechanism.dim)).astype(np.float32)
    ballots = mechanism.encode_many(updates, key.users(np.arange(users)), SimulationCoins(0))
    wall, cpu = time.perf_counter(), time.process_time()
    tally = mechanism.tally(key, histogram=False)
    tally.add_many(ballots)
    mechanism.estimate(tally)
    return {
        "aggregation_wall": time.perf_counter() - wall,
        "aggregation_cpu": time.process_time() - cpu,
    }


def their_round(
    users: list[published_round.User], weights: dict[str, Any], codebook: torch.Tensor
) -> dict[str, float]:
    """The same figures for the published code."""
    wall, cpu = time.perf_counter(), time.process_time()
    updates = [user.train(weights) for user in users]
    half_wall, half_cpu = time.perf_counter(), time.process_time()
    mean = published_round.aggregate(updates, codebook, EPSILON)
    spent = {
        "vote_wall": time.perf_counter() - half_wall,
        "vote_cpu": time.process_time() - half_cpu,
    }
    for name in weights:
        weights[name] = weights[name] + mean[name]
    spent |= {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    bits = {name: torch.ones(like.numel(), len(users)) for name, like in updates[0].items()}
    wall, cpu = time.perf_counter(), time.process_time()
    published_round.decode(bits, codebook, EPSILON)
    alone = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    for name in ("aggregation", "in_round"):
        spent |= {f"{name}_{kind}": seconds for kind, seconds in alone.items()}
    return spent


def best(runs: list[dict[str, float]]) -> dict[str, float]:
    """The minimum of each figure."""
    return {name: min(run[name] for run in runs) for name in runs[0]}


def measure(users: int, repeats: int, points: int, data: str | None) -> dict[str, Any]:
    """Time both rounds in turns."""
    setup, source = prepare(users, data)
    state = initial_state(setup)
    theirs = published_round.users_of(setup.task.federation, RATE, BATCH)
    weights = {k: v.clone() for k, v in theirs[0].model.state_dict().items()}
    our_round(setup, state)  # compiles kernels
    codebook = torch.linspace(-RADIUS, RADIUS, points)
    ours_runs, their_runs = [], []
    for _ in range(repeats):
        their_runs.append(their_round(theirs, weights, codebook))
        ours_runs += [our_round(setup, state) for _ in range(3)]
    ours, published = best(ours_runs), best(their_runs)
    parts = ("", "vote_", "aggregation_", "in_round_")
    figures = [f"{part}{kind}" for part in parts for kind in ("wall", "cpu")]
    return {
        "users": users,
        "points": points,
        "data": source,
        "dim": setup.task.model.dim,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "hushbit": ours,
        "published": published,
        "ratios": {name: published[name] / ours[name] for name in figures},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--points", type=int, default=2, help="points of the published codebook")
    parser.add_argument("--threads", type=int, help="threads of both; default: as torch")
    parser.add_argument("--data", help="data folder; default: HUSHBIT_DATA")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
        threads.set_threads(options.threads)
    found = measure(options.users, options.repeats, options.points, options.data)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"{found['users']} users, {found['dim']} weights, {found['data']}, "
        f"{found['points']} points, torch {found['torch']}, "
        f"{found['threads']} threads; best seconds"
    )
    print(f"{'':18}{'hushbit':>10}{'published':>10}{'ratio':>8}")
    for name, ratio in found["ratios"].items():
        ours, theirs = found["hushbit"][name], found["published"][name]
        print(f"{name:18}{ours:10.4f}{theirs:10.3f}{ratio:8.0f}")


if __name__ == "__main__":
    main()
