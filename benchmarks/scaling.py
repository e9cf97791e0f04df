"""Time of encode and tally by users, dim, points N and block size L, and the limit of a tally.

    python benchmarks/scaling.py [--quick] [--json]

The limit of a tally with N = 2 is measured in the same run. Each vote is one bit read from memory
and one bit of keystream, so a tally is at most as fast as memory is read (eight votes per byte) and
as the fastest ChaCha20 available (that of OpenSSL, by `cryptography`). Times are CPU seconds of one
thread, the best of several, which other programs disturb little; the gain of two threads is in wall
time and needs two idle cores. Memory is the peak that Python and NumPy allocate while ballots pass
through a tally, 4 096 at a time.
"""

import argparse
import json
import platform
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from hushbit.cpa import CPA
from hushbit.kernels import threads
from hushbit.tally.tally import Tally
from hushbit.wire.ballot import Ballots
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey

KEY = RoundKey(bytes(range(32)), 0)
REPEATS, MAX_SECONDS = 5, 2.0  # runs of each; fewer if they take more seconds together
WEIGHTS, BALLOT_BYTES = 7850, 1022
BATCH = 4096
LATTICES = {1: "Z", 2: "A2", 4: "D4", 8: "E8"}
Clock = Callable[[], float]
Row = dict[str, float]


def best(run: Callable[[], Any], clock: Clock = time.process_time) -> float:
    """Minimum of the seconds of a few runs, after one that compiles."""
    run()
    spent: list[float] = []
    while len(spent) < REPEATS and sum(spent) < MAX_SECONDS:
        begun = clock()
        run()
        spent.append(clock() - begun)
    return max(min(spent), 1e-9)


def ballots_of(mechanism: CPA, users: int) -> Ballots:
    """Ballots of `users` users; the bits of a few are repeated under new user numbers."""
    few = min(users, 16)
    updates = np.linspace(-1, 1, mechanism.dim, dtype=np.float32) * np.ones((few, 1), np.float32)
    made = mechanism.encode_many(updates * 0.5, KEY.users(range(few)), SeededCoins(1))
    payload = np.resize(made.payload, (users, made.payload.shape[1]))
    return Ballots(
        made.fingerprint,
        0,
        made.bits,
        np.arange(users, dtype=np.uint64),
        payload,
        np.zeros(users, dtype=np.int64),
    )


def stream(mechanism: CPA, batch: Ballots, users: int) -> Tally:
    """Count ballots of `users` users in batches, as a server does."""
    tally = mechanism.tally(KEY, False)
    for begin in range(0, users, BATCH):
        size = min(BATCH, users - begin)
        numbers = np.arange(begin, begin + size, dtype=np.uint64)
        tally.add_many(
            Ballots(
                batch.fingerprint,
                0,
                batch.bits,
                numbers,
                batch.payload[:size],
                batch.overloaded[:size],
            )
        )
    return tally


def peak_megabytes(run: Callable[[], Any]) -> float:
    """Peak allocation of a run."""
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def tally_seconds(mechanism: CPA, users: int, clock: Clock = time.process_time) -> float:
    """Seconds to count the ballots of `users` users at once."""
    ballots = ballots_of(mechanism, users)
    return best(lambda: mechanism.tally(KEY, False).add_many(ballots), clock)


def encode_seconds(mechanism: CPA, users: int) -> float:
    """CPU seconds to encode the ballots of `users` users."""
    updates = np.full((users, mechanism.dim), 0.3, dtype=np.float32)
    keys = KEY.users(range(users))
    return best(lambda: mechanism.encode_many(updates, keys, SeededCoins(1)))


def limits() -> Row:
    """Votes per second that memory and keystream allow on one core."""
    data = np.ones(32 << 20, dtype=np.uint64)
    memory = 8 * data.nbytes / best(lambda: np.bitwise_or.reduce(data))
    found = {"memory": memory}
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ImportError:
        return found
    zeros, out = bytes(1 << 20), bytearray(1 << 20)
    cipher = Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), None).encryptor()
    made = best(lambda: [cipher.update_into(zeros, out) for _ in range(64)])
    return found | {"keystream": 8 * 64 * len(zeros) / made}


def by_users(scale: int) -> list[Row]:
    """Figures by the number of users, for ballots of the linear model."""
    mechanism = CPA(WEIGHTS, 0.5, 1.0)
    batch = ballots_of(mechanism, BATCH)
    rows = []
    for users in (1000, 10_000, 100_000, 1_000_000)[: None if scale == 1 else 3]:
        seconds = best(lambda n=users: stream(mechanism, batch, n))
        held = peak_megabytes(lambda n=users: stream(mechanism, batch, n))
        rows.append({"users": users, "tally": seconds, "tally_mb": held})
    return rows


def by_dim(scale: int) -> list[Row]:
    """Figures by dim, with the same number of users, which share the cost of counters."""
    rows = []
    for dim in (10_000, 100_000, 1_000_000, 10_000_000)[: None if scale == 1 else 3]:
        mechanism, few = CPA(dim, 0.5, 1.0), max(2, 8_000_000 // dim)
        ballots = ballots_of(mechanism, 256)
        rows.append(
            {
                "dim": dim,
                "tally": best(lambda m=mechanism, b=ballots: m.tally(KEY, False).add_many(b)) / 256,
                "tally_mb": peak_megabytes(
                    lambda m=mechanism, b=ballots: m.tally(KEY, False).add_many(b)
                ),
                "encode": encode_seconds(mechanism, few) / few,
            }
        )
    return rows


def by_points(scale: int) -> list[Row]:
    """Figures by the number of points per block."""
    rows = []
    for points in (2, 4, 8, 16):
        mechanism = CPA(100_000 // scale, 0.5, 1.0, points=points)
        rows.append(
            {
                "points": points,
                "tally": tally_seconds(mechanism, 256) / 256,
                "encode": encode_seconds(mechanism, 16) / 16,
            }
        )
    return rows


def by_block(scale: int) -> list[Row]:
    """Figures by block size, with 16 points per block."""
    rows = []
    for size, lattice in LATTICES.items():
        mechanism = CPA(100_000 // scale, 0.5, 1.0, points=16, lattice=lattice)
        rows.append(
            {
                "block": size,
                "tally": tally_seconds(mechanism, 256) / 256,
                "encode": encode_seconds(mechanism, 4) / 4,
            }
        )
    return rows


def exponents(tables: dict[str, list[Row]]) -> Row:
    """The exponent p of seconds ~ size^p, by least squares of logarithms."""
    return {
        f"{figure} in {name}": float(
            np.polyfit(
                np.log([row[name] for row in rows]), np.log([row[figure] for row in rows]), 1
            )[0]
        )
        for name, rows in tables.items()
        for figure in ("tally", "encode")
        if figure in rows[0]
    }


def two_threads() -> float:
    """The gain of two threads over one, at 20 000 ballots."""
    mechanism = CPA(WEIGHTS, 0.5, 1.0)
    ballots = ballots_of(mechanism, 20_000)
    wall = {1: float("inf"), 2: float("inf")}
    for _ in range(REPEATS):
        for count in wall:  # in turns, so that other programs disturb both alike
            threads.set_threads(count)
            spent = best(lambda: mechanism.tally(KEY, False).add_many(ballots), time.perf_counter)
            wall[count] = min(wall[count], spent)
    threads.set_threads(0)
    return wall[1] / wall[2]


def study(quick: bool) -> dict[str, Any]:
    """All tables, the limits, and the fraction of them that a tally reaches."""
    threads.set_threads(1)
    scale = 10 if quick else 1
    found = limits()
    ballots = 4 * BATCH
    rate = WEIGHTS * ballots / tally_seconds(CPA(WEIGHTS, 0.5, 1.0), ballots)
    tables = {
        "users": by_users(scale),
        "dim": by_dim(scale),
        "points": by_points(scale),
        "block": by_block(scale),
    }
    return tables | {
        "exponents": exponents(tables),
        "limits": found,
        "tally_votes": rate,
        "fraction": rate / min(found.values()),
        "two_threads": two_threads(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "numpy": np.__version__,
    }


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--quick", action="store_true", help="leave out the largest sizes")
    asked.add_argument("--json", action="store_true")
    options = asked.parse_args()
    found = study(options.quick)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name in ("users", "dim", "points", "block"):
        for row in found[name]:
            print("  ".join(f"{key} {value:.4g}" for key, value in row.items()))
    print("  ".join(f"{name}: {value:.2f}" for name, value in found["exponents"].items()))
    giga = {name: value / 1e9 for name, value in found["limits"].items()}
    print("limits, G votes/s: " + ", ".join(f"{name} {value:.0f}" for name, value in giga.items()))
    print(
        f"tally N=2: {found['tally_votes'] / 1e9:.1f} G votes/s on one core, "
        f"{found['fraction']:.0%} of the lower limit"
    )
    print(f"gain of two threads: {found['two_threads']:.2f}")
    each = found["users"][-1]["tally"] / found["users"][-1]["users"]
    print(
        f"1e9 users of {WEIGHTS} weights: {1e9 * each / 3600:.2f} core hours to tally, "
        f"{1e9 * BALLOT_BYTES / 1e12:.1f} TB of ballots"
    )


if __name__ == "__main__":
    main()
