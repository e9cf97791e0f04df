"""Federated averaging without compression and without privacy: the yardstick."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.entries import Baseline
from hushbit.baselines.wire import FloatWire
from hushbit.checks import whole
from hushbit.decode import Estimate, check_counted
from hushbit.keys import UserKeys
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally import Counters, Tally


class FedAvg(Baseline):
    """The plain mean of the updates, 32-bit floats on the wire, epsilon infinite.

    >>> FedAvg(dim=10).guarantee.epsilon_per_message()
    inf
    """

    def __init__(self, dim: int) -> None:
        self.dim = whole("dim", dim, 1)
        self.wire: FloatWire = FloatWire(self.dim)

    @property
    def description(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"mechanism": "FedAvg", "dim": self.dim}

    @property
    def guarantee(self) -> Guarantee:
        """None."""
        return self.promise(math.inf, self.dim, note="the update itself is sent")

    def cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: NDArray[np.uint8],
    ) -> int:  # fmt: skip
        """The update as 32-bit floats."""
        self.wire.write(update, row)
        return 0

    def empty_counters(self, histogram: bool) -> Counters:
        """Exact sums in fixed point."""
        return {"sum": self.wire.empty()}

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Add the floats up."""
        self.wire.add(counters["sum"], payload)

    def estimate(self, tally: Tally) -> Estimate:
        """Sum over count; nothing but the rounding to 32 bits is added."""
        check_counted(tally, self)
        mean = self.wire.total(tally.counters["sum"]) / tally.count
        return Estimate(mean, np.zeros(self.dim), tally.count, unbiased=True)
