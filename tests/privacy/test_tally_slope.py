"""The bound of tallies by Gaussian differential privacy, against exact laws of small tallies."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbit.privacy import central
from hushbit.privacy.central import (
    ORDERS,
    TallyRelease,
    VoteSums,
    bound_of_tallies,
    epsilon_of_orders,
    symmetric_splits,
    tally_slope,
)
from hushbit.privacy.gaussian import delta_of_gaussian, epsilon_of_gaussian

PLACES = st.floats(0.0, 1.0)


def count_law(chances: list[float]) -> np.ndarray:
    law = np.ones(1)
    for chance in chances:
        law = np.convolve(law, [1 - chance, chance])
    return law


def largest_gap(p: np.ndarray, q: np.ndarray, mu: float) -> float:
    """The largest excess of delta over that of a Gaussian of distance mu, at any epsilon."""
    found = -math.inf
    for epsilon in (*np.linspace(0.0, 3.0, 61), *(mu * np.linspace(0.0, 4.0, 81))):
        for one, other in ((p, q), (q, p)):
            delta = np.maximum(one - math.exp(epsilon) * other, 0.0).sum()
            found = max(found, delta - delta_of_gaussian(mu, float(epsilon)))
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(PLACES, min_size=0, max_size=7), PLACES, PLACES, st.sampled_from([0.1, 0.5, 1.5]))
def test_no_votes_are_easier_to_test_than_the_gaussian(others, p, q, epsilon) -> None:
    a = 1 / (1 + math.exp(epsilon))
    chances = [a + (1 - 2 * a) * place for place in (*others, p, q)]
    fixed, p, q = chances[:-2], chances[-2], chances[-1]
    kappa = tally_slope(len(fixed) + 1, epsilon, 300)
    gap = largest_gap(count_law([*fixed, p]), count_law([*fixed, q]), kappa * abs(p - q))
    assert gap <= 1e-12


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_the_slope_is_attained(epsilon: float) -> None:
    """A smaller slope would be wrong: two close laws of the worst votes violate it."""
    a = 1 / (1 + math.exp(epsilon))
    kappa = tally_slope(5, epsilon, 300)
    worst = max(
        largest_gap(
            count_law([1 - a] * plus + [a] * (4 - plus) + [a + 1e-2]),
            count_law([1 - a] * plus + [a] * (4 - plus) + [a]),
            0.97 * kappa * 1e-2,
        )
        for plus in range(5)
    )
    assert worst > 0


@pytest.mark.parametrize("digits", [2, 4])
def test_left_out_thresholds_cost_their_probability(digits: int) -> None:
    """For two coordinates, delta is at most the Gaussian one plus 4 · 10^-digits."""
    epsilon, step = 1.0, 0.2
    a = 1 / (1 + math.exp(epsilon))
    kappa = tally_slope(61, epsilon, digits)
    assert kappa < 0.95 * tally_slope(61, epsilon, 300)
    for plus in range(0, 61, 6):
        others = [1 - a] * plus + [a] * (60 - plus)
        p, q = count_law([*others, a + step]), count_law([*others, a])
        two = [np.outer(law, law).ravel() for law in (p, q)]
        assert largest_gap(*two, kappa * step * math.sqrt(2)) <= 4 * 10.0**-digits


def run_of(honest: int, epsilon: float, ratio: float = 9.34, rounds: int = 60) -> TallyRelease:
    return TallyRelease(VoteSums(epsilon, 7850, ratio, True), honest, rounds)


def renyi(release: TallyRelease) -> float:
    return epsilon_of_orders(np.array(ORDERS), release.divergences(ORDERS), 1e-5)


@pytest.mark.parametrize(("honest", "epsilon"), [(1000, 0.1), (1000, 0.2), (10_000, 0.5)])
def test_the_smaller_bound_counts(honest: int, epsilon: float) -> None:
    release = run_of(honest, epsilon)
    found = bound_of_tallies([release], 1e-5, "tightest")
    assert found.method == "sums of votes, Gaussian DP"
    beta = math.tanh(epsilon / 2)
    least = beta * 9.34 * math.sqrt(60 * 4 / (honest * (1 - beta**2)))
    assert epsilon_of_gaussian(least, 1e-5) < found.epsilon < 0.98 * renyi(release)
    few = bound_of_tallies([run_of(10, 0.5)], 1e-5, "tightest")
    assert few.method == "sums of votes, Renyi orders"
    assert few.epsilon == renyi(run_of(10, 0.5))


def test_rounds_and_extra_votes_add_up() -> None:
    def mu(*releases: TallyRelease) -> float:
        digits = 14
        return sum(
            one.rounds * one.sums.gaussian_square(one.honest, one.relation, digits)  # type: ignore[union-attr]
            for one in releases
        )

    plain, long = run_of(500, 0.1), run_of(500, 0.1, rounds=120)
    assert mu(plain, plain) == pytest.approx(mu(long))
    extra = TallyRelease(VoteSums(0.1, 7850, 9.34, True, (0.3,)), 500, 60)
    added = (tally_slope(500, 0.3, 14) * math.tanh(0.15)) ** 2
    assert mu(extra) == pytest.approx(mu(plain) + 60 * added)
    half = TallyRelease(VoteSums(0.1, 7850, 9.34, True), 500, 60, "zero-out")
    assert mu(half) == pytest.approx(mu(plain) / 4, rel=1e-5)


def test_all_that_is_left_out_is_taken_from_delta() -> None:
    """60 rounds of 7850 coordinates, two tails each; at most a hundredth of delta pays for them."""
    release, tails = run_of(1000, 0.1), 2 * 60 * 7850
    digits = 13
    assert tails * 10.0**-digits <= 0.01 * 1e-5 < tails * 10.0 ** -(digits - 1)
    mu = math.sqrt(60 * release.sums.gaussian_square(1000, "replace", digits))
    expected = epsilon_of_gaussian(mu, 1e-5 - tails * 10.0**-digits)
    assert central._epsilon_by_slopes([release], 1e-5) == expected


def test_sampled_tallies_have_no_gaussian_bound() -> None:
    sampled = TallyRelease(VoteSums(0.1, 7850, 9.34, True), 1000, 60, sampled=0.5)
    assert central._epsilon_by_slopes([sampled], 1e-5) == math.inf


@pytest.mark.parametrize("delta", [1e-5, 1e-300, 5e-324])
def test_every_delta_has_a_bound(delta: float) -> None:
    assert bound_of_tallies([run_of(50, 0.1)], delta).epsilon > 0


def test_slopes_are_bounded_up_to_their_largest_epsilon() -> None:
    assert math.isfinite(tally_slope(20, 12.0, 14))
    assert tally_slope(20, 12.1, 14) == math.inf


@pytest.mark.parametrize("others", [100, 257, 300, 776, 999])
def test_cells_are_symmetric_and_cover_every_split(others: int) -> None:
    found = symmetric_splits(others, 128)
    assert set(found) == {(minus, plus) for plus, minus in found}
    for plus in range(others + 1):
        assert any(p <= plus and m <= others - plus for p, m in found)
    assert all(p + m >= others - -(-others // 128) - 1 for p, m in found)


def test_more_voters_never_raise_the_slope() -> None:
    voters = (2, 3, 50, 100, 256, 257, 258, 262, 270, 300, 1000, 9_999, 10_001, 10_300)
    slopes = [tally_slope(honest, 0.5, 14) for honest in voters]
    for fewer, more in itertools.pairwise(slopes):
        assert more <= fewer * (1 + 1e-12)
