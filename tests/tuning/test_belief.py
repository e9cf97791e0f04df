"""The belief about a norm: Bayes' rule as written, and a search that ends where it should."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbit.errors import InvalidInput
from hushbit.tuning.belief import DRIFT, OCTAVES, SPREADS, SURPRISE, NormBelief


def test_bayes_rule_by_hand():
    """One candidate after the other, with binomial likelihoods from the definition."""
    start, beta, level, yes, users = NormBelief.around(1.0, 1.0), 0.3, 1.7, 4, 9
    weights = []
    for octave, weight in zip(OCTAVES, start.weights, strict=True):
        likelihood = 0.0
        for spread in SPREADS:
            below = 0.5 + 0.5 * math.tanh((math.log2(level) - octave) / spread / 2)
            chance = 0.5 + beta * (below - 0.5)
            likelihood += chance**yes * (1 - chance) ** (users - yes)
        weights.append(weight * likelihood)
    wanted = np.array(weights) / sum(weights)
    wanted = np.convolve(wanted, DRIFT, mode="same")
    wanted = (1 - SURPRISE) * wanted / wanted.sum() + SURPRISE / OCTAVES.size
    got = start.learned(level, yes, users, beta).weights
    np.testing.assert_allclose(got, wanted / wanted.sum(), rtol=1e-10)


@given(st.floats(1e-6, 1e6), st.integers(1, 3000), st.floats(0, 1), st.floats(0.01, 1.0))
@settings(max_examples=60, deadline=None)
def test_any_votes_leave_a_belief(norm, users, share, beta):
    belief = NormBelief.around(norm, 1.5).learned(norm, round(share * users), users, beta)
    assert abs(belief.weights.sum() - 1) < 1e-12
    assert belief.quantile(0.25) <= belief.quantile(0.5) <= belief.quantile(0.75)


def test_yes_lowers_and_no_raises():
    start = NormBelief.around(3.0, 1.5)
    assert start.quantile(0.5) == pytest.approx(3.0, rel=0.05)
    level = start.quantile(0.5)
    assert start.learned(level, 100, 100, 0.24).quantile(0.5) < level
    assert start.learned(level, 0, 100, 0.24).quantile(0.5) > level


@pytest.mark.parametrize("truth", [1e-5, 0.03, 1.0, 40.0, 1e6])
@pytest.mark.parametrize(("users", "rounds"), [(100_000, 30), (1000, 40), (10, 400)])
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.5])
def test_the_search_finds_a_norm(truth, users, rounds, spread):
    """Votes drawn with a fixed seed; the last levels lie within a factor of 1.6 on average."""
    rng, beta, belief = np.random.default_rng(8), math.tanh(0.25), NormBelief.around(1.0, 1.5)
    last = []
    for _ in range(rounds):
        level = belief.quantile(0.5)
        norms = truth * 2.0 ** (spread * rng.normal(size=users))
        answers = (norms <= level) ^ (rng.random(users) > (1 + beta) / 2)
        belief = belief.learned(level, int(answers.sum()), users, beta)
        last.append(math.log2(level / truth))
    assert abs(np.mean(last[-10:])) < math.log2(1.6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: NormBelief.around(0.0, 1.0),
        lambda: NormBelief.around(1.0, math.nan),
        lambda: NormBelief(np.ones(3)),
        lambda: NormBelief(np.full(OCTAVES.size, np.nan)),
        lambda: NormBelief(np.full(OCTAVES.size, 1.0)),
        lambda: NormBelief.around(1.0, 1.0).quantile(1.0),
        lambda: NormBelief.around(1.0, 1.0).learned(1.0, 5, 4, 0.2),
        lambda: NormBelief.around(1.0, 1.0).learned(1.0, True, 4, 0.2),
        lambda: NormBelief.around(1.0, 1.0).learned(-1.0, 1, 4, 0.2),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises(InvalidInput):
        call()
