"""What many bits cost together: every composition rule under one roof, and the smallest of them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hushbit.checks import positive
from hushbit.errors import InvalidInput
from hushbit.privacy.arguments import failure_probability, not_negative
from hushbit.privacy.bits import best_subset, delta_of, epsilon_of, epsilon_per_bit_for
from hushbit.privacy.mixed import (
    epsilon_of_chance,
    epsilon_of_mixed,
    epsilon_of_random_words,
    probability_of_different_signs,
)
from hushbit.privacy.zcdp import (
    epsilon_of_zcdp,
    epsilon_of_zcdp_closed,
    zcdp_of_two_points,
    zcdp_of_two_points_tight,
)

__all__ = [
    "Bound",
    "best_subset",
    "delta_of",
    "epsilon_of",
    "epsilon_of_chance",
    "epsilon_of_mixed",
    "epsilon_of_random_words",
    "epsilon_of_zcdp",
    "epsilon_of_zcdp_closed",
    "epsilon_per_bit_for",
    "probability_of_different_signs",
    "pure_epsilon",
    "smallest",
    "zcdp_of_two_points",
    "zcdp_of_two_points_tight",
]


@dataclass(frozen=True)
class Bound:
    """An (epsilon, delta) guarantee and the name of the rule that proves it."""

    epsilon: float
    delta: float
    method: str

    def __post_init__(self) -> None:
        not_negative("epsilon", self.epsilon, infinite=True)
        failure_probability(self.delta)
        if not isinstance(self.method, str) or not self.method:
            raise InvalidInput(f"method is {self.method!r}; name the rule that proves the bound.")


def smallest(bounds: Iterable[Bound], delta: float) -> Bound:
    """The bound of least epsilon among those whose own delta is at most `delta`.

    Of equals the one of smaller delta wins, then the first.

    >>> smallest([Bound(5.0, 0.0, "pure"), Bound(4.0, 1e-5, "exact")], 1e-5).method
    'exact'
    """
    limit = failure_probability(delta)
    given = list(bounds)
    for bound in given:
        if not isinstance(bound, Bound):
            raise InvalidInput(f"a bound is {bound!r}; give Bound(epsilon, delta, method).")
    valid = [bound for bound in given if bound.delta <= limit]
    if not valid:
        raise InvalidInput(f"none of {len(given)} bounds holds at delta {limit!r}; give one.")
    return min(valid, key=lambda bound: (bound.epsilon, bound.delta))


def pure_epsilon(epsilons: Iterable[float]) -> float:
    """The pure level of bits that all differ: the sum of their epsilons, correctly rounded.

    >>> pure_epsilon([0.5] * 7850)
    3925.0
    """
    return math.fsum(positive("epsilon", epsilon, infinite=True) for epsilon in epsilons)
