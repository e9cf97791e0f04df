"""Clopper–Pearson bounds against SciPy and against exact sums."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hushbit.errors import InvalidInput
from hushbit.privacy.binomial import (
    _stirling_error,
    flip_probability,
    flips_window,
    log_flips,
    log_tail,
    log_truth_and_flip,
    lower_rate,
    upper_rate,
)

CASES = [
    (0, 1),
    (1, 1),
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


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 100, 10**6])
def test_the_error_of_stirlings_formula(count: int) -> None:
    mp = pytest.importorskip("mpmath")
    with mp.workdps(50):
        n = mp.mpf(count)
        exact = mp.log(mp.factorial(n)) - (n + 0.5) * mp.log(n) + n - mp.log(2 * mp.pi) / 2
    precision = 2e-16 if count >= 16 else 2e-14  # small counts come from a table of log-gammas
    found = float(_stirling_error(np.array([float(count)]))[0])
    assert found == pytest.approx(float(exact), rel=0, abs=precision)


@pytest.mark.parametrize("log_odds", [0.0, 1e-9, 0.5, 3.0, 40.0, 800.0])
def test_logarithms_of_both_answers(log_odds: float) -> None:
    mp = pytest.importorskip("mpmath")
    with mp.workdps(50):
        odds = mp.exp(mp.mpf(log_odds))
        truth, flip = float(mp.log(odds / (1 + odds))), float(mp.log(1 / (1 + odds)))
        chance = float(1 / (1 + odds))
    assert log_truth_and_flip(log_odds) == pytest.approx((truth, flip), rel=1e-15)
    assert flip_probability(log_odds) == pytest.approx(chance, rel=2e-13)


@pytest.mark.parametrize("share", [1e-4, 0.01, 0.3, 0.5])
@pytest.mark.parametrize("bits", [1, 50, 2000, 10**5])
def test_the_law_of_flips_equals_the_exact_binomial(bits: int, share: float) -> None:
    """Counts at both ends, around the mean and where the series of the deviance ends."""
    mp = pytest.importorskip("mpmath")
    log_odds = math.log1p(-share) - math.log(share)
    mean = bits * share
    places = [0, 1, 2, bits // 2, bits - 1, bits]
    places += [round(mean * factor) for factor in (0.0009, 0.0011, 0.979, 0.981, 1, 1.019, 1.021)]
    places += [round(mean * factor) for factor in (999, 1001)]
    counts = np.unique([place for place in places if 0 <= place <= bits])
    with mp.workdps(40):
        flip = 1 / (1 + mp.exp(mp.mpf(log_odds)))
        exact = [
            mp.log(mp.binomial(bits, k)) + k * mp.log(flip) + (bits - k) * mp.log1p(-flip)
            for k in counts.tolist()
        ]
    found = log_flips(log_odds, bits, counts)
    assert found == pytest.approx(np.array([float(value) for value in exact]), rel=4e-15, abs=2e-13)


@pytest.mark.parametrize("log_odds", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("bits", [10, 10**6, 10**10])
def test_the_window_reaches_twenty_standard_deviations(log_odds: float, bits: int) -> None:
    flip = 1 / (1 + math.exp(log_odds))
    mean, deviation = bits * flip, math.sqrt(bits * flip * (1 - flip))
    for highest in (bits, int(mean), int(mean / 2), 0):
        window = flips_window(log_odds, bits, highest)
        assert (np.diff(window) == 1).all()
        first, last = min(mean, highest) - 20 * deviation, mean + 20 * deviation
        assert max(0, first - 202) <= window[0] <= max(0, first)
        assert min(last, highest, bits) - 1 <= window[-1] <= min(last + 202, highest, bits)


def test_tails_at_their_limits() -> None:
    assert log_tail(3, 2, 0.5) == -math.inf
    assert log_tail(1, 2, 0.0) == -math.inf
    assert log_tail(0, 5, 0.5) == 0.0
    assert log_tail(5, 5, 1.0) == 0.0
    assert log_tail(5, 5, 0.5) == pytest.approx(5 * math.log(0.5), rel=1e-14)
    assert log_tail(1, 1, 0.25) == pytest.approx(math.log(0.25), rel=1e-14)
    assert log_tail(1, 5, 1 - 1e-12) <= 0.0
    for wrong in ((-1, 5), (1, 0)):
        with pytest.raises(InvalidInput):
            log_tail(*wrong, 0.5)


@pytest.mark.parametrize(("hits", "trials"), [(1, 10), (9, 10), (10, 10), (999, 1000)])
def test_bisection_never_exceeds_the_exact_bound(hits: int, trials: int) -> None:
    low = lower_rate(hits, trials, 0.95)
    risk = math.log(0.05)
    assert log_tail(hits, trials, low) <= risk
    assert log_tail(hits, trials, low + 2e-8 * min(low, 1 - low)) > risk
    assert lower_rate(0, trials, 0.95) == 0.0
    assert upper_rate(trials, trials, 0.95) == 1.0
    assert upper_rate(hits, trials, 0.95) == 1 - lower_rate(trials - hits, trials, 0.95)
