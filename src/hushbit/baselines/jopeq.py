"""JoPEQ: privacy noise, then quantization with subtractive dither (Lang et al. 2023).

The noise that would make noise plus cell exactly Laplace (or t) does not exist: its
characteristic function would have poles. So there are three modes:

    honest   full noise for epsilon, the cell's error on top
    moment   as published: noise whose variance, with the cell's, is that of Laplace(2 / epsilon);
             the true level is higher and is what the guarantee states
    layered  exact Laplace error, but private only towards those who lack the shared key
"""

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.entries import PRESETS, Baseline, Wire, plain
from hushbit.baselines.jopeq_hexagonal import HexagonalCode
from hushbit.baselines.jopeq_layered import LayeredCode
from hushbit.baselines.jopeq_scalar import ScalarCode
from hushbit.checks import choice, positive, real, whole
from hushbit.decode import Estimate, check_counted
from hushbit.errors import InvalidInput
from hushbit.keys import UserKeys
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally import Counters, Tally

MODES = ("honest", "moment", "layered")
LATTICES = ("Z", "A2")
OVERLOAD = 0.01
LEVELS = 4
MOST_LEVELS = 2**16
LEAST_EPSILON, LARGEST_EPSILON = 2e-4, 100.0


class JoPEQ(Baseline):
    """Noisy, quantized entries (or pairs), with a shared dither that the server takes off again.

    dim                entries of an update
    epsilon_per_entry  level of one entry (of one pair for lattice "A2") that the noise aims at;
                       `guarantee` states the true one
    scale              entries (pairs) are clipped to [-scale, scale] (to a disc of that radius)
    levels             N, points of the quantizer (default 4); the rate is log2 N bits
    mode               "honest", "moment" or "layered"
    lattice            "Z", or "A2" for pairs
    gamma              reach of the quantizer in units of `scale`; by default so wide that noise
                       leads beyond it with probability `overload` (default 0.01) at most
    preset             "honest", or "authors": moment mode, 3 levels, gamma 1.5 sqrt(1 + 2 b²)

    >>> round(JoPEQ(dim=10, epsilon_per_entry=0.5, scale=1.0, preset="authors").true_epsilon, 3)
    0.523
    """

    def __init__(
        self, dim: int, epsilon_per_entry: float, scale: float, *, levels: int | None = None,
        mode: str | None = None, lattice: str = "Z", gamma: float | None = None,
        overload: float | None = None, preset: str = "honest",
    ) -> None:  # fmt: skip
        self.dim = whole("dim", dim, 1)
        self.epsilon = positive("epsilon_per_entry", epsilon_per_entry)
        if not LEAST_EPSILON <= self.epsilon <= LARGEST_EPSILON:
            raise InvalidInput(
                f"epsilon_per_entry must lie between {LEAST_EPSILON:g} and {LARGEST_EPSILON:g}; "
                f"got {epsilon_per_entry}"
            )
        self.scale = positive("scale", scale)
        self.preset = choice("preset", preset, PRESETS)
        usual = "moment" if self.preset == "authors" else "honest"
        self.mode = usual if mode is None else choice("mode", mode, MODES)
        self.lattice = choice("lattice", lattice, LATTICES)
        if self.preset == "authors" and (self.mode, self.lattice) != ("moment", "Z"):
            raise InvalidInput("preset 'authors' is scalar and in moment mode: drop mode, lattice")
        self.code = self._code(levels, gamma, overload)
        self.wire: Wire = self.code.wire

    def _code(
        self, levels: int | None, gamma: float | None, overload: float | None
    ) -> ScalarCode | HexagonalCode | LayeredCode:
        if self.mode == "layered":
            if self.lattice != "Z" or (levels, gamma, overload) != (None, None, None):
                raise InvalidInput(
                    "mode 'layered' is scalar and has no levels, gamma or overload: drop them"
                )
            return LayeredCode(self.dim, self.epsilon, self.scale)
        if gamma is not None and overload is not None:
            raise InvalidInput("gamma and overload both set the quantizer's reach: give one")
        usual = LEVELS
        if self.preset == "authors":
            usual = 3
            if gamma is None and overload is None:
                gamma = 1.5 * math.sqrt(1 + 8 / self.epsilon**2)
        kind = ScalarCode if self.lattice == "Z" else HexagonalCode
        code = kind(
            self.dim, self.epsilon, self.scale,
            usual if levels is None else whole("levels", levels, 2, MOST_LEVELS),
            self.mode == "moment", None if gamma is None else positive("gamma", gamma),
            OVERLOAD if overload is None else _chance(overload),
        )  # fmt: skip
        if isinstance(code, ScalarCode):
            _ = code.noise  # refuses an epsilon that the noise cannot express
        return code

    @property
    def description(self) -> dict[str, Any]:
        """Name and parameters."""
        finite = None if isinstance(self.code, LayeredCode) else self.code
        return {
            "mechanism": "JoPEQ", "dim": self.dim, "epsilon_per_entry": plain(self.epsilon),
            "scale": self.scale, "mode": self.mode, "lattice": self.lattice,
            "levels": None if finite is None else finite.levels,
            "gamma": None if finite is None else float(f"{finite.gamma:.12g}"),
            "preset": self.preset,
        }  # fmt: skip

    @property
    def true_epsilon(self) -> float:
        """The level that the noise really gives against a server that knows the dither."""
        return self.code.true_epsilon

    @cached_property
    def guarantee(self) -> Guarantee:
        """The true level of every entry or pair."""
        unit, count = self.code.units
        note = ""
        if self.mode == "layered":
            note = f"epsilon {self.epsilon:g} only against observers without the round key"
        elif self.mode == "moment":
            note = f"noise and cell together have the variance of epsilon {self.epsilon:g}"
        return self.promise(self.true_epsilon, count, unit=unit, note=note)

    def cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: NDArray[np.uint8],
    ) -> int:  # fmt: skip
        """One user's payload; returns how many entries or pairs were overloaded."""
        return self.code.cast_one(update, key, coin, row)

    def empty_counters(self, histogram: bool) -> Counters:
        """Whole-number sums of levels and dither."""
        return self.code.empty_counters()

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Add levels and dither up."""
        self.code.absorb(counters, payload, keys)

    def estimate(self, tally: Tally) -> Estimate:
        """The mean of the decoded entries; overload makes it lean towards zero."""
        check_counted(tally, self)
        return Estimate(
            mean=self.code.mean(tally.counters, tally.count),
            variance=np.full(self.dim, self.code.variance / tally.count),
            count=tally.count,
            unbiased=self.mode == "layered",
        )


def _chance(overload: float) -> float:
    share = real("overload", overload)
    if not 0 < share < 1:
        raise InvalidInput(f"overload must lie between 0 and 1; got {overload!r}")
    return share
