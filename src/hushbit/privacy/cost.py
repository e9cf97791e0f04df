"""What a release costs and what a user may spend, kept as exact data and never as running sums."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from hushbit.checks import positive, whole
from hushbit.errors import InvalidInput
from hushbit.privacy.arguments import MOST_BITS, failure_probability, not_negative
from hushbit.privacy.composition import Bound, epsilon_of_mixed, epsilon_of_zcdp, smallest

Exact = Fraction | float
"""A rational number, or math.inf."""


@dataclass(frozen=True)
class Cost:
    """Cost of `copies` equal ballots: (epsilon_per_bit, bits) tiers, and rho if zCDP is claimed.

    >>> Cost(((0.5, 7850),)).times(3).copies
    3
    """

    tiers: tuple[tuple[float, int], ...]
    rho: float | None = None
    copies: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.tiers, tuple | list) or not self.tiers:
            raise InvalidInput(f"tiers is {self.tiers!r}; give pairs (epsilon_per_bit, bits).")
        merged: dict[float, int] = {}
        for tier in self.tiers:
            if not isinstance(tier, tuple | list) or len(tier) != 2:
                raise InvalidInput(f"a tier is {tier!r}; give a pair (epsilon_per_bit, bits).")
            per_bit = positive("epsilon_per_bit", tier[0], infinite=True)
            merged[per_bit] = merged.get(per_bit, 0) + whole("bits", tier[1], 1, MOST_BITS)
        object.__setattr__(self, "tiers", tuple(sorted(merged.items())))
        if self.rho is not None:
            object.__setattr__(self, "rho", not_negative("rho", self.rho))
        object.__setattr__(self, "copies", whole("copies", self.copies, 1))

    def times(self, number: int) -> "Cost":
        """The cost of `number` times as many ballots."""
        return Cost(self.tiers, self.rho, self.copies * whole("number", number, 1))

    @property
    def bits(self) -> int:
        """All bits of all copies."""
        return self.copies * sum(bits for _, bits in self.tiers)

    def to_text(self) -> str:
        """One ballot's cost as canonical text: equal costs give equal text."""
        tiers = [[repr(per_bit), bits] for per_bit, bits in self.tiers]
        return json.dumps({"tiers": tiers, "rho": None if self.rho is None else repr(self.rho)})

    @staticmethod
    def from_text(text: str, copies: int) -> "Cost":
        """The inverse of `to_text`."""
        try:
            fields = json.loads(text)
            tiers = tuple((float(per_bit), bits) for per_bit, bits in fields["tiers"])
            rho = None if fields["rho"] is None else float(fields["rho"])
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInput(f"{text!r} is not the text of a cost: {error}.") from None
        return Cost(tiers, rho, copies)


@dataclass(frozen=True)
class Limit:
    """The most a user may spend: pure epsilon if delta is 0, else (epsilon, delta) in total."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        epsilon = positive("epsilon", self.epsilon, infinite=True)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", failure_probability(self.delta))

    @property
    def unit(self) -> str:
        """In which unit the limit counts, in words."""
        return "pure epsilon" if self.delta == 0 else f"epsilon at delta {self.delta:g}"


def pure_total(costs: Iterable[Cost]) -> Exact:
    """Sum of epsilon_per_bit * bits, with each epsilon taken as it is written (0.1 = 1/10)."""
    return _total((per_bit, bits) for per_bit, bits in _bits_per_epsilon(costs))


def zcdp_total(costs: Iterable[Cost]) -> Exact:
    """Sum of rho; a ballot without a claim counts epsilon^2 / 2 per bit (Bun, Steinke 2016)."""
    return _total((_rho(cost), cost.copies) for cost in costs)


def spending(costs: Iterable[Cost], delta: float) -> Bound:
    """The smallest bound on everything in `costs` that holds whoever chose them, and when.

    A server may ask for more, or for something else, after it has seen earlier ballots. Sums of
    epsilon and of rho stay valid then; exact composition does as long as every ballot is of one
    kind, because a server can only stop early. A server may steer towards either of the last two,
    so each gets half of delta. Depends on the multiset of ballots only: n charges equal one n-fold
    charge to the last bit.
    """
    costs = list(costs)
    delta = failure_probability(delta)
    bounds = [Bound(float(pure_total(costs)), 0.0, "pure")]
    if costs and delta > 0:
        bounds.append(_by_zcdp(costs, delta / 2))
        bounds.extend(_by_exact_composition(costs, delta / 2))
    return smallest(bounds, delta)


def fits(costs: Iterable[Cost], limit: Limit) -> bool:
    """Whether everything in `costs` stays within the limit; the cheap proofs are tried first."""
    costs = list(costs)
    if pure_total(costs) <= _exact(limit.epsilon):
        return True
    if limit.delta == 0:
        return False
    if _by_zcdp(costs, limit.delta / 2).epsilon <= limit.epsilon:
        return True
    exact = _by_exact_composition(costs, limit.delta / 2)
    return any(bound.epsilon <= limit.epsilon for bound in exact)


def of_one_kind(costs: list[Cost]) -> bool:
    """Whether all bits have one epsilon, or all ballots the same tiers."""
    return len(_bits_per_epsilon(costs)) == 1 or len({cost.tiers for cost in costs}) == 1


def _by_zcdp(costs: list[Cost], delta: float) -> Bound:
    return Bound(epsilon_of_zcdp(float(zcdp_total(costs)), delta), delta, "zCDP")


def _by_exact_composition(costs: list[Cost], delta: float) -> list[Bound]:
    groups = _bits_per_epsilon(costs)
    if not of_one_kind(costs) or sum(bits for _, bits in groups) > MOST_BITS:
        return []
    return [Bound(epsilon_of_mixed(groups, delta), delta, "exact composition")]


def _bits_per_epsilon(costs: Iterable[Cost]) -> list[tuple[float, int]]:
    total: dict[float, int] = {}
    for cost in costs:
        for per_bit, bits in cost.tiers:
            total[per_bit] = total.get(per_bit, 0) + bits * cost.copies
    return sorted(total.items())


def _rho(cost: Cost) -> Exact:
    by_bits = _total((_square(per_bit), bits) for per_bit, bits in cost.tiers) / 2
    return by_bits if cost.rho is None else min(by_bits, _exact(cost.rho))


def _square(number: float) -> Exact:
    exact = _exact(number)
    return exact * exact


def _exact(number: Exact) -> Exact:
    if isinstance(number, Fraction) or math.isinf(number):
        return number
    return Fraction(repr(number))


def _total(terms: Iterable[tuple[Exact, int]]) -> Exact:
    total: Exact = Fraction(0)
    for value, count in terms:
        total += _exact(value) * count
    return total
