"""Randomized response: the realised epsilon is at most epsilon, and close to it."""

import math
from decimal import Decimal, getcontext, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbit.encoding.randomized_response import HALF_RANGE, RANGE, RandomizedResponse
from hushbit.encoding.stage import response_coins
from hushbit.errors import InvalidInput
from hushbit.kernels.encode import split_coins

getcontext().prec = 60
SWEEP = [float(e) for e in 10 ** np.linspace(-8, math.log10(40), 400)]


def odds_allowed(epsilon: float, flips: int) -> bool:
    """(2^32 - flips) / flips <= e^epsilon, in 60 digits, which is exact for any float."""
    with localcontext() as context:
        context.prec = 60
        return Decimal(RANGE - flips) <= Decimal(flips) * Decimal(epsilon).exp()


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_flip_count_is_minimal_for_a_sweep_of_epsilons(start: int) -> None:
    for epsilon in SWEEP[start : start + 100]:
        response = RandomizedResponse(epsilon)
        assert odds_allowed(epsilon, response.flip_count)
        assert response.flip_count == 1 or not odds_allowed(epsilon, response.flip_count - 1)
        assert response.realised_epsilon <= epsilon
        assert 0 < response.beta < 1


@given(st.floats(1e-8, 100))
def test_any_epsilon(epsilon: float) -> None:
    response = RandomizedResponse(epsilon)
    assert odds_allowed(epsilon, response.flip_count)
    assert response.threshold_offset + response.flip_count == HALF_RANGE
    assert response.beta == 1 - Fraction(2 * response.flip_count, RANGE)


@given(st.floats(1e-4, 15))
def test_rounding_to_integers_costs_little_beta(epsilon: float) -> None:
    lost = math.tanh(epsilon / 2) - float(RandomizedResponse(epsilon).beta)
    assert 0 <= lost + 1e-15 <= 2**-31 + 1e-14


@pytest.mark.parametrize("flips", [1, 2, 3, 1000, HALF_RANGE - 5, HALF_RANGE - 1000])
def test_epsilons_next_to_a_step(flips: int) -> None:
    """Just below and above ln((2^32 - flips) / flips), where flip_count changes by one."""
    step = float((Decimal(RANGE - flips) / Decimal(flips)).ln())
    for epsilon in (math.nextafter(step, 0), step, math.nextafter(step, math.inf)):
        assert odds_allowed(epsilon, RandomizedResponse(epsilon).flip_count)
        assert RandomizedResponse(epsilon).flip_count - flips in (0, 1)


def test_odds_that_equal_a_step_need_no_further_flip() -> None:
    """One of 32 coins gives the odds 31; `exp` may be too large by the margin of 2^-50."""
    epsilon = math.log(31)
    while math.exp(epsilon) * (1 - 2**-50) < 31:
        epsilon = math.nextafter(epsilon, math.inf)
    assert math.exp(epsilon) * (1 - 2**-50) == 31
    assert RandomizedResponse(epsilon).flip_count == RANGE // 32
    assert RandomizedResponse(math.nextafter(epsilon, 0)).flip_count == RANGE // 32 + 1


def test_realised_epsilon_is_precise_for_small_epsilons() -> None:
    for flips in (HALF_RANGE - 2, HALF_RANGE - 10, HALF_RANGE - 12345):
        exact = (Decimal(RANGE - flips) / Decimal(flips)).ln()
        response = RandomizedResponse(float(exact) * (1 + 1e-6))
        assert response.flip_count == flips
        assert response.realised_epsilon == pytest.approx(float(exact), rel=1e-14)


def test_infinite_epsilon_flips_no_bit() -> None:
    response = RandomizedResponse(math.inf)
    assert (response.flip_count, response.beta, response.realised_epsilon) == (0, 1, math.inf)


def test_large_epsilons_flip_for_one_coin() -> None:
    for epsilon in (23.0, 40.0, 700.0, 1e300):
        assert RandomizedResponse(epsilon).flip_count == 1


@pytest.mark.parametrize("epsilon", [0, -0.5, -math.inf, math.nan, "0.5", True, None, [0.5], 1j])
def test_wrong_epsilons(epsilon: object) -> None:
    with pytest.raises(InvalidInput, match="epsilon_per_bit"):
        RandomizedResponse(epsilon)  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [1e-10, 1e-300, 5e-324])
def test_epsilons_that_are_too_small_for_coins(epsilon: float) -> None:
    with pytest.raises(InvalidInput, match="at least 1e-9"):
        RandomizedResponse(epsilon)
    assert RandomizedResponse(1e-9).threshold_offset == 1


@pytest.mark.parametrize("votes", [1, 2, 7, 100])
def test_coins_of_one_bit_mechanisms_equal_those_of_two_points(votes: int) -> None:
    """The definition of the kernel has signed coins around zero; these are counted from zero."""
    coin = np.arange(8, dtype=np.uint32)
    assert (response_coins(coin, votes) == split_coins(coin, votes) + 2**31).all()
