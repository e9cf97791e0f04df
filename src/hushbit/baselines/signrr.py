"""signSGD with randomized response: the sign of every entry, flipped with probability 1 - p.

    bit = ±1,  P(+) = 1/2 + (2p - 1) sign(h) / 2,  p = e^eps / (1 + e^eps);  h = 0 is a fair coin
    move = step · mean(bit) / (2p - 1)       ("mean"),   or   step · sign(sum of bits)  ("majority")

A direction, not an estimate of the mean of h. With `stochastic` the sign itself is drawn, with
mean clip(h / step, -1, 1): then the move is an unbiased mean of the clipped updates.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.entries import PRESETS, Baseline, plain
from hushbit.baselines.wire import SymbolWire
from hushbit.checks import choice, positive, whole
from hushbit.decode import Estimate, check_counted
from hushbit.errors import InvalidInput
from hushbit.kernels.jit import njit
from hushbit.kernels.threads import spread
from hushbit.kernels.vote import cast_signs
from hushbit.keys import UserKeys
from hushbit.privacy.guarantee import Guarantee
from hushbit.response import Response
from hushbit.stage import COIN_TAG, vote_coins
from hushbit.tally import Counters, Tally

VOTES = ("mean", "majority")
SIGNS = np.array([[-1], [1]], dtype=np.int64)


@njit
def lean_bits(
    update: NDArray[np.floating], scale: float, half: float, coins: NDArray[np.uint32],
    bits: NDArray[np.uint32],
) -> int:  # fmt: skip
    """bit = 1 when coin < 2^31 + clip(rint(update · scale), ±half); returns how many were cut."""
    over = 0
    for i in range(update.size):
        value = np.float64(update[i]) * scale
        over += int(abs(value) > half)
        lean = min(max(np.rint(value), -half), half)
        bits[i] = np.uint32(np.float64(np.int32(coins[i] ^ np.uint32(0x80000000))) < lean)
    return over


class SignRR(Baseline):
    """One private bit for the sign of every entry (signSGD with randomized response).

    dim              entries of an update
    epsilon_per_bit  randomized response of each bit; math.inf switches it off
    step             how far a unanimous vote moves a weight, in the weights' own units
    vote             "mean" of the signs, or their "majority"
    stochastic       draw the sign with mean clip(h / step, -1, 1): unbiased
    preset           "honest", or "authors": step 1, nothing divided by 2p - 1, zero counts as +

    >>> SignRR(dim=7850, epsilon_per_bit=0.5, step=0.01).payload_bits
    7850
    """

    def __init__(
        self, dim: int, epsilon_per_bit: float, step: float | None = None, *,
        vote: str = "mean", stochastic: bool = False, preset: str = "honest",
    ) -> None:  # fmt: skip
        self.dim = whole("dim", dim, 1)
        self.response = Response(epsilon_per_bit)
        self.preset = choice("preset", preset, PRESETS)
        self.vote = choice("vote", vote, VOTES)
        if not isinstance(stochastic, bool):
            raise InvalidInput(f"stochastic must be True or False; got {stochastic!r}")
        self.stochastic = stochastic
        if preset == "authors" and (step is not None or stochastic or vote != "mean"):
            raise InvalidInput("preset 'authors' fixes step, vote and stochastic: drop them")
        if stochastic and vote != "mean":
            raise InvalidInput("stochastic signs need vote='mean': a majority is not unbiased")
        self.step = 1.0 if preset == "authors" else positive("step", step)
        self.wire: SymbolWire = SymbolWire(self.dim, 2)

    @property
    def description(self) -> dict[str, Any]:
        """Name and parameters."""
        return {
            "mechanism": "SignRR", "dim": self.dim,
            "epsilon_per_bit": plain(self.response.epsilon), "step": self.step,
            "vote": self.vote, "stochastic": self.stochastic, "preset": self.preset,
        }  # fmt: skip

    @cached_property
    def guarantee(self) -> Guarantee:
        """Epsilon for each bit."""
        return self.promise(self.response.epsilon, self.dim, unit="bit")

    def cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: NDArray[np.uint8],
    ) -> int:  # fmt: skip
        """One user's bits; counts clipped entries when signs are stochastic."""
        half = float(self.response.half)
        coins = vote_coins(coin, self.dim)
        bits = np.empty(self.dim, dtype=np.uint32)
        lean = update if self.stochastic else np.sign(update)
        if self.preset == "authors":
            lean = np.where(update >= 0, 1.0, -1.0)
        scale = min(half / self.step, 1e300) if self.stochastic else half
        over: int = lean_bits(lean, scale, half, coins, bits)
        self.wire.write(bits, row)
        return over

    def cast(
        self, updates: NDArray[np.floating], keys: UserKeys, coins: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The bits that `cast_one` writes; plain signs in one pass."""
        if self.stochastic:
            return super().cast(updates, keys, coins)
        payload = np.zeros((len(updates), (self.payload_bits + 7) // 8), dtype=np.uint8)
        half, zero = float(self.response.half), np.float32(self.preset == "authors")

        def run(first: int, last: int) -> None:
            cast_signs(updates, zero, half, coins, COIN_TAG, first, last, payload)

        spread(run, len(updates))
        return payload, np.zeros(len(updates), dtype=np.int64)

    def empty_counters(self, histogram: bool) -> Counters:
        """Sums of ±1."""
        return {"sum": np.zeros((1, self.dim), dtype=np.int64)}

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Add the signs up."""
        self.wire.add(counters["sum"], payload, SIGNS)

    def estimate(self, tally: Tally) -> Estimate:
        """The server's move; its variance is what the coins add (an upper bound if stochastic)."""
        check_counted(tally, self)
        total, beta = tally.counters["sum"][0], float(self.response.beta)
        gain = self.step if self.preset == "authors" else self.step / beta
        if self.vote == "majority":
            mean, variance = self.step * np.sign(total), self.step**2
        else:
            mean = total * (gain / tally.count)
            noise = 1.0 if self.stochastic else 1 - beta**2
            variance = gain**2 * noise / tally.count
        return Estimate(
            mean.astype(np.float64), np.full(self.dim, variance), tally.count,
            unbiased=self.stochastic,
        )  # fmt: skip
