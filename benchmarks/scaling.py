"""How encode and tally grow with users, dim, points N and block size L, and how near the limit.

    python benchmarks/scaling.py [--quick] [--json]

The limit of a tally of N = 2 is measured in the same run: each vote is one bit read from memory
and one bit of keystream, so no program counts faster than memory is read (eight votes a byte) or
than the best ChaCha20 at hand (OpenSSL's, through `cryptography`) makes keystream. Times are CPU
seconds of one thread, best of several, so that other programs disturb them little; the gain of
two threads is in wall time and needs two idle cores.
"""

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hushbit import CPA, RoundKey
from hushbit.ballot import Ballots
from hushbit.coins import SeededCoins
from hushbit.kernels import threads

KEY = RoundKey(bytes(range(32)), 0)
REPEATS = 5
LATTICES = {1: "Z", 2: "A2", 4: "D4", 8: "E8"}


def best(run: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """Least seconds of a few runs after one that compiles."""
    run()
    spent = []
    for _ in range(REPEATS):
        begun = clock()
        run()
        spent.append(clock() - begun)
    return max(min(spent), 1e-9)


def ballots_of(mechanism: CPA, users: int) -> Ballots:
    """As many ballots as asked for; the bits of a few repeat under new user numbers."""
    few = min(users, 16)
    updates = np.linspace(-1, 1, mechanism.dim, dtype=np.float32) * np.ones((few, 1), np.float32)
    made = mechanism.encode_many(updates * 0.5, KEY.users(range(few)), SeededCoins(1))
    payload = np.resize(made.payload, (users, made.payload.shape[1]))
    return Ballots(made.fingerprint, 0, made.bits, np.arange(users, dtype=np.uint64), payload,
                   np.zeros(users, dtype=np.int64))  # fmt: skip


def tally_seconds(mechanism: CPA, users: int, clock: Callable[[], float]) -> float:
    """Seconds to count so many ballots."""
    ballots = ballots_of(mechanism, users)
    return best(lambda: mechanism.tally(KEY, False).add_many(ballots), clock)


def encode_seconds(mechanism: CPA, users: int) -> float:
    """CPU seconds to cast so many ballots."""
    updates = np.full((users, mechanism.dim), 0.3, dtype=np.float32)
    keys = KEY.users(range(users))
    return best(lambda: mechanism.encode_many(updates, keys, SeededCoins(1)))


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The p of seconds ~ size^p by least squares of logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def limits() -> dict[str, float]:
    """Votes a second that memory and keystream allow one core."""
    data = np.ones(32 << 20, dtype=np.uint64)
    memory = 8 * data.nbytes / best(lambda: np.bitwise_or.reduce(data))
    found = {"memory_votes": memory}
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ImportError:
        return found
    zeros, out = bytes(1 << 20), bytearray(1 << 20)
    cipher = Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), None).encryptor()
    made = best(lambda: [cipher.update_into(zeros, out) for _ in range(64)])
    return found | {"keystream_votes": 8 * 64 * len(zeros) / made}


def study(quick: bool) -> dict[str, Any]:
    """All tables."""
    threads.set_threads(1)
    scale = 10 if quick else 1
    users = [n // scale for n in (1000, 10_000, 100_000)]
    dims = [n // scale for n in (10_000, 100_000, 1_000_000, 10_000_000)]
    small = CPA(10_000 // scale, 0.5, 1.0)
    tables: dict[str, Any] = {"users": [], "dim": [], "points": [], "block": []}
    for count in users:
        seconds = tally_seconds(small, count, time.process_time)
        tables["users"].append({"users": count, "dim": small.dim, "tally": seconds})
    for dim in dims:
        mechanism, many = CPA(dim, 0.5, 1.0), max(16, 160_000_000 // scale // dim)
        few = max(2, 8_000_000 // scale // dim)
        tables["dim"].append({
            "dim": dim, "users": many,
            "tally": tally_seconds(mechanism, many, time.process_time) / many,
            "encode": encode_seconds(mechanism, few) / few,
        })  # fmt: skip
    for points in (2, 4, 8, 16):
        mechanism = CPA(100_000 // scale, 0.5, 1.0, points=points)
        tables["points"].append({
            "points": points, "tally": tally_seconds(mechanism, 200, time.process_time) / 200,
            "encode": encode_seconds(mechanism, 20) / 20,
        })  # fmt: skip
    for size, lattice in LATTICES.items():
        mechanism = CPA(100_000 // scale, 0.5, 1.0, points=16, lattice=lattice)
        tables["block"].append({
            "block": size, "tally": tally_seconds(mechanism, 100, time.process_time) / 100,
            "encode": encode_seconds(mechanism, 4) / 4,
        })  # fmt: skip
    return tables | judged(tables, small.dim, users[-1])


def judged(tables: dict[str, Any], dim: int, users: int) -> dict[str, Any]:
    """Exponents, fraction of the limit, and the gain of a second thread."""
    found = limits()
    mechanism = CPA(dim, 0.5, 1.0)
    rate = dim * users / tally_seconds(mechanism, users, time.process_time)
    wall = []
    for count in (1, 2):
        threads.set_threads(count)
        wall.append(tally_seconds(mechanism, users, time.perf_counter))
    threads.set_threads(0)
    column = {
        name: [row[name] for row in tables[name]] for name in ("users", "dim", "points", "block")
    }
    exponents = {f"tally in {name}": exponent(column[name], [row["tally"] for row in tables[name]])
                 for name in column}  # fmt: skip
    exponents |= {f"encode in {name}": exponent(column[name], [r["encode"] for r in tables[name]])
                  for name in ("dim", "points", "block")}  # fmt: skip
    return {
        "exponents": exponents, "limits": found, "tally_votes": rate,
        "fraction": rate / min(found.values()), "two_threads": wall[0] / wall[1],
        "python": platform.python_version(), "machine": platform.machine(),
        "numpy": np.__version__,
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--quick", action="store_true", help="a tenth of every size")
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
    print(f"tally N=2: {found['tally_votes'] / 1e9:.1f} G votes/s on one core, "
          f"{found['fraction']:.0%} of the lower limit; two threads: "
          f"{found['two_threads']:.2f} times one")  # fmt: skip
    hours = 1e9 * 7850 / found["tally_votes"] / 3600
    print(f"1e9 users of 7 850 weights: {hours:.1f} core hours to tally, "
          f"{math.ceil(1e9 * 1022 / 1e12)} TB of ballots")  # fmt: skip


if __name__ == "__main__":
    main()
