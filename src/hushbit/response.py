"""Randomized response with integer thresholds: the realised epsilon never exceeds the asked one."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from hushbit.checks import positive
from hushbit.errors import InvalidInput

RANGE = 2**32
CENTRE = RANGE // 2


@dataclass(frozen=True)
class Response:
    """A bit is told truly with probability p = e^eps / (1 + e^eps), rounded down to 2^-32.

    >>> Response(0.5).beta  # 2p - 1 as a fraction
    Fraction(262979411, 1073741824)
    """

    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "epsilon", positive("epsilon_per_bit", self.epsilon, infinite=True)
        )
        if self.half == 0:
            raise InvalidInput(
                f"epsilon_per_bit = {self.epsilon} is below what 32-bit coins can express; "
                "use at least 1e-9, or fewer bits with more epsilon each"
            )

    @cached_property
    def lies(self) -> int:
        """Number of the 2^32 coins that flip the bit: the least that keeps epsilon."""
        if math.isinf(self.epsilon):
            return 0
        lies = math.ceil(RANGE / (1 + math.exp(min(self.epsilon, 700.0))))
        while lies < CENTRE and Fraction(RANGE - lies, lies) > Fraction(_exp_below(self.epsilon)):
            lies += 1
        return lies

    @property
    def half(self) -> int:
        """beta · 2^31: how far a certain sign moves the threshold from the centre."""
        return CENTRE - self.lies

    @property
    def beta(self) -> Fraction:
        """2p - 1, exactly as realised."""
        return Fraction(self.half, CENTRE)

    @property
    def realised_epsilon(self) -> float:
        """ln(p / (1 - p)) of the coins as they are."""
        if self.lies == 0:
            return math.inf
        return math.log1p(2 * self.half / self.lies)


def _exp_below(epsilon: float) -> float:
    """A float that is certainly not above e^epsilon."""
    return math.exp(min(epsilon, 700.0)) * (1 - 2**-50)
