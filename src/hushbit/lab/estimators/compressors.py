"""Compressors without privacy: EDEN, QUIC-FL, QSGD, UVeQFed and top-k.

QSGD and UVeQFed entropy-code their symbols. Here they get an ideal code for the symbols of all
users of a round, and the code table is not counted.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import Floats, Ints, check_int, check_positive
from hushbit.lab.estimators import (
    FLOAT_BITS,
    MeanEstimate,
    PermutedRotation,
    check_vectors,
    entropy,
    explained_variance,
    lloyd_max_levels,
    mean_of,
    normal_cdf,
    normal_density,
)
from hushbit.lattice.lattice import Lattice, lattice

Symbols = NDArray[np.uint8]
EXACT_SHARE = 1 / 512
"""QUIC-FL's share of entries that lie beyond the table's reach and are sent as floats."""

SHARED_BITS = {1: 6, 2: 5, 3: 4, 4: 4}
"""Columns of the QUIC-FL paper's tables by bits per symbol, as powers of two."""

TABLE_STEPS = 5000
TABLE_DAMPING = 0.3
TABLE_TOLERANCE = 1e-9
MAX_QSGD_STEPS = 1 << 20
SCALE_HALVINGS = 24


@dataclass(frozen=True)
class Eden:
    """EDEN (Vargaftik et al., ICML 2022); with one bit it is DRIVE (NeurIPS 2021).

    Rotate the vector at random, round every entry to the optimal levels for a normal distribution,
    and send the levels and one scale. The scale |x|² / <Rx, Q(Rx)> makes the estimate unbiased
    over rotations, so every user needs its own rotation. This is exact for uniform rotations;
    Hadamard rotations, which the authors use too, come close for long vectors that are not
    dominated by a few entries.
    """

    bits: int

    def __post_init__(self) -> None:
        lloyd_max_levels(self.bits)

    @property
    def error(self) -> float:
        """Squared error of one user over |x|²: 1 / (1 - D) - 1 for the levels' squared error D.

        >>> abs(Eden(1).error - (math.pi / 2 - 1)) < 1e-12
        True
        """
        return 1 / explained_variance(self.bits) - 1

    def encode(self, vector: Floats, rotation: PermutedRotation) -> tuple[Symbols, float]:
        """The level of every rotated entry, and the scale that makes the estimate unbiased."""
        values = lloyd_max_levels(self.bits)
        norm = float(np.linalg.norm(vector))
        if norm == 0:
            return np.zeros(len(vector), dtype=np.uint8), 0.0
        rotated = rotation.apply(vector)
        edges = (values[1:] + values[:-1]) / 2
        levels = np.searchsorted(edges, rotated * (math.sqrt(len(vector)) / norm)).astype(np.uint8)
        return levels, norm**2 / float(rotated @ values[levels])

    def decode(self, levels: Symbols, scale: float, rotation: PermutedRotation) -> Floats:
        """Scale the levels and undo the rotation."""
        return rotation.invert(scale * lloyd_max_levels(self.bits)[levels])

    def mean_estimate(self, vectors: Any, rng: np.random.Generator) -> MeanEstimate:
        """The mean of the decoded vectors, with one rotation per user."""
        rows = check_vectors(vectors)
        dim = rows.shape[1]
        rotated = ((row, PermutedRotation(dim, rng)) for row in rows)
        decoded = (self.decode(*self.encode(row, turn), turn) for row, turn in rotated)
        return MeanEstimate(mean_of(decoded, rows), self.bits + FLOAT_BITS / dim)


@dataclass(frozen=True, eq=False)
class QuicFlTable:
    """The value of each symbol in each column, and the symbols that encode a value.

    A value z of a normal distribution cut at ±reach, a shared random column h and a symbol x
    decode to R[x, h]. A tie is a value at which one column changes its symbol; near it a private
    coin chooses between the two symbols.

    values   R[x, h]
    means    mean over columns below and above every tie, ascending from -reach to reach
    symbols  symbols[k, h] is the symbol of column h below tie k
    owner    the column of tie k
    error    E[(R - z)²] over the normal distribution
    """

    values: Floats
    means: Floats
    symbols: Symbols
    owner: Ints
    reach: float
    error: float

    @classmethod
    def from_values(cls, values: Floats, reach: float) -> "QuicFlTable":
        """The table that decodes to these values."""
        ties = _find_ties(values, reach)
        columns = values.shape[1]
        owner = ties.order % columns
        symbols = np.zeros((len(owner) + 1, columns), dtype=np.uint8)
        for k, column in enumerate(owner):
            symbols[k + 1] = symbols[k]
            symbols[k + 1, column] += 1
        squares = np.array([(values[row, np.arange(columns)] ** 2).mean() for row in symbols])
        second = float((squares[:-1] * ties.chance + np.diff(squares) * ties.above).sum())
        edges = np.array([-reach, reach])
        power = float(np.diff(normal_cdf(edges))[0] - 2 * reach * normal_density(edges)[1])
        return cls(values, ties.means, symbols, owner, reach, second - power)


@lru_cache(maxsize=16)
def quicfl_table(bits: int) -> QuicFlTable:
    """The optimal table for `bits` per symbol, with as many columns as in the paper.

    The table minimises E[R²] subject to E[R | z] = z for every z. For given R, duality gives the
    symbol to send: the one whose value is nearest to a companded value m(z), where m(z) is such
    that the mean over h equals z. At most one column is a tie. At the optimum

        R[x, h] = E[m(z) | x, h],   plus c / P[x, h] in the last row (minus in the first)

    with c such that the last row averages to `reach`. Damped iteration of both steps converges;
    the integrals over the normal distribution are exact.
    """
    rows = 2 ** check_int("bits", bits, 1, 4)
    columns = 2 ** SHARED_BITS[bits]
    reach = -NormalDist().inv_cdf(EXACT_SHARE / 2)
    shares = (np.arange(columns) + 0.5) / columns - 0.5
    values = reach * (np.linspace(-1, 1, rows)[:, None] + 2 * shares / rows)
    for _ in range(TABLE_STEPS):
        moved = _centroids(values, reach) - values
        values = values + TABLE_DAMPING * moved
        if float(np.abs(moved).max()) < TABLE_TOLERANCE:
            break
    return QuicFlTable.from_values(values, reach)


@dataclass(frozen=True)
class _Ties:
    """All ties in ascending order of their companded value `at`.

    `chance` is P[z at the tie]; `above` is P[z at the tie and the upper symbol is sent].
    """

    order: Ints
    at: Floats
    means: Floats
    chance: Floats
    above: Floats


def _find_ties(values: Floats, reach: float) -> _Ties:
    columns = values.shape[1]
    middles = ((values[1:] + values[:-1]) / 2).reshape(-1)
    jumps = ((values[1:] - values[:-1]) / columns).reshape(-1)
    order = np.argsort(middles, kind="stable")
    means = values[0].mean() + np.concatenate([[0.0], np.cumsum(jumps[order])])
    edges = np.clip(means, -reach, reach)
    chance = np.diff(normal_cdf(edges))
    above = (-np.diff(normal_density(edges)) - means[:-1] * chance) / np.diff(means)
    return _Ties(order, middles[order], means, chance, above)


def _centroids(values: Floats, reach: float) -> Floats:
    """R from the companded values of all z that send each symbol in each column."""
    ties = _find_ties(values, reach)
    rank = np.argsort(ties.order).reshape(values.shape[0] - 1, -1)
    chance = _symbol_weights(rank, ties.chance, ties.above)
    total = _symbol_weights(rank, ties.chance * ties.at, ties.above * ties.at)
    centroids = total / chance
    shift = (reach - centroids[-1].mean()) / (1 / chance[-1]).mean()
    centroids[-1] += shift / chance[-1]
    centroids[0] -= shift / chance[0]
    return np.asarray((centroids - centroids[::-1, ::-1]) / 2)


def _symbol_weights(rank: Ints, weight: Floats, above: Floats) -> Floats:
    """Weight of each symbol in each column: the ties between its own two, and its part of those."""
    running = np.concatenate([[0.0], np.cumsum(weight)])
    out = np.zeros((rank.shape[0] + 1, rank.shape[1]))
    out[1:] += above[rank] - running[rank + 1]
    out[:-1] += running[rank] + (weight - above)[rank]
    out[-1] += running[-1]
    return out


QuicFlMessage = tuple[Symbols, Ints, Floats, float]
"""Symbols of all entries, positions and values of the entries beyond the reach, the norm."""


@dataclass(frozen=True)
class QuicFl:
    """QUIC-FL (Ben Basat et al., ICML 2024): unbiased for every vector, with one inverse rotation.

    All users share one rotation. A rotated entry, in units of |x| / sqrt(dim), is sent as a float
    if it lies beyond the table's reach (one in 512 of a normal distribution), and otherwise as a
    symbol of `bits` bits, which is decoded with a column drawn from shared randomness.
    """

    bits: int

    def __post_init__(self) -> None:
        quicfl_table(self.bits)

    @property
    def table(self) -> QuicFlTable:
        """The table of the paper's size for these bits; its `error` is that of one user."""
        return quicfl_table(self.bits)

    def encode(self, rotated: Floats, column: Ints, rng: np.random.Generator) -> QuicFlMessage:
        """The message of a rotated vector; a private coin decides in the column of a tie."""
        table = self.table
        norm = float(np.linalg.norm(rotated))
        scaled = rotated * (math.sqrt(len(rotated)) / norm) if norm else rotated
        outside = np.flatnonzero(np.abs(scaled) > table.reach)
        inside = np.clip(scaled, -table.reach, table.reach)
        last = len(table.owner) - 1
        tie = np.clip(np.searchsorted(table.means, inside, side="right") - 1, 0, last)
        share = (inside - table.means[tie]) / (table.means[tie + 1] - table.means[tie])
        upper = (column == table.owner[tie]) & (rng.random(len(rotated)) < share)
        symbols = table.symbols[tie, column] + upper
        return symbols.astype(np.uint8), outside, scaled[outside], norm

    def decode(self, message: QuicFlMessage, column: Ints) -> Floats:
        """An unbiased estimate of the rotated vector."""
        symbols, exact_at, exact, norm = message
        values = self.table.values[symbols, column]
        values[exact_at] = exact
        return values * (norm / math.sqrt(len(values)))

    def mean_estimate(self, vectors: Any, rng: np.random.Generator) -> MeanEstimate:
        """The mean of the decoded vectors; the rotation is undone once."""
        rows = check_vectors(vectors)
        users, dim = rows.shape
        rotation = PermutedRotation(dim, rng)
        total, exact = np.zeros(dim), 0
        for row in rows:
            column = rng.integers(0, self.table.values.shape[1], len(row))
            message = self.encode(rotation.apply(row), column, rng)
            total += self.decode(message, column)
            exact += len(message[1])
        index_bits = max(1, math.ceil(math.log2(dim)))
        extra = exact / users * (FLOAT_BITS + index_bits) + FLOAT_BITS
        return MeanEstimate(rotation.invert(total / users), self.bits + extra / dim)


@dataclass(frozen=True)
class Qsgd:
    """QSGD (Alistarh et al., NeurIPS 2017): stochastic rounding to multiples of |x| / steps.

    Q(x_i) = |x| sign(x_i) l / s for s steps, with E[Q(x)] = x and
    E|Q(x) - x|² <= min(dim / s², sqrt(dim) / s) |x|². The paper codes the levels l with Elias
    codes, here they get an ideal code.
    """

    steps: int

    def __post_init__(self) -> None:
        check_int("steps", self.steps, 1, MAX_QSGD_STEPS)

    @classmethod
    def fitting(cls, vectors: Any, bits: float) -> "Qsgd":
        """The most steps whose levels take at most `bits` per entry of these vectors."""
        rows, limit = check_vectors(vectors), check_positive("bits", bits)
        low = 1
        while 2 * low < MAX_QSGD_STEPS and cls(2 * low).expected_entropy(rows) <= limit:
            low *= 2
        between = range(low + 1, 2 * low)
        return cls(low + bisect_right(between, limit, key=lambda n: cls(n).expected_entropy(rows)))

    def expected_entropy(self, rows: Floats) -> float:
        """Bits per entry of an ideal code for the expected counts of the levels of all rows."""
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        exact = np.abs(rows) * (self.steps / np.where(norms > 0, norms, 1.0))
        low = np.floor(exact)
        part = exact - low
        signs = np.where(rows < 0, -1, 1)
        levels = np.concatenate([(signs * low).ravel(), (signs * (low + 1)).ravel()])
        weights = np.concatenate([(1 - part).ravel(), part.ravel()])
        found, place = np.unique(levels, return_inverse=True)
        return entropy(np.asarray(np.bincount(place, weights, len(found)), dtype=np.float64))

    def encode(self, vector: Floats, rng: np.random.Generator) -> tuple[Ints, float]:
        """Signed levels, each one of the two nearest to its entry, and the norm."""
        norm = float(np.linalg.norm(vector))
        if norm == 0:
            return np.zeros(len(vector), dtype=np.int64), 0.0
        exact = np.abs(vector) * (self.steps / norm)
        levels = np.floor(exact + rng.random(len(vector)))
        return (np.sign(vector) * levels).astype(np.int64), norm

    def decode(self, levels: Ints, norm: float) -> Floats:
        """Levels times |x| / steps."""
        return np.asarray(levels * (norm / self.steps), dtype=np.float64)

    def mean_estimate(self, vectors: Any, rng: np.random.Generator) -> MeanEstimate:
        """The mean of the decoded vectors."""
        rows = check_vectors(vectors)
        messages = [self.encode(row, rng) for row in rows]
        mean = mean_of((self.decode(*message) for message in messages), rows)
        bits = _symbol_entropy([levels for levels, _ in messages])
        return MeanEstimate(mean, bits + FLOAT_BITS / rows.shape[1])


@dataclass(frozen=True)
class UVeQFed:
    """UVeQFed (Shlezinger et al., 2021): lattice quantization with subtractive dither.

    Blocks of x / |x| plus a shared dither, uniform on the lattice's cell, are rounded to the
    nearest lattice point; the server subtracts the dither. The error is uniform on the cell and
    independent of x: E|error|² = |x|² (blocks) (second moment of the cell). Lattice points get an
    ideal entropy code.
    """

    grid: Lattice

    @classmethod
    def fitting(cls, vectors: Any, bits: float, rng: np.random.Generator) -> "UVeQFed":
        """The finest hexagonal lattice whose points take at most `bits` per entry."""
        rows, limit = check_vectors(vectors), check_positive("bits", bits)
        coarse, fine = 64.0, 1e-6
        for _ in range(SCALE_HALVINGS):
            middle = (coarse * fine) ** 0.5
            tried = cls(lattice("A2").scaled(middle))
            points = [tried.encode(row, tried.draw_dither(len(row), rng))[0] for row in rows]
            fits = _symbol_entropy(points) / tried.grid.dim <= limit
            coarse, fine = (middle, fine) if fits else (coarse, middle)
        return cls(lattice("A2").scaled(coarse))

    def draw_dither(self, dim: int, shared: np.random.Generator) -> Floats:
        """One vector uniform on the cell for each block, from shared randomness."""
        return self.grid.dither(shared.random((-(-dim // self.grid.dim), self.grid.dim)))

    def encode(self, vector: Floats, dither: Floats) -> tuple[Ints, float]:
        """Coordinates of the points nearest to the blocks of x / |x| plus the dither, the norm."""
        norm = float(np.linalg.norm(vector))
        blocks = np.zeros(dither.shape)
        blocks.reshape(-1)[: len(vector)] = vector / norm if norm else 0.0
        return self.grid.nearest(blocks + dither), norm

    def decode(self, coordinates: Ints, norm: float, dither: Floats, dim: int) -> Floats:
        """Lattice points less the dither, times the norm."""
        blocks = coordinates @ self.grid.generator - dither
        return np.asarray(norm * blocks.reshape(-1)[:dim])

    def mean_estimate(self, vectors: Any, rng: np.random.Generator) -> MeanEstimate:
        """The mean of the decoded vectors."""
        rows = check_vectors(vectors)
        users, dim = rows.shape
        total, points = np.zeros(dim), []
        for row in rows:
            dither = self.draw_dither(dim, rng)
            coordinates, norm = self.encode(row, dither)
            points.append(coordinates)
            total += self.decode(coordinates, norm, dither, dim)
        bits = _symbol_entropy(points) * len(points[0]) + FLOAT_BITS
        return MeanEstimate(total / users, bits / dim)


def _symbol_entropy(symbols: list[Ints]) -> float:
    """Bits per symbol of an ideal code for the levels or lattice points of all users."""
    _, counts = np.unique(np.concatenate(symbols), axis=0, return_counts=True)
    return entropy(counts.astype(np.float64))


@dataclass(frozen=True)
class TopK:
    """Top-k: send the `kept` entries of largest magnitude as floats, and none of the others.

    Biased: its error is the power of the entries that it drops.
    """

    kept: int

    def __post_init__(self) -> None:
        check_int("kept", self.kept, 0)

    @classmethod
    def fitting(cls, dim: int, bits: float) -> "TopK":
        """The most entries that cost at most `bits` per entry of the vector.

        >>> TopK.fitting(7850, 1.0)
        TopK(kept=202)
        """
        dim, limit = check_int("dim", dim, 1), check_positive("bits", bits) * dim
        return cls(bisect_right(range(1, dim + 1), limit, key=lambda kept: cls(kept).cost(dim)))

    def cost(self, dim: int) -> float:
        """Bits of the values at 32 each, and log2 C(dim, kept) bits for their positions."""
        ways = math.lgamma(dim + 1) - math.lgamma(self.kept + 1) - math.lgamma(dim - self.kept + 1)
        return FLOAT_BITS * self.kept + ways / math.log(2)

    def encode(self, vector: Floats) -> tuple[Ints, NDArray[np.float32]]:
        """Positions and values of the entries of largest magnitude."""
        places = np.sort(np.argsort(-np.abs(vector), kind="stable")[: self.kept])
        return places, vector[places].astype(np.float32)

    def decode(self, places: Ints, values: NDArray[np.float32], dim: int) -> Floats:
        """The sent entries; all others are zero."""
        out = np.zeros(dim)
        out[places] = values
        return out

    def mean_estimate(self, vectors: Any) -> MeanEstimate:
        """The mean of the decoded vectors; nothing is drawn at random."""
        rows = check_vectors(vectors)
        dim = rows.shape[1]
        check_int("kept", self.kept, 1, dim)
        decoded = (self.decode(*self.encode(row), dim) for row in rows)
        return MeanEstimate(mean_of(decoded, rows), self.cost(dim) / dim)
