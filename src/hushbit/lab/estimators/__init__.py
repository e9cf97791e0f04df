"""Compressors and private mean estimators of other papers, for comparison only.

Written from the definitions in the papers. Every class has `mean_estimate(vectors, rng)`, which
encodes the vectors of all users, decodes them as the server does and returns a `MeanEstimate`.
They are not mechanisms: they draw from a NumPy generator, so none of them may be deployed.

    compressors       without privacy: Eden, QuicFl, Qsgd, UVeQFed, TopK
    private_vectors   pure epsilon for a vector of l2 norm at most 1: PrivUnitG, PrivHS, Sqkr
    secure_sums       (epsilon, delta) against those who see only the sum: DiscreteGaussianSum,
                      SkellamSum, PoissonBinomial

This module holds what they share: the result, checks of vectors, code lengths, the normal
distribution with its optimal quantizer, and a random rotation.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import Floats, check_finite, check_int
from hushbit.encoding.clip_and_rotate import Rotation
from hushbit.errors import InvalidInput

FLOAT_BITS = 32
LLOYD_STEPS = 20_000
LLOYD_TOLERANCE = 1e-13
ROTATION_PASSES = 2


@dataclass(frozen=True)
class MeanEstimate:
    """The server's estimate of the mean, and the bits sent per entry of a user's vector."""

    mean: Floats
    bits_per_entry: float


def check_vectors(vectors: Any) -> Floats:
    """Finite vectors of shape (users, dim)."""
    rows = check_finite("vectors", vectors)
    if rows.ndim != 2:
        raise InvalidInput(f"vectors have shape {rows.shape}; the shape must be (users, dim)")
    return rows


def check_unit_ball(vectors: Any) -> Floats:
    """Finite vectors of shape (users, dim) whose l2 norms are at most 1."""
    rows = check_vectors(vectors)
    longest = float(np.linalg.norm(rows, axis=1).max())
    if longest > 1 + 1e-9:
        raise InvalidInput(
            f"a vector has l2 norm {longest:.6g}; the norm must be at most 1: scale the vectors"
        )
    return rows


def mean_of(decoded: Iterable[Floats], rows: Floats) -> Floats:
    """The mean of what the server decodes from the vectors in `rows`, added one by one."""
    return np.asarray(sum(decoded) / len(rows))


def entropy(counts: NDArray[np.floating]) -> float:
    """Bits per symbol of an ideal code for symbols with these counts: -sum p log2 p."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def normal_cdf(x: Floats) -> Floats:
    """P[Z <= x] for every entry, Z standard normal."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x.reshape(-1)])


def normal_density(x: Floats) -> Floats:
    """exp(-x²/2) / sqrt(2 pi)."""
    return np.asarray(np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


@lru_cache(maxsize=8)
def lloyd_max_levels(bits: int) -> Floats:
    """The 2^bits levels of least squared error for N(0, 1) (Lloyd and Max).

    Every level is the mean of the values that are nearest to it.

    >>> lloyd_max_levels(1).round(4).tolist()
    [-0.7979, 0.7979]
    """
    count = 2 ** check_int("bits", bits, 1, 6)
    levels = np.linspace(-2.0, 2.0, count)
    for _ in range(LLOYD_STEPS):
        edges = _cell_edges(levels)
        new = -np.diff(normal_density(edges)) / np.diff(normal_cdf(edges))
        moved = float(np.abs(new - levels).max())
        levels = (new - new[::-1]) / 2
        if moved < LLOYD_TOLERANCE:
            break
    levels.setflags(write=False)
    return levels


def explained_variance(bits: int) -> float:
    """1 - D for the squared error D of the Lloyd-Max levels on N(0, 1): E[level²]."""
    levels = lloyd_max_levels(bits)
    return float((levels**2 * np.diff(normal_cdf(_cell_edges(levels)))).sum())


def _cell_edges(levels: Floats) -> Floats:
    return np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])


class PermutedRotation:
    """A random rotation of vectors of length `dim`, after which no part is heavier than another.

    The papers pad a vector to a power of two and apply a Hadamard transform with random signs.
    Here a random permutation and the rotation of `encoding.clip_and_rotate` are applied, twice:
    any length works without padding, which saves the schemes bits.
    """

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self._passes = [
            (rng.permutation(dim), Rotation(dim, rng.bytes(32))) for _ in range(ROTATION_PASSES)
        ]

    def apply(self, vector: Floats) -> Floats:
        """Rotate one vector."""
        rotated = np.asarray(vector, dtype=np.float64)
        for order, rotation in self._passes:
            rotated = np.asarray(rotation.apply(rotated[order][None])[0], dtype=np.float64)
        return rotated

    def invert(self, rotated: Floats) -> Floats:
        """Undo `apply`."""
        for order, rotation in reversed(self._passes):
            restored = np.empty(len(rotated))
            restored[order] = rotation.invert(rotated)
            rotated = restored
        return rotated
