"""JoPEQ's layered code: a random step makes the error of dithered rounding exactly Laplace.

    V ~ Gamma(2, b),  Delta = 2 V,  k = round(z / Delta + d),  zhat = Delta (k - d)

with d uniform on (-1/2, 1/2). Given V the error is uniform on (-V, V); over V it is Lap(0, b) with
b = 2 / epsilon. V and d come from the shared key: whoever lacks it sees Laplace noise, the server
does not, so against the server there is no epsilon.

Both sides know between which indices k can lie for z in [-1, 1], so k travels in just the bits
that this range needs: often none. Logarithms are computed by plain arithmetic for both sides to
agree on every machine.
"""

import math
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.entries import purpose
from hushbit.baselines.packing import read_bits, write_bits
from hushbit.errors import HushbitError
from hushbit.kernels.chacha import keystream
from hushbit.kernels.jit import njit
from hushbit.kernels.threads import spread
from hushbit.keys import UserKeys
from hushbit.tally import Counters

LAYER_TAG = purpose("layr")
WORD = 2.0**-32
SAMPLES = 2**16
LN2 = 0.6931471805599453


@njit
def surprise(word: np.uint32) -> float:
    """-ln((word + 1/2) / 2^32), the same on every machine."""
    share, power = math.frexp(np.float64(word) + 0.5)
    if share < 0.7071067811865476:
        share *= 2.0
        power -= 1
    t = (share - 1.0) / (share + 1.0)
    square = t * t
    series = 0.0
    for odd in range(23, 0, -2):
        series = series * square + 1.0 / odd
    return (32 - power) * LN2 - 2.0 * t * series


@njit
def layer(words: NDArray[np.uint32], i: int, b: float) -> Any:
    """Step, dither, least index and bits of the index of entry i."""
    step = 2.0 * b * (surprise(words[3 * i]) + surprise(words[3 * i + 1]))
    dither = (np.float64(words[3 * i + 2]) + 0.5) * WORD - 0.5
    low = np.int64(np.rint(-1.0 / step + dither))
    count = np.int64(np.rint(1.0 / step + dither)) - low
    bits = 0
    while (count >> bits) > 0:
        bits += 1
    return step, dither, low, bits


@njit
def count_bits(words: NDArray[np.uint32], b: float) -> Any:
    """Sum and sum of squares of the bits of the indices."""
    total, squares = 0, 0
    for i in range(words.size // 3):
        bits = layer(words, i, b)[3]
        total += bits
        squares += bits * bits
    return total, squares


@njit
def write_layers(
    update: NDArray[np.floating], scale: float, b: float, words: NDArray[np.uint32],
    room: int, row: NDArray[np.uint8],
) -> int:  # fmt: skip
    """Write one user's indices; returns the bits that they need (nothing is written beyond)."""
    at = 0
    for i in range(update.size):
        step, dither, low, bits = layer(words, i, b)
        z = min(max(np.float64(update[i]) / scale, -1.0), 1.0)
        index = np.int64(np.rint(z / step + dither)) - low
        if at + bits <= room:
            write_bits(row, at, bits, np.uint64(index))
        at += bits
    return at


@njit
def add_layers(
    payload: NDArray[np.uint8], keys: NDArray[np.uint32], tag: int, b: float, unit: float,
    room: int, first: int, last: int, sums: NDArray[np.int64],
) -> None:  # fmt: skip
    """sums += rint(zhat / unit) of users first … last-1."""
    words = np.empty(3 * sums.size, np.uint32)
    for user in range(first, last):
        keystream(keys[user], tag, 0, 0, 0, words)
        at = 0
        for i in range(sums.size):
            step, dither, low, bits = layer(words, i, b)
            index = np.int64(0)
            if at + bits <= room:
                index = np.int64(read_bits(payload[user], at, bits))
            at += bits
            top = np.int64(np.rint(1.0 / step + dither))
            sums[i] += np.int64(np.rint(step * (min(low + index, top) - dither) / unit))


@dataclass(frozen=True)
class LayeredWire:
    """Indices of varying width in a payload of fixed size; what is left over is zero."""

    bits: int

    def check(self, payload: NDArray[np.uint8]) -> None:
        """Every pattern is readable: an index beyond its range counts as the last one."""


@dataclass(frozen=True, eq=False)
class LayeredCode:
    """Exact Laplace error, private only towards those who lack the shared key."""

    dim: int
    epsilon: float
    scale: float

    @property
    def laplace(self) -> float:
        """b = 2 / epsilon."""
        return 2 / self.epsilon

    @cached_property
    def wire(self) -> LayeredWire:
        """Room for twelve deviations more than the indices need on average."""
        words = np.empty(3 * SAMPLES, dtype=np.uint32)
        keystream(np.zeros(8, dtype=np.uint32), LAYER_TAG, 0, 0, 0, words)
        total, squares = count_bits(words, self.laplace)
        mean = total / SAMPLES
        spread_out = math.sqrt(max(squares / SAMPLES - mean**2, 0.0))
        room = 12 * math.sqrt(self.dim) + 6 * self.dim / math.sqrt(SAMPLES)
        return LayeredWire(64 + math.ceil(self.dim * mean + spread_out * room))

    @property
    def true_epsilon(self) -> float:
        """Infinite: the server knows the step and the dither."""
        return math.inf

    @property
    def units(self) -> tuple[str, int]:
        """What the guarantee counts."""
        return "entry", self.dim

    @property
    def variance(self) -> float:
        """2 b², in units of the update."""
        return 2 * (self.laplace * self.scale) ** 2

    @property
    def unit(self) -> float:
        """Resolution of the sums, far below the noise; 2^31 users cannot overflow them."""
        return max(1.0, self.laplace) * 2.0**-24

    def cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: NDArray[np.uint8],
    ) -> int:  # fmt: skip
        """One user's indices."""
        words = np.empty(3 * self.dim, dtype=np.uint32)
        keystream(key, LAYER_TAG, 0, 0, 0, words)
        need = write_layers(update, self.scale, self.laplace, words, self.wire.bits, row)
        if need > self.wire.bits:
            raise HushbitError("the indices do not fit (a chance below 1e-30): skip this round")
        return 0

    def empty_counters(self) -> Counters:
        """Sums of zhat in fixed point."""
        return {"sum": np.zeros(self.dim, dtype=np.int64)}

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Add zhat up, users shared out over threads."""
        lock, room = threading.Lock(), self.wire.bits

        def run(first: int, last: int) -> None:
            part = np.zeros(self.dim, dtype=np.int64)
            add_layers(payload, keys.keys, LAYER_TAG, self.laplace, self.unit, room, first, last,
                       part)  # fmt: skip
            with lock:
                counters["sum"] += part

        spread(run, len(payload))

    def mean(self, counters: Counters, count: int) -> NDArray[np.float64]:
        """The mean of zhat, in units of the update."""
        return counters["sum"].astype(np.float64) * (self.unit * self.scale / count)
