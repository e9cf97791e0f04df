"""MVU: the minimum-variance unbiased private channel of a few bits for each entry.

    z = clip(h / scale, -1, 1),  x = (z + 1) / 2,  symbol j ~ P(. | x),  decoded as 2 alpha_j - 1

One bit has a closed form for every x, P(1 | x) = (x + a) / (1 + 2a) with a = 1 / (e^eps - 1):
the same law as a stochastic sign with randomized response. More bits round x at random to one of
`inputs` grid points and draw from a designed channel.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.entries import Baseline, plain
from hushbit.baselines.mvu_design import Design, design
from hushbit.baselines.signrr import lean_bits
from hushbit.baselines.wire import SymbolWire
from hushbit.checks import positive, whole
from hushbit.decode import Estimate, check_counted
from hushbit.kernels.chacha import keystream
from hushbit.kernels.jit import njit
from hushbit.keys import UserKeys
from hushbit.privacy.guarantee import Guarantee
from hushbit.response import Response
from hushbit.stage import COIN_TAG, vote_coins
from hushbit.tally import Counters, Tally


@njit
def channel_symbols(
    update: NDArray[np.floating], scale: float, limits: NDArray[np.int64],
    coins: NDArray[np.uint32], symbols: NDArray[np.uint32],
) -> int:  # fmt: skip
    """Round each entry to the grid with one coin, draw its symbol with another; returns clips."""
    steps = limits.shape[0] - 1
    clipped = 0
    for i in range(update.size):
        z = np.float64(update[i]) / scale
        clipped += int(abs(z) > 1.0)
        place = (min(max(z, -1.0), 1.0) + 1.0) * 0.5 * steps
        row = min(int(place), steps - 1)
        row += int(coins[2 * i] * 2.0**-32 < place - row)
        coin = np.int64(coins[2 * i + 1])
        symbol = 0
        for j in range(limits.shape[1]):
            symbol += int(coin >= limits[row, j])
        symbols[i] = np.uint32(symbol)
    return clipped


class MVU(Baseline):
    """A few private bits for each entry, unbiased, with the least variance.

    dim                entries of an update
    epsilon_per_entry  level of one entry's bits together; math.inf for the least noise
    scale              entries are clipped to [-scale, scale]
    bits               1 (closed form), 2 or 3 (designed once and kept; needs SciPy)
    inputs             grid points of the designed channel

    >>> MVU(dim=7850, epsilon_per_entry=0.5, scale=0.05, bits=1).payload_bits
    7850
    """

    def __init__(
        self, dim: int, epsilon_per_entry: float, scale: float, *, bits: int = 1, inputs: int = 16
    ) -> None:
        self.dim = whole("dim", dim, 1)
        self.epsilon = positive("epsilon_per_entry", epsilon_per_entry, infinite=True)
        self.scale = positive("scale", scale)
        self.bits = whole("bits", bits, 1, 3)
        self.inputs = whole("inputs", inputs, 2, 64)
        self.wire: SymbolWire = SymbolWire(self.dim, 2**self.bits)
        self.response = Response(self.epsilon)
        self.design: Design | None = None
        if self.bits > 1:
            self.design = design(self.bits, self.inputs, self.epsilon)

    @property
    def description(self) -> dict[str, Any]:
        """Name and parameters; the alphabet too, for solvers may differ in the last digits."""
        return {
            "mechanism": "MVU", "dim": self.dim, "epsilon_per_entry": plain(self.epsilon),
            "scale": self.scale, "bits": self.bits,
            "inputs": self.inputs if self.bits > 1 else None,
            "alphabet": None if self.design is None else self.alphabet.round(6).tolist(),
        }  # fmt: skip

    @cached_property
    def guarantee(self) -> Guarantee:
        """Epsilon for each entry."""
        return self.promise(self.epsilon, self.dim)

    @cached_property
    def alphabet(self) -> NDArray[np.float64]:
        """What each symbol is decoded to, in units of `scale`."""
        if self.design is None:
            return np.array([-1.0, 1.0]) / float(self.response.beta)
        return 2 * self.design.alphabet - 1

    @cached_property
    def worst_variance(self) -> float:
        """The largest variance of one entry of one user, in units of scale²."""
        if self.design is None:
            return 1 / float(self.response.beta) ** 2
        rounding = 0.25 / (self.inputs - 1) ** 2
        return 4 * (float(self.design.variance.max()) + rounding)

    @cached_property
    def _limits(self) -> NDArray[np.int64]:
        assert self.design is not None
        return np.cumsum(self.design.counts, axis=1)[:, :-1].copy()

    def cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: NDArray[np.uint8],
    ) -> int:  # fmt: skip
        """One user's symbols."""
        symbols = np.empty(self.dim, dtype=np.uint32)
        clipped: int
        if self.bits == 1:
            half = float(self.response.half)
            coins = vote_coins(coin, self.dim)
            clipped = lean_bits(update, min(half / self.scale, 1e300), half, coins, symbols)
        else:
            coins = np.empty(2 * self.dim, dtype=np.uint32)
            keystream(coin, COIN_TAG, 0, 0, 0, coins)
            clipped = channel_symbols(update, self.scale, self._limits, coins, symbols)
        self.wire.write(symbols, row)
        return clipped

    def empty_counters(self, histogram: bool) -> Counters:
        """How many sent each symbol, entry by entry."""
        return {"symbols": np.zeros((2**self.bits, self.dim), dtype=np.int64)}

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Count the symbols."""
        self.wire.add(counters["symbols"], payload, np.eye(2**self.bits, dtype=np.int64))

    def estimate(self, tally: Tally) -> Estimate:
        """The mean of the clipped updates; the variance is that of the worst input."""
        check_counted(tally, self)
        mean = self.scale / tally.count * (self.alphabet @ tally.counters["symbols"])
        variance = self.worst_variance * self.scale**2 / tally.count
        return Estimate(mean, np.full(self.dim, variance), tally.count, unbiased=True)
