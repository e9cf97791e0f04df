"""JoPEQ: privacy noise, then quantization with subtractive dither (Lang et al. 2023).

Each entry gets Laplace noise n from private coins and a dither d from the shared key, and is
quantized to one of N levels:

    y = z + n,  k = clip(floor((y + d) / Delta + N/2), 0, N-1),  zhat = (k - (N-1)/2) Delta - d

with z = clip(h / scale, -1, 1), Delta = 2 gamma / N, d uniform on a cell, n = Lap(0, b'). No
distribution of n makes the sum of noise and quantization error exactly Laplace: its characteristic
function would have poles. There are two modes, with b = 2 / epsilon:

    honest   b' = b: full noise for epsilon, to which the quantization error is added
    moment   b'² = b² - Delta²/24, as published: noise and quantization error together have the
             variance 2 b² of Lap(0, b)

The server knows d, so the true epsilon is 2 / b'. In moment mode it is larger than `epsilon`; the
guarantee states the true one.
"""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from hushbit.baselines.entry_mechanism import PRESETS, EntryMechanism, SymbolCodec
from hushbit.baselines.laplace import GRID, GridNoise, grid_factor
from hushbit.checks import Ints, check_choice, check_float, check_int, check_positive
from hushbit.encoding.stage import sum_dithers
from hushbit.errors import InvalidInput
from hushbit.kernels import njit
from hushbit.kernels.chacha import keystream
from hushbit.kernels.encode import DITHER_TAG
from hushbit.mechanism import Bytes, Updates, Words
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally.estimate import Estimate
from hushbit.tally.tally import Counters, LargestVotes
from hushbit.wire.keys import RoundKey, UserKeys

MODES = ("honest", "moment")
LATTICES = ("Z",)
DEFAULT_OVERLOAD = 0.01
DEFAULT_LEVELS = 4
MAX_LEVELS = 2**16
MIN_EPSILON, MAX_EPSILON = 2e-4, 100.0
WORD_UNIT = 2.0**-32


def remaining_noise(total: float, share: float, reach: float) -> float:
    """The root s > 0 of s² = total² - share (1 + reach s)²: the noise scale in moment mode.

    The width of a cell, and so the quantization error, may grow with s.

    >>> remaining_noise(5.0, 16.0, 0.0)
    3.0
    """
    a, b, c = 1 + share * reach**2, 2 * share * reach, share - total**2
    if c >= 0:
        raise InvalidInput(
            "mode 'moment' leaves no variance for the noise, because the cells are too large: use "
            "more levels, a smaller gamma or a smaller epsilon_per_entry"
        )
    return (-b + math.sqrt(b * b - 4 * a * c)) / (2 * a)


@njit
def dithered_levels(steps: Ints, factor: float, dither: Words, levels: int, symbols: Words) -> int:
    """The level of each noisy entry; returns the number of entries beyond the outermost cells."""
    overloaded = 0
    for i in range(steps.size):
        shift = (np.float64(dither[i]) + 0.5) * WORD_UNIT - 0.5 + 0.5 * levels
        level = np.floor(np.float64(steps[i]) * factor + shift)
        inside = min(max(level, 0.0), levels - 1.0)
        overloaded += int(level != inside)
        symbols[i] = np.uint32(inside)
    return overloaded


@dataclass(frozen=True, eq=False)
class ScalarCode:
    """Noise and cells of the scalar quantizer with N levels.

    gamma_given is None where gamma follows from the probability of overload.
    """

    epsilon: float
    scale: float
    levels: int
    moment: bool
    gamma_given: float | None
    overload: float

    @property
    def laplace(self) -> float:
        """b = 2 / epsilon."""
        return 2 / self.epsilon

    @cached_property
    def noise_scale(self) -> float:
        """b', the Laplace scale of the noise."""
        if not self.moment or math.isinf(self.epsilon):
            return self.laplace
        if self.gamma_given is not None:
            return remaining_noise(
                self.laplace, (2 * self.gamma_given / self.levels) ** 2 / 24, 0.0
            )
        cell = 2 / (self.levels - 1)
        return remaining_noise(self.laplace, cell**2 / 24, math.log(1 / self.overload))

    @cached_property
    def gamma(self) -> float:
        """The outer edge of the outermost cell; by default 1 + Delta/2 + b' ln(1/overload)."""
        if self.gamma_given is not None:
            return self.gamma_given
        reach = 1 + self.noise_scale * math.log(1 / self.overload)
        return reach / (1 - 1 / self.levels)

    @property
    def cell(self) -> float:
        """Delta = 2 gamma / N."""
        return 2 * self.gamma / self.levels

    @cached_property
    def true_epsilon(self) -> float:
        """2 / b', the epsilon against a server that knows the dither."""
        return math.inf if self.noise_scale == 0 else 2 / self.noise_scale

    @cached_property
    def noise(self) -> GridNoise:
        """The noise on the public grid."""
        return GridNoise(self.true_epsilon, 2 * GRID)

    @property
    def variance(self) -> float:
        """2 b'² + Delta²/12 without overload, in units of the update."""
        return (2 * self.noise_scale**2 + self.cell**2 / 12) * self.scale**2


@dataclass(frozen=True, eq=False, repr=False)
class JoPEQ(EntryMechanism):
    """Noisy entries, quantized with a shared dither that the server subtracts.

    dim                entries of an update
    epsilon_per_entry  nominal epsilon of one entry; `guarantee` states the true one
    scale              entries are clipped to [-scale, scale]
    levels             N, levels of the quantizer (default 4); an entry takes log2 N bits
    mode               "honest" or "moment"
    lattice            "Z"
    gamma              outer edge of the outermost cell, in units of `scale`
    overload           largest probability that noise exceeds gamma (default 0.01), instead of gamma
    preset             "honest", or "authors": moment mode, 3 levels, gamma 1.5 sqrt(1 + 2 b²)

    >>> round(JoPEQ(dim=10, epsilon_per_entry=0.5, scale=1.0, preset="authors").true_epsilon, 3)
    0.523
    """

    name: ClassVar[str] = "jopeq"

    dim: int
    epsilon_per_entry: float
    scale: float
    _: KW_ONLY
    levels: int | None = None
    mode: str | None = None
    lattice: str = "Z"
    gamma: float | None = None
    overload: float | None = None
    preset: str = "honest"
    code: ScalarCode = field(init=False)

    def __post_init__(self) -> None:
        epsilon = check_positive("epsilon_per_entry", self.epsilon_per_entry)
        if not MIN_EPSILON <= epsilon <= MAX_EPSILON:
            raise InvalidInput(
                f"epsilon_per_entry must be from {MIN_EPSILON:g} to {MAX_EPSILON:g}; got {epsilon}"
            )
        authors = check_choice("preset", self.preset, PRESETS) == "authors"
        default_mode, default_levels = ("moment", 3) if authors else ("honest", DEFAULT_LEVELS)
        mode = default_mode if self.mode is None else self.mode
        levels = default_levels if self.levels is None else self.levels
        self._set(
            dim=check_int("dim", self.dim, 1),
            epsilon_per_entry=epsilon,
            scale=check_positive("scale", self.scale),
            mode=check_choice("mode", mode, MODES),
            lattice=check_choice("lattice", self.lattice, LATTICES),
            levels=check_int("levels", levels, 2, MAX_LEVELS),
        )
        defaults = {"mode": mode == default_mode, "levels": levels == default_levels}
        self._set(_at_default=tuple(name for name, default in defaults.items() if default))
        if authors and mode != "moment":
            raise InvalidInput(f"preset 'authors' uses mode 'moment'; got {mode!r}: leave mode out")
        self._set(code=self._code())

    def _code(self) -> ScalarCode:
        gamma, overload, levels = self.gamma, self.overload, self.levels
        if gamma is not None and overload is not None:
            raise InvalidInput(
                "gamma and overload both set the range of the quantizer: give one of them"
            )
        if self.preset == "authors" and gamma is None and overload is None:
            gamma = 1.5 * math.sqrt(1 + 8 / self.epsilon_per_entry**2)
        if overload is not None and not 0 < check_float("overload", overload) < 1:
            raise InvalidInput(f"overload must lie between 0 and 1; got {overload!r}")
        assert levels is not None
        code = ScalarCode(
            self.epsilon_per_entry,
            self.scale,
            levels,
            self.mode == "moment",
            None if gamma is None else check_positive("gamma", gamma),
            DEFAULT_OVERLOAD if overload is None else float(overload),
        )
        _ = code.noise  # raises an error if the noise does not fit 32 bits
        return code

    @cached_property
    def codec(self) -> SymbolCodec:
        """Symbols of log2 N bits."""
        return SymbolCodec(self.dim, self.code.levels)

    @property
    def description(self) -> dict[str, Any]:
        """Name and parameters; the rounded gamma stands for `gamma` and `overload`."""
        described = super().description | {"gamma": float(f"{self.code.gamma:.12g}")}
        return {name: value for name, value in described.items() if name != "overload"}

    @classmethod
    def from_description(cls, fields: Mapping[str, Any]) -> Self:
        """Replaces a rounded gamma that equals the default by the default."""
        default = super().from_description({**fields, "gamma": None})
        if default.description["gamma"] == fields["gamma"]:
            return default
        return super().from_description(fields)

    @property
    def true_epsilon(self) -> float:
        """The epsilon of an entry against a server that knows the dither."""
        return self.code.true_epsilon

    @cached_property
    def guarantee(self) -> Guarantee:
        """The true epsilon of every entry."""
        note = ""
        if self.mode == "moment":
            note = (
                f"noise and cell together have the variance of epsilon {self.epsilon_per_entry:g}"
            )
        return self.pure_guarantee(self.true_epsilon, self.dim, note=note)

    def encode_user(self, update: Updates, key: Words, coin: Words, row: Bytes) -> int:
        """Write the levels of one user; returns the number of overloaded entries."""
        code = self.code
        steps, _ = code.noise.add(update, grid_factor(self.scale), float(GRID), coin)
        dither = np.empty(self.dim, dtype=np.uint32)
        symbols = np.empty(self.dim, dtype=np.uint32)
        keystream(key, DITHER_TAG, 0, 0, 0, dither)
        overloaded: int = dithered_levels(
            steps, 1 / (GRID * code.cell), dither, code.levels, symbols
        )
        self.codec.write(symbols, row)
        return overloaded

    def empty_counters(self, histogram: bool) -> Counters:
        """Zeroed sums of 2 k - (N - 1), and of the 32-bit words of the dither."""
        return {
            "levels": np.zeros((1, self.dim), dtype=np.int64),
            "dither": np.zeros(self.dim, dtype=np.int64),
        }

    def add_payload(self, counters: Counters, payload: Bytes, keys: UserKeys) -> None:
        """Add the levels and the dithers, which are both integers."""
        levels = self.code.levels
        table = 2 * np.arange(levels, dtype=np.int64)[:, None] - (levels - 1)
        self.codec.add(counters["levels"], payload, table)
        sum_dithers(keys, counters["dither"], signed=False)

    def largest_votes(self, counters: Counters) -> LargestVotes:
        """The outermost level, and the largest 32-bit word."""
        return {"levels": self.code.levels - 1, "dither": 2**32 - 1}

    def decode(self, counters: Counters, count: int, round_key: RoundKey) -> Estimate:
        """The mean of zhat in units of the update; overload biases it towards zero."""
        level = counters["levels"][0] / (2 * count)
        dither = (counters["dither"] / count + 0.5) * WORD_UNIT - 0.5
        return Estimate(
            mean=self.scale * self.code.cell * (level - dither),
            variance=np.full(self.dim, self.code.variance / count),
            count=count,
            unbiased=False,
        )
