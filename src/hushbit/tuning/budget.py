"""Which bits a budget buys: points, stages, subset or clip, chosen once, scaled every round."""

import math
from dataclasses import dataclass
from functools import cached_property

from hushbit.checks import positive, whole
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.privacy.arguments import failure_probability
from hushbit.privacy.calibration import calibrate
from hushbit.privacy.planning import noise_per_user, plan
from hushbit.rotation import Rotated
from hushbit.subset import Subset
from hushbit.tuning.norm_vote import NormVote

VOTE_SHARE = 0.1
"""Part of a whole message's epsilon that the vote on the norm gets."""


@dataclass(frozen=True)
class Budget:
    """What a user requires of a mechanism: epsilon in one named unit, and maybe k and bits."""

    dim: int
    users: int
    epsilon_per_bit: float | None = None
    epsilon_per_message: float | None = None
    delta: float | None = None
    k: int | None = None
    bits_per_weight: float | None = None

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1)
        whole("users", self.users, 1)
        if (self.epsilon_per_bit is None) == (self.epsilon_per_message is None):
            raise InvalidInput("give epsilon_per_bit or epsilon_per_message, one of them")
        if (self.epsilon_per_message is None) != (self.delta is None):
            raise InvalidInput(
                "epsilon_per_message needs delta (0 for a pure one; --message-delta of a run), and "
                f"epsilon_per_bit takes none; got epsilon_per_message = "
                f"{self.epsilon_per_message!r}, delta = {self.delta!r}"
            )
        if self.epsilon_per_bit is not None:
            positive("epsilon_per_bit", self.epsilon_per_bit, infinite=True)
            return
        positive("epsilon_per_message", self.epsilon_per_message)
        failure_probability(self.delta)
        if self.k not in (None, 1) or self.bits_per_weight is not None:
            raise InvalidInput(
                "a whole message's budget chooses its bits itself, with k = 1: leave out k and "
                "bits_per_weight"
            )

    @property
    def clips(self) -> str:
        """What is cut to size: entries, or the norm where (epsilon, delta) rests on it."""
        return "norm" if self.delta else "entries"

    @property
    def vote_epsilon(self) -> float:
        """Epsilon of the vote on the norm."""
        if self.epsilon_per_bit is not None:
            return self.epsilon_per_bit
        assert self.epsilon_per_message is not None
        return VOTE_SHARE * self.epsilon_per_message

    @cached_property
    def base(self) -> Mechanism:
        """The mechanism for points at ±1 (norms up to 1), before the rotation."""
        if self.epsilon_per_bit is not None:
            return plan(
                self.dim, self.users, epsilon_per_bit=self.epsilon_per_bit, radius=1.0,
                k=1 if self.k is None else self.k, bits_per_entry=self.bits_per_weight,
            ).best.mechanism  # fmt: skip
        assert self.epsilon_per_message is not None
        if self.delta == 0:
            left = self.epsilon_per_message - self.vote_epsilon
            return calibrate(self.dim, left, 0.0, radius=1.0)
        return self._clipped()

    def _clipped(self) -> Mechanism:
        """The l2-clipped mechanism whose bits and vote together cost the budget, by bisection."""
        assert self.epsilon_per_message is not None
        assert self.delta is not None
        low, high = 0.0, self.epsilon_per_message
        best: Mechanism | None = None
        for _ in range(18):
            middle = (low + high) / 2
            turned = calibrate(self.dim, middle, self.delta, clip=1.0, rotate=True)
            assert isinstance(turned, Rotated)
            both = NormVote(turned, 1.0, self.vote_epsilon).guarantee
            if both.epsilon_per_message(self.delta) <= self.epsilon_per_message * (1 - 1e-9):
                low, best = middle, turned.inner
            else:
                high = middle
        if best is None:
            raise InvalidInput(f"epsilon_per_message = {self.epsilon_per_message} is too small")
        return best

    @cached_property
    def noise(self) -> float:
        """Variance of one user's vote for an entry, for a ratio of 1, in units of its rms²."""
        per_entry = noise_per_user(self.base, 0.0)
        return per_entry * self.dim if self.clips == "norm" else per_entry

    def mechanism(self, norm: float, ratio: float) -> Mechanism:
        """The bits for updates of a typical norm, points `ratio` spreads (clip: norms) out."""
        if self.clips == "norm":
            base = self.base
            assert isinstance(base, CPA)
            assert base.clip is not None
            size = norm * ratio
            epsilon = base.stages[0].response.epsilon
            return Rotated(CPA(self.dim, epsilon, base.radius * size, clip=base.clip * size))
        return Rotated(_scaled(self.base, ratio * norm / math.sqrt(self.dim)))


def _scaled(base: Mechanism, zeta: float) -> Mechanism:
    if isinstance(base, Subset):
        return Subset(base.inner.at_scale(zeta), base.report)
    assert isinstance(base, CPA)
    return base.at_scale(zeta)
