"""What the ballot filter adds to the aggregation, and how both grow with users.

    python benchmarks/filter.py [--dim 7850] [--users 1000 10000 100000] [--repeats 300]
                                [--threads 1] [--json]

Aggregation is the server's work: count the ballots of a round, decode the mean. Processor time on
one thread, wall time on several; the least of its repeats, which take turns so that a busy machine
hits all alike; a round in the middle of training, so the memory of earlier rounds is warm. "found"
is the same round with 30 % of the users found against the others before.
The ballots are those of zero updates: no rule looks at more bits when users say something.
"""

import argparse
import json
import math
import time
from collections.abc import Callable

import numpy as np

from hushbit import CPA, Rotated, RoundKey
from hushbit.ballot import Ballots
from hushbit.kernels import threads
from hushbit.robust.filtered import filtered_tally
from hushbit.robust.memory import Memory
from hushbit.rotation import rotation_of

EPSILON, CLIP, ATTACKERS = 0.5, 0.26, 0.3
KEY = RoundKey(bytes(32), 7)
TURNS = 10
Work = Callable[[], object]
Clock = Callable[[], float]


def quiet_ballots(mechanism: Rotated, users: int) -> Ballots:
    """Ballots of zero updates: fair coins."""
    width = (mechanism.payload_bits + 7) // 8
    payload = np.random.default_rng(0).integers(0, 256, (users, width), dtype=np.uint8)
    if mechanism.payload_bits % 8:
        payload[:, -1] &= (1 << mechanism.payload_bits % 8) - 1
    return Ballots(
        mechanism.fingerprint, KEY.round, mechanism.payload_bits,
        np.arange(users, dtype=np.uint64), payload, np.zeros(users, dtype=np.int64),
    )  # fmt: skip


def warm_memory(users: int, found: bool) -> Memory:
    """What twenty rounds leave of honest users; with a share of them found against the others."""
    rng = np.random.default_rng(1)
    gone = rng.uniform(size=users) < (ATTACKERS if found else 0.0)
    sums = np.where(gone, -40.0, 10.0) + rng.normal(size=users)
    everyone = np.ones(users, dtype=np.bool_)
    return Memory(sums, sums, np.full(users, 10.0), rng.normal(size=users), gone, everyone)


def least_seconds(works: dict[str, Work], repeats: int, clock: Clock) -> dict[str, float]:
    """Time of the fastest repeat of each."""
    least = dict.fromkeys(works, math.inf)
    for _ in range(TURNS):
        for name, work in works.items():
            work()
            for _ in range(-(-repeats // TURNS)):
                rotation_of.cache_clear()  # every round has one of its own
                begun = clock()
                work()
                least[name] = min(least[name], clock() - begun)
    return least


def measured(dim: int, users: int, repeats: int, clock: Clock) -> dict[str, float]:
    """Seconds of one aggregation, plain and filtered."""
    mechanism = Rotated(CPA(dim, EPSILON, CLIP / 2 / math.sqrt(dim), clip=CLIP))
    ballots, way = quiet_ballots(mechanism, users), np.random.default_rng(2).normal(size=dim)

    def plain() -> object:
        tally = mechanism.tally(KEY, histogram=False)
        tally.add_many(ballots)
        return mechanism.estimate(tally)

    def filtered(memory: Memory) -> object:
        tally, _ = filtered_tally(mechanism, ballots, KEY, memory=memory, way=way)
        return mechanism.estimate(tally)

    honest, found = warm_memory(users, found=False), warm_memory(users, found=True)
    works: dict[str, Work] = {
        "plain": plain,
        "filtered": lambda: filtered(honest),
        "found": lambda: filtered(found),
    }
    return {"users": users, **least_seconds(works, repeats, clock)}


def exponent(rows: list[dict[str, float]], name: str) -> float:
    """Slope of log time against log users."""
    users, spent = ([row[key] for row in rows] for key in ("users", name))
    return float(np.polyfit(np.log(users), np.log(spent), 1)[0])


def main() -> None:
    """Print times, ratios and exponents."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dim", type=int, default=7850)
    parser.add_argument("--users", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    threads.set_threads(asked.threads)
    clock = time.process_time if asked.threads == 1 else time.perf_counter
    rows = [
        measured(asked.dim, users, max(3, asked.repeats * 1000 // max(users, 1000)), clock)
        for users in asked.users
    ]
    names = ("plain", "filtered", "found")
    slopes = {name: exponent(rows, name) for name in names} if len(rows) > 1 else {}
    if asked.json:
        print(json.dumps({"rows": rows, "exponents": slopes}))
        return
    for row in rows:
        parts = [f"{name} {1e3 * row[name]:.2f} ms" for name in names]
        more = [f"{name} +{100 * (row[name] / row['plain'] - 1):.0f} %" for name in names[1:]]
        print(f"{row['users']:>7.0f} users: " + ", ".join(parts + more))
    for name, slope in slopes.items():
        print(f"{name}: time grows as users^{slope:.2f}")


if __name__ == "__main__":
    main()
