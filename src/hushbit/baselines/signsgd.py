"""signSGD with randomized response: the sign of every entry, flipped with probability 1 - p.

    bit = ±1,  P(+1) = 1/2 + (2p - 1) sign(h) / 2,  p = e^eps / (1 + e^eps);  sign(0) = 0
    result = step · mean(bit) / (2p - 1)  ("mean"),   or   step · sign(sum of bits)  ("majority")

The result is a direction, not an estimate of the mean of h. With `stochastic`, the sign is drawn at
random with mean clip(h / step, -1, 1); the result is then an unbiased mean of the clipped updates.
"""

from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from hushbit.baselines.entry_mechanism import PRESETS, EntryMechanism, SignVotes, SymbolCodec
from hushbit.checks import check_choice, check_int, check_positive
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.encoding.stage import response_coins
from hushbit.errors import InvalidInput
from hushbit.kernels import njit
from hushbit.kernels.encode import encode_signs
from hushbit.kernels.threads import parallel_for
from hushbit.mechanism import Bytes, Payloads, Updates, Words
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally.estimate import Estimate
from hushbit.tally.tally import Counters, LargestVotes
from hushbit.wire.keys import RoundKey, UserKeys

VOTES = ("mean", "majority")
SIGNS = np.array([[-1], [1]], dtype=np.int64)


@njit
def stochastic_sign_bits(
    update: Updates, scale: float, offset: float, coins: Words, bits: Words
) -> int:
    """bit = [coin < 2^31 + clip(rint(update · scale), ±offset)]; returns the number of clips."""
    clipped = 0
    for i in range(update.size):
        value = np.float64(update[i]) * scale
        clipped += int(abs(value) > offset)
        threshold = min(max(np.rint(value), -offset), offset)
        bits[i] = np.uint32(np.float64(np.int32(coins[i] ^ np.uint32(0x80000000))) < threshold)
    return clipped


def encode_stochastic_signs(
    update: Updates, scale: float, response: RandomizedResponse, coin: Words
) -> tuple[Words, int]:
    """Private bits of random signs with mean clip(update / scale, -1, 1); the number of clips."""
    offset = float(response.threshold_offset)
    bits = np.empty(update.size, dtype=np.uint32)
    coins = response_coins(coin, update.size)
    factor = min(offset / scale, 1e300)  # finite for denormal scales
    return bits, stochastic_sign_bits(update, factor, offset, coins, bits)


@dataclass(frozen=True, eq=False, repr=False)
class SignRR(EntryMechanism):
    """One private bit for the sign of every entry (signSGD with randomized response).

    dim              entries of an update
    epsilon_per_bit  epsilon of the randomized response; math.inf for none
    step             by how much a unanimous vote changes a weight
    vote             "mean" of the signs, or their "majority"
    stochastic       draw the sign at random with mean clip(h / step, -1, 1): unbiased
    preset           "honest", or "authors": step 1, no division by 2p - 1, sign(0) = +1

    >>> SignRR(dim=7850, epsilon_per_bit=0.5, step=0.01).payload_bits
    7850
    """

    name: ClassVar[str] = "signsgd"

    dim: int
    epsilon_per_bit: float
    step: float | None = None
    _: KW_ONLY
    vote: str = "mean"
    stochastic: bool = False
    preset: str = "honest"
    response: RandomizedResponse = field(init=False)

    def __post_init__(self) -> None:
        dim = check_int("dim", self.dim, 1)
        self._set(dim=dim, response=RandomizedResponse(self.epsilon_per_bit))
        self._set(epsilon_per_bit=self.response.epsilon)
        check_choice("preset", self.preset, PRESETS)
        check_choice("vote", self.vote, VOTES)
        if not isinstance(self.stochastic, bool):
            raise InvalidInput(f"stochastic must be True or False; got {self.stochastic!r}")
        step, vote = self.step, self.vote
        if self.preset == "authors":
            if step not in (None, 1.0) or self.stochastic or vote != "mean":
                raise InvalidInput(
                    "preset 'authors' sets step, vote and stochastic: leave them out"
                )
            self._set(step=1.0, _at_default=("step",))
            return
        if self.stochastic and vote != "mean":
            raise InvalidInput("stochastic signs need vote='mean'; the majority is biased")
        self._set(step=check_positive("step", step))

    @cached_property
    def codec(self) -> SymbolCodec:
        """One bit for each entry."""
        return SymbolCodec(self.dim, 2)

    @property
    def _step(self) -> float:
        assert self.step is not None
        return self.step

    @cached_property
    def guarantee(self) -> Guarantee:
        """Epsilon of each bit."""
        return self.pure_guarantee(self.response.epsilon, self.dim, unit="bit")

    def encode_user(self, update: Updates, key: Words, coin: Words, row: Bytes) -> int:
        """Write the bits of one user; returns the number of entries clipped to `step`."""
        signs, scale = (update, self._step) if self.stochastic else (np.sign(update), 1.0)
        if self.preset == "authors":
            signs = np.where(update >= 0, 1.0, -1.0)
        bits, clipped = encode_stochastic_signs(signs, scale, self.response, coin)
        self.codec.write(bits, row)
        return clipped

    def encode_payload(self, updates: Updates, keys: UserKeys, coins: Words) -> Payloads:
        """The bits of `encode_user`; a kernel encodes signs that are not stochastic."""
        if self.stochastic:
            return super().encode_payload(updates, keys, coins)
        payload = np.zeros((len(updates), (self.payload_bits + 7) // 8), dtype=np.uint8)
        offset = float(self.response.threshold_offset)
        sign_of_zero = np.float32(self.preset == "authors")

        def run(first: int, last: int) -> None:
            encode_signs(updates, sign_of_zero, offset, coins, first, last, payload)

        parallel_for(run, len(updates))
        return payload, np.zeros(len(updates), dtype=np.int64)

    def empty_counters(self, histogram: bool) -> Counters:
        """Zeroed sums of ±1."""
        return {"sum": np.zeros((1, self.dim), dtype=np.int64)}

    def add_payload(self, counters: Counters, payload: Bytes, keys: UserKeys) -> None:
        """Add the signs."""
        self.codec.add(counters["sum"], payload, SIGNS)

    def largest_votes(self, counters: Counters) -> LargestVotes:
        """A sign is ±1."""
        return {"sum": 1}

    def decode(self, counters: Counters, count: int, round_key: RoundKey) -> Estimate:
        """The step of the server; the variance is that of the coins, a bound if stochastic."""
        total, beta = counters["sum"][0], float(self.response.beta)
        gain = self._step if self.preset == "authors" else self._step / beta
        if self.vote == "majority":
            mean, variance = self._step * np.sign(total), self._step**2
        else:
            mean = total * (gain / count)
            noise = 1.0 if self.stochastic else 1 - beta**2
            variance = gain**2 * noise / count
        return Estimate(
            mean.astype(np.float64), np.full(self.dim, variance), count, unbiased=self.stochastic
        )

    @cached_property
    def votes(self) -> SignVotes:
        """Every bit is the sign of its entry."""
        return SignVotes(self.dim, float(self.response.beta))
