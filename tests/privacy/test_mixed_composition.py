"""Exact composition of bits with different epsilons, against enumeration in rational numbers."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbit.errors import InvalidInput
from hushbit.privacy.composition import (
    MAX_BITS,
    epsilon_of_bits,
    epsilon_of_groups,
    probability_of_different_signs,
)

DELTA = 1e-5


def delta_by_enumeration(
    bits: list[tuple[Fraction, Fraction]], epsilon_factor: Fraction
) -> Fraction:
    """Hockey-stick divergence over all outcomes of bits given as (odds, chance to differ)."""
    outcomes = [(Fraction(1), Fraction(1))]
    for odds, differ in bits:
        truth = odds / (1 + odds)
        choices = [
            (differ * truth, differ * (1 - truth)),
            (differ * (1 - truth), differ * truth),
            (1 - differ, 1 - differ),
        ]
        outcomes = [(p * a, q * b) for (p, q), (a, b) in itertools.product(outcomes, choices)]
    return sum((max(p - epsilon_factor * q, Fraction(0)) for p, q in outcomes), Fraction(0))


def assert_least(epsilon: float, bits: list[tuple[Fraction, Fraction]], delta: float) -> None:
    above, below = Fraction(math.exp(epsilon + 1e-8)), Fraction(math.exp(epsilon - 1e-7))
    assert delta_by_enumeration(bits, above) <= delta
    assert delta_by_enumeration(bits, below) > delta


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.05])
def test_mixed_bits_equal_enumeration(delta: float) -> None:
    odds = [Fraction(3, 2)] * 2 + [Fraction(5, 2)] * 2 + [Fraction(9)]
    groups = [(math.log(1.5), 2), (math.log(2.5), 2), (math.log(9), 1)]
    epsilon = epsilon_of_groups(groups, delta)
    bits = [(o, Fraction(1)) for o in odds]
    # These epsilons share no step, so the answer may lie above the truth by the stated slack.
    assert delta_by_enumeration(bits, Fraction(math.exp(epsilon))) <= delta
    assert delta_by_enumeration(bits, Fraction(math.exp(epsilon * (1 - 1e-3)))) > delta


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.05, 0.1])
@pytest.mark.parametrize(
    "groups",
    [
        [(0.5, 3), (1.0, 2)],
        [(1.0, 2), (1.5, 2)],
        [(0.1, 3), (0.3, 2), (0.25, 1)],
        [(0.75, 2), (2.0, 1), (1.25, 1)],
    ],
)
def test_commensurable_bits_are_exact(groups: list[tuple[float, int]], delta: float) -> None:
    bits = [(Fraction(math.exp(e)), Fraction(1)) for e, count in groups for _ in range(count)]
    assert_least(epsilon_of_groups(groups, delta), bits, delta)


def delta_of_two_groups(one: tuple[float, int], two: tuple[float, int], epsilon: float) -> float:
    """The hockey-stick sum over all pairs of flip counts, by log-gammas."""
    laws = []
    for per_bit, bits in (one, two):
        flips = np.arange(bits + 1)
        ways = [
            math.lgamma(bits + 1) - math.lgamma(y + 1) - math.lgamma(bits - y + 1) for y in flips
        ]
        odds = -flips * per_bit - bits * math.log1p(math.exp(-per_bit))
        laws.append((np.array(ways) + odds, per_bit * (bits - 2 * flips)))
    (log_one, loss_one), (log_two, loss_two) = laws
    loss = np.add.outer(loss_one, loss_two)
    gain = -np.expm1(np.minimum(epsilon - loss, 0.0))
    return float(np.sum(np.exp(np.add.outer(log_one, log_two)) * gain))


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.floats(0.01, 12), st.integers(1, 300)),
    st.tuples(st.floats(0.01, 12), st.integers(1, 300)),
    st.sampled_from([1e-12, 1e-6, 1e-3, 0.1, 0.4]),
)
def test_two_groups_are_bounded_above_with_the_stated_slack(
    one: tuple[float, int], two: tuple[float, int], delta: float
) -> None:
    epsilon = epsilon_of_groups([one, two], delta)
    slack = 2.5e-4 * max(epsilon_of_bits(*one, delta), epsilon_of_bits(*two, delta))
    assert delta_of_two_groups(one, two, epsilon) <= delta * (1 + 1e-9)
    if epsilon > slack > 0:
        assert delta_of_two_groups(one, two, epsilon - slack) >= delta * (1 - 1e-9)


@pytest.mark.parametrize("points", range(2, 8))
def test_different_signs_by_listing_all_words(points: int) -> None:
    plus = points - points // 2
    words = list(itertools.combinations(range(points), plus))
    different = sum((0 in word) != (1 in word) for word in words)
    assert probability_of_different_signs(points) == Fraction(different, len(words))


@pytest.mark.parametrize("split", [1, 300, 999])
def test_nearly_equal_groups_approach_the_closed_form(split: int) -> None:
    truth = epsilon_of_bits(0.5, 1000, DELTA)
    mixed = epsilon_of_groups([(0.5, split), (0.5 + 1e-9, 1000 - split)], DELTA)
    assert truth <= mixed <= truth * (1 + 3e-4)


def test_fast_transform_agrees_with_the_closed_form() -> None:
    """Large enough for the transform; the two epsilons differ too little to matter."""
    truth = epsilon_of_bits(0.01, 4 * 10**6, DELTA)
    halves = epsilon_of_groups([(0.01, 2 * 10**6), (0.0100000001, 2 * 10**6)], DELTA)
    assert truth <= halves <= truth * (1 + 3e-4)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.integers(1, 400)), min_size=1, max_size=3),
    st.floats(1e-9, 0.1),
)
def test_laws_of_mixing(groups: list[tuple[float, int]], delta: float) -> None:
    mixed = epsilon_of_groups(groups, delta)
    pure = math.fsum(e * n for e, n in groups)
    assert mixed <= pure
    assert mixed == epsilon_of_groups(list(reversed(groups)), delta)
    assert mixed >= max(epsilon_of_bits(e, n, delta) for e, n in groups) * (1 - 1e-9)
    worst = max(e for e, _ in groups)
    all_at_worst = epsilon_of_bits(worst, sum(n for _, n in groups), delta)
    assert mixed <= all_at_worst * (1 + 3e-4) + 1e-12


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("delta", [1e-9, 1e-3])
def test_very_unequal_groups_do_not_overflow(delta: float) -> None:
    small, large = (1.7e-5, 7), (9.3, 40)
    alone, both = epsilon_of_bits(*large, delta), epsilon_of_groups([small, large], delta)
    assert alone <= both <= alone * (1 + 3e-4) + 1.7e-5 * 7


def test_limits_and_merging() -> None:
    assert epsilon_of_groups([(0.5, 100), (0.5, 900)], DELTA) == epsilon_of_bits(0.5, 1000, DELTA)
    assert epsilon_of_groups([(0.5, 3), (math.inf, 1)], DELTA) == math.inf
    assert epsilon_of_groups([(0.5, 3), (0.25, 1)], 0.0) == 1.75
    assert epsilon_of_groups([(1e-6, 1), (2e-6, 1)], 0.5) == 0.0


@pytest.mark.parametrize(
    "groups", [[], [(0.5,)], [0.5], [(0.5, 0)], [(0.0, 3)], [("a", 3)], [(0.5, 1.5)]], ids=repr
)
def test_bad_groups_are_refused(groups: object) -> None:
    with pytest.raises(InvalidInput):
        epsilon_of_groups(groups, DELTA)  # type: ignore[arg-type]


def test_more_bits_than_the_stated_limit_are_refused() -> None:
    assert MAX_BITS == 10**10
    assert epsilon_of_groups([(1e-9, MAX_BITS)], DELTA) > 0
    for groups in ([(0.5, MAX_BITS + 1)], [(0.5, MAX_BITS + 1), (1.0, 1)]):
        with pytest.raises(InvalidInput, match="bits"):
            epsilon_of_groups(groups, DELTA)
