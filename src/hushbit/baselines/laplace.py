"""The Laplace mechanism: entries on a public grid plus two-sided geometric noise.

    z = clip(h / scale, -1, 1);   sent: z + Lap(0, 2 / epsilon), as a whole number of grid steps

Each entry has local privacy epsilon and variance 8 scale² / epsilon².
"""

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.entries import PRESETS, Baseline, plain
from hushbit.baselines.noise import NOISE_TAG, GridNoise, noisy_steps
from hushbit.baselines.wire import FloatWire, IntegerWire
from hushbit.checks import choice, positive, whole
from hushbit.decode import Estimate, check_counted
from hushbit.errors import InvalidInput
from hushbit.keys import UserKeys
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally import Counters, Tally

GRID = 2**12
FINE_GRID = 2**20


class Laplace(Baseline):
    """Laplace noise on every entry, each with local privacy `epsilon_per_entry`.

    dim                entries of an update
    epsilon_per_entry  level of one entry; math.inf switches the noise off
    scale              entries are clipped to [-scale, scale]
    preset             "honest", or "authors": as published, noise relative to each user's own
                       standard deviation in each layer, no clipping, hence no finite epsilon
    layers             for "authors": how many entries each layer has (default: one layer)

    >>> Laplace(dim=7850, epsilon_per_entry=0.5, scale=0.05).guarantee.epsilon_per_message()
    3925.0
    """

    def __init__(
        self, dim: int, epsilon_per_entry: float, scale: float | None = None, *,
        preset: str = "honest", layers: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        self.dim = whole("dim", dim, 1)
        self.epsilon = positive("epsilon_per_entry", epsilon_per_entry, infinite=True)
        self.preset = choice("preset", preset, PRESETS)
        if self.preset == "authors" and scale is not None:
            raise InvalidInput("preset 'authors' finds its own scale in each update: drop scale")
        if self.preset == "honest" and layers is not None:
            raise InvalidInput("layers belong to preset 'authors': drop them")
        self.scale = None if self.preset == "authors" else positive("scale", scale)
        self.layers = _layers(self.dim, layers)
        self.noise = GridNoise(self.epsilon, 2 * GRID)
        self.wire: FloatWire | IntegerWire = (
            IntegerWire(self.dim) if self.preset == "honest" else FloatWire(self.dim)
        )

    @property
    def description(self) -> dict[str, Any]:
        """Name and parameters."""
        return {
            "mechanism": "Laplace", "dim": self.dim, "epsilon_per_entry": plain(self.epsilon),
            "scale": self.scale, "preset": self.preset,
            "layers": list(self.layers) if self.preset == "authors" else None,
        }  # fmt: skip

    @cached_property
    def guarantee(self) -> Guarantee:
        """Epsilon for each entry; infinite as published."""
        if self.preset == "authors":
            note = "without clipping, and with each user's mean and deviation in clear"
            return self.promise(math.inf, self.dim, note=note)
        return self.promise(self.epsilon, self.dim)

    def cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: NDArray[np.uint8],
    ) -> int:  # fmt: skip
        """Noisy entries of one user."""
        steps = np.empty(self.dim, dtype=np.int64)
        if isinstance(self.wire, FloatWire):
            noisy_steps(np.zeros(self.dim), 1.0, 1.0, self.noise.thresholds, coin, NOISE_TAG, steps)
            self.wire.write(update, row)  # refuses an update that is too large to work with
            self.wire.write(update + self._spreads(update) * (steps / GRID), row)
            return 0
        clipped: int = noisy_steps(
            update, _ratio(GRID, self.scale), float(GRID), self.noise.thresholds, coin, NOISE_TAG,
            steps,
        )  # fmt: skip
        self.wire.write(steps, row)
        return clipped

    def _spreads(self, update: NDArray[np.floating]) -> NDArray[np.float64]:
        """Three standard deviations of the layer that an entry belongs to."""
        edges = np.cumsum(self.layers)[:-1]
        spreads = [3.0 * float(np.std(part, dtype=np.float64)) for part in np.split(update, edges)]
        return np.repeat(spreads, self.layers)

    def empty_counters(self, histogram: bool) -> Counters:
        """Exact sums."""
        return {"sum": self.wire.empty()}

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Add the noisy entries up."""
        self.wire.add(counters["sum"], payload)

    def estimate(self, tally: Tally) -> Estimate:
        """The mean of the clipped updates; variance unknown (NaN) as published."""
        check_counted(tally, self)
        total = tally.counters["sum"]
        if isinstance(self.wire, FloatWire) or self.scale is None:
            mean, variance = FloatWire(self.dim).total(total), math.nan
        else:
            mean = total.astype(np.float64) * (self.scale / GRID)
            variance = (self.noise.variance + 0.25) * (self.scale / GRID) ** 2
        return Estimate(
            mean / tally.count, np.full(self.dim, variance / tally.count), tally.count,
            unbiased=True,
        )  # fmt: skip


class WholeLaplace(Baseline):
    """Laplace noise for the update as a whole: l1 clip C, noise Lap(2 C / epsilon).

    dim                  entries of an update
    epsilon_per_message  level of the whole update; math.inf switches the noise off
    l1_clip              updates of a larger l1 norm are scaled down to it

    >>> WholeLaplace(dim=10, epsilon_per_message=4.0, l1_clip=1.0).guarantee.epsilon_per_message()
    4.0
    """

    def __init__(self, dim: int, epsilon_per_message: float, l1_clip: float) -> None:
        self.dim = whole("dim", dim, 1)
        self.epsilon = positive("epsilon_per_message", epsilon_per_message, infinite=True)
        self.l1_clip = positive("l1_clip", l1_clip)
        # Rounding to the grid may move each of two updates' entries one step further apart.
        self.noise = GridNoise(self.epsilon, 2 * FINE_GRID + self.dim)
        self.wire: IntegerWire = IntegerWire(self.dim)

    @property
    def description(self) -> dict[str, Any]:
        """Name and parameters."""
        return {
            "mechanism": "WholeLaplace", "dim": self.dim,
            "epsilon_per_message": plain(self.epsilon), "l1_clip": self.l1_clip,
        }  # fmt: skip

    @cached_property
    def guarantee(self) -> Guarantee:
        """Epsilon for the whole message."""
        return self.promise(self.epsilon, 1, unit="message")

    def cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: NDArray[np.uint8],
    ) -> int:  # fmt: skip
        """Noisy entries of one user; counts all entries when the update was scaled down."""
        peak = float(np.abs(update).max()) or 1.0
        shape = update.astype(np.float64) / peak  # so that no sum overflows
        norm, clip = float(np.abs(shape).sum()) * (1 + 1e-9), self.l1_clip / peak
        steps = np.empty(self.dim, dtype=np.int64)
        noisy_steps(
            shape, FINE_GRID / max(norm, clip), float(FINE_GRID), self.noise.thresholds, coin,
            NOISE_TAG, steps,
        )  # fmt: skip
        self.wire.write(steps, row)
        return self.dim if norm > clip else 0

    def empty_counters(self, histogram: bool) -> Counters:
        """Exact sums."""
        return {"sum": self.wire.empty()}

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Add the noisy entries up."""
        self.wire.add(counters["sum"], payload)

    def estimate(self, tally: Tally) -> Estimate:
        """The mean of the clipped updates."""
        check_counted(tally, self)
        step = self.l1_clip / FINE_GRID
        variance = (self.noise.variance + 0.25) * step**2 / tally.count
        mean = tally.counters["sum"].astype(np.float64) * (step / tally.count)
        return Estimate(mean, np.full(self.dim, variance), tally.count, unbiased=True)


def _layers(dim: int, layers: tuple[int, ...] | None) -> tuple[int, ...]:
    sizes = (dim,) if layers is None else tuple(whole("layer", size, 1) for size in layers)
    if sum(sizes) != dim:
        raise InvalidInput(f"layers must add up to dim = {dim}; got {sum(sizes)}")
    return sizes


def _ratio(numerator: float, denominator: float | None) -> float:
    """A factor from update units to grid steps, kept finite for denormal scales."""
    return min(numerator / (denominator or 1.0), 1e300)
