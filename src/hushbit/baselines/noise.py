"""Laplace noise on a grid, drawn with whole-number thresholds only.

Floating-point Laplace noise betrays its input through its last bits (Mironov 2012). Here a value
is first put on a public grid and the noise is a whole number of grid steps X with

    P(X = x) proportional to exp(-lambda |x|),   lambda = epsilon / sensitivity

drawn as sign and magnitude, (-, 0) rejected. The binary digits of a geometric magnitude are
independent, digit i being 1 with odds exp(-lambda 2^i) : 1, so each is one comparison of 32 fresh
bits with a whole number, done for 64 entries at once and only down to the bit that decides. What
rounding these numbers does to epsilon is added up exactly and taken off beforehand.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.entries import purpose
from hushbit.errors import InvalidInput
from hushbit.kernels.chacha import keystream
from hushbit.kernels.jit import njit

NOISE_TAG = purpose("nois")
RANGE = 2**32
LARGEST_EPSILON = 1000.0
HIDDEN = 64 * math.log(2)
STORE = 2048  # 64-bit words drawn at a time
MOST = 32  # words that one draw may need

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]


@dataclass(frozen=True)
class GridNoise:
    """Two-sided geometric noise that hides `sensitivity` grid steps at level epsilon.

    >>> GridNoise(epsilon=0.5, sensitivity=8192).realised_epsilon <= 0.5
    True
    """

    epsilon: float
    sensitivity: int

    def __post_init__(self) -> None:
        if math.isinf(self.epsilon):
            return
        if self.epsilon > LARGEST_EPSILON or self.rate * 2**31 < HIDDEN + self.epsilon:
            least = (HIDDEN + 1) * self.sensitivity / 2**31
            raise InvalidInput(
                f"epsilon must be math.inf or between {least:.2g} and {LARGEST_EPSILON:g} so that "
                f"the noise fits 32 bits; got {self.epsilon}"
            )

    @cached_property
    def rate(self) -> float:
        """lambda, a hair below epsilon / sensitivity to make room for rounded thresholds."""
        return self.epsilon * (1 - 1e-8) / self.sensitivity - 1e-7 / self.sensitivity

    @cached_property
    def digits(self) -> int:
        """Binary digits drawn at once; the rest of the magnitude is drawn step by step."""
        return max(0, math.floor(-math.log2(self.rate)))

    @cached_property
    def thresholds(self) -> NDArray[np.uint32]:
        """Of 2^32 coins, how many set each digit; the last number is for one more step."""
        if math.isinf(self.epsilon):
            return np.zeros(0, dtype=np.uint32)
        odds = [math.exp(-self.rate * 2.0**i) for i in range(self.digits + 1)]
        shares = [odd / (1 + odd) for odd in odds[:-1]] + [odds[-1]]
        return np.array([max(1, math.ceil(RANGE * share)) for share in shares], dtype=np.uint32)

    @property
    def realised_epsilon(self) -> float:
        """An upper bound of the level of the thresholds as they are.

        log P(x) = -sum of the weights of |x|'s digits; with digit weights off by e_i, inputs
        up to `sensitivity` apart differ by at most lambda · sensitivity + sum |e_i| · (how often).
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


@njit
def refill(coin: U32, tag: int, words: U64, place: NDArray[np.int64]) -> None:
    """Draw the next words; `place` holds the next word and the next block."""
    keystream(coin, tag, 0, 0, place[1], words.view(np.uint32))
    place[0] = 0
    place[1] += STORE // 8


@njit
def coins_below(
    threshold: int, asked: np.uint64, words: U64, place: NDArray[np.int64]
) -> np.uint64:
    """Bit i is set when a fresh 32-bit coin of lane i is below `threshold`; lanes as asked."""
    undecided, below = asked, np.uint64(0)
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
def add_digit(ones: np.uint64, digit: int, drawn: NDArray[np.int64]) -> None:
    """Add 2^digit to the lanes whose bit is set."""
    for lane in range(64):
        drawn[lane] += np.int64((ones >> np.uint64(lane)) & np.uint64(1)) << digit


@njit
def noise_tile(
    thresholds: U32, asked: np.uint64, coin: U32, tag: int, words: U64,
    place: NDArray[np.int64], noise: NDArray[np.int64],
) -> None:  # fmt: skip
    """Noise of up to 64 entries: magnitude by digits and steps, then the sign."""
    digits = thresholds.size - 1
    drawn = np.empty(64, np.int64)
    while asked != 0:
        drawn[:] = 0
        nonzero = np.uint64(0)
        for digit in range(digits):
            if place[0] > STORE - MOST:
                refill(coin, tag, words, place)
            ones = coins_below(thresholds[digit], asked, words, place)
            add_digit(ones, digit, drawn)
            nonzero |= ones
        more = asked
        while more != 0:
            if place[0] > STORE - MOST - 1:
                refill(coin, tag, words, place)
            more = coins_below(thresholds[digits], more, words, place)
            add_digit(more, digits, drawn)
            nonzero |= more
        minus = words[place[0]]
        place[0] += 1
        # Minus zero is drawn again: otherwise zero would count twice.
        settled = asked & (nonzero | ~minus)
        for lane in range(64):
            sign = 1 - 2 * np.int64((minus >> np.uint64(lane)) & np.uint64(1))
            keep = np.int64((settled >> np.uint64(lane)) & np.uint64(1))
            noise[lane] += keep * sign * drawn[lane]
        asked &= ~settled


@njit
def noisy_steps(
    update: NDArray[np.floating], factor: float, limit: float, thresholds: U32,
    coin: U32, tag: int, out: NDArray[np.int64],
) -> int:  # fmt: skip
    """out = floor(clip(update · factor, ±limit) + u) + noise; returns how many were clipped.

    The uniform u makes the rounding to the grid unbiased.
    """
    words = np.empty(STORE, np.uint64)
    place = np.array([STORE, 0])
    noise = np.zeros(64, np.int64)
    clipped = 0
    for start in range(0, update.size, 64):
        lanes = min(64, update.size - start)
        noise[:] = 0
        if thresholds.size > 0:
            asked = ~np.uint64(0) >> np.uint64(64 - lanes)
            noise_tile(thresholds, asked, coin, tag, words, place, noise)
        if place[0] > STORE - MOST:
            refill(coin, tag, words, place)
        rounding = words[place[0] : place[0] + MOST].view(np.uint32)
        place[0] += MOST
        for lane in range(lanes):
            value = np.float64(update[start + lane]) * factor
            clipped += int(abs(value) > limit)
            inside = min(max(value, -limit), limit)
            steps = np.int64(np.floor(inside + rounding[lane] * 2.0**-32))
            out[start + lane] = steps + noise[lane]
    return clipped
