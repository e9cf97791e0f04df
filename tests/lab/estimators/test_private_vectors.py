"""PrivUnitG, PrivHS and SQKR: exactly epsilon, unbiased, with the error that theory states."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from hushbit.errors import InvalidInput
from hushbit.lab.estimators.private_vectors import (
    KashinFrame,
    PrivHS,
    PrivUnitG,
    Sqkr,
    best_cap,
    optimal_mse,
)

EPSILONS = [0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 32.0]


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_privunit_density_ratio_is_exactly_epsilon(epsilon: float) -> None:
    found = best_cap(100, epsilon)
    near, far = found.p / found.q, (1 - found.p) / (1 - found.q)
    assert math.log(near / far) == pytest.approx(epsilon, rel=1e-9)
    assert stats.norm.sf(found.gamma) == pytest.approx(found.q, rel=1e-9)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_privunit_moments_agree_with_integrals(epsilon: float) -> None:
    found = best_cap(100, epsilon)

    def moment(power: int) -> float:
        above = integrate.quad(lambda x: x**power * stats.norm.pdf(x), found.gamma, np.inf)[0]
        under = integrate.quad(lambda x: x**power * stats.norm.pdf(x), -np.inf, found.gamma)[0]
        return float(found.p / found.q * above + (1 - found.p) / (1 - found.q) * under)

    assert found.mean == pytest.approx(moment(1), rel=1e-6)
    assert found.square == pytest.approx(moment(2), rel=1e-6)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_privunit_parameters_have_the_least_error(epsilon: float) -> None:
    def error(p: float) -> float:
        q = 1 / (1 + math.exp(epsilon) * (1 - p) / p)
        gamma = stats.norm.isf(q)
        mean = stats.norm.pdf(gamma) * (p / q - (1 - p) / (1 - q))
        return float((99 + 1 + gamma * mean) / mean**2 - 1)

    best = optimize.minimize_scalar(error, bounds=(0.5, 1 - 1e-9), method="bounded").fun
    assert optimal_mse(100, epsilon) <= best * (1 + 1e-6)
    assert optimal_mse(100, epsilon) == pytest.approx(best, rel=1e-4)


def test_privunit_constant_decreases_to_one_half() -> None:
    # epsilon · error / dim: 2 pi / epsilon for small epsilon, and 1/2 in the limit of large ones.
    dim = 10**9
    constants = [eps * optimal_mse(dim, eps) / dim for eps in (*EPSILONS, 128.0, 500.0)]
    assert constants == sorted(constants, reverse=True)
    assert constants[0] == pytest.approx(2 * math.pi / 0.1, rel=1e-2)
    assert 0.5 < constants[-1] < 0.515


def test_privunit_has_less_error_than_privhs_and_equals_it_for_small_epsilon() -> None:
    for epsilon in EPSILONS:
        assert optimal_mse(1000, epsilon) < 1.01 * PrivHS(epsilon).error(1000)
    small = optimal_mse(10**6, 0.1) / PrivHS(0.1).error(10**6)
    assert small == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("scheme", [PrivUnitG, PrivHS, Sqkr])
@pytest.mark.parametrize("length", [1.0, 0.3])
def test_private_estimates_are_unbiased(scheme: Any, length: float) -> None:
    rng = np.random.default_rng(7)
    vector = rng.normal(size=5)
    vector *= length / np.linalg.norm(vector)
    users, groups = 100, 150
    means = np.array(
        [scheme(2.0).mean_estimate(np.tile(vector, (users, 1)), rng).mean for _ in range(groups)]
    )
    deviation = means.std(axis=0) / math.sqrt(groups)
    assert (np.abs(means.mean(axis=0) - vector) < 4.5 * deviation).all()


@pytest.mark.parametrize("scheme", [PrivUnitG, PrivHS, Sqkr])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_measured_error_is_the_stated_one(scheme: Any, epsilon: float) -> None:
    rng = np.random.default_rng(8)
    vector = rng.normal(size=300)
    vector /= np.linalg.norm(vector)
    gaps = []
    for _ in range(8):
        mean = scheme(epsilon).mean_estimate(np.tile(vector, (100, 1)), rng).mean
        gaps.append(100 * float(((mean - vector) ** 2).sum()))
    assert np.mean(gaps) == pytest.approx(scheme(epsilon).error(300), rel=0.1)


def test_privhs_radius_makes_the_mean_exact() -> None:
    # On the circle E|U_1| = 2/pi; on the line it is 1 and the mechanism is randomized response.
    assert PrivHS(1.0).sphere_radius(2) == pytest.approx(math.pi / 2 / math.tanh(0.5))
    assert PrivHS(1.0).sphere_radius(1) == pytest.approx(1 / math.tanh(0.5))
    dim = 10**6
    assert PrivHS(1.0).error(dim) / dim == pytest.approx(math.pi / 2 / math.tanh(0.5) ** 2, 1e-3)


def test_privhs_probability_of_a_half_is_within_epsilon() -> None:
    # Rounding to ±v/|v| first makes the probabilities of the two halves more equal.
    epsilon, rng = 1.5, np.random.default_rng(9)
    for length, keep in [(1.0, 1 / (1 + math.exp(-epsilon))), (0.0, 0.5)]:
        vector = np.array([length, 0.0, 0.0])
        near = np.mean([PrivHS(epsilon).encode(vector, rng)[0] > 0 for _ in range(20_000)])
        assert near == pytest.approx(keep, abs=4.5 * 0.5 / math.sqrt(20_000))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0])
def test_sqkr_words_are_exactly_epsilon_apart(epsilon: float) -> None:
    sqkr = Sqkr(epsilon)
    words = 2**sqkr.bits
    other = (1 - sqkr.keep) / words
    own = sqkr.keep + other
    assert own + (words - 1) * other == pytest.approx(1.0)
    assert math.log(own / other) == pytest.approx(epsilon)
    # All pairs of words and all outcomes; so every mixture of words stays within epsilon too.
    chances = [[own if sent == word else other for sent in range(words)] for word in range(words)]
    for first, second in itertools.combinations(chances, 2):
        assert max(a / b for a, b in zip(first, second, strict=True)) <= math.exp(epsilon) * 1.0001


def test_sqkr_error_is_within_a_constant_of_privunit() -> None:
    # Both are of order dim / min(epsilon, epsilon²), as the paper proves.
    for epsilon in (0.1, 0.5, 1.0, 4.0, 16.0):
        ratio = Sqkr(epsilon).error(10**6) / optimal_mse(10**6, epsilon)
        assert 1.0 < ratio < 20.0


@pytest.mark.parametrize("dim", [1, 3, 64, 1000])
def test_kashin_coefficients_are_bounded_and_add_up(dim: int) -> None:
    rng = np.random.default_rng(dim)
    vectors = np.stack([rng.normal(size=dim), rng.lognormal(0, 2, dim), np.eye(dim)[0]], axis=1)
    vectors /= np.linalg.norm(vectors, axis=0)
    frame = KashinFrame.draw(dim, rng)
    spread = frame.even_coefficients(vectors)
    assert np.abs(spread).max() <= frame.limit
    assert np.abs(frame.combine(spread) - vectors).max() < 1e-5
    assert frame.combine(frame.coefficients(vectors)) == pytest.approx(vectors, abs=1e-12)


@pytest.mark.parametrize("scheme", [PrivUnitG, PrivHS, Sqkr])
def test_wrong_input_is_refused(scheme: Any) -> None:
    rng = np.random.default_rng(0)
    unit = np.eye(2)
    for vectors, epsilon in [
        (2 * unit, 1.0),
        (np.full((1, 2), np.nan), 1.0),
        (unit[0], 1.0),
        (np.ones((0, 2)), 1.0),
        (unit, 0.0),
        (unit, -1.0),
        (unit, math.nan),
        (unit, True),
        (unit, "1"),
    ]:
        with pytest.raises(InvalidInput):
            scheme(epsilon).mean_estimate(vectors, rng)
    with pytest.raises(InvalidInput):
        optimal_mse(10, 1e4)
    with pytest.raises(InvalidInput):
        Sqkr(100.0).error(10)
