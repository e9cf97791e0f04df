"""A few bits for a whole budget: every user reports s of its M blocks, chosen by its key.

Positions depend on the shared key alone, never on data, so the pure epsilon of a message is
s · epsilon_per_bit. A block's sum is weighted by M / s, which keeps the mean unbiased.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import whole
from hushbit.clipping import clipped
from hushbit.cpa import CPA
from hushbit.decode import Estimate, check_counted, gain_and_shift, noise_power, signal_power
from hushbit.errors import InvalidInput
from hushbit.kernels.subset import choose_blocks, count_chosen
from hushbit.keys import UserKeys
from hushbit.mechanism import Mechanism
from hushbit.privacy.guarantee import Guarantee
from hushbit.stage import spread_users
from hushbit.tally import Counters, Tally


class Subset(Mechanism):
    """`report` blocks of the update of each user, one bit each, under a CPA of the same dim."""

    def __init__(self, inner: CPA, report: int) -> None:
        if not isinstance(inner, CPA) or len(inner.stages) != 1:
            raise InvalidInput(f"Subset wraps a CPA of one stage; got {inner!r}")
        if inner.quantizer.uses_dither:
            raise InvalidInput("Subset needs stochastic or nearest rounding, which share no dither")
        self.inner = inner
        self.dim = inner.dim
        self.report = whole("report", report, 1, inner.blocks)

    @property
    def description(self) -> dict[str, Any]:
        """The inner description and how many blocks each user reports."""
        return {"mechanism": "Subset", "report": self.report, "inner": self.inner.description}

    @cached_property
    def guarantee(self) -> Guarantee:
        """The inner mechanism's bits, but only those that are sent."""
        inner = self.inner.guarantee
        return Guarantee(
            groups=((inner.epsilon_per_bit, self.report),),
            dim=self.dim,
            message_bits=self.report,
            k_anonymity=inner.k_anonymity,
            rho=inner.rho,
            points=inner.points,
        )

    @property
    def payload_bits(self) -> int:
        """One bit for each reported block."""
        return self.report

    @property
    def unbiased_radius(self) -> float:
        """As the inner mechanism."""
        return self.inner.unbiased_radius

    def positions(self, key: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The blocks that a user reports, in the order of its bits."""
        chosen = np.empty(self.report, dtype=np.int64)
        choose_blocks(key, self.inner.blocks, chosen)
        return chosen

    def cast(
        self, updates: NDArray[np.floating], keys: UserKeys, coins: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Payloads and overload counts of many users."""
        updates = clipped(updates, self.inner.clip)
        payload = np.zeros((len(updates), (self.report + 7) // 8), dtype=np.uint8)
        overloaded = np.zeros(len(updates), dtype=np.int64)
        spread_users(self._cast_one, updates, keys, coins, payload, overloaded)
        return payload, overloaded

    def _cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: NDArray[np.uint8],
    ) -> int:  # fmt: skip
        size = self.inner.block_size
        entries = self.positions(key)[:, None] * size + np.arange(size)
        inside = entries < self.dim
        blocks = np.where(inside, update[np.minimum(entries, self.dim - 1)], 0.0)
        corners = self.inner.quantizer.corners(blocks)
        self.inner.stages[0].cast_corners(corners, self.inner.counts, key, coin, row)
        return corners.overloaded

    def empty_counters(self, histogram: bool) -> Counters:
        """Sums of integer coordinates of the reported blocks."""
        return {"sum": np.zeros((self.inner.block_size, self.inner.blocks), dtype=np.int64)}

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Add each bit's pull to the block that it speaks of."""
        stage = self.inner.stages[0]
        count_chosen(
            keys.keys, self.report, stage.family == "hadamard", payload, stage.points.coords,
            counters["sum"],
        )  # fmt: skip

    def estimate(self, tally: Tally) -> Estimate:
        """The unbiased mean: every reported block stands for M / s."""
        check_counted(tally, self)
        stage = self.inner.stages[0]
        gain, shift = gain_and_shift(self.inner.preset, stage.response.beta, stage.rho)
        weight = self.inner.blocks / self.report
        pull = float(gain) * weight / tally.count * (tally.counters["sum"].T @ stage.points.basis)
        noise = weight * noise_power(stage.points, gain, stage.rho)
        mean = pull + float(shift) * stage.points.positions.sum(axis=0)
        variance = (noise - signal_power(pull.T, noise, tally.count)) / tally.count
        return Estimate(
            mean=mean.reshape(-1)[: self.dim],
            variance=np.tile(variance, self.inner.blocks)[: self.dim],
            count=tally.count,
            unbiased=self.inner.preset == "corrected" and self.inner.rounding == "stochastic",
            noise=float(noise.mean()) / tally.count,
        )
