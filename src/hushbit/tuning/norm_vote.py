"""One more private bit in every ballot: whether the update's norm is at most a public level.

The bit goes through randomized response of its own epsilon, which the guarantee counts, and sits
behind the other bits of the ballot, so it is in the bytes. With beta = tanh(epsilon / 2) and S the
sum of the ±1 answers of K users,

    share of users at or below the level = 1/2 + S / (2 beta K)      unbiased.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import length
from hushbit.decode import Estimate, check_counted
from hushbit.errors import InvalidInput
from hushbit.kernels.chacha import keystream
from hushbit.keys import UserKeys
from hushbit.mechanism import Mechanism
from hushbit.privacy.guarantee import Guarantee
from hushbit.privacy.zcdp import zcdp_of_two_points_tight
from hushbit.response import Response
from hushbit.tally import Counters, Tally

NORM_TAG = int.from_bytes(b"norm", "little")
COUNTER = "norm votes"


class NormVote(Mechanism):
    """Any mechanism, with one more randomized-response bit that compares the norm to `level`."""

    def __init__(self, inner: Mechanism, level: float, epsilon: float) -> None:
        if not isinstance(inner, Mechanism):
            raise InvalidInput(f"NormVote wraps a mechanism; got {inner!r}")
        self.inner = inner
        self.dim = inner.dim
        self.level = length("level", level)
        self.response = Response(epsilon)

    @property
    def description(self) -> dict[str, Any]:
        """The inner description, the level and the epsilon of the vote."""
        epsilon = self.response.epsilon
        return {
            "mechanism": "NormVote", "level": self.level,
            "epsilon": "inf" if np.isinf(epsilon) else epsilon, "inner": self.inner.description,
        }  # fmt: skip

    @property
    def guarantee(self) -> Guarantee:
        """The inner guarantee with one more bit; zCDP levels add up."""
        inner, epsilon = self.inner.guarantee, self.response.epsilon
        rho = None if inner.rho is None else inner.rho + zcdp_of_two_points_tight(epsilon, 1, 1)
        return replace(
            inner,
            groups=(*inner.groups, (epsilon, 1)),
            message_bits=inner.message_bits + 1,
            rho=rho,
        )

    @property
    def payload_bits(self) -> int:
        """The inner bits and one."""
        return self.inner.payload_bits + 1

    @property
    def unbiased_radius(self) -> float:
        """As the inner mechanism."""
        return float(getattr(self.inner, "unbiased_radius", np.inf))

    def cast(
        self, updates: NDArray[np.floating], keys: UserKeys, coins: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The inner payload, and the vote in the first bit after it."""
        payload, overloaded = self.inner.cast(updates, keys, coins)
        with np.errstate(over="ignore"):
            norms = np.sqrt(np.einsum("ud,ud->u", updates, updates, dtype=np.float64))
        return self.joined(payload, (norms <= self.level) ^ self._lies(coins)), overloaded

    def joined(self, payload: NDArray[np.uint8], answers: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """The inner payload with each user's answer in the first bit after it."""
        byte, bit = divmod(self.inner.payload_bits, 8)
        if bit == 0:
            payload = np.concatenate([payload, np.zeros((len(payload), 1), np.uint8)], axis=1)
        payload[:, byte] |= answers.astype(np.uint8) << bit
        return payload

    def _lies(self, coins: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Whose answer is flipped, by each user's own coins."""
        drawn = np.empty((len(coins), 1), dtype=np.uint32)
        for coin, word in zip(coins, drawn, strict=True):
            keystream(coin, NORM_TAG, 0, 0, 0, word)
        return drawn[:, 0].astype(np.int64) < self.response.lies

    def check_payload(self, payload: NDArray[np.uint8]) -> None:
        """The inner check, on the inner bits; nothing may follow the vote."""
        super().check_payload(payload)
        self.inner.check_payload(self.parts(payload)[0])

    def parts(self, payload: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The inner payload and the votes as ±1."""
        byte, bit = divmod(self.inner.payload_bits, 8)
        votes = 2 * (payload[:, byte] >> bit & 1).astype(np.int64) - 1
        inner = payload[:, : byte + (bit > 0)].copy()
        if bit:
            inner[:, -1] &= (1 << bit) - 1
        return inner, votes

    def empty_counters(self, histogram: bool) -> Counters:
        """The inner counters, and the sum of the votes."""
        return {**self.inner.empty_counters(histogram), COUNTER: np.zeros(1, dtype=np.int64)}

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Count the inner bits and the votes."""
        inner, votes = self.parts(payload)
        self.inner.absorb(counters, inner, keys)
        counters[COUNTER] += votes.sum()

    def estimate(self, tally: Tally) -> Estimate:
        """The mean, as the inner mechanism decodes it."""
        check_counted(tally, self)
        counters = {name: part for name, part in tally.counters.items() if name != COUNTER}
        inner = Tally(self.inner, tally.round_key, counters)
        inner.roll = tally.roll
        return self.inner.estimate(inner)

    def share_below(self, tally: Tally) -> float:
        """Unbiased share of users whose norm is at most the level; may leave [0, 1]."""
        check_counted(tally, self)
        total = int(tally.counters[COUNTER][0])
        return 0.5 + total / (2 * float(self.response.beta) * tally.count)
