"""The accountant: shares of delta, and sums with an infinite epsilon."""

import itertools
import math

import pytest

from hushbit.errors import InvalidInput
from hushbit.privacy.accountant import (
    Bound,
    Cost,
    Limit,
    composed_bound,
    is_homogeneous,
    pure_total,
    smallest,
    within_limit,
    zcdp_total,
)
from hushbit.privacy.composition import epsilon_of_bits, epsilon_of_groups
from hushbit.privacy.renyi import epsilon_of_zcdp

DELTA = 1e-5
CLIPPED = Cost(((0.5, 7850),), rho=0.125)
FEW_BITS = Cost(((0.5, 40),))


def test_zcdp_gets_half_of_delta_against_a_server_that_adapts() -> None:
    half, all_of_it = epsilon_of_zcdp(0.125, DELTA / 2), epsilon_of_zcdp(0.125, DELTA)
    assert all_of_it < half
    assert composed_bound([CLIPPED], DELTA, adaptive=True).epsilon == half
    assert composed_bound([CLIPPED], DELTA, adaptive=False).epsilon == all_of_it
    assert within_limit([CLIPPED], Limit(half, DELTA))
    assert not within_limit([CLIPPED], Limit(math.nextafter(half, 0), DELTA))


def test_exact_composition_gets_half_of_delta_against_a_server_that_adapts() -> None:
    half, all_of_it = (epsilon_of_bits(0.5, 40, share) for share in (DELTA / 2, DELTA))
    assert all_of_it < half < epsilon_of_zcdp(40 * 0.125, DELTA / 2)
    assert composed_bound([FEW_BITS], DELTA, adaptive=True).epsilon == half
    assert composed_bound([FEW_BITS], DELTA, adaptive=False).epsilon == all_of_it
    assert within_limit([FEW_BITS], Limit(half, DELTA))
    assert not within_limit([FEW_BITS], Limit(math.nextafter(half, 0), DELTA))


def test_mixtures_use_no_exact_composition_against_a_server_that_adapts() -> None:
    mixed = [FEW_BITS, Cost(((0.4, 40),))]
    steered = composed_bound(mixed, DELTA, adaptive=True)
    assert steered.method == "zCDP"
    assert steered.epsilon == epsilon_of_zcdp(40 * (0.125 + 0.08), DELTA / 2)
    assert composed_bound(mixed, DELTA, adaptive=False).method == "exact composition"
    assert not within_limit(mixed, Limit(math.nextafter(steered.epsilon, 0), DELTA))


@pytest.mark.parametrize("order", list(itertools.permutations([0.5, math.inf, 1.0])))
def test_one_infinite_epsilon_makes_every_sum_infinite(order: tuple[float, ...]) -> None:
    for costs in ([Cost(((e, 2),)) for e in order], [Cost(tuple((e, 2) for e in order))]):
        assert pure_total(costs) == math.inf
        assert zcdp_total(costs) == math.inf
        for delta, adaptive in itertools.product((0.0, DELTA), (False, True)):
            assert composed_bound(costs, delta, adaptive=adaptive).epsilon == math.inf
        assert not within_limit(costs, Limit(1e300, 0.0))
        assert within_limit(costs, Limit(math.inf, 0.0))


def test_a_proven_rho_limits_an_infinite_epsilon_per_bit_by_zcdp_only() -> None:
    costs = [Cost(((math.inf, 3),), rho=0.1), Cost(((math.inf, 3),), rho=0.2)]
    assert pure_total(costs) == math.inf
    assert float(zcdp_total(costs)) == pytest.approx(0.3)
    found = composed_bound(costs, DELTA, adaptive=True)
    assert (found.epsilon, found.method) == (epsilon_of_zcdp(0.3, DELTA / 2), "zCDP")


def test_ballots_of_one_kind_are_composed_exactly() -> None:
    """One epsilon for all bits, or equal groups in all ballots."""
    sizes = [Cost(((0.5, 10),)), Cost(((0.5, 30),))]
    assert is_homogeneous(sizes)
    found = composed_bound(sizes, DELTA, adaptive=True)
    assert (found.epsilon, found.method) == (
        epsilon_of_bits(0.5, 40, DELTA / 2),
        "exact composition",
    )
    groups = Cost(((0.5, 10), (1.0, 5)))
    assert is_homogeneous([groups, groups.times(3)])
    found = composed_bound([groups, groups.times(3)], DELTA, adaptive=True)
    assert found.epsilon == epsilon_of_groups([(0.5, 40), (1.0, 20)], DELTA / 2)
    for mixed in ([*sizes, groups], [groups, Cost(((0.5, 10), (1.0, 6)))]):
        assert not is_homogeneous(mixed)


def test_nothing_is_spent_by_no_ballot() -> None:
    for delta, adaptive in itertools.product((0.0, DELTA), (False, True)):
        found = composed_bound([], delta, adaptive=adaptive)
        assert (found.epsilon, found.delta, found.method) == (0.0, 0.0, "nothing was sent")
    assert within_limit([], Limit(1e-9, 0.0))


def test_units_of_limits_and_bits_of_costs() -> None:
    assert Limit(1.0, 0.0).unit == "pure epsilon"
    assert Limit(1.0, 1e-6).unit == "epsilon at delta 1e-6"
    cost = Cost(((0.5, 10), (1.0, 5)), ballots=4)
    assert cost.bits == 60
    assert cost.times(3).ballots == 12
    assert Cost(((0.5, 10),)).ballots == 1


def test_bounds_at_the_given_delta_are_valid() -> None:
    assert smallest([Bound(1.0, DELTA, "one")], DELTA).epsilon == 1.0


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan, "small"])
def test_bounds_have_a_delta_from_zero_to_below_one(delta: float) -> None:
    assert Bound(1.0, 0.0, "one").delta == 0.0
    with pytest.raises(InvalidInput, match="delta"):
        Bound(1.0, delta, "one")
