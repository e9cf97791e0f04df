"""Renyi divergences of differing bits, and the search for the best order."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.privacy.renyi import _divergence, epsilon_of_renyi

DELTA = 1e-5


def exact_divergence(per_bit: float, order: float) -> Decimal:
    """D_order of one differing bit, with the digits of the context."""
    odds, power = Decimal(per_bit).exp(), Decimal(order)
    truth, flip = odds / (1 + odds), 1 / (1 + odds)
    total = truth**power * flip ** (1 - power) + flip**power * truth ** (1 - power)
    return total.ln() / (power - 1)


@pytest.mark.parametrize("per_bit", [1e-7, 1e-3, 0.5, 2.0, 10.0])
def test_divergences_are_exact_and_rounded_up(per_bit: float) -> None:
    orders = np.array([1.001, 1.01, 1.5, 2.0, 8.0, 100.0])
    found = _divergence(per_bit, orders)
    with localcontext() as context:
        context.prec = 60
        for order, got in zip(orders.tolist(), found.tolist(), strict=True):
            exact = exact_divergence(per_bit, order)
            assert exact <= Decimal(got)
            # The divergence is at most order * epsilon^2 / 2; a rounding error never exceeds that.
            rounding = 1e-14 * (1 + order * per_bit) / (order - 1)
            assert got <= min(float(exact) + rounding, order * per_bit**2 / 2)


@pytest.mark.parametrize(
    "groups",
    [[(0.5, 1000)], [(2.0, 60)], [(3.0, 900)], [(1.0, 40), (3.0, 90)], [(0.1, 50), (2.0, 50)]],
)
@pytest.mark.parametrize("delta", [1e-12, DELTA, 0.05])
def test_epsilon_is_the_smallest_bound_of_all_orders(
    groups: list[tuple[float, int]], delta: float
) -> None:
    above_one = np.geomspace(1e-4, 1e4, 40_001)
    order = 1 + above_one
    bounds = np.log(above_one / order) - np.log(order * delta) / above_one
    for per_bit, bits in groups:
        log_truth, log_flip = -math.log1p(math.exp(-per_bit)), -math.log1p(math.exp(per_bit))
        up = order * log_truth - above_one * log_flip
        down = order * log_flip - above_one * log_truth
        bounds += bits * np.logaddexp(up, down) / above_one
    assert epsilon_of_renyi(groups, delta) == pytest.approx(float(bounds.min()), rel=1e-6)


def test_epsilon_is_never_negative_and_infinite_where_squares_overflow() -> None:
    assert epsilon_of_renyi([(1e-9, 1)], 0.5) == 0.0
    assert epsilon_of_renyi([(0.5, 3), (1e200, 1)], DELTA) == math.inf
    assert epsilon_of_renyi([(math.inf, 1)], DELTA) == math.inf
    assert 1e6 - 12 <= epsilon_of_renyi([(1e6, 1)], DELTA) < math.inf
    with pytest.raises(InvalidInput, match="delta"):
        epsilon_of_renyi([(0.5, 3)], 0.0)


def test_an_epsilon_above_1e10_has_no_bound_by_orders_and_no_warning() -> None:
    """There, 1 + the best order minus one is 1 in float64, which divided by zero."""
    assert 1e10 - 12 <= epsilon_of_renyi([(1e10, 1)], DELTA) < 1.1e10
    for per_bit in (1.1e10, 1e20, 1e99, 1e300):
        assert epsilon_of_renyi([(per_bit, 1)], DELTA) == math.inf
