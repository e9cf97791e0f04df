"""The ledger's limit holds against a server that chooses what to ask after seeing answers."""

import math

import pytest
from scipy.stats import binom

from hushbit.privacy.composition import epsilon_of_mixed
from hushbit.privacy.cost import Cost, Limit, fits, of_one_kind, spending

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
    """How many bits of another epsilon the ledger lets through after the first ballot."""
    low, high = 0, 4096
    while low < high:
        middle = (low + high + 1) // 2
        fit = fits([first, Cost(((per_bit, middle),))], limit)
        low, high = (middle, high) if fit else (low, middle - 1)
    return low


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
@pytest.mark.parametrize("epsilon", [12.0, 20.0])
def test_a_server_that_steers_by_the_answers_stays_below_delta(
    epsilon: float, delta: float
) -> None:
    """Two steps: after 20 answers it takes the branch that tells most, from all that are let in."""
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
        sum(float(binom.pmf(told, FIRST_BITS, truth)) * hockey_stick(
                bits, rate, epsilon - (2 * told - FIRST_BITS) * FIRST_EPSILON)
            for told in range(FIRST_BITS + 1))
        for rate, bits in menu
    )  # fmt: skip
    assert fixed <= steered


def test_exact_composition_of_mixed_ballots_would_not_hold() -> None:
    """The branches that exact composition lets in, each within delta, exceed it together."""
    epsilon, delta = 20.0, 1e-5
    menu = [(1.0, 11), (0.3, 86), (0.1, 748)]
    for rate, bits in menu:
        groups = [(FIRST_EPSILON, FIRST_BITS), (rate, bits)]
        assert epsilon_of_mixed(sorted(groups), delta) <= epsilon
        assert not fits([Cost((group,)) for group in groups], Limit(epsilon, delta))
    truth = 1 / (1 + math.exp(-FIRST_EPSILON))
    steered = sum(
        float(binom.pmf(told, FIRST_BITS, truth))
        * max(hockey_stick(bits, rate, epsilon - (2 * told - FIRST_BITS) * FIRST_EPSILON)
              for rate, bits in menu)
        for told in range(FIRST_BITS + 1)
    )  # fmt: skip
    assert steered > 1.1 * delta


def test_ballots_of_one_kind_are_composed_exactly_at_half_of_delta() -> None:
    cost = Cost(((0.5, 100),))
    assert spending([cost, cost.times(3)], 1e-5).epsilon == epsilon_of_mixed([(0.5, 400)], 5e-6)
    nested = Cost(((0.25, 100), (0.5, 100)))
    assert of_one_kind([nested, nested.times(2)])
    assert of_one_kind([cost, Cost(((0.5, 7),))])
    assert not of_one_kind([nested, cost])
