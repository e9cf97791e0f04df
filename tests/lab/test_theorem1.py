"""Theorem 1 with small sizes: measured is exact, the corrected bound holds, the other breaks."""

import numpy as np
import pytest

import hushbit as hb
from hushbit.lab.experiments.theorem1 import measured
from hushbit.lab.theorems import (
    corrected_term,
    distortion_bound,
    exact_distortion,
    published_moment,
    published_term,
)

SHAPES = [("Z", 2), ("Z", 4), ("A2", 4), ("D4", 8)]


def _updates(mechanism, users=20):
    reach = mechanism.unbiased_radius / np.sqrt(mechanism.block_size)
    rng = np.random.default_rng(4)
    return rng.uniform(0.1 * reach, 0.5 * reach, (users, mechanism.dim))


@pytest.mark.parametrize(("lattice", "points"), SHAPES)
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_measured_equals_exact(lattice, points, epsilon):
    """768 independent entries times 12 rounds: 8 % is more than five standard errors."""
    mechanism = hb.CPA(768, epsilon, 1.0, points=points, lattice=lattice)
    updates = _updates(mechanism)
    exact = exact_distortion(mechanism, updates)
    assert measured(mechanism, updates, 1)[0] == pytest.approx(exact, rel=0.08)
    assert exact <= distortion_bound(corrected_term(mechanism), mechanism.blocks, len(updates))


def test_scalar_closed_form():
    """Two points: X^2 / beta^2 - x^2 for each entry and user."""
    mechanism = hb.CPA(3, 1.0, 2.0)
    x = np.array([[0.5, -1.0, 2.0]])
    beta = float(mechanism.stages[0].response.beta)
    assert exact_distortion(mechanism, x) == pytest.approx(3 * 4 / beta**2 - np.sum(x**2))


def test_the_published_moment_has_the_wrong_unit():
    """Delta / 12 for scalars, as printed; the variance of the error is Delta^2 / 12."""
    mechanism = hb.CPA(3, 1.0, 1.0, points=4)
    step = 2 / 3
    assert published_moment(mechanism) == pytest.approx(step / 12)


def test_the_published_bound_breaks_for_the_decoder_as_written():
    mechanism = hb.CPA(768, 2.0, 1.0, points=4, preset="paper", rounding="stochastic")
    updates = np.full((2000, 768), 0.4)
    found = measured(mechanism, updates, 1)[0]
    assert found > 2 * distortion_bound(published_term(mechanism), 768, 2000)
