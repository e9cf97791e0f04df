"""MVU: the minimum-variance unbiased private channel, with one bit for each entry.

    z = clip(h / scale, -1, 1),  x = (z + 1) / 2
    P(1 | x) = (x + a) / (1 + 2a),  a = 1 / (e^eps - 1)

This is the closed form of the channel of Chaudhuri et al. 2022 for one bit. It is the distribution
of a stochastic sign with randomized response: a bit is decoded as ±1 / beta, beta = 2p - 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from hushbit.baselines.entry_mechanism import EntryMechanism, SignVotes, SymbolCodec
from hushbit.baselines.signsgd import encode_stochastic_signs
from hushbit.checks import check_int, check_positive
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.mechanism import Bytes, Updates, Words
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally.estimate import Estimate
from hushbit.tally.tally import Counters, LargestVotes
from hushbit.wire.keys import RoundKey, UserKeys


@dataclass(frozen=True, eq=False, repr=False)
class MVU(EntryMechanism):
    """One private bit for each entry, unbiased, with the smallest variance.

    dim                entries of an update
    epsilon_per_entry  epsilon of one entry; math.inf for the smallest noise
    scale              entries are clipped to [-scale, scale]

    >>> MVU(dim=7850, epsilon_per_entry=0.5, scale=0.05).payload_bits
    7850
    """

    name: ClassVar[str] = "mvu"

    dim: int
    epsilon_per_entry: float
    scale: float
    response: RandomizedResponse = field(init=False)

    def __post_init__(self) -> None:
        epsilon = check_positive("epsilon_per_entry", self.epsilon_per_entry, infinite=True)
        self._set(dim=check_int("dim", self.dim, 1), epsilon_per_entry=epsilon)
        self._set(scale=check_positive("scale", self.scale), response=RandomizedResponse(epsilon))

    @cached_property
    def codec(self) -> SymbolCodec:
        """One bit for each entry."""
        return SymbolCodec(self.dim, 2)

    @property
    def description(self) -> dict[str, Any]:
        """Name and parameters, with the parameters of channels of more bits."""
        # They are part of the fingerprint in ballots of version 1.
        return super().description | {"bits": 1, "inputs": None, "alphabet": None}

    @classmethod
    def from_description(cls, fields: Mapping[str, Any]) -> Self:
        """Leaves out the parameters of channels of more bits."""
        return super().from_description({name: fields[name] for name in cls.parameters()})

    @cached_property
    def guarantee(self) -> Guarantee:
        """Epsilon of each entry."""
        return self.pure_guarantee(self.epsilon_per_entry, self.dim)

    def encode_user(self, update: Updates, key: Words, coin: Words, row: Bytes) -> int:
        """Write the bits of one user; returns the number of clipped entries."""
        bits, clipped = encode_stochastic_signs(update, self.scale, self.response, coin)
        self.codec.write(bits, row)
        return clipped

    def empty_counters(self, histogram: bool) -> Counters:
        """Zeroed counts of each symbol for each entry."""
        return {"symbols": np.zeros((2, self.dim), dtype=np.int64)}

    def add_payload(self, counters: Counters, payload: Bytes, keys: UserKeys) -> None:
        """Count the symbols."""
        self.codec.add(counters["symbols"], payload, np.eye(2, dtype=np.int64))

    def largest_votes(self, counters: Counters) -> LargestVotes:
        """A symbol is counted once."""
        return {"symbols": 1}

    def decode(self, counters: Counters, count: int, round_key: RoundKey) -> Estimate:
        """The mean of the clipped updates; the variance is that of the worst input."""
        beta = float(self.response.beta)
        mean = self.scale / count * (np.array([-1.0, 1.0]) / beta @ counters["symbols"])
        variance = 1 / beta**2 * self.scale**2 / count
        return Estimate(mean, np.full(self.dim, variance), count, unbiased=True)

    @cached_property
    def votes(self) -> SignVotes:
        """Every bit is the sign of its entry."""
        return SignVotes(self.dim, float(self.response.beta))
