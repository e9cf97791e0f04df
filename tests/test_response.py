"""Randomized response: the realised epsilon is never above the asked one, and hardly below."""

import math
from decimal import Decimal, getcontext, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbit import InvalidInput
from hushbit.response import CENTRE, RANGE, Response

getcontext().prec = 60
SWEEP = [float(e) for e in 10 ** np.linspace(-8, math.log10(40), 400)]


def odds_allowed(epsilon: float, lies: int) -> bool:
    """(2^32 - lies) / lies <= e^epsilon, in 60 digits: an exact decision for any float."""
    with localcontext() as context:
        context.prec = 60
        return Decimal(RANGE - lies) <= Decimal(lies) * Decimal(epsilon).exp()


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_sweep_of_epsilons(start: int) -> None:
    for epsilon in SWEEP[start : start + 100]:
        response = Response(epsilon)
        assert odds_allowed(epsilon, response.lies)
        assert response.lies == 1 or not odds_allowed(epsilon, response.lies - 1)
        assert response.realised_epsilon <= epsilon
        assert 0 < response.beta < 1


@given(st.floats(1e-8, 100))
def test_any_epsilon(epsilon: float) -> None:
    response = Response(epsilon)
    assert odds_allowed(epsilon, response.lies)
    assert response.half + response.lies == CENTRE
    assert response.beta == 1 - Fraction(2 * response.lies, RANGE)


@given(st.floats(1e-4, 15))
def test_what_is_lost_to_integers_is_small(epsilon: float) -> None:
    lost = math.tanh(epsilon / 2) - float(Response(epsilon).beta)
    assert 0 <= lost + 1e-15 <= 2**-31 + 1e-14


@pytest.mark.parametrize("lies", [1, 2, 3, 1000, CENTRE - 5, CENTRE - 1000])
def test_epsilons_right_at_a_step(lies: int) -> None:
    """Just below and above ln((2^32 - lies) / lies), where one lie more or less decides."""
    step = float((Decimal(RANGE - lies) / Decimal(lies)).ln())
    for epsilon in (math.nextafter(step, 0), step, math.nextafter(step, math.inf)):
        assert odds_allowed(epsilon, Response(epsilon).lies)
        assert Response(epsilon).lies - lies in (0, 1)


def test_realised_epsilon_is_precise_for_small_epsilons() -> None:
    for lies in (CENTRE - 2, CENTRE - 10, CENTRE - 12345):
        exact = (Decimal(RANGE - lies) / Decimal(lies)).ln()
        response = Response(float(exact) * (1 + 1e-6))
        assert response.lies == lies
        assert response.realised_epsilon == pytest.approx(float(exact), rel=1e-14)


def test_infinity_switches_it_off() -> None:
    response = Response(math.inf)
    assert (response.lies, response.beta, response.realised_epsilon) == (0, 1, math.inf)


def test_large_epsilons_keep_one_lie() -> None:
    for epsilon in (23.0, 40.0, 700.0, 1e300):
        assert Response(epsilon).lies == 1


@pytest.mark.parametrize("epsilon", [0, -0.5, -math.inf, math.nan, "0.5", True, None, [0.5], 1j])
def test_wrong_epsilons(epsilon: object) -> None:
    with pytest.raises(InvalidInput, match="epsilon_per_bit"):
        Response(epsilon)  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [1e-10, 1e-300, 5e-324])
def test_epsilons_that_coins_cannot_express(epsilon: float) -> None:
    with pytest.raises(InvalidInput, match="at least 1e-9"):
        Response(epsilon)
    assert Response(1e-9).half == 1
