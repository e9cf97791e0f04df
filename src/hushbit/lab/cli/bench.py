"""The `bench` command: votes per second next to two peers, measured in the same run.

numpy   a plain implementation: one generator per user, words by argsort, dense arrays
torch   the published implementation: a (dim × points × users) tensor of words, filled user by
        user, with the 2^R + 1 points that the published code uses for R bits
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import typer

from hushbit.cpa import CPA
from hushbit.lab.cli.output import err, out, show_json, table
from hushbit.wire.ballot import Ballots
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey

POINTS = (2, 4, 8, 16)
DIMS = (7850, 1_000_000)
SECRET = bytes(range(32))
EPSILON = 0.5
REPEATS = 5
PAUSE = 0.4  # seconds; idle OpenMP threads of torch spin for a while and slow the next job down


@dataclass(frozen=True)
class Speed:
    """Votes per second of one operation; None for a peer that is not installed."""

    operation: str
    points: int
    dim: int
    hushbit: float
    numpy: float | None
    torch: float | None

    def row(self) -> dict[str, Any]:
        """The figures, and the ratio of hushbit to each peer."""
        ratios = {
            f"times_{peer}": None if rate is None else self.hushbit / rate
            for peer, rate in (("numpy", self.numpy), ("torch", self.torch))
        }
        return asdict(self) | ratios


def measure(dims: tuple[int, ...] = DIMS, points: tuple[int, ...] = POINTS) -> Iterator[Speed]:
    """Measure encode and tally for every size: the best of a few interleaved repeats."""
    for dim in dims:
        few = max(1, 1_600_000 // dim)
        for count in points:
            mechanism, key = CPA(dim, EPSILON, 1.0, points=count), RoundKey(SECRET, 0)
            yield from _measure_one(mechanism, key, count, few)


def _measure_one(mechanism: CPA, key: RoundKey, points: int, few: int) -> Iterator[Speed]:
    dim = mechanism.dim
    some = max(few, (16_000_000 if points == 2 else 2_000_000) // dim, 2)
    updates = np.linspace(-1, 1, dim, dtype=np.float32) * np.ones((some, 1), np.float32)
    keys = key.users(range(some))
    mechanism.encode_many(updates[:2], keys[:2], SeededCoins(0))  # compiles

    yield Speed(
        "encode",
        points,
        dim,
        *_rates(
            [
                (some * dim, lambda: mechanism.encode_many(updates, keys)),
                (few * dim, lambda: numpy_encode(updates[:few], points)),
                (few * dim, _torch_encode(updates[:few], points + 1)),
            ]
        ),
    )

    ballots = mechanism.encode_many(updates, keys, SeededCoins(1))
    mechanism.tally(key).add_many(ballots[:2])
    many = _repeated(ballots, max(240, (160_000_000 if points == 2 else 16_000_000) // dim))
    votes = _numpy_votes(few, dim)
    yield Speed(
        "tally",
        points,
        dim,
        *_rates(
            [
                (len(many) * dim, lambda: mechanism.tally(key).add_many(many)),
                (few * dim, lambda: numpy_tally(votes, points)),
                (few * dim, _torch_tally(votes, points + 1)),
            ]
        ),
    )


def _repeated(ballots: Ballots, count: int) -> Ballots:
    """`count` ballots with the same bits repeated, under new user numbers."""
    payload = np.resize(ballots.payload, (count, ballots.payload.shape[1]))
    users = np.arange(count, dtype=np.uint64)
    return Ballots(
        ballots.fingerprint,
        ballots.round,
        ballots.bits,
        users,
        payload,
        np.zeros(count, dtype=np.int64),
    )


def numpy_encode(updates: np.ndarray[Any, Any], points: int) -> np.ndarray[Any, Any]:
    """The bits of every user in plain NumPy."""
    users, dim = updates.shape
    p = 1 / (1 + math.exp(-EPSILON))
    out = np.empty((users, dim), dtype=np.int8)
    for user in range(users):
        shared, private = np.random.default_rng(user), np.random.default_rng([user, 1])
        place = (updates[user] + 1) / 2 * (points - 1)
        level = np.floor(place + private.random(dim)).astype(np.int64).clip(0, points - 1)
        words = _numpy_words(shared, dim, points)
        bits = words[np.arange(dim), level]
        out[user] = np.where(private.random(dim) < p, bits, -bits)
    return out


def numpy_tally(votes: np.ndarray[Any, Any], points: int) -> np.ndarray[Any, Any]:
    """The vote histogram in plain NumPy."""
    users, dim = votes.shape
    histogram = np.zeros((dim, points))
    for user in range(users):
        words = _numpy_words(np.random.default_rng(user), dim, points)
        histogram += votes[user][:, None] * words
    return histogram


def _numpy_words(rng: np.random.Generator, dim: int, points: int) -> np.ndarray[Any, Any]:
    if points == 2:
        sign = rng.integers(0, 2, dim, dtype=np.int8) * 2 - 1
        return np.stack([sign, -sign], axis=1)
    ranks = np.argsort(rng.random((dim, points)), axis=1)
    return np.where(ranks < points // 2, 1, -1).astype(np.int8)


def _numpy_votes(users: int, dim: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 2, (users, dim), dtype=np.int8) * 2 - 1


def _torch_words(torch: Any, dim: int, points: int, users: int) -> Any:
    """Words as published: for each user, an argsort of (dim × points) random numbers."""
    base = torch.cat([torch.ones(points - points // 2), -torch.ones(points // 2)])
    words = torch.empty(users, dim, points)
    for user in range(users):
        words[user] = base[torch.argsort(torch.rand(dim, points), dim=1)]
    return words.permute(1, 2, 0).contiguous()


def _torch_encode(updates: np.ndarray[Any, Any], points: int) -> Callable[[], Any] | None:
    torch = _torch()
    if torch is None:
        return None
    tensor = torch.from_numpy(updates.copy())

    def run() -> Any:
        users, dim = tensor.shape
        p = 1 / (1 + math.exp(-EPSILON))
        grid = torch.linspace(-1, 1, points)
        words = _torch_words(torch, dim, points, users)
        level = (tensor.T[:, None, :] - grid[None, :, None]).abs().argmin(dim=1, keepdim=True)
        bits = torch.gather(words, 1, level)[:, 0, :]
        return torch.where(torch.rand(dim, users) < p, bits, -bits)

    return run


def _torch_tally(votes: np.ndarray[Any, Any], points: int) -> Callable[[], Any] | None:
    torch = _torch()
    if torch is None:
        return None
    bits = torch.from_numpy(votes.astype(np.float32)).T.contiguous()

    def run() -> Any:
        dim, users = bits.shape
        words = _torch_words(torch, dim, points, users)
        return (words * bits[:, None, :]).sum(dim=2)

    return run


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _rates(jobs: list[tuple[int, Callable[[], Any] | None]]) -> list[Any]:
    """Best votes per second of each job; the jobs take turns."""
    best: list[Any] = [None] * len(jobs)
    for _ in range(REPEATS):
        for number, (votes, job) in enumerate(jobs):
            if job is None:
                continue
            time.sleep(PAUSE)
            job()  # warm-up
            start = time.perf_counter()
            job()
            rate = votes / (time.perf_counter() - start)
            best[number] = rate if best[number] is None else max(best[number], rate)
    return best


def bench(
    dim: Annotated[
        list[int] | None,
        typer.Option(help="Entries of an update; may be repeated; default: 7850 and 1000000."),
    ] = None,
    points: Annotated[
        list[int] | None,
        typer.Option(help="Points of the quantizer; may be repeated; default: 2, 4, 8, 16."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure votes per second, compared with NumPy and the published torch implementation."""
    rows = []
    with err.status("compiling kernels") as status:
        for speed in measure(tuple(dim or DIMS), tuple(points or POINTS)):
            rows.append(speed.row())
            status.update(f"measured {speed.operation} N={speed.points} dim={speed.dim:,}")
    if json:
        show_json(rows)
        return
    out.print(
        table(
            "Million votes per second, best of 5",
            ["", "N", "dim", "hushbit", "numpy", "torch", "× numpy", "× torch"],
            [
                [
                    row["operation"],
                    str(row["points"]),
                    f"{row['dim']:,}",
                    _millions(row["hushbit"]),
                    _millions(row["numpy"]),
                    _millions(row["torch"]),
                    _ratio(row["times_numpy"]),
                    _ratio(row["times_torch"]),
                ]
                for row in rows
            ],
        )
    )


def _millions(rate: float | None) -> str:
    return "not installed" if rate is None else f"{rate / 1e6:,.1f}"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:,.0f}"
