"""Exact unbiasedness and variance, in fractions, over every word, rounding and flip."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

import hushbit as hb
from enumeration import decoded, histogram, law, rounding, stage_outcomes
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.encoding.stage import StageEncoder
from hushbit.kernels.words import draw_words
from hushbit.lattice.points import PointSet, lattice_ball, stage_indices
from hushbit.tally.estimate import decoder_constants

SCALAR = [("hadamard", n) for n in (2, 4, 8)] + [("uniform", n) for n in range(2, 9)]
EPSILONS = (0.5, 2.0, float("inf"))
LOPSIDED = PointSet(np.array([[0, 1], [3, -1], [7, 0], [-2, 5]]), np.eye(2))
SETS = [
    ("hadamard", LOPSIDED),
    ("uniform", LOPSIDED),
    ("uniform", PointSet(np.array([[0], [1], [5]]), np.eye(1))),
    ("uniform", PointSet(np.array([[0], [1], [5], [9], [-40]]), np.eye(1))),
    ("uniform", lattice_ball("A2", 6, 1.0)),
    ("uniform", lattice_ball("A2", 7, 1.0)),
    ("hadamard", lattice_ball("D4", 8, 1.0)),
]


def cpa(family: str, points: int, epsilon: float) -> hb.CPA:
    return hb.CPA(dim=1, epsilon_per_bit=epsilon, radius=1.0, points=points, words=family)


def positions(mechanism: hb.CPA) -> list[Fraction]:
    """Blocks to test, in integer coordinates: the points, between them, and off the middle."""
    last = int(mechanism.quantizer.points.coords[-1, 0])
    return [Fraction(-last), Fraction(-last, 3), Fraction(0), Fraction(37 * last, 100)]


def energies(points: PointSet) -> tuple[Fraction, list[Fraction]]:
    """Q = sum of squared norms, and S = sum of the points, in coordinates with a unit basis."""
    q = [[Fraction(int(c)) for c in row] for row in points.coords]
    return sum(c * c for row in q for c in row), [sum(axis) for axis in zip(*q, strict=True)]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("family", "points"), SETS)
def test_each_point_is_decoded_without_bias_and_with_the_stated_variance(
    family: str, points: PointSet, epsilon: float
) -> None:
    """E = q_l and V_l = [((1-rho) Q + rho |S|²) / beta² - |(1-rho) q_l + rho S|²] / (1-rho)²."""
    stage = StageEncoder(0, points, RandomizedResponse(epsilon), family)
    power, total = energies(points)
    rho, beta = stage.rho, stage.response.beta
    for level, q in enumerate(points.coords.tolist()):
        ways = [(o.chance, decoded(stage, o)) for o in stage_outcomes(stage, level)]
        assert sum(chance for chance, _ in ways) == 1
        for axis in range(points.dim):
            assert sum(chance * value[axis] for chance, value in ways) == q[axis]
        spread = sum(
            chance * sum((v - c) ** 2 for v, c in zip(value, q, strict=True))
            for chance, value in ways
        )
        centre = [(1 - rho) * c + rho * s for c, s in zip(q, total, strict=True)]
        raw = ((1 - rho) * power + rho * sum(s * s for s in total)) / beta**2
        assert spread == (raw - sum(c * c for c in centre)) / (1 - rho) ** 2


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("family", "points"), SCALAR)
def test_scalar_blocks_with_stochastic_rounding(family: str, points: int, epsilon: float) -> None:
    """MSE = X² (N+1) / (3 beta²) - x² for even N, X² N² / (3 (N-1) beta²) - x² for odd N."""
    mechanism = cpa(family, points, epsilon)
    edge = Fraction(int(mechanism.quantizer.points.coords[-1, 0]))
    beta = mechanism.stage_encoders[0].response.beta
    factor = Fraction(points + 1, 3) if points % 2 == 0 else Fraction(points**2, 3 * (points - 1))
    for x in positions(mechanism):
        mean, error = law(mechanism, x)
        assert mean == x
        assert error == edge**2 * factor / beta**2 - x**2


@pytest.mark.parametrize("family", [None, "uniform"])
@pytest.mark.parametrize("epsilon", [(0.5, 0.5), (0.25, 2.0), (float("inf"), 1.0)])
@pytest.mark.parametrize("counts", [(2, 2), (2, 4), (3, 3), (4, 2), (2, 2, 2)])
def test_nested_blocks(
    counts: tuple[int, ...], epsilon: tuple[float, ...], family: str | None
) -> None:
    """MSE = sum over stages of A Q / beta² + 2 E[q_c · q_n] (all pairs) - x²."""
    epsilon += epsilon[-1:] * (len(counts) - 2)
    mechanism = hb.NestedCPA(
        dim=1, epsilon_per_bit=epsilon, radius=1.0, stages=counts, words=family
    )
    for x in positions(mechanism):
        mean, error = law(mechanism, x)
        assert mean == x
        expected = -(x**2)
        for stage in mechanism.stage_encoders:
            n = stage.points.size
            share = Fraction(n - 1, n) if n % 2 == 0 else Fraction(n, n + 1)
            expected += share * energies(stage.points)[0] / stage.response.beta**2
        for point, chance in rounding(mechanism, x):
            levels = [int(level) for level in stage_indices(point, counts)]
            parts = [
                int(stage.points.coords[level, 0])
                for stage, level in zip(mechanism.stage_encoders, levels, strict=True)
            ]
            expected += 2 * chance * sum(a * b for a, b in itertools.combinations(parts, 2))
        assert error == expected


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("family", "points"), SCALAR)
def test_histogram_is_unbiased_and_sums_to_one(family: str, points: int, epsilon: float) -> None:
    stage = cpa(family, points, epsilon).stage_encoders[0]
    for level in range(points):
        outcomes = list(stage_outcomes(stage, level))
        shares = [histogram(stage, outcome) for outcome in outcomes]
        for j in range(points):
            expected = sum(o.chance * s[j] for o, s in zip(outcomes, shares, strict=True))
            assert expected == (j == level)
        if points % 2 == 0:
            assert all(sum(share) == 1 for share in shares)


@pytest.mark.parametrize(("family", "points"), SCALAR)
def test_histogram_covariance(family: str, points: int) -> None:
    """Cov = ([(1-rho) I + rho 11ᵀ] / beta² - m mᵀ) / (1-rho)², m = (1-rho) e_l + rho 1."""
    stage = cpa(family, points, 0.5).stage_encoders[0]
    rho, beta = stage.rho, stage.response.beta
    level = points - 1
    ways = [(o.chance, histogram(stage, o)) for o in stage_outcomes(stage, level)]
    m = [(1 - rho) * (j == level) + rho for j in range(points)]
    for i, j in itertools.combinations_with_replacement(range(points), 2):
        both = sum(chance * share[i] * share[j] for chance, share in ways)
        covariance = both - (i == level) * (j == level)
        second = ((1 - rho) * (i == j) + rho) / beta**2
        assert covariance == (second - m[i] * m[j]) / (1 - rho) ** 2


@pytest.mark.parametrize(("family", "points"), SCALAR)
def test_the_expected_values_of_the_presets(family: str, points: int) -> None:
    """paper = (1-rho) x and authors = beta (1-rho) x in expectation, for symmetric points."""
    mechanism = cpa(family, points, 0.5)
    stage = mechanism.stage_encoders[0]
    for x in positions(mechanism):
        assert law(mechanism, x, "paper")[0] == (1 - stage.rho) * x
        assert law(mechanism, x, "authors")[0] == stage.response.beta * (1 - stage.rho) * x


@pytest.mark.parametrize("decoder", ["corrected", "paper", "authors"])
@pytest.mark.parametrize(("family", "points"), [*SCALAR, ("uniform", 9)])
def test_estimate_of_real_ballots_equals_the_exact_rational(
    family: str, points: int, decoder: str, round_key: hb.RoundKey
) -> None:
    users, dim = 7, 20
    mechanism = hb.CPA(dim=dim, epsilon_per_bit=0.7, radius=3.0, points=points, words=family)
    stage = mechanism.stage_encoders[0]
    updates = np.random.default_rng(points).uniform(-3, 3, (users, dim))
    keys = round_key.users(range(users))
    ballots = mechanism.encode_many(updates, keys, hb.SeededCoins(1))
    unit = Fraction(float(stage.points.basis[0, 0]))
    coords = stage.points.coords[:, 0].tolist()
    totals, votes = [Fraction(0)] * dim, np.zeros((points, dim), dtype=int)
    for ballot, key in zip(ballots, keys.keys, strict=True):
        bits = np.unpackbits(np.frombuffer(ballot.payload, np.uint8), bitorder="little")[:dim]
        words = draw_words(key, 0, dim, points, family).astype(int)
        votes += ((2 * bits.astype(int) - 1)[:, None] * words).T
    gain, shift = decoder_constants(decoder, stage.response.beta, stage.rho)
    for i in range(dim):
        totals[i] = unit * sum(
            (gain * int(v) / users + shift) * c for v, c in zip(votes[:, i], coords, strict=True)
        )
    for keep in (True, False):
        tally = mechanism.tally(round_key, histogram=keep)
        tally.add_many(ballots)
        estimate = mechanism.estimate(tally, decoder=decoder)
        exact = np.array([float(total) for total in totals])
        assert np.allclose(estimate.mean, exact, rtol=1e-12, atol=1e-12)
    if decoder == "corrected":
        tally = mechanism.tally(round_key)
        tally.add_many(ballots)
        shares = mechanism.estimate(tally).histogram()
        exact_shares = [[float(gain * int(v) / users + shift) for v in row] for row in votes]
        assert np.allclose(shares, np.array(exact_shares).T, rtol=1e-12, atol=1e-12)
        if points % 2 == 0:
            assert np.allclose(shares.sum(axis=1), 1.0, rtol=1e-12)


def test_two_points_have_the_law_of_one_bit_mvu() -> None:
    """P(high | x) = (x + a) / (1 + 2a), a = 1 / (e^eps - 1), outputs -a and 1 + a, x in [0, 1].

    With the realised e^eps = (1 + beta) / (1 - beta) the equality is exact.
    """
    for epsilon in (0.5, 1.0, 2.0, 4.0):
        mechanism = cpa("hadamard", 2, epsilon)
        stage = mechanism.stage_encoders[0]
        beta = stage.response.beta
        a = 1 / ((1 + beta) / (1 - beta) - 1)
        for x in (Fraction(0), Fraction(1, 7), Fraction(1, 2), Fraction(37, 41), Fraction(1)):
            chances: dict[Fraction, Fraction] = {}
            for level, chance in rounding(mechanism, 2 * x - 1):
                for outcome in stage_outcomes(stage, level):
                    value = (decoded(stage, outcome)[0] + 1) / 2
                    chances[value] = chances.get(value, Fraction(0)) + chance * outcome.chance
            assert chances == {-a: 1 - (x + a) / (1 + 2 * a), 1 + a: (x + a) / (1 + 2 * a)}
            assert law(mechanism, 2 * x - 1)[1] / 4 == (x + a) * (1 + a - x)


@pytest.mark.parametrize("points", [2, 3, 4, 8])
def test_rounding_weights_of_the_quantizer_are_exact(points: int) -> None:
    mechanism = hb.CPA(dim=1, epsilon_per_bit=1.0, radius=3.0, points=points)
    unit = float(mechanism.quantizer.points.basis[0, 0])
    for x in positions(mechanism):
        corners = mechanism.quantizer.soft_assign(np.array([[float(x) * unit]]))
        weights = np.zeros(points)
        np.add.at(weights, corners.index[0], corners.weight[0])
        exact = np.zeros(points)
        for level, chance in rounding(mechanism, x):
            exact[level] += float(chance)
        assert np.allclose(weights, exact, atol=1e-12)
