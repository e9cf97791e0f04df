"""The tables of QUIC-FL, found without a solver library.

A value z of a normal law cut at ±reach, a shared random column h and a symbol x are decoded to
R[x, h]. The tables minimise E[R²] subject to E[R | z] = z for every z. For given R, duality says
what to send: the symbol whose value is nearest to a companded value m(z), where m(z) is such that
the mean over h equals z; at most one column is a tie, which a private coin decides. At the best R

    R[x, h] = E[m(z) | x, h],   plus c / P[x, h] in the last row (minus in the first)

with c such that the last row averages to `reach`. Damped iteration of both steps converges; the
integrals over the normal law are exact.
"""

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hushbit.arrays import Floats
from hushbit.checks import whole
from hushbit.field.normal import below, density

EXACT_SHARE = 1 / 512
"""The paper's share of entries that lie beyond the reach and are sent as they are."""

SHARED_BITS = {1: 6, 2: 5, 3: 4, 4: 4}
"""Columns of the paper's own tables, as powers of two."""

STEPS = 5000
DAMPING = 0.3
SETTLED = 1e-9


@dataclass(frozen=True, eq=False)
class Table:
    """What a symbol means in each column, and which symbols a value may send.

    values   R[x, h]
    means    mean over columns below and above every tie, ascending: from -reach to reach
    symbols  symbol of column h between ties: symbols[k, h] below tie k
    owner    the column of tie k
    error    E[(R - z)²] over the normal law
    """

    values: Floats
    means: Floats
    symbols: NDArray[np.uint8]
    owner: NDArray[np.int64]
    reach: float
    error: float


@lru_cache(maxsize=16)
def quicfl_table(bits: int, shared_bits: int | None = None) -> Table:
    """The table for `bits` a symbol and 2^shared_bits columns (default: the paper's)."""
    rows = 2 ** whole("bits", bits, 1, 4)
    columns = 2 ** (SHARED_BITS[bits] if shared_bits is None else whole("bits", shared_bits, 0, 8))
    reach = -NormalDist().inv_cdf(EXACT_SHARE / 2)
    shares = (np.arange(columns) + 0.5) / columns - 0.5
    values = reach * (np.linspace(-1, 1, rows)[:, None] + 2 * shares / rows)
    for _ in range(STEPS):
        moved = _centres(values, reach) - values
        values = values + DAMPING * moved
        if float(np.abs(moved).max()) < SETTLED:
            break
    return _finished(values, reach)


@dataclass(frozen=True)
class _Ties:
    """All ties in ascending order of their companded value."""

    order: NDArray[np.int64]
    at: Floats
    means: Floats
    chance: Floats
    above: Floats


def _ties(values: Floats, reach: float) -> _Ties:
    """Where m(z) stands at each tie, P[z there] and P[z there and the upper symbol]."""
    columns = values.shape[1]
    middles = ((values[1:] + values[:-1]) / 2).reshape(-1)
    jumps = ((values[1:] - values[:-1]) / columns).reshape(-1)
    order = np.argsort(middles, kind="stable")
    means = values[0].mean() + np.concatenate([[0.0], np.cumsum(jumps[order])])
    edges = np.clip(means, -reach, reach)
    chance = np.diff(below(edges))
    above = (-np.diff(density(edges)) - means[:-1] * chance) / np.diff(means)
    return _Ties(order, middles[order], means, chance, above)


def _centres(values: Floats, reach: float) -> Floats:
    """R from the companded values of all z that send each symbol in each column."""
    ties = _ties(values, reach)
    rank = np.argsort(ties.order).reshape(values.shape[0] - 1, -1)
    chance = _shares(rank, ties.chance, ties.above)
    total = _shares(rank, ties.chance * ties.at, ties.above * ties.at)
    centres = total / chance
    pull = (reach - centres[-1].mean()) / (1 / chance[-1]).mean()
    centres[-1] += pull / chance[-1]
    centres[0] -= pull / chance[0]
    return np.asarray((centres - centres[::-1, ::-1]) / 2)


def _shares(rank: NDArray[np.int64], weight: Floats, above: Floats) -> Floats:
    """Weight of each symbol in each column: all ties between its own two, and its part of them."""
    running = np.concatenate([[0.0], np.cumsum(weight)])
    out = np.zeros((rank.shape[0] + 1, rank.shape[1]))
    out[1:] += above[rank] - running[rank + 1]
    out[:-1] += running[rank] + (weight - above)[rank]
    out[-1] += running[-1]
    return out


def _finished(values: Floats, reach: float) -> Table:
    ties = _ties(values, reach)
    columns = values.shape[1]
    owner = ties.order % columns
    symbols = np.zeros((len(owner) + 1, columns), dtype=np.uint8)
    for k, column in enumerate(owner):
        symbols[k + 1] = symbols[k]
        symbols[k + 1, column] += 1
    squares = np.array([(values[row, np.arange(columns)] ** 2).mean() for row in symbols])
    second = float((squares[:-1] * ties.chance + np.diff(squares) * ties.above).sum())
    edges = np.array([-reach, reach])
    power = float(np.diff(below(edges))[0] - 2 * reach * density(edges)[1])
    return Table(values, ties.means, symbols, owner, reach, second - power)
