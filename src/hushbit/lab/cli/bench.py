"""The `bench` command: votes per second next to two peers, measured in the same run.

numpy   a plain implementation: one generator per user, words by argsort, dense arrays
torch   the published implementation: a (dim × points × users) tensor of words, filled user by
        user, with the 2^R + 1 points that the published code uses for R bits
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Annotated, Any

import numpy as np
import typer

from hushbit.cpa import CPA
from hushbit.lab.cli.output import err, out, show_json, table
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey

Array = np.ndarray[Any, Any]
Job = tuple[int, Callable[[], Any]]
"""A number of votes, and the work that handles them."""

POINTS = (2, 4, 8, 16)
DIMS = (7850, 1_000_000)
SECRET = bytes(range(32))
EPSILON = 0.5
REPEATS = 5
PAUSE = 0.4  # seconds; idle OpenMP threads of torch spin for a while and slow the next job down


def measure(dim: int, points: int) -> Iterator[dict[str, Any]]:
    """Measure encode and tally for one size."""
    mechanism, key = CPA(dim, EPSILON, 1.0, points=points), RoundKey(SECRET, 0)
    few = max(1, 1_600_000 // dim)
    some = max(few, (16_000_000 if points == 2 else 2_000_000) // dim, 2)
    updates = np.linspace(-1, 1, dim, dtype=np.float32) * np.ones((some, 1), np.float32)
    keys = key.users(range(some))
    mechanism.encode_many(updates[:2], keys[:2], SeededCoins(0))  # compiles
    yield {"operation": "encode", "points": points, "dim": dim} | _rates(
        (some * dim, lambda: mechanism.encode_many(updates, keys)),
        (few * dim, partial(numpy_encode, updates[:few], points)),
        (few * dim, partial(torch_encode, updates[:few], points + 1)),
    )

    ballots = mechanism.encode_many(updates, keys, SeededCoins(1))
    mechanism.tally(key).add_many(ballots[:2])  # compiles
    count = max(240, (160_000_000 if points == 2 else 16_000_000) // dim)
    many = replace(
        ballots,
        users=np.arange(count, dtype=np.uint64),
        payload=np.resize(ballots.payload, (count, ballots.payload.shape[1])),
        overloaded=np.zeros(count, dtype=np.int64),
    )
    votes = np.random.default_rng(0).integers(0, 2, (few, dim), dtype=np.int8) * 2 - 1
    yield {"operation": "tally", "points": points, "dim": dim} | _rates(
        (count * dim, lambda: mechanism.tally(key).add_many(many)),
        (few * dim, partial(numpy_tally, votes, points)),
        (few * dim, partial(torch_tally, votes, points + 1)),
    )


def numpy_encode(updates: Array, points: int) -> Array:
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


def numpy_tally(votes: Array, points: int) -> Array:
    """The vote histogram in plain NumPy."""
    users, dim = votes.shape
    histogram = np.zeros((dim, points))
    for user in range(users):
        words = _numpy_words(np.random.default_rng(user), dim, points)
        histogram += votes[user][:, None] * words
    return histogram


def _numpy_words(rng: np.random.Generator, dim: int, points: int) -> Array:
    if points == 2:
        sign = rng.integers(0, 2, dim, dtype=np.int8) * 2 - 1
        return np.stack([sign, -sign], axis=1)
    ranks = np.argsort(rng.random((dim, points)), axis=1)
    return np.where(ranks < points // 2, 1, -1).astype(np.int8)


def torch_encode(updates: Array, points: int) -> Any:
    """The bits of every user as the published implementation computes them."""
    import torch

    users, dim = updates.shape
    p = 1 / (1 + math.exp(-EPSILON))
    grid = torch.linspace(-1, 1, points)
    words = _torch_words(dim, points, users)
    columns = torch.from_numpy(updates).T[:, None, :]
    level = (columns - grid[None, :, None]).abs().argmin(dim=1, keepdim=True)
    bits = torch.gather(words, 1, level)[:, 0, :]
    return torch.where(torch.rand(dim, users) < p, bits, -bits)


def torch_tally(votes: Array, points: int) -> Any:
    """The vote histogram as the published implementation computes it."""
    import torch

    users, dim = votes.shape
    bits = torch.from_numpy(votes).float().T.contiguous()
    return (_torch_words(dim, points, users) * bits[:, None, :]).sum(dim=2)


def _torch_words(dim: int, points: int, users: int) -> Any:
    """Words as published: for each user, an argsort of (dim × points) random numbers."""
    import torch

    base = torch.cat([torch.ones(points - points // 2), -torch.ones(points // 2)])
    words = torch.empty(users, dim, points)
    for user in range(users):
        words[user] = base[torch.argsort(torch.rand(dim, points), dim=1)]
    return words.permute(1, 2, 0).contiguous()


def _rates(hushbit: Job, numpy: Job, torch: Job) -> dict[str, float | None]:
    """Best votes per second of each job, and the ratio of hushbit to each peer.

    The jobs take turns. Figures of a peer that is not installed are None.
    """
    jobs = {"hushbit": hushbit, "numpy": numpy}
    if find_spec("torch") is not None:
        jobs["torch"] = torch
    best = dict.fromkeys(jobs, 0.0)
    for _ in range(REPEATS):
        for name, (votes, job) in jobs.items():
            time.sleep(PAUSE)
            job()  # warm-up
            start = time.perf_counter()
            job()
            best[name] = max(best[name], votes / (time.perf_counter() - start))
    ratios = {f"times_{name}": best["hushbit"] / rate for name, rate in best.items()}
    shown = ("hushbit", "numpy", "torch", "times_numpy", "times_torch")
    return {name: (best | ratios).get(name) for name in shown}


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
        for one_dim, one_points in product(dim or DIMS, points or POINTS):
            for row in measure(one_dim, one_points):
                rows.append(row)
                status.update(f"measured {row['operation']} N={row['points']} dim={row['dim']:,}")
    if json:
        show_json(rows)
        return
    shown = [
        [
            row["operation"],
            str(row["points"]),
            f"{row['dim']:,}",
            *(_millions(row[name]) for name in ("hushbit", "numpy", "torch")),
            *(_ratio(row[name]) for name in ("times_numpy", "times_torch")),
        ]
        for row in rows
    ]
    columns = ["", "N", "dim", "hushbit", "numpy", "torch", "× numpy", "× torch"]
    out.print(table("Million votes per second, best of 5", columns, shown))


def _millions(rate: float | None) -> str:
    return "not installed" if rate is None else f"{rate / 1e6:,.1f}"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:,.0f}"
