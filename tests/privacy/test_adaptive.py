"""The ledger's limit holds against a server that chooses requests after it has seen ballots."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from hushbit.privacy.accountant import Cost, Limit, composed_bound, is_homogeneous, within_limit
from hushbit.privacy.composition import epsilon_of_groups
from hushbit.privacy.renyi import epsilon_of_renyi

FIRST_BITS, FIRST_EPSILON = 20, 0.5


def hockey_stick(bits: int, per_bit: float, epsilon: float) -> float:
    """sup_S P(S) - e^epsilon Q(S) of randomized response to opposite bits, from its definition."""
    truth = 1 / (1 + math.exp(-per_bit))
    total = 0.0
    for told in range(bits + 1):
        gap = 1 - math.exp(min(epsilon - (2 * told - bits) * per_bit, 700))
        if gap > 0:
            total += float(binom.pmf(told, bits, truth)) * gap
    return total


def most_bits(first: Cost, per_bit: float, limit: Limit) -> int:
    """The most bits of another epsilon that the ledger allows after the first ballot."""
    low, high = 0, 4096
    while low < high:
        middle = (low + high + 1) // 2
        fit = within_limit([first, Cost(((per_bit, middle),))], limit)
        low, high = (middle, high) if fit else (low, middle - 1)
    return low


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
@pytest.mark.parametrize("epsilon", [12.0, 20.0])
def test_delta_holds_against_a_server_that_adapts(epsilon: float, delta: float) -> None:
    """After 20 bits the server requests the most revealing ballot that the ledger allows."""
    limit = Limit(epsilon, delta)
    first = Cost(((FIRST_EPSILON, FIRST_BITS),))
    menu = [(rate, most_bits(first, rate, limit)) for rate in (0.1, 0.3, 0.5, 1.0, 2.0)]
    assert any(bits > 0 for _, bits in menu)
    truth = 1 / (1 + math.exp(-FIRST_EPSILON))
    steered = 0.0
    for told in range(FIRST_BITS + 1):
        left = epsilon - (2 * told - FIRST_BITS) * FIRST_EPSILON
        best = max(hockey_stick(bits, rate, left) for rate, bits in menu)
        steered += float(binom.pmf(told, FIRST_BITS, truth)) * best
    assert steered <= delta
    fixed = max(
        sum(
            float(binom.pmf(told, FIRST_BITS, truth))
            * hockey_stick(bits, rate, epsilon - (2 * told - FIRST_BITS) * FIRST_EPSILON)
            for told in range(FIRST_BITS + 1)
        )
        for rate, bits in menu
    )
    assert fixed <= steered


def test_exact_composition_of_mixed_ballots_fails_against_a_server_that_adapts() -> None:
    """Each branch that exact composition allows is within delta; a choice among them exceeds it."""
    epsilon, delta = 20.0, 1e-5
    menu = [(1.0, 11), (0.3, 86), (0.1, 748)]
    for rate, bits in menu:
        groups = [(FIRST_EPSILON, FIRST_BITS), (rate, bits)]
        assert epsilon_of_groups(sorted(groups), delta) <= epsilon
        assert not within_limit([Cost((group,)) for group in groups], Limit(epsilon, delta))
    truth = 1 / (1 + math.exp(-FIRST_EPSILON))
    steered = sum(
        float(binom.pmf(told, FIRST_BITS, truth))
        * max(
            hockey_stick(bits, rate, epsilon - (2 * told - FIRST_BITS) * FIRST_EPSILON)
            for rate, bits in menu
        )
        for told in range(FIRST_BITS + 1)
    )
    assert steered > 1.1 * delta


def test_ballots_of_one_kind_are_composed_exactly_at_half_of_delta() -> None:
    cost = Cost(((0.5, 100),))
    exact = epsilon_of_groups([(0.5, 400)], 5e-6)
    assert composed_bound([cost, cost.times(3)], 1e-5, adaptive=True).epsilon == exact
    nested = Cost(((0.25, 100), (0.5, 100)))
    assert is_homogeneous([nested, nested.times(2)])
    assert is_homogeneous([cost, Cost(((0.5, 7),))])
    assert not is_homogeneous([nested, cost])


def test_fixed_mixtures_are_composed_exactly_with_all_of_delta() -> None:
    one, other = Cost(((0.5, 100),)), Cost(((1.0, 30),))
    fixed = composed_bound([one, other], 1e-5, adaptive=False)
    assert fixed.method == "exact composition"
    assert fixed.epsilon == epsilon_of_groups([(0.5, 100), (1.0, 30)], 1e-5)
    assert fixed.epsilon < composed_bound([one, other], 1e-5, adaptive=True).epsilon


def test_renyi_orders_replace_exact_composition_of_fixed_ballots_only() -> None:
    cost = Cost(((0.5, 1000),))
    fixed = composed_bound([cost], 1e-5, adaptive=False, max_exact_bits=999)
    assert (fixed.method, fixed.epsilon) == ("Renyi orders", epsilon_of_renyi([(0.5, 1000)], 1e-5))
    assert composed_bound([cost], 1e-5, adaptive=True, max_exact_bits=999).method == "zCDP"


@pytest.mark.parametrize("rho", [None, 1e9])
def test_zcdp_is_a_rule_for_fixed_ballots_only_with_a_smaller_rho(rho: float | None) -> None:
    """Both rules prove 0 here; without a rho below that of the bits, zCDP proves nothing new."""
    cost = Cost(((1e-6, 1),), rho=rho)
    fixed = composed_bound([cost], 1e-5, adaptive=False)
    assert (fixed.epsilon, fixed.method) == (0.0, "exact composition")
    assert composed_bound([cost], 1e-5, adaptive=True).method == "zCDP"


def test_groups_of_equal_epsilon_are_merged_and_sorted() -> None:
    cost = Cost([(1.0, 5), (0.5, 2), (np.float64(1.0), np.int64(1))])  # type: ignore[arg-type]
    assert cost == Cost(((0.5, 2), (1.0, 6)))
    assert cost.to_text() == '{"tiers": [["0.5", 2], ["1.0", 6]], "rho": null}'
    assert Cost.from_text(cost.to_text(), 3) == cost.times(3)


@pytest.mark.parametrize("adaptive", [False, True])
def test_sums_beyond_the_range_of_floats_are_infinite(adaptive: bool) -> None:
    huge = Cost(((1e200, 30_000), (1e308, 10)))
    for delta in (0.0, 1e-5):
        assert composed_bound([huge], delta, adaptive=adaptive).epsilon == math.inf
    mixed = [huge, Cost(((math.inf, 1),))]
    assert composed_bound(mixed, 1e-5, adaptive=adaptive).epsilon == math.inf
    large = composed_bound([Cost(((1e200, 30_000),))], 1e-5, adaptive=adaptive, max_exact_bits=1)
    assert large.epsilon == 3e204
