"""What a ballot guarantees its user, in three units: per bit, per message, per run."""

import math
from dataclasses import dataclass

from hushbit.checks import whole
from hushbit.privacy.arguments import failure_probability
from hushbit.privacy.bits import epsilon_of
from hushbit.privacy.composition import Bound, smallest
from hushbit.privacy.mixed import epsilon_of_mixed
from hushbit.privacy.zcdp import epsilon_of_zcdp

DELTA = 1e-5


@dataclass(frozen=True)
class Guarantee:
    """Local differential privacy of one ballot against everyone who sees it and the keys.

    `groups` lists (epsilon, how many): bits of randomized response, or whatever `unit` names
    (an entry, a block) with pure local privacy of that level. `rho`, if given, is a zCDP level
    of the whole message. `k_anonymity` is the least number of points that fit a noiseless bit;
    it holds for one round without a prior and decays over rounds, so it is no substitute.
    """

    groups: tuple[tuple[float, int], ...]
    dim: int
    message_bits: int
    k_anonymity: int
    rho: float | None = None
    unit: str = "bit"
    note: str = ""

    @property
    def epsilon_per_bit(self) -> float:
        """The largest pure epsilon of one bit (or of one `unit`)."""
        return max(epsilon for epsilon, _ in self.groups)

    @property
    def bits_per_entry(self) -> float:
        """Payload bits for each entry of the update."""
        return self.message_bits / self.dim

    def epsilon_per_message(self, delta: float = 0.0) -> float:
        """The smallest proven epsilon of a whole ballot at this delta; pure for delta = 0."""
        return self.bound(1, delta).epsilon

    def epsilon_per_run(self, rounds: int, delta: float = 0.0) -> float:
        """The smallest proven epsilon of a user that takes part in `rounds` rounds."""
        return self.bound(rounds, delta).epsilon

    def bound(self, rounds: int = 1, delta: float = 0.0) -> Bound:
        """The smallest valid bound for some rounds, and the rule that proves it."""
        times = whole("rounds", rounds, 0)
        delta = failure_probability(delta)
        if times == 0:
            return Bound(0.0, 0.0, "nothing was sent")
        pure = math.fsum(epsilon * count for epsilon, count in self.groups) * times
        bounds = [Bound(pure, 0.0, "sum over bits" if self.unit == "bit" else "sum over entries")]
        if delta > 0 and math.isfinite(pure):
            bounds.append(Bound(self._composed(times, delta), delta, "exact composition"))
        if delta > 0 and self.rho is not None:
            bounds.append(Bound(epsilon_of_zcdp(self.rho * times, delta), delta, "l2 clip, zCDP"))
        return smallest(bounds, delta)

    def _composed(self, times: int, delta: float) -> float:
        if len({epsilon for epsilon, _ in self.groups}) == 1:
            count = sum(number for _, number in self.groups)
            return epsilon_of(self.groups[0][0], count * times, delta)
        return epsilon_of_mixed([(epsilon, count * times) for epsilon, count in self.groups], delta)

    def line(self) -> str:
        """One line with every unit, for reprs and progress."""
        message = self.bound(1, DELTA)
        return (
            f"epsilon {_number(self.epsilon_per_bit)} per {self.unit}, "
            f"{_number(self.epsilon_per_message())} per message "
            f"({_number(message.epsilon)} at delta {DELTA:g} by {message.method}), "
            f"k = {self.k_anonymity} per block and round, {self.bits_per_entry:.4g} bits per entry"
        )

    def __str__(self) -> str:
        return self.line()


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.4g}"
