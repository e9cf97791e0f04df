"""The accountant: shares of delta, and sums with an infinite epsilon."""

import itertools
import math

import pytest

from hushbit.privacy.accountant import (
    Cost,
    Limit,
    composed_bound,
    pure_total,
    within_limit,
    zcdp_total,
)
from hushbit.privacy.composition import epsilon_of_bits
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
