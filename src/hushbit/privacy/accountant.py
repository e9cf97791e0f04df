"""The accountant: what ballots cost together, by the smallest of all composition rules that hold.

Costs are kept as data and added up as exact fractions, so ten times 0.1 is exactly 1. `Guarantee`
and `Ledger` both compute their bounds here.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from hushbit.checks import check_delta, check_int, check_nonnegative, check_positive
from hushbit.errors import InvalidInput
from hushbit.privacy.composition import (
    MAX_BITS,
    Groups,
    decimal_fraction,
    epsilon_of_groups,
    merge_groups,
)
from hushbit.privacy.renyi import epsilon_of_renyi, epsilon_of_zcdp

ACCOUNTANTS = ("renyi", "tightest")
"""How the cost of tallies is computed, see `hushbit.privacy.central.bound_of_tallies`."""

Exact = Fraction | float
"""A rational number, or math.inf."""


def delta_text(delta: float) -> str:
    """A delta as it is written by hand.

    >>> delta_text(1e-5), delta_text(2.5e-10), delta_text(0.001)
    ('1e-5', '2.5e-10', '0.001')
    """
    return f"{delta:g}".replace("e-0", "e-")


@dataclass(frozen=True)
class Bound:
    """An (epsilon, delta) guarantee and the name of the rule that proves it."""

    epsilon: float
    delta: float
    method: str

    def __post_init__(self) -> None:
        check_nonnegative("epsilon", self.epsilon, infinite=True)
        check_delta(self.delta)
        if not isinstance(self.method, str) or not self.method:
            raise InvalidInput(f"method is {self.method!r}; name the rule that proves the bound.")


@dataclass(frozen=True)
class Cost:
    """The cost of `ballots` equal ballots.

    `groups` holds pairs (epsilon_per_bit, bits) of one ballot; pairs of equal epsilon are merged.
    `rho` is the zCDP parameter of one whole ballot, if one is proven.

    >>> Cost(((0.5, 7850),)).times(3).ballots
    3
    """

    groups: Groups
    rho: float | None = None
    ballots: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", merge_groups(self.groups))
        if self.rho is not None:
            object.__setattr__(self, "rho", check_nonnegative("rho", self.rho))
        object.__setattr__(self, "ballots", check_int("ballots", self.ballots, 1))

    def times(self, number: int) -> "Cost":
        """The cost of `number` times as many ballots."""
        return Cost(self.groups, self.rho, self.ballots * check_int("number", number, 1))

    @property
    def bits(self) -> int:
        """The number of bits in all ballots together."""
        return self.ballots * sum(bits for _, bits in self.groups)

    def to_text(self) -> str:
        """The cost of one ballot as canonical text: equal costs have equal text."""
        groups = [[repr(per_bit), bits] for per_bit, bits in self.groups]
        return json.dumps({"tiers": groups, "rho": None if self.rho is None else repr(self.rho)})

    @staticmethod
    def from_text(text: str, ballots: int) -> "Cost":
        """The cost of `ballots` ballots, each with the cost that `to_text` wrote."""
        try:
            fields = json.loads(text)
            groups = tuple((float(per_bit), bits) for per_bit, bits in fields["tiers"])
            rho = None if fields["rho"] is None else float(fields["rho"])
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInput(f"{text!r} is not the text of a cost: {error}.") from None
        return Cost(groups, rho, ballots)


@dataclass(frozen=True)
class Limit:
    """The most that a user may spend: pure epsilon if delta is 0, else (epsilon, delta)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        epsilon = check_positive("epsilon", self.epsilon, infinite=True)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", check_delta(self.delta))

    @property
    def unit(self) -> str:
        """The unit in which the limit counts, in words."""
        return "pure epsilon" if self.delta == 0 else f"epsilon at delta {delta_text(self.delta)}"


def composed_bound(
    costs: Iterable[Cost], delta: float, *, adaptive: bool, max_exact_bits: int = MAX_BITS
) -> Bound:
    """The smallest proven bound on all ballots in `costs` together.

    With `adaptive=False` the ballots are fixed before the first one is sent. Every rule below then
    holds with all of delta, and so does the smallest of them, which is known beforehand:

    - the sum of epsilon over all bits, at delta 0;
    - the sum of rho, converted from zCDP, where a rho below that of the bits alone is proven;
    - exact composition of all bits, or Renyi orders above `max_exact_bits` bits.

    With `adaptive=True` the bound also holds against a server that decides what to request next
    after it has seen earlier ballots. Sums of epsilon and of rho remain valid then. Exact
    composition remains valid while all ballots are of one kind, because such a server can only stop
    early; it is not used for mixtures, nor are Renyi orders. The server can steer towards either of
    the zCDP sum and exact composition, so each of the two gets half of delta.

    The bound depends on the multiset of ballots only: n charges equal one n-fold charge to the last
    bit.

    >>> ballots = [Cost(((0.5, 100),)).times(10)]
    >>> fixed, steered = (composed_bound(ballots, 1e-5, adaptive=a) for a in (False, True))
    >>> round(fixed.epsilon, 1), round(steered.epsilon, 1), fixed.method
    (186.1, 188.5, 'exact composition')
    """
    costs = list(costs)
    delta = check_delta(delta)
    pure = Bound(_to_float(pure_total(costs)), 0.0, "pure" if costs else "nothing was sent")
    return smallest([pure, *_approximate_bounds(costs, delta, adaptive, max_exact_bits)], delta)


def within_limit(costs: Iterable[Cost], limit: Limit) -> bool:
    """Whether `composed_bound` with `adaptive=True` is within the limit.

    The pure sum is compared as an exact fraction; costly rules are computed only if needed.
    """
    costs = list(costs)
    if pure_total(costs) <= _exact(limit.epsilon):
        return True
    bounds = _approximate_bounds(costs, limit.delta, adaptive=True, max_exact_bits=MAX_BITS)
    return any(bound.epsilon <= limit.epsilon for bound in bounds)


def smallest(bounds: Iterable[Bound], delta: float) -> Bound:
    """The bound of least epsilon among those whose own delta is at most `delta`.

    Ties are broken by the smaller delta, then by order.

    >>> smallest([Bound(5.0, 0.0, "pure"), Bound(4.0, 1e-5, "exact")], 1e-5).method
    'exact'
    """
    limit = check_delta(delta)
    given = list(bounds)
    for bound in given:
        if not isinstance(bound, Bound):
            raise InvalidInput(f"a bound is {bound!r}; give Bound(epsilon, delta, method).")
    valid = [bound for bound in given if bound.delta <= limit]
    if not valid:
        raise InvalidInput(f"none of {len(given)} bounds holds at delta {limit!r}; give one.")
    return min(valid, key=lambda bound: (bound.epsilon, bound.delta))


def pure_total(costs: Iterable[Cost]) -> Exact:
    """Sum of epsilon_per_bit * bits, with each epsilon taken as it is written (0.1 = 1/10)."""
    return _weighted_sum(_all_groups(costs))


def zcdp_total(costs: Iterable[Cost]) -> Exact:
    """Sum of rho; a bit of pure epsilon has rho = epsilon^2 / 2 (Bun, Steinke 2016).

    A ballot counts the smaller of its own rho, if proven, and the sum over its bits.
    """
    return _weighted_sum((_rho(cost), cost.ballots) for cost in costs)


def is_homogeneous(costs: list[Cost]) -> bool:
    """Whether all ballots are of one kind: all bits have one epsilon, or all ballots equal groups.

    Then all that a server can choose during a run is when to stop.
    """
    return len(_all_groups(costs)) == 1 or len({cost.groups for cost in costs}) == 1


def _approximate_bounds(
    costs: list[Cost], delta: float, adaptive: bool, max_exact_bits: int
) -> Iterator[Bound]:
    """The rules of `composed_bound` that need a delta above 0; the quickest comes first."""
    if delta == 0 or not costs:
        return
    share = delta / 2 if adaptive else delta
    if adaptive or any(cost.rho is not None and _rho(cost) < _rho_of_bits(cost) for cost in costs):
        yield Bound(_cached_zcdp(_to_float(zcdp_total(costs)), share), share, "zCDP")
    groups = _all_groups(costs)
    if sum(bits for _, bits in groups) <= max_exact_bits:
        if is_homogeneous(costs) or not adaptive:
            yield Bound(_cached_exact(groups, share), share, "exact composition")
    elif not adaptive:
        yield Bound(epsilon_of_renyi(groups, share), share, "Renyi orders")


_cached_exact = lru_cache(maxsize=512)(epsilon_of_groups)
_cached_zcdp = lru_cache(maxsize=512)(epsilon_of_zcdp)


def _all_groups(costs: Iterable[Cost]) -> Groups:
    """The groups of all ballots together, one pair for each epsilon."""
    total: dict[float, int] = {}
    for cost in costs:
        for per_bit, bits in cost.groups:
            total[per_bit] = total.get(per_bit, 0) + bits * cost.ballots
    return tuple(sorted(total.items()))


def _rho(cost: Cost) -> Exact:
    of_bits = _rho_of_bits(cost)
    return of_bits if cost.rho is None else min(of_bits, _exact(cost.rho))


def _rho_of_bits(cost: Cost) -> Exact:
    return _weighted_sum((_exact(per_bit) ** 2, bits) for per_bit, bits in cost.groups) / 2


def _weighted_sum(terms: Iterable[tuple[Exact, int]]) -> Exact:
    total: Exact = Fraction(0)
    for value, count in terms:
        if value == math.inf:
            return math.inf
        total += _exact(value) * count
    return total


def _exact(number: Exact) -> Exact:
    if isinstance(number, Fraction) or number == math.inf:
        return number
    return decimal_fraction(number)


def _to_float(number: Exact) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf
