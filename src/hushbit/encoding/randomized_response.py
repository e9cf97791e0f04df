"""Randomized response with integer thresholds: the realised epsilon never exceeds `epsilon`."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from hushbit.checks import check_positive
from hushbit.errors import InvalidInput

RANGE = 2**32
HALF_RANGE = RANGE // 2


@dataclass(frozen=True)
class RandomizedResponse:
    """A bit is sent unchanged with probability p = e^eps / (1 + e^eps), rounded down to 2^-32.

    >>> RandomizedResponse(0.5).beta  # 2p - 1 as a fraction
    Fraction(262979411, 1073741824)
    """

    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "epsilon", check_positive("epsilon_per_bit", self.epsilon, infinite=True)
        )
        if self.threshold_offset == 0:
            raise InvalidInput(
                f"epsilon_per_bit = {self.epsilon} is too small for 32-bit coins: use at "
                "least 1e-9. A larger budget, fewer bits or fewer rounds raise it"
            )

    @cached_property
    def flip_count(self) -> int:
        """How many of the 2^32 coins flip the bit: the smallest number that satisfies epsilon."""
        if math.isinf(self.epsilon):
            return 0
        # A float that is certainly not above e^epsilon.
        odds = Fraction(math.exp(min(self.epsilon, 700.0)) * (1 - 2**-50))
        flips = math.ceil(RANGE / (1 + math.exp(min(self.epsilon, 700.0))))
        while flips < HALF_RANGE and Fraction(RANGE - flips, flips) > odds:
            flips += 1
        return flips

    @property
    def threshold_offset(self) -> int:
        """beta · 2^31: the distance of the threshold of a fixed sign from HALF_RANGE."""
        return HALF_RANGE - self.flip_count

    @property
    def beta(self) -> Fraction:
        """2p - 1, exactly, for the rounded p."""
        return Fraction(self.threshold_offset, HALF_RANGE)

    @property
    def realised_epsilon(self) -> float:
        """ln(p / (1 - p)) for the rounded p."""
        if self.flip_count == 0:
            return math.inf
        return math.log1p(2 * self.threshold_offset / self.flip_count)
