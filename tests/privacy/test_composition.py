"""Exact composition of equal bits against rational arithmetic and published tables."""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbit.errors import InvalidInput
from hushbit.privacy.accountant import Bound, smallest
from hushbit.privacy.composition import delta_of_bits, epsilon_of_bits, epsilon_per_bit_for
from hushbit.tuning.calibrate import best_subset

DELTA = 1e-5


def exact_delta(odds: Fraction, bits: int, epsilon_factor: Fraction) -> Fraction:
    """Delta as a fraction, with e^epsilon_per_bit = odds and e^epsilon = epsilon_factor."""
    total = Fraction(0)
    for flips in range(bits + 1):
        truthful = math.comb(bits, flips) * odds ** (bits - flips) / (1 + odds) ** bits
        flipped = math.comb(bits, flips) * odds**flips / (1 + odds) ** bits
        total += max(truthful - epsilon_factor * flipped, Fraction(0))
    return total


@pytest.mark.parametrize("bits", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("odds", [Fraction(101, 100), Fraction(3, 2), Fraction(3), Fraction(50)])
@pytest.mark.parametrize("share", [Fraction(1), Fraction(5, 4), Fraction(7)])
def test_delta_equals_the_rational_sum(bits: int, odds: Fraction, share: Fraction) -> None:
    expected = exact_delta(odds, bits, share)
    got = delta_of_bits(math.log(odds), bits, math.log(share))
    assert got == pytest.approx(float(expected), rel=3e-9, abs=1e-16)
    assert got >= float(expected) * (1 - 1e-12) - 1e-16


@pytest.mark.parametrize("bits", [1, 2, 5, 30])
@pytest.mark.parametrize("odds", [Fraction(11, 10), Fraction(2), Fraction(20)])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3, 0.04])
def test_epsilon_is_the_least_that_the_rational_sum_allows(
    bits: int, odds: Fraction, delta: float
) -> None:
    epsilon = epsilon_of_bits(math.log(odds), bits, delta)
    above, below = Fraction(math.exp(epsilon + 1e-9)), Fraction(math.exp(epsilon - 1e-8))
    assert exact_delta(odds, bits, above) <= delta
    if epsilon > 0:
        assert exact_delta(odds, bits, below) > delta


@pytest.mark.parametrize(
    ("per_bit", "bits", "pure", "printed", "digits"),
    [
        (0.5, 10, 5, 5.00, 2),
        (0.5, 100, 50, 31.17, 2),
        (0.5, 1000, 500, 186.1, 1),
        (0.5, 7850, 3925, 1142.8, 1),
        (1.0, 7850, 7850, 3959, 0),
        (2.0, 1000, 2000, 1687.7, 1),
    ],
)
def test_table_of_identical_bits(
    per_bit: float, bits: int, pure: float, printed: float, digits: int
) -> None:
    assert epsilon_of_bits(per_bit, bits, 0.0) == pure
    assert round(epsilon_of_bits(per_bit, bits, DELTA), digits) == printed


@pytest.mark.parametrize(
    ("dimension", "one_round", "thirty_rounds"),
    [
        (7850, 3925, 117_750),
        (25_818, 12_909, 387_270),
        (6422, 3211, 96_330),
        (9422, 4711, 141_330),
        (169_578, 84_789, 2_543_670),
    ],
)
def test_table_of_pure_levels(dimension: int, one_round: float, thirty_rounds: float) -> None:
    assert epsilon_of_bits(0.5, dimension, 0.0) == one_round
    assert epsilon_of_bits(0.5, dimension * 30, 0.0) == thirty_rounds


@pytest.mark.parametrize(("total", "printed"), [(1, "0.00303"), (4, "0.0104"), (8, "0.0188")])
def test_table_of_budgets_per_bit(total: float, printed: str) -> None:
    per_bit = epsilon_per_bit_for(total, 7850, DELTA)
    assert f"{per_bit:.3g}" == printed
    assert total * (1 - 1e-8) <= epsilon_of_bits(per_bit, 7850, DELTA) <= total


def test_a_split_pure_budget_is_never_exceeded() -> None:
    for total, bits in [(1.0, 7850), (0.1, 3), (0.1, 11), (0.7, 35), (2.0, 7), (1e-3, 10**8)]:
        per_bit = epsilon_per_bit_for(total, bits, 0.0)
        assert total * (1 - 1e-12) <= per_bit * bits <= total
    assert epsilon_per_bit_for(1.0, 4, 0.0) == 0.25
    subnormal = epsilon_per_bit_for(1e-320, 3, 0.0)
    assert 0 < 3 * subnormal <= 1e-320
    assert math.tanh(epsilon_per_bit_for(1.0, 7850, 0.0) / 2) == pytest.approx(6.4e-5, rel=0.01)


def test_best_subset_beats_every_other_size() -> None:
    assert [best_subset(e) for e in (0.5, 1, 2, 4, 8, 16)] == [1, 1, 1, 2, 4, 7]
    for epsilon in np.geomspace(0.01, 300, 60).tolist():
        sizes = range(1, 400)
        costs = [1 / (s * math.tanh(epsilon / (2 * s)) ** 2) for s in sizes]
        assert best_subset(epsilon) == 1 + int(np.argmin(costs))


def test_best_split_is_the_minimum_of_u_over_tanh_squared() -> None:
    grid = np.linspace(1, 4, 300_001)
    cost = grid / np.tanh(grid / 2) ** 2
    assert round(float(grid[np.argmin(cost)]), 3) == 2.177
    assert round(float(cost.min()), 3) == 3.433


@pytest.mark.parametrize(("epsilon", "printed"), [(0.5, 7534), (2, 4553), (8, 1138)])
def test_gain_of_a_subset_over_splitting(epsilon: float, printed: int) -> None:
    size, blocks = best_subset(epsilon), 7850
    split = 1 / math.tanh(epsilon / (2 * blocks)) ** 2
    subset = blocks / size / math.tanh(epsilon / (2 * size)) ** 2
    assert round(split / subset) == printed


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-6, 20),
    st.integers(1, 3000),
    st.floats(1e-12, 0.4),
)
def test_epsilon_and_delta_are_inverse_and_monotone(
    per_bit: float, bits: int, delta: float
) -> None:
    epsilon = epsilon_of_bits(per_bit, bits, delta)
    assert 0 <= epsilon <= per_bit * bits
    assert delta_of_bits(per_bit, bits, epsilon * (1 + 1e-9)) <= delta * (1 + 1e-6)
    assert epsilon_of_bits(per_bit, bits + 1, delta) >= epsilon * (1 - 1e-9)
    assert epsilon_of_bits(per_bit * 1.01, bits, delta) >= epsilon * (1 - 1e-9)
    assert epsilon_of_bits(per_bit, bits, delta / 2) >= epsilon * (1 - 1e-9)


@pytest.mark.parametrize(
    ("per_bit", "bits"), [(1e-6, 10**8), (0.5, 10**7), (20.0, 10**8), (1000.0, 5), (1e-6, 1)]
)
def test_extremes_agree_with_many_digits(per_bit: float, bits: int) -> None:
    """The law of the flips of up to 1e8 bits, against log-gammas of 40 digits."""
    mp = pytest.importorskip("mpmath")
    from hushbit.privacy.binomial import flips_window, log_flips

    window = flips_window(per_bit, bits, bits)
    picked = np.unique(window[np.linspace(0, len(window) - 1, 9).astype(int)])
    with mp.workdps(40):
        flip = 1 / (1 + mp.exp(mp.mpf(per_bit)))
        for flips, got in zip(picked.tolist(), log_flips(per_bit, bits, picked), strict=True):
            ways = mp.loggamma(bits + 1) - mp.loggamma(flips + 1) - mp.loggamma(bits - flips + 1)
            expected = ways + flips * mp.log(flip) + (bits - flips) * mp.log1p(-flip)
            assert float(expected - mp.mpf(float(got))) == pytest.approx(0, abs=2e-11)
    assert float(np.exp(log_flips(per_bit, bits, window)).sum()) == pytest.approx(1, abs=1e-12)


def test_limits() -> None:
    assert epsilon_of_bits(math.inf, 3, DELTA) == math.inf
    assert delta_of_bits(math.inf, 3, 5.0) == 1.0
    assert delta_of_bits(0.5, 10, 5.0) == 0.0
    assert delta_of_bits(0.5, 10**6, 4e5) == math.ulp(0.0)
    assert epsilon_of_bits(1e-6, 1, DELTA) == 0.0
    assert epsilon_of_bits(0.5, 7, 0.999) == 0.0
    for delta in (0.0, DELTA):
        assert epsilon_of_bits(epsilon_per_bit_for(2.0, 1, delta), 1, delta) == pytest.approx(2.0)


BAD_CALLS: list[tuple[object, ...]] = [
    (0.0, 5, DELTA),
    (-1.0, 5, DELTA),
    (math.nan, 5, DELTA),
    ("0.5", 5, DELTA),
    (True, 5, DELTA),
    (None, 5, DELTA),
    (np.array([0.5]), 5, DELTA),
    (0.5, 0, DELTA),
    (0.5, 5.0, DELTA),
    (0.5, True, DELTA),
    (0.5, 10**11, DELTA),
    (0.5, 5, -1e-9),
    (0.5, 5, 1.0),
    (0.5, 5, math.nan),
    (0.5, 5, "tiny"),
]


@pytest.mark.parametrize("arguments", BAD_CALLS, ids=repr)
def test_bad_arguments_are_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(InvalidInput):
        epsilon_of_bits(*arguments)  # type: ignore[arg-type]


def test_more_bad_arguments_are_refused() -> None:
    calls: list[Callable[[], object]] = [
        lambda: delta_of_bits(0.5, 5, -1.0),
        lambda: delta_of_bits(0.5, 5, math.nan),
        lambda: epsilon_per_bit_for(0.0, 5, DELTA),
        lambda: epsilon_per_bit_for(math.inf, 5, DELTA),
        lambda: best_subset(math.inf),
        lambda: Bound(-1.0, 0.0, "x"),
        lambda: Bound(1.0, 0.0, ""),
        lambda: smallest([], DELTA),
        lambda: smallest([Bound(1.0, 1e-3, "loose")], DELTA),
        lambda: smallest(["no bound"], DELTA),  # type: ignore[list-item]
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()


def test_smallest_returns_the_least_valid_bound() -> None:
    bounds: Iterable[Bound] = (
        Bound(9.0, 0.0, "pure"),
        Bound(2.0, 1e-3, "delta too large"),
        Bound(5.0, 1e-5, "exact"),
        Bound(5.0, 1e-6, "same epsilon, smaller delta"),
    )
    assert smallest(bounds, DELTA).method == "same epsilon, smaller delta"
