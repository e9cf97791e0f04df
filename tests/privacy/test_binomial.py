"""Clopper–Pearson bounds against SciPy and against exact sums."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hushbit.errors import InvalidInput
from hushbit.privacy.binomial import log_flips, log_tail, lower_rate, upper_rate

CASES = [
    (0, 10),
    (1, 10),
    (10, 10),
    (90, 100),
    (4, 1_000_000),
    (622_459, 1_000_000),
    (4_979_000, 8_000_000),
]


@pytest.mark.parametrize(("hits", "trials"), CASES)
@pytest.mark.parametrize("confidence", [0.9, 0.99995])
def test_bounds_equal_the_beta_quantiles(hits: int, trials: int, confidence: float) -> None:
    low = stats.beta.ppf(1 - confidence, hits, trials - hits + 1) if hits else 0.0
    high = stats.beta.ppf(confidence, hits + 1, trials - hits) if hits < trials else 1.0
    assert lower_rate(hits, trials, confidence) == pytest.approx(low, rel=1e-6)
    assert upper_rate(hits, trials, confidence) == pytest.approx(high, rel=1e-6)


@given(
    st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
    st.integers(1, 99),
)
def test_tail_equals_the_exact_sum(case: tuple[int, int], percent: int) -> None:
    trials, hits = case
    p = Fraction(percent, 100)
    exact = sum(
        math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(hits, trials + 1)
    )
    assert log_tail(hits, trials, float(p)) == pytest.approx(math.log(exact), abs=1e-9)


def test_a_long_tail_beyond_the_mode_is_summed_to_its_end() -> None:
    assert log_tail(100, 1_000_000, 0.5) == pytest.approx(0.0, abs=1e-8)
    expected = stats.binom.logsf(509_999, 1_000_000, 0.5)
    assert log_tail(510_000, 1_000_000, 0.5) == pytest.approx(expected, abs=1e-7)


def test_the_bound_holds_with_the_stated_confidence() -> None:
    trials, rate, confidence = 60, 0.3, 0.95
    wrong = sum(
        stats.binom.pmf(hits, trials, rate)
        for hits in range(trials + 1)
        if lower_rate(hits, trials, confidence) > rate
    )
    assert wrong <= 1 - confidence


@pytest.mark.parametrize(
    "arguments",
    [
        (3, 2, 0.9),
        (-1, 2, 0.9),
        (1, 0, 0.9),
        (1, 2, 1.0),
        (1, 2, 0.0),
        (True, 2, 0.9),
        (1, 2, math.nan),
        (1, 2, "0.9"),
    ],
)
def test_impossible_counts_are_refused(arguments: tuple[int, int, float]) -> None:
    with pytest.raises(InvalidInput):
        lower_rate(*arguments)
    with pytest.raises(InvalidInput):
        upper_rate(*arguments)


@pytest.mark.parametrize("rate", [-0.1, 1.1, 2.0, math.nan, "0.5", True])
def test_rates_that_are_no_probability_are_refused(rate: float) -> None:
    with pytest.raises(InvalidInput, match="rate"):
        log_tail(1, 2, rate)
    assert log_tail(1, 2, 1.0) == log_tail(0, 2, 0.0) == 0.0


@pytest.mark.parametrize("flips", [1, 4, 40, 4000, 999_999])
def test_the_law_of_flips_far_from_its_mean(flips: int) -> None:
    """Counts below a thousandth of the mean, or near all bits, in exact integers."""
    bits, odds = 1_000_000, 19
    log_odds = math.log(odds - 1)
    exact = math.log(math.comb(bits, flips)) + (bits - flips) * math.log(odds - 1)
    expected = exact - bits * math.log(odds)
    assert log_flips(log_odds, bits, np.array([flips]))[0] == pytest.approx(expected, rel=1e-12)
