"""Federated averaging without compression and without privacy."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from hushbit.baselines.entry_mechanism import FloatCodec, SumMechanism
from hushbit.checks import check_int
from hushbit.mechanism import Bytes, Updates, Words
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally.estimate import Estimate
from hushbit.tally.tally import Counters
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import RoundKey


@dataclass(frozen=True, eq=False, repr=False)
class FedAvg(SumMechanism):
    """The mean of updates that are sent as 32-bit floats; epsilon is infinite.

    >>> FedAvg(dim=10).guarantee.epsilon_per_message()
    inf
    """

    name: ClassVar[str] = "fedavg"
    sends_updates: ClassVar[bool] = True

    dim: int

    def __post_init__(self) -> None:
        self._set(dim=check_int("dim", self.dim, 1))

    @cached_property
    def codec(self) -> FloatCodec:
        """32-bit floats."""
        return FloatCodec(self.dim)

    @property
    def guarantee(self) -> Guarantee:
        """Epsilon is infinite."""
        return self.pure_guarantee(math.inf, self.dim, note="the update itself is sent")

    def encode_user(self, update: Updates, key: Words, coin: Words, row: Bytes) -> int:
        """Write the update as 32-bit floats."""
        self.codec.write(update, row)
        return 0

    def decode(self, counters: Counters, count: int, round_key: RoundKey) -> Estimate:
        """The sum divided by the count; the only error is the rounding to 32-bit floats."""
        mean = self.codec.total(counters["sum"]) / count
        return Estimate(mean, np.zeros(self.dim), count, unbiased=True)

    def plain_updates(self, ballots: Ballots) -> Updates:
        """The floats of the payload."""
        return ballots.payload.view("<f4")
