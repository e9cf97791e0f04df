"""Slopes of tests on sums of votes against their definition and exact laws."""

import math

import numpy as np
import pytest

from hushbit.kernels.vote_sum_slopes import (
    log_vote_law,
    normal_quantile,
    reference_slope,
    vote_sum_slope,
)
from hushbit.kernels.vote_sums import _binomial, binomial_window, convolve

SPLITS = [(0, 0), (1, 0), (0, 1), (1, 1), (7, 13), (40, 0), (0, 40), (25, 30), (2, 60)]


def law(plus: int, minus: int, a: float) -> np.ndarray:
    return np.convolve(_binomial(plus, 1 - a), _binomial(minus, a))


@pytest.mark.parametrize(("plus", "minus"), SPLITS)
@pytest.mark.parametrize("a", [0.02, 0.3, 0.49])
def test_the_law_of_the_votes(plus: int, minus: int, a: float) -> None:
    logs, ratios = log_vote_law(plus, minus, a)
    assert logs == pytest.approx(np.log(law(plus, minus, a)), abs=1e-9)
    assert ratios == pytest.approx(np.exp(np.diff(logs)), rel=1e-9)


@pytest.mark.parametrize(("plus", "minus"), [(9_999, 0), (0, 9_999), (5_000, 4_999), (300, 9_000)])
def test_the_law_of_many_votes(plus: int, minus: int) -> None:
    a = 0.4
    exact = binomial_window(plus, 1 - a)
    if minus:
        exact = convolve(exact, binomial_window(minus, a))
    logs, _ = log_vote_law(plus, minus, a)
    top = int(logs.argmax())
    reach = slice(top - 400, top + 401)
    middle = int(exact.argmax())
    assert np.exp(logs[reach]) == pytest.approx(exact[middle - 400 : middle + 401], rel=1e-9)


@pytest.mark.parametrize("rare", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize(("plus", "minus"), SPLITS)
@pytest.mark.parametrize("a", [0.1, 0.3, 0.45])
def test_slopes_equal_their_definition(plus: int, minus: int, a: float, rare: float) -> None:
    found = vote_sum_slope(plus, minus, a, math.log(rare) if rare else -math.inf)
    assert found == pytest.approx(reference_slope(law(plus, minus, a), a, rare), rel=1e-7)


def test_one_voter_has_the_slope_of_a_single_vote() -> None:
    """The only test is on the vote itself: slope 1 at power a."""
    z = normal_quantile(math.log(0.3), 0.0)
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    assert vote_sum_slope(0, 0, 0.3, -math.inf) == pytest.approx(1 / density)


@pytest.mark.parametrize("z", [0.0, 0.1, 1.0, 4.9, 5.1, 12.0, 37.0])
@pytest.mark.parametrize("start", [0.0, 3.0, 40.0])
def test_quantiles_of_the_normal_law(z: float, start: float) -> None:
    tail = math.erfc(z / math.sqrt(2)) / 2
    assert normal_quantile(math.log(tail), start) == pytest.approx(z, rel=1e-9, abs=1e-7)


def test_quantiles_beyond_the_smallest_float() -> None:
    z = normal_quantile(-5000.0, 0.0)
    series = 1 - 1 / z**2 + 3 / z**4
    found = -z * z / 2 - math.log(z * math.sqrt(2 * math.pi)) + math.log(series)
    assert found == pytest.approx(-5000.0, rel=1e-12)
