"""Decoded means of baselines, drawn as one sum of many users instead of user by user.

vanilla   the mean itself
Laplace   clipped updates, and the noise of K users as one draw from its exact law: the sum of K
          Laplace variables is the difference of two Gamma(K) ones
JoPEQ     given its entry, a user's decoded value has a mean and a variance that are sums over the
          levels; of at least 100 users the sum is drawn as a Gaussian with the sums of both

The grid that the mechanisms put entries on (2^-12 of the clipping) is left out.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.jopeq import JoPEQ
from hushbit.baselines.jopeq_scalar import ScalarCode
from hushbit.baselines.wire import FLOAT_LIMIT
from hushbit.errors import InvalidInput
from hushbit.fl.mechanisms import RADIUS
from hushbit.fl.metrics import add_rows
from hushbit.fl.settings import Settings
from hushbit.kernels.jit import njit

CELLS = 2048  # of the table over [-1, 1]; the moments are smooth, and the nearest one is taken
DITHERS = 256
Floats = NDArray[np.float64]


class Plain:
    """The mean of the updates."""

    noise = None

    def __init__(self, settings: Settings, dim: int) -> None:
        self.users, self.total = settings.users, np.zeros(dim)

    def add(self, updates: NDArray[np.float32], apart: NDArray[np.bool_]) -> None:
        """Add updates up."""
        add_rows(self.total, updates, ~apart)

    def decode(self, rng: np.random.Generator) -> Floats:
        """Nothing is lost; a mean that no ballot could carry is refused, as ballots are."""
        mean = self.total / self.users
        if not np.abs(mean).max() < FLOAT_LIMIT:
            raise InvalidInput(f"entries must stay below {FLOAT_LIMIT:g} in size: lower the rate")
        return mean


class Clipped:
    """Updates clipped to [-scale, scale], plus Laplace noise of scale 2 scale / epsilon."""

    def __init__(self, settings: Settings, dim: int) -> None:
        self.users, self.total = settings.users, np.zeros(dim)
        self.scale = np.float32(settings.radius or RADIUS)
        self.laplace = 2 * float(self.scale) / float(settings.epsilon_per_bit or math.inf)
        self.noise = 2 * self.laplace**2 / self.users

    def add(self, updates: NDArray[np.float32], apart: NDArray[np.bool_]) -> None:
        """Add clipped updates up."""
        inside = np.clip(updates, -self.scale, self.scale)
        add_rows(self.total, inside, ~apart)

    def decode(self, rng: np.random.Generator) -> Floats:
        """The noisy mean."""
        up, down = rng.standard_gamma(self.users, (2, self.total.size))
        return np.asarray((self.total + self.laplace * (up - down)) / self.users)


class Levels:
    """JoPEQ's levels with the dither taken off: expected values and variances, added up."""

    def __init__(self, settings: Settings, dim: int) -> None:
        self.users = settings.users
        self.scale = settings.radius or RADIUS
        preset = settings.preset or "honest"
        code = _code(float(settings.epsilon_per_bit or 0), self.scale, settings.levels, preset)
        self.table = _table(float(settings.epsilon_per_bit or 0), settings.levels, preset)
        self.total, self.variance = np.zeros(dim), np.zeros(dim)
        self.noise = None if preset == "authors" else code.variance / self.users

    def add(self, updates: NDArray[np.float32], apart: NDArray[np.bool_]) -> None:
        """Add what is expected of each entry, and its variance."""
        add_moments(updates, 1 / self.scale, self.table, self.total, self.variance)

    def decode(self, rng: np.random.Generator) -> Floats:
        """One draw of the mean."""
        drawn = rng.standard_normal(self.total.size) * np.sqrt(self.variance)
        return np.asarray(self.scale * (self.total + drawn) / self.users)


def _code(epsilon: float, scale: float, levels: int | None, preset: str) -> ScalarCode:
    code = JoPEQ(1, epsilon, scale, levels=levels, preset=preset).code
    assert isinstance(code, ScalarCode)
    return code


@lru_cache(maxsize=16)
def _table(epsilon: float, levels: int | None, preset: str) -> NDArray[np.float32]:
    """Mean and variance of the decoded value for entries in [-1, 1], in units of the scale."""
    moments = decoded_moments(_code(epsilon, 1.0, levels, preset), np.linspace(-1, 1, CELLS + 1))
    return np.stack(moments, axis=1).astype(np.float32)


def decoded_moments(code: ScalarCode, entries: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of (k - (N-1)/2) Delta - d, over noise and dither, for clipped entries z.

    Level k is the cell of z + n + d; the outermost cells have no end. The average over d is the
    midpoint rule.
    """
    cell, middle = code.cell, (code.levels - 1) / 2
    mean, square = np.zeros_like(entries), np.zeros_like(entries)
    for dither in ((np.arange(DITHERS) + 0.5) / DITHERS - 0.5) * cell:
        below = np.zeros_like(entries)
        for level in range(code.levels):
            edge = (level + 1 - code.levels / 2) * cell - dither - entries
            last = level == code.levels - 1
            upto = np.ones_like(entries) if last else _laplace_below(edge, code.noise_scale)
            value = (level - middle) * cell - dither
            mean += (upto - below) * value
            square += (upto - below) * value**2
            below = upto
    mean, square = mean / DITHERS, square / DITHERS
    return mean, square - mean**2


def _laplace_below(x: Floats, scale: float) -> Floats:
    tail = 0.5 * np.exp(-np.abs(x) / scale)
    return np.where(x < 0, tail, 1 - tail)


def reference_moments(
    updates: NDArray[np.float32], factor: float, table: NDArray[np.float32], total: Floats,
    variance: Floats,
) -> None:  # fmt: skip
    """Add the table's rows nearest to clip(updates · factor, -1, 1), user after user."""
    half = (len(table) - 1) / 2
    nearest = ((np.clip(updates * np.float32(factor), -1, 1) + 1) * half + 0.5).astype(np.int64)
    total += table[nearest, 0].sum(axis=0, dtype=np.float64)
    variance += table[nearest, 1].sum(axis=0, dtype=np.float64)


@njit
def add_moments(
    updates: NDArray[np.float32], factor: float, table: NDArray[np.float32], total: Floats,
    variance: Floats,
) -> None:  # fmt: skip
    """As `reference_moments`, in one pass."""
    half, scale = np.float32((table.shape[0] - 1) / 2), np.float32(factor)
    one, up = np.float32(1), np.float32(0.5)
    for user in range(updates.shape[0]):
        row = updates[user]
        for i in range(row.size):
            entry = min(max(row[i] * scale, -one), one)
            nearest = int((entry + one) * half + up)
            total[i] += table[nearest, 0]
            variance[i] += table[nearest, 1]
