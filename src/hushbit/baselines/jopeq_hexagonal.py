"""JoPEQ's hexagonal code: pairs of entries, t-distributed noise, Voronoi dither, N points of A2.

Pairs are clipped to the unit disc (after division by `scale`), so two inputs are D = 2 apart at
most. The bivariate t with nu degrees of freedom and scale sigma hides that at level

    eps = (nu + 2) asinh(D / (2 sigma sqrt(nu)))

and its radius is drawn in closed form, r = sigma sqrt(nu (U^(-2/nu) - 1)). "moment" mode takes
((nu-2)/nu) times the cell's variance off sigma². The code's N points are those of least norm;
what falls outside their cells goes to the nearest of them. The noise is drawn in floating point:
only one of N symbols leaves, so its last bits are not seen.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.entries import purpose
from hushbit.baselines.hexagonal import add_hex_dither, codebook, hex_symbols, lookup_table
from hushbit.baselines.jopeq_scalar import TILE, WORD, noise_left
from hushbit.baselines.wire import SymbolWire
from hushbit.kernels.chacha import keystream
from hushbit.kernels.threads import spread
from hushbit.keys import UserKeys
from hushbit.stage import DITHER_TAG
from hushbit.tally import Counters

T_TAG = purpose("t-no")
DISTANCE = 2.0
CELL_VARIANCE = 5 / 72  # of each coordinate, for a lattice of least distance 1
COVERING = 3**-0.5


def t_epsilon(sigma: float, degrees: float, distance: float = DISTANCE) -> float:
    """The level at which the bivariate t hides two points a distance apart.

    >>> round(t_epsilon(sigma=1.0, degrees=12, distance=1.0), 3)
    2.014
    """
    return (degrees + 2) * math.asinh(distance / (2 * sigma * math.sqrt(degrees)))


def t_sigma(epsilon: float, degrees: float, distance: float = DISTANCE) -> float:
    """The scale of the bivariate t that hides a distance at level epsilon."""
    return distance / (2 * math.sqrt(degrees) * math.sinh(epsilon / (degrees + 2)))


def best_degrees(epsilon: float) -> float:
    """The nu (a multiple of 1/2) for which noise of level epsilon has the least variance."""
    choices = [2.5 + 0.5 * i for i in range(200)]
    return min(choices, key=lambda nu: t_sigma(epsilon, nu) ** 2 * nu / (nu - 2))


@dataclass(frozen=True, eq=False)
class HexagonalCode:
    """N points of a hexagonal lattice for each pair of entries."""

    dim: int
    epsilon: float
    scale: float
    levels: int
    moment: bool
    gamma_asked: float | None
    overload: float

    @property
    def blocks(self) -> int:
        """Pairs of an update; an odd last entry is paired with zero."""
        return (self.dim + 1) // 2

    @property
    def wire(self) -> SymbolWire:
        """One symbol for each pair."""
        return SymbolWire(self.blocks, self.levels)

    @cached_property
    def degrees(self) -> float:
        """nu."""
        return best_degrees(self.epsilon)

    @cached_property
    def _spread(self) -> float:
        """Least distance of the lattice when N cells have the area of a disc of radius 1."""
        return math.sqrt(2 * math.pi / (math.sqrt(3) * self.levels))

    @cached_property
    def _reach(self) -> float:
        """Radius that the noise exceeds with the target probability, over sigma."""
        return math.sqrt(self.degrees * (self.overload ** (-2 / self.degrees) - 1))

    @cached_property
    def noise_scale(self) -> float:
        """sigma of the noise that is added."""
        sigma = t_sigma(self.epsilon, self.degrees)
        if not self.moment:
            return sigma
        share = (self.degrees - 2) / self.degrees * CELL_VARIANCE * self._spread**2
        if self.gamma_asked is not None:
            return noise_left(sigma, share * self.gamma_asked**2, 0.0)
        return noise_left(sigma, share / (1 - COVERING * self._spread) ** 2, self._reach)

    @cached_property
    def gamma(self) -> float:
        """Radius of the disc that has the area of all cells."""
        if self.gamma_asked is not None:
            return self.gamma_asked
        return (1 + self._reach * self.noise_scale) / (1 - COVERING * self._spread)

    @property
    def cell(self) -> float:
        """Least distance of the lattice."""
        return self.gamma * self._spread

    @cached_property
    def true_epsilon(self) -> float:
        """The level of the noise alone: the server knows the dither."""
        return t_epsilon(self.noise_scale, self.degrees)

    @property
    def units(self) -> tuple[str, int]:
        """What the guarantee counts."""
        return "block", self.blocks

    @property
    def variance(self) -> float:
        """sigma'² nu / (nu - 2) plus the cell's variance, without overload."""
        noise = self.noise_scale**2 * self.degrees / (self.degrees - 2)
        return (noise + CELL_VARIANCE * self.cell**2) * self.scale**2

    @cached_property
    def points(self) -> NDArray[np.int64]:
        """Integer coordinates of the code's points."""
        return codebook(self.levels)

    @cached_property
    def _lookup(self) -> NDArray[np.int64]:
        return lookup_table(self.points)

    def cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: NDArray[np.uint8],
    ) -> int:  # fmt: skip
        """One user's points; returns how many pairs were overloaded."""
        pairs = np.zeros((self.blocks, 2))
        pairs.reshape(-1)[: self.dim] = update
        symbols = np.empty(self.blocks, dtype=np.uint32)
        dither = np.empty(2 * self.blocks, dtype=np.uint32)
        coins = np.empty(4 * self.blocks, dtype=np.uint32)
        keystream(key, DITHER_TAG, 0, 0, 0, dither)
        keystream(coin, T_TAG, 0, 0, 0, coins)
        over: int = hex_symbols(
            pairs, self.scale, self.cell, self.noise_scale, self.degrees, coins, dither,
            self.points, self._lookup, symbols,
        )  # fmt: skip
        self.wire.write(symbols, row)
        return over

    def empty_counters(self) -> Counters:
        """Sums of lattice coordinates, of the points and of the dither in units of 2^-32."""
        return {name: np.zeros((2, self.blocks), dtype=np.int64) for name in ("levels", "dither")}

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Add points and dither up, both whole numbers."""
        self.wire.add(counters["levels"], payload, self.points)
        sums = counters["dither"]
        spread(
            lambda first, last: add_hex_dither(keys.keys, DITHER_TAG, TILE, first, last, sums),
            -(-self.blocks // TILE),
        )

    def mean(self, counters: Counters, count: int) -> NDArray[np.float64]:
        """The mean of point less dither, in units of the update."""
        first, second = (counters["levels"] - counters["dither"] * WORD) / count
        places = np.stack([first + 0.5 * second, math.sqrt(0.75) * second], axis=1)
        return np.asarray(self.scale * self.cell * places.reshape(-1)[: self.dim], dtype=np.float64)
