"""JoPEQ's scalar code: Laplace noise, subtractive dither, N levels.

    y = z + n,  k = clip(floor((y + d) / Delta + N/2), 0, N-1),  zhat = (k - (N-1)/2) Delta - d

with z = clip(h / scale, -1, 1), Delta = 2 gamma / N, d uniform on a cell from the shared key and
n = Lap(0, b') from private coins. "honest": b' = b = 2 / epsilon. "moment": b'² = b² - Delta²/24,
so that the total variance is 2 b²; the server knows d, so the level is 2 / b', above epsilon.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.noise import NOISE_TAG, GridNoise, noisy_steps
from hushbit.baselines.wire import SymbolWire
from hushbit.errors import InvalidInput
from hushbit.kernels.chacha import keystream
from hushbit.kernels.jit import njit
from hushbit.kernels.threads import spread
from hushbit.keys import UserKeys
from hushbit.stage import DITHER_TAG
from hushbit.tally import Counters

GRID = 2**12
TILE = 1024
WORD = 2.0**-32


def noise_left(total: float, share: float, reach: float) -> float:
    """The root s > 0 of s² = total² - share (1 + reach s)²: noise beside a cell that grows with it.

    >>> noise_left(5.0, 16.0, 0.0)
    3.0
    """
    a, b, c = 1 + share * reach**2, 2 * share * reach, share - total**2
    if c >= 0:
        raise InvalidInput(
            "mode 'moment' leaves no room for noise: the cells are too large; give more levels, "
            "a smaller gamma or a smaller epsilon_per_entry"
        )
    return (-b + math.sqrt(b * b - 4 * a * c)) / (2 * a)


@njit
def dithered_levels(
    steps: NDArray[np.int64], factor: float, dither: NDArray[np.uint32], levels: int,
    symbols: NDArray[np.uint32],
) -> int:  # fmt: skip
    """The level of each noisy entry; returns how many lay beyond the outermost cells."""
    over = 0
    for i in range(steps.size):
        shift = (np.float64(dither[i]) + 0.5) * WORD - 0.5 + 0.5 * levels
        level = np.floor(np.float64(steps[i]) * factor + shift)
        inside = min(max(level, 0.0), levels - 1.0)
        over += int(level != inside)
        symbols[i] = np.uint32(inside)
    return over


@njit
def add_dither(
    keys: NDArray[np.uint32], tag: int, first: int, last: int, sums: NDArray[np.int64]
) -> None:
    """sums += the users' dither words, tiles first … last-1."""
    words = np.empty(TILE, np.uint32)
    for tile in range(first, last):
        part = sums[tile * TILE : (tile + 1) * TILE]
        for user in range(keys.shape[0]):
            keystream(keys[user], tag, 0, 0, tile * (TILE // 16), words)
            for i in range(part.size):
                part[i] += np.int64(words[i])


@dataclass(frozen=True, eq=False)
class ScalarCode:
    """N levels for each entry."""

    dim: int
    epsilon: float
    scale: float
    levels: int
    moment: bool
    gamma_asked: float | None
    overload: float

    @property
    def wire(self) -> SymbolWire:
        """One symbol for each entry."""
        return SymbolWire(self.dim, self.levels)

    @property
    def laplace(self) -> float:
        """b = 2 / epsilon, the Laplace scale that epsilon asks for."""
        return 2 / self.epsilon

    @cached_property
    def noise_scale(self) -> float:
        """b', the Laplace scale of the noise that is added."""
        if not self.moment or math.isinf(self.epsilon):
            return self.laplace
        if self.gamma_asked is not None:
            return noise_left(self.laplace, (2 * self.gamma_asked / self.levels) ** 2 / 24, 0.0)
        cell = 2 / (self.levels - 1)
        return noise_left(self.laplace, cell**2 / 24, math.log(1 / self.overload))

    @cached_property
    def gamma(self) -> float:
        """The outer edge of the outermost cell: 1 + Delta/2 + b' ln(1/overload) unless given."""
        if self.gamma_asked is not None:
            return self.gamma_asked
        reach = 1 + self.noise_scale * math.log(1 / self.overload)
        return reach / (1 - 1 / self.levels)

    @property
    def cell(self) -> float:
        """Delta = 2 gamma / N."""
        return 2 * self.gamma / self.levels

    @cached_property
    def true_epsilon(self) -> float:
        """2 / b': what a server that knows the dither learns at most."""
        return math.inf if self.noise_scale == 0 else 2 / self.noise_scale

    @cached_property
    def noise(self) -> GridNoise:
        """The noise on the public grid."""
        return GridNoise(self.true_epsilon, 2 * GRID)

    @property
    def units(self) -> tuple[str, int]:
        """What the guarantee counts."""
        return "entry", self.dim

    @property
    def variance(self) -> float:
        """2 b'² + Delta²/12 without overload, in units of the update."""
        return (2 * self.noise_scale**2 + self.cell**2 / 12) * self.scale**2

    def cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: NDArray[np.uint8],
    ) -> int:  # fmt: skip
        """One user's levels; returns how many entries were overloaded."""
        steps = np.empty(self.dim, dtype=np.int64)
        dither = np.empty(self.dim, dtype=np.uint32)
        symbols = np.empty(self.dim, dtype=np.uint32)
        noisy_steps(update, min(GRID / self.scale, 1e300), float(GRID), self.noise.thresholds,
                    coin, NOISE_TAG, steps)  # fmt: skip
        keystream(key, DITHER_TAG, 0, 0, 0, dither)
        over: int = dithered_levels(steps, 1 / (GRID * self.cell), dither, self.levels, symbols)
        self.wire.write(symbols, row)
        return over

    def empty_counters(self) -> Counters:
        """Sums of 2 k - (N - 1), and of the dither's 32-bit words."""
        return {
            "levels": np.zeros((1, self.dim), dtype=np.int64),
            "dither": np.zeros(self.dim, dtype=np.int64),
        }

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Add levels and dither up, both whole numbers."""
        table = 2 * np.arange(self.levels, dtype=np.int64)[:, None] - (self.levels - 1)
        self.wire.add(counters["levels"], payload, table)
        sums = counters["dither"]
        spread(
            lambda first, last: add_dither(keys.keys, DITHER_TAG, first, last, sums),
            -(-self.dim // TILE),
        )

    def mean(self, counters: Counters, count: int) -> NDArray[np.float64]:
        """The mean of zhat, in units of the update."""
        level = counters["levels"][0] / (2 * count)
        dither = (counters["dither"] / count + 0.5) * WORD - 0.5
        return np.asarray(self.scale * self.cell * (level - dither), dtype=np.float64)
