"""Time of the aggregation with and without the defence, by number of users.

    python benchmarks/defence.py [--dim 7850] [--users 1000 10000 100000] [--repeats 300]
                                 [--threads 1] [--json]

Aggregation is the work of the server: count the ballots of a round and decode the mean. Times are
CPU time on one thread and wall time on several: the minimum over repeats, which are interleaved so
that other load affects all alike. The round is one in the middle of training, with the state of
earlier rounds. "defended" is with `Defence`, "excluded" is the same round with 30 % of the users
excluded before. The ballots are those of zero updates, because the time does not depend on the
updates.
"""

import argparse
import json
import math
import time
from collections.abc import Callable

import numpy as np

from hushbit.cpa import CPA
from hushbit.defence.defence import Defence, State
from hushbit.encoding.clip_and_rotate import cached_rotation
from hushbit.kernels import threads
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import RoundKey
from hushbit.wrappers import Rotated

EPSILON, CLIP, ATTACKERS = 0.5, 0.26, 0.3
KEY = RoundKey(bytes(32), 7)
TURNS = 10
Work = Callable[[], object]
Clock = Callable[[], float]


def random_ballots(mechanism: Rotated, users: int) -> Ballots:
    """Ballots of zero updates: random bits."""
    width = (mechanism.payload_bits + 7) // 8
    payload = np.random.default_rng(0).integers(0, 256, (users, width), dtype=np.uint8)
    if mechanism.payload_bits % 8:
        payload[:, -1] &= (1 << mechanism.payload_bits % 8) - 1
    return Ballots(
        mechanism.fingerprint,
        KEY.round,
        mechanism.payload_bits,
        np.arange(users, dtype=np.uint64),
        payload,
        np.zeros(users, dtype=np.int64),
    )


def state_of(users: int, share: float) -> State:
    """The state of the defence after twenty rounds, with a share of the users excluded."""
    rng = np.random.default_rng(1)
    excluded = (rng.uniform(size=users) < share).astype(np.float64)
    return Defence().start(users) | {
        "evidence": 50 * excluded,
        "sum": np.where(excluded, -20.0, 0.0) + 2 * rng.normal(size=users),
        "behind": 0.9 * excluded,
        "excluded": excluded,
        "shared": rng.normal(size=users),
        "last_round": np.full(users, float(KEY.round)),
    }


def min_seconds(works: dict[str, Work], repeats: int, clock: Clock) -> dict[str, float]:
    """The time of the fastest repeat of each."""
    least = dict.fromkeys(works, math.inf)
    for _ in range(TURNS):
        for name, work in works.items():
            work()
            for _ in range(-(-repeats // TURNS)):
                cached_rotation.cache_clear()  # every round has its own rotation
                begun = clock()
                work()
                least[name] = min(least[name], clock() - begun)
    return least


def measured(dim: int, users: int, repeats: int, clock: Clock) -> dict[str, float]:
    """Seconds of one aggregation, without and with the defence."""
    mechanism = Rotated(CPA(dim, EPSILON, CLIP / 2 / math.sqrt(dim), clip=CLIP))
    ballots = random_ballots(mechanism, users)
    direction = np.random.default_rng(2).normal(size=dim)

    def plain() -> object:
        tally = mechanism.tally(KEY, histogram=False)
        tally.add_many(ballots)
        return mechanism.estimate(tally)

    def defended(state: State) -> object:
        tally, _ = Defence().count(mechanism, ballots, KEY, state, direction)
        return mechanism.estimate(tally)

    honest, excluded = state_of(users, 0.0), state_of(users, ATTACKERS)
    works: dict[str, Work] = {
        "plain": plain,
        "defended": lambda: defended(honest),
        "excluded": lambda: defended(excluded),
    }
    return {"users": users, **min_seconds(works, repeats, clock)}


def exponent(rows: list[dict[str, float]], name: str) -> float:
    """Slope of log time against log users."""
    users, seconds = ([row[key] for row in rows] for key in ("users", name))
    return float(np.polyfit(np.log(users), np.log(seconds), 1)[0])


def main() -> None:
    """Print times, ratios and exponents."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dim", type=int, default=7850)
    parser.add_argument("--users", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    threads.set_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    rows = [
        measured(options.dim, users, max(3, options.repeats * 1000 // max(users, 1000)), clock)
        for users in options.users
    ]
    names = ("plain", "defended", "excluded")
    slopes = {name: exponent(rows, name) for name in names} if len(rows) > 1 else {}
    if options.json:
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
