"""The theorems at small sizes, and the exact errors of bit allocations."""

import math
from pathlib import Path

import numpy as np
import pytest

import hushbit as hb
from hushbit.lab.experiments.experiment import ExperimentRunner
from hushbit.lab.experiments.reproduce import EXPERIMENTS, select_experiments
from hushbit.lab.experiments.theorems import (
    ALLOCATION_EPSILONS,
    BOX,
    COVERED_SPREADS,
    EPSILON,
    Convexity,
    Quadratic,
    Theorem2Case,
    _theorem2_cells,
    allocations,
    allocations_per_bit,
    convergence_bound,
    corrected_term,
    distortion_bound,
    exact_distortion,
    fitted_decay,
    measured_distortion,
    published_moment,
    published_term,
    run_quadratic,
    step_size,
)

ROUNDS, DIM = 200, 16
SHAPES = [("Z", 2), ("Z", 4), ("A2", 4), ("D4", 8)]


def _updates(mechanism, users=20):
    reach = mechanism.unbiased_radius / np.sqrt(mechanism.block_size)
    rng = np.random.default_rng(4)
    return rng.uniform(0.1 * reach, 0.5 * reach, (users, mechanism.dim))


@pytest.mark.parametrize(("lattice", "points"), SHAPES)
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_measured_distortion_equals_the_exact_formula(lattice, points, epsilon):
    """768 entries over four rounds with fixed coins: 8 % is about three standard errors."""
    mechanism = hb.CPA(768, epsilon, 1.0, points=points, lattice=lattice)
    updates = _updates(mechanism)
    exact = exact_distortion(mechanism, updates)
    assert measured_distortion(mechanism, updates, 1)[0] == pytest.approx(exact, rel=0.08)
    assert exact <= distortion_bound(corrected_term(mechanism), mechanism.blocks, len(updates))


def test_exact_distortion_of_two_points_has_a_closed_form():
    """Two points: X^2 / beta^2 - x^2 for each entry and user."""
    mechanism = hb.CPA(3, 1.0, 2.0)
    x = np.array([[0.5, -1.0, 2.0]])
    beta = float(mechanism.stage_encoders[0].response.beta)
    assert exact_distortion(mechanism, x) == pytest.approx(3 * 4 / beta**2 - np.sum(x**2))


def test_the_published_moment_has_the_wrong_unit():
    """Delta / 12 for scalars, as printed; the variance of the error is Delta^2 / 12."""
    mechanism = hb.CPA(3, 1.0, 1.0, points=4)
    step = 2 / 3
    assert published_moment(mechanism) == pytest.approx(step / 12)


def test_the_published_bound_breaks_for_the_decoder_as_written():
    mechanism = hb.CPA(768, 2.0, 1.0, points=4, preset="paper", rounding="stochastic")
    updates = np.full((2000, 768), 0.4)
    found = measured_distortion(mechanism, updates, 1)[0]
    assert found > 2 * distortion_bound(published_term(mechanism), 768, 2000)


@pytest.mark.parametrize("steps", [1, 3])
def test_suboptimality_stays_below_the_bound_and_decays(steps):
    problem = Quadratic.draw(20, 2)
    constants = problem.constants(problem.start)
    runs, plain = (
        np.mean(
            [
                [made.gap for made in run_quadratic(problem, steps, ROUNDS, seed, decoder)]
                for seed in range(6)
            ],
            axis=0,
        )
        for decoder in ("corrected", None)
    )
    term = corrected_term(hb.CPA(DIM, EPSILON, 1.0))
    scale = (steps * problem.max_gradient) ** 2
    for number, gap in enumerate(runs, 1):
        t = number * steps
        bound = convergence_bound(
            constants, steps=steps, users=20, blocks=DIM, scale=scale, term=term, t=t
        )
        assert gap <= bound
    assert -1.5 < fitted_decay({float(n * steps): gap for n, gap in enumerate(runs, 1)}) < -0.5
    assert plain[-20:].mean() < runs[-20:].mean()


def test_constants_of_the_quadratic_problem():
    problem = Quadratic.draw(7, 3)
    assert problem.gap(problem.best) == 0
    constants = problem.constants(problem.best)
    assert constants.start == 0
    own = problem.samples.mean(axis=1)
    minima = [0.5 * np.sum(problem.curvature * (problem.best - mine) ** 2) for mine in own]
    assert constants.gap == pytest.approx(np.mean(minima))
    worst = np.abs(problem.curvature * (np.full(DIM, -BOX) - problem.samples)).max()
    assert worst <= problem.max_gradient


def test_one_local_step_has_no_drift_and_several_have():
    problem, rng = Quadratic.draw(6, 3, 4, 10.0), np.random.default_rng(1)
    assert problem.curvature.tolist() == pytest.approx([1, 4, 7, 10])
    updates, drift, noise = problem.local_updates(problem.start, [0.01], rng)
    assert (updates.shape, drift) == ((6, 4), 0.0)
    assert noise > 0
    assert problem.local_updates(problem.start, [0.01, 0.01], rng)[1] > 0


def test_cells_of_theorem_2_are_those_that_its_claims_name():
    case = Theorem2Case(4, 2.0, 2)
    cells = _theorem2_cells(case, (1, 2), 40)
    for metric in ("gap", "gradient_noise", "drift"):
        for scheme in ("CPA", "CPA, decoder as written", "bound as published"):
            line = [c.x for c in cells if (c.scheme, c.metric) == (scheme, metric)]
            assert line == case.shown_steps(40)
    ends = {c.scheme: c.x for c in cells if c.metric == "decay"}
    assert set(ends.values()) == {80.0}


def test_convergence_bound_computed_by_hand():
    constants = Convexity(smooth=2.0, convex=1.0, gradient=3.0, gap=0.5, start=1.0)
    # phi = 8, b = (4 * 2 * 5 + 3) / 10 + 6 * 2 * 0.5; at t = 2: 2 / 20 * max(1 + b, 8).
    b = 4.3 + 6.0
    value = convergence_bound(constants, steps=1, users=10, blocks=4, scale=2.0, term=5.0, t=2)
    assert value == pytest.approx(0.1 * (1 + b))
    assert step_size(constants, 1, 2) == pytest.approx(0.1)


def test_fitted_decay_of_one_point_is_nan():
    assert math.isnan(fitted_decay({0.0: 1.0, 1.0: 0.5}))
    assert fitted_decay({1.0: 1.0, 10.0: 0.1}) == pytest.approx(-1)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_error_of_points_on_a_line_has_a_closed_form(epsilon):
    beta = math.tanh(epsilon / 2)
    found = {one.name: one.error for one in allocations(epsilon)}
    for points in (2, 4, 8, 16):
        wanted = COVERED_SPREADS**2 * (points + 1) / (3 * beta**2) - 1
        assert found[f"{points} points"] == pytest.approx(wanted, rel=1e-6)


def test_two_points_have_the_least_error_at_small_epsilon_and_stages_at_large():
    assert min(allocations(0.5), key=lambda one: one.error).name == "2 points"
    assert min(allocations(2.0), key=lambda one: one.error).name == "2 points"
    assert min(allocations(8.0), key=lambda one: one.error).family == "stages"


def test_allocations_spend_the_given_epsilon_per_weight_or_per_bit():
    assert all(one.epsilon_per_weight == pytest.approx(4.0) for one in allocations(4.0))
    stages = [one for one in allocations_per_bit(1.0) if one.family == "stages"]
    assert all(one.epsilon_per_weight == one.bits_per_weight for one in stages)


def test_bit_allocations_are_an_experiment_with_a_line_for_each_allocation():
    experiment = EXPERIMENTS["bit-allocations"]
    assert experiment in select_experiments(["mnist"])
    found = experiment.find(ExperimentRunner(Path(), (1,)))
    assert all(check.holds for check in found.checks)
    for per, spend in (("weight", allocations), ("bit", allocations_per_bit)):
        line = {
            c.x: c.mean for c in found.cells if (c.scheme, c.where) == ("2 points", {"per": per})
        }
        assert tuple(line) == ALLOCATION_EPSILONS
        for epsilon, decibel in line.items():
            assert 10 ** (decibel / 10) == pytest.approx(spend(epsilon)[0].error)
