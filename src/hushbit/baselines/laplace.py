"""The Laplace mechanism: entries on a public grid plus two-sided geometric noise.

    z = clip(h / scale, -1, 1);   payload: z + Lap(0, 2 / epsilon), as an integer number of steps

Each entry has epsilon-local DP and variance 8 scale² / epsilon². WholeLaplace has epsilon for the
whole update instead, with an l1 clip.

Floating-point Laplace noise reveals its input through its last bits (Mironov 2012). A value is
therefore rounded to a public grid, and the noise is an integer number X of grid steps with

    P(X = x) proportional to exp(-lambda |x|),   lambda = epsilon / sensitivity

X is drawn as sign and magnitude, and (-, 0) is rejected. The binary digits of a geometric magnitude
are independent, and digit i is 1 with odds exp(-lambda 2^i) : 1, so each digit is one comparison of
32 random bits with an integer threshold. The comparison runs for 64 entries (lanes) at once, from
the highest bit to the bit that decides. Rounded thresholds change epsilon; a bound of that change
is subtracted from epsilon first.
"""

import math
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from hushbit.baselines.entry_mechanism import PRESETS, FloatCodec, IntegerCodec, SumMechanism
from hushbit.checks import Ints, check_choice, check_int, check_positive
from hushbit.errors import InvalidInput
from hushbit.kernels import Words64, njit
from hushbit.kernels.chacha import keystream
from hushbit.mechanism import Bytes, Updates, Words
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally.estimate import Estimate
from hushbit.tally.tally import Counters
from hushbit.wire.keys import RoundKey

NOISE_TAG = int.from_bytes(b"nois", "little")
GRID = 2**12  # grid steps in [0, scale]
FINE_GRID = 2**20  # grid steps in [0, l1_clip]
RANGE = 2**32
MAX_EPSILON = 1000.0
TAIL_NATS = 64 * math.log(2)  # noise beyond 32 bits has a probability below exp(-TAIL_NATS)
BUFFER_WORDS = 2048  # 64-bit words drawn at a time
MAX_WORDS_PER_DRAW = 32  # words that one draw may need


@dataclass(frozen=True)
class GridNoise:
    """Two-sided geometric noise: epsilon-DP for values up to `sensitivity` grid steps apart.

    >>> GridNoise(epsilon=0.5, sensitivity=8192).realised_epsilon <= 0.5
    True
    """

    epsilon: float
    sensitivity: int

    def __post_init__(self) -> None:
        if math.isinf(self.epsilon):
            return
        if self.epsilon > MAX_EPSILON or self.rate * 2**31 < TAIL_NATS + self.epsilon:
            smallest = (TAIL_NATS + 1) * self.sensitivity / 2**31
            raise InvalidInput(
                f"epsilon must be math.inf or between {smallest:.2g} and {MAX_EPSILON:g} so that "
                f"the noise fits 32 bits; got {self.epsilon}"
            )

    @cached_property
    def rate(self) -> float:
        """lambda, slightly below epsilon / sensitivity to allow for rounded thresholds."""
        return self.epsilon * (1 - 1e-8) / self.sensitivity - 1e-7 / self.sensitivity

    @cached_property
    def digits(self) -> int:
        """Low binary digits of the magnitude, drawn one by one; the rest is a geometric count."""
        return max(0, math.floor(-math.log2(self.rate)))

    @cached_property
    def thresholds(self) -> Words:
        """How many of the 2^32 coins set each digit; the last number: add one more 2^digits."""
        if math.isinf(self.epsilon):
            return np.zeros(0, dtype=np.uint32)
        odds = [math.exp(-self.rate * 2.0**i) for i in range(self.digits + 1)]
        chances = [odd / (1 + odd) for odd in odds[:-1]] + [odds[-1]]
        return np.array([max(1, math.ceil(RANGE * chance)) for chance in chances], dtype=np.uint32)

    @property
    def realised_epsilon(self) -> float:
        """An upper bound of epsilon for the rounded thresholds.

        -log P(x) is the sum of the weights of the digits of |x|, up to a constant. If the weight of
        digit i has the error e_i, the bound is lambda · sensitivity + sum_i |e_i| · times_i, where
        times_i is how often the digit can change.
        """
        if math.isinf(self.epsilon):
            return math.inf
        if self.digits == 0:
            return math.log(RANGE / int(self.thresholds[0])) * self.sensitivity
        slack = 0.0
        for i, coins in enumerate(map(int, self.thresholds)):
            last = i == self.digits
            weight = math.log((RANGE if last else RANGE - coins) / coins)
            times = -(-self.sensitivity >> i) + 1 if last else 1
            slack += abs(weight - self.rate * 2.0**i) * times
        return (self.rate * self.sensitivity + slack) * (1 + 1e-12)

    @property
    def variance(self) -> float:
        """2 r / (1 - r)^2 with r = exp(-lambda), in squared grid steps."""
        if math.isinf(self.epsilon):
            return 0.0
        return 2 * math.exp(-self.rate) / math.expm1(-self.rate) ** 2

    def add(self, update: Updates, factor: float, limit: float, coin: Words) -> tuple[Ints, int]:
        """Noisy grid steps of clip(update · factor, ±limit), and the number of clips."""
        steps = np.empty(update.size, dtype=np.int64)
        return steps, add_grid_noise(update, factor, limit, self.thresholds, coin, steps)


def grid_factor(scale: float) -> float:
    """Grid steps per unit of an entry; finite for denormal scales."""
    return min(GRID / scale, 1e300)


@njit
def refill(coin: Words, words: Words64, place: Ints) -> None:
    """Draw the next words; `place` is (index of the next word, number of the next block)."""
    keystream(coin, NOISE_TAG, 0, 0, place[1], words.view(np.uint32))
    place[0] = 0
    place[1] += BUFFER_WORDS // 8


@njit
def lanes_below(threshold: int, lanes: np.uint64, words: Words64, place: Ints) -> np.uint64:
    """Bit i is set if lane i is in `lanes` and its new 32-bit coin is below `threshold`."""
    undecided, below = lanes, np.uint64(0)
    at = place[0]
    for bit in range(31, -1, -1):
        if undecided == 0:
            break
        word = words[at]
        at += 1
        if (threshold >> bit) & 1:
            below |= undecided & ~word
            undecided &= word
        else:
            undecided &= ~word
    place[0] = at
    return below


@njit
def add_digit(ones: np.uint64, digit: int, drawn: Ints) -> None:
    """Add 2^digit to the lanes whose bit is set."""
    for lane in range(64):
        drawn[lane] += np.int64((ones >> np.uint64(lane)) & np.uint64(1)) << digit


@njit
def noise_tile(
    thresholds: Words, lanes: np.uint64, coin: Words, words: Words64, place: Ints, noise: Ints
) -> None:
    """Noise of up to 64 entries: first the magnitude, then the sign."""
    digits = thresholds.size - 1
    drawn = np.empty(64, np.int64)
    while lanes != 0:
        drawn[:] = 0
        nonzero = np.uint64(0)
        for digit in range(digits):
            if place[0] > BUFFER_WORDS - MAX_WORDS_PER_DRAW:
                refill(coin, words, place)
            ones = lanes_below(thresholds[digit], lanes, words, place)
            add_digit(ones, digit, drawn)
            nonzero |= ones
        more = lanes
        while more != 0:
            if place[0] > BUFFER_WORDS - MAX_WORDS_PER_DRAW - 1:
                refill(coin, words, place)
            more = lanes_below(thresholds[digits], more, words, place)
            add_digit(more, digits, drawn)
            nonzero |= more
        minus = words[place[0]]
        place[0] += 1
        # Minus zero is rejected: otherwise zero would have twice its probability.
        accepted = lanes & (nonzero | ~minus)
        for lane in range(64):
            sign = 1 - 2 * np.int64((minus >> np.uint64(lane)) & np.uint64(1))
            keep = np.int64((accepted >> np.uint64(lane)) & np.uint64(1))
            noise[lane] += keep * sign * drawn[lane]
        lanes &= ~accepted


@njit
def add_grid_noise(
    update: Updates, factor: float, limit: float, thresholds: Words, coin: Words, out: Ints
) -> int:
    """out = floor(clip(update · factor, ±limit) + u) + noise; returns the number of clips.

    The uniform u makes the rounding to the grid unbiased.
    """
    words = np.empty(BUFFER_WORDS, np.uint64)
    place = np.array([BUFFER_WORDS, 0])
    noise = np.zeros(64, np.int64)
    clipped = 0
    for start in range(0, update.size, 64):
        size = min(64, update.size - start)
        noise[:] = 0
        if thresholds.size > 0:
            lanes = ~np.uint64(0) >> np.uint64(64 - size)
            noise_tile(thresholds, lanes, coin, words, place, noise)
        if place[0] > BUFFER_WORDS - MAX_WORDS_PER_DRAW:
            refill(coin, words, place)
        rounding = words[place[0] : place[0] + MAX_WORDS_PER_DRAW].view(np.uint32)
        place[0] += MAX_WORDS_PER_DRAW
        for lane in range(size):
            value = np.float64(update[start + lane]) * factor
            clipped += int(abs(value) > limit)
            inside = min(max(value, -limit), limit)
            steps = np.int64(np.floor(inside + rounding[lane] * 2.0**-32))
            out[start + lane] = steps + noise[lane]
    return clipped


@dataclass(frozen=True, eq=False, repr=False)
class Laplace(SumMechanism):
    """Laplace noise on every entry: local DP with `epsilon_per_entry` for each of them.

    dim                entries of an update
    epsilon_per_entry  epsilon of one entry; math.inf for no noise
    scale              entries are clipped to [-scale, scale]
    preset             "honest", or "authors" as published: noise in proportion to the standard
                       deviation of each layer of each user, no clipping, hence no finite epsilon
    layers             for "authors": number of entries of each layer (default: one layer)

    >>> Laplace(dim=7850, epsilon_per_entry=0.5, scale=0.05).guarantee.epsilon_per_message()
    3925.0
    """

    name: ClassVar[str] = "laplace"

    dim: int
    epsilon_per_entry: float
    scale: float | None = None
    _: KW_ONLY
    preset: str = "honest"
    layers: tuple[int, ...] | None = None
    noise: GridNoise = field(init=False)

    def __post_init__(self) -> None:
        dim = check_int("dim", self.dim, 1)
        epsilon = check_positive("epsilon_per_entry", self.epsilon_per_entry, infinite=True)
        self._set(dim=dim, epsilon_per_entry=epsilon, noise=GridNoise(epsilon, 2 * GRID))
        check_choice("preset", self.preset, PRESETS)
        if self.preset == "honest":
            if self.layers is not None:
                raise InvalidInput("layers are for preset 'authors': leave them out")
            self._set(scale=check_positive("scale", self.scale))
            return
        if self.scale is not None:
            raise InvalidInput(
                "preset 'authors' computes the scale of each update: leave scale out"
            )
        given = (dim,) if self.layers is None else self.layers
        layers = tuple(check_int("layer", size, 1) for size in given)
        if sum(layers) != dim:
            raise InvalidInput(f"layers must add up to dim = {dim}; got {sum(layers)}")
        self._set(layers=layers, _at_default=("layers",) if layers == (dim,) else ())

    @cached_property
    def codec(self) -> FloatCodec | IntegerCodec:
        """Integer grid steps, or 32-bit floats as published."""
        return IntegerCodec(self.dim) if self.preset == "honest" else FloatCodec(self.dim)

    @cached_property
    def guarantee(self) -> Guarantee:
        """Epsilon of each entry; infinite for preset "authors"."""
        if self.preset == "authors":
            note = "without clipping, and with each user's mean and deviation in clear"
            return self.pure_guarantee(math.inf, self.dim, note=note)
        return self.pure_guarantee(self.epsilon_per_entry, self.dim)

    def encode_user(self, update: Updates, key: Words, coin: Words, row: Bytes) -> int:
        """Write the noisy entries of one user; returns the number of clipped entries."""
        codec = self.codec
        if isinstance(codec, IntegerCodec):
            assert self.scale is not None
            steps, clipped = self.noise.add(update, grid_factor(self.scale), float(GRID), coin)
            codec.write(steps, row)
            return clipped
        assert self.layers is not None
        steps, _ = self.noise.add(np.zeros(self.dim), 1.0, 1.0, coin)
        codec.write(update, row)  # refuses an update that is too large
        parts = np.split(update, np.cumsum(self.layers)[:-1])
        spreads = [3.0 * float(np.std(part, dtype=np.float64)) for part in parts]
        codec.write(update + np.repeat(spreads, self.layers) * (steps / GRID), row)
        return 0

    def decode(self, counters: Counters, count: int, round_key: RoundKey) -> Estimate:
        """The mean of the clipped updates; the variance of preset "authors" is unknown (NaN)."""
        total = counters["sum"]
        if self.scale is None:
            mean, variance = FloatCodec(self.dim).total(total), math.nan
        else:
            mean = total.astype(np.float64) * (self.scale / GRID)
            variance = (self.noise.variance + 0.25) * (self.scale / GRID) ** 2
        return Estimate(mean / count, np.full(self.dim, variance / count), count, unbiased=True)


@dataclass(frozen=True, eq=False, repr=False)
class WholeLaplace(SumMechanism):
    """Laplace noise for the whole update: l1 clip C, noise Lap(2 C / epsilon).

    dim                  entries of an update
    epsilon_per_message  epsilon of the whole update; math.inf for no noise
    l1_clip              l1 norm to which updates are scaled down

    >>> WholeLaplace(dim=10, epsilon_per_message=4.0, l1_clip=1.0).guarantee.epsilon_per_message()
    4.0
    """

    name: ClassVar[str] = "whole-laplace"

    dim: int
    epsilon_per_message: float
    l1_clip: float
    noise: GridNoise = field(init=False)

    def __post_init__(self) -> None:
        dim = check_int("dim", self.dim, 1)
        epsilon = check_positive("epsilon_per_message", self.epsilon_per_message, infinite=True)
        self._set(dim=dim, epsilon_per_message=epsilon)
        self._set(l1_clip=check_positive("l1_clip", self.l1_clip))
        # Rounding to the grid can increase the distance of two updates by one step per entry.
        self._set(noise=GridNoise(epsilon, 2 * FINE_GRID + dim))

    @cached_property
    def codec(self) -> IntegerCodec:
        """Integer grid steps."""
        return IntegerCodec(self.dim)

    @cached_property
    def guarantee(self) -> Guarantee:
        """Epsilon of the whole message."""
        return self.pure_guarantee(self.epsilon_per_message, 1, unit="message")

    def encode_user(self, update: Updates, key: Words, coin: Words, row: Bytes) -> int:
        """Write the noisy entries of one user; returns `dim` if the update was scaled down."""
        peak = float(np.abs(update).max()) or 1.0
        scaled = update.astype(np.float64) / peak  # so that the sum cannot overflow
        norm, clip = float(np.abs(scaled).sum()) * (1 + 1e-9), self.l1_clip / peak
        steps, _ = self.noise.add(scaled, FINE_GRID / max(norm, clip), float(FINE_GRID), coin)
        self.codec.write(steps, row)
        return self.dim if norm > clip else 0

    def decode(self, counters: Counters, count: int, round_key: RoundKey) -> Estimate:
        """The mean of the clipped updates."""
        step = self.l1_clip / FINE_GRID
        variance = (self.noise.variance + 0.25) * step**2 / count
        mean = counters["sum"].astype(np.float64) * (step / count)
        return Estimate(mean, np.full(self.dim, variance), count, unbiased=True)
