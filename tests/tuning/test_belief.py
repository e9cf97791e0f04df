"""The belief about the norm: Bayes' rule, and convergence to the true norm."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbit.errors import InvalidInput
from hushbit.tuning.auto import DRIFT_KERNEL, LOG2_NORMS, NORM_SPREADS, UNIFORM_SHARE, NormBelief


def test_bayes_rule_by_hand():
    """One candidate after the other, with binomial likelihoods from the definition."""
    start, beta, level, yes, users = NormBelief.from_guess(1.0, 1.0), 0.3, 1.7, 4, 9
    weights = []
    for octave, weight in zip(LOG2_NORMS, start.weights, strict=True):
        likelihood = 0.0
        for spread in NORM_SPREADS:
            below = 0.5 + 0.5 * math.tanh((math.log2(level) - octave) / spread / 2)
            chance = 0.5 + beta * (below - 0.5)
            likelihood += chance**yes * (1 - chance) ** (users - yes)
        weights.append(weight * likelihood)
    wanted = np.array(weights) / sum(weights)
    wanted = np.convolve(wanted, DRIFT_KERNEL, mode="same")
    wanted = (1 - UNIFORM_SHARE) * wanted / wanted.sum() + UNIFORM_SHARE / LOG2_NORMS.size
    got = start.updated(level, yes, users, beta).weights
    np.testing.assert_allclose(got, wanted / wanted.sum(), rtol=1e-10)


@given(st.floats(1e-6, 1e6), st.integers(1, 3000), st.floats(0, 1), st.floats(0.01, 1.0))
@settings(max_examples=60, deadline=None)
def test_any_votes_give_a_valid_belief(norm, users, share, beta):
    belief = NormBelief.from_guess(norm, 1.5).updated(norm, round(share * users), users, beta)
    assert abs(belief.weights.sum() - 1) < 1e-12
    assert belief.quantile(0.25) <= belief.quantile(0.5) <= belief.quantile(0.75)


def test_yes_votes_lower_and_no_votes_raise_the_median():
    start = NormBelief.from_guess(3.0, 1.5)
    assert start.quantile(0.5) == pytest.approx(3.0, rel=0.05)
    level = start.quantile(0.5)
    assert start.updated(level, 100, 100, 0.24).quantile(0.5) < level
    assert start.updated(level, 0, 100, 0.24).quantile(0.5) > level


@pytest.mark.parametrize("truth", [1e-5, 0.03, 1.0, 40.0, 1e6])
@pytest.mark.parametrize(("users", "rounds"), [(100_000, 30), (1000, 40), (10, 400)])
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.5])
def test_the_belief_converges_to_the_norm(truth, users, rounds, spread):
    """Votes drawn with a fixed seed; the last levels lie within a factor of 1.6 on average."""
    rng, beta, belief = np.random.default_rng(8), math.tanh(0.25), NormBelief.from_guess(1.0, 1.5)
    last = []
    for _ in range(rounds):
        level = belief.quantile(0.5)
        norms = truth * 2.0 ** (spread * rng.normal(size=users))
        answers = (norms <= level) ^ (rng.random(users) > (1 + beta) / 2)
        belief = belief.updated(level, int(answers.sum()), users, beta)
        last.append(math.log2(level / truth))
    assert abs(np.mean(last[-10:])) < math.log2(1.6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: NormBelief.from_guess(0.0, 1.0),
        lambda: NormBelief.from_guess(1.0, math.nan),
        lambda: NormBelief(np.ones(3)),
        lambda: NormBelief(np.full(LOG2_NORMS.size, np.nan)),
        lambda: NormBelief(np.full(LOG2_NORMS.size, 1.0)),
        lambda: NormBelief.from_guess(1.0, 1.0).quantile(1.0),
        lambda: NormBelief.from_guess(1.0, 1.0).updated(1.0, 5, 4, 0.2),
        lambda: NormBelief.from_guess(1.0, 1.0).updated(1.0, True, 4, 0.2),
        lambda: NormBelief.from_guess(1.0, 1.0).updated(-1.0, 1, 4, 0.2),
    ],
)
def test_invalid_arguments_are_refused(call):
    with pytest.raises(InvalidInput):
        call()
