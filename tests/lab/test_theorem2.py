"""Theorem 2 with small sizes: below the bound at every t, and decaying like 1/t."""

import math

import numpy as np
import pytest

import hushbit as hb
from hushbit.lab.experiments.theorem2 import BOX, ENTRIES, EPSILON, Quadratic, decay, run
from hushbit.lab.theorems import Convexity, convergence_bound, corrected_term, step_size

ROUNDS = 200


@pytest.mark.parametrize("steps", [1, 3])
def test_suboptimality_stays_below_the_bound_and_decays(steps):
    problem = Quadratic.draw(20, 2)
    facts = problem.facts(np.full(ENTRIES, -1.0))
    runs = np.array([run(problem, steps, ROUNDS, seed, True) for seed in range(6)]).mean(axis=0)
    plain = np.array([run(problem, steps, ROUNDS, seed, False) for seed in range(6)]).mean(axis=0)
    term = corrected_term(hb.CPA(ENTRIES, EPSILON, 1.0))
    scale = (steps * problem.steepest) ** 2
    for number, gap in enumerate(runs, 1):
        t = number * steps
        bound = convergence_bound(
            facts, steps=steps, users=20, blocks=ENTRIES, scale=scale, term=term, t=t
        )
        assert gap <= bound
    assert -1.5 < decay({float(n * steps): gap for n, gap in enumerate(runs, 1)}) < -0.5
    assert plain[-20:].mean() < runs[-20:].mean()


def test_constants_of_the_quadratic():
    problem = Quadratic.draw(7, 3)
    assert problem.gap(problem.best) == 0
    facts = problem.facts(problem.best)
    assert facts.start == 0
    own = problem.samples.mean(axis=1)
    minima = [0.5 * np.sum(problem.curvature * (problem.best - mine) ** 2) for mine in own]
    assert facts.gap == pytest.approx(np.mean(minima))
    worst = np.abs(problem.curvature * (np.full(ENTRIES, -BOX) - problem.samples)).max()
    assert worst <= problem.steepest


def test_bound_by_hand():
    facts = Convexity(smooth=2.0, convex=1.0, gradient=3.0, gap=0.5, start=1.0)
    # phi = 8, b = (4 * 2 * 5 + 3) / 10 + 6 * 2 * 0.5; at t = 2: 2 / 20 * max(1 + b, 8).
    b = 4.3 + 6.0
    value = convergence_bound(facts, steps=1, users=10, blocks=4, scale=2.0, term=5.0, t=2)
    assert value == pytest.approx(0.1 * (1 + b))
    assert step_size(facts, 1, 2) == pytest.approx(0.1)


def test_one_point_has_no_slope():
    assert math.isnan(decay({0.0: 1.0, 1.0: 0.5}))
    assert decay({1.0: 1.0, 10.0: 0.1}) == pytest.approx(-1)
