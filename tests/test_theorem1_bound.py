"""Theorem 1: the corrected bound holds; the bound of the paper is violated as specified."""

import math
from fractions import Fraction

import numpy as np
import pytest

import hushbit as hb
from enumeration import law
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.encoding.words import correlation
from hushbit.lattice.points import scalar_points
from hushbit.tally.estimate import noise_power

INF = math.inf
# Points, epsilon, exact raw variance, exact corrected variance, Q / beta², bound broken (spec 7).
TABLE = [
    (2, 0.5, 15.6708, 3.9177, 8.3354, True),
    (2, 2.0, 0.7241, 0.1810, 0.8620, True),
    (2, INF, 0.0, 0.0, 0.5, False),
    (4, 0.5, 26.7847, 15.0664, 20.8385, True),
    (4, 2.0, 1.8734, 1.0538, 2.1551, False),
    (4, INF, 0.6667, 0.3750, 1.25, False),
    (8, 0.5, 49.0124, 37.5251, 43.7608, True),
    (8, 2.0, 4.1722, 3.1943, 4.5257, False),
    (8, INF, 2.0, 1.5312, 2.6250, False),
    (16, 0.5, 93.4678, 82.1495, 88.5636, True),
    (16, 2.0, 8.7697, 7.7077, 9.1591, False),
    (16, INF, 4.6667, 4.1016, 5.3125, False),
    (3, 0.5, 18.9679, 10.6694, 14.8185, True),
    (3, 2.0, 1.2532, 0.7049, 1.5325, False),
    (3, INF, 0.3951, 0.2222, 0.8889, False),
    (5, 0.5, 31.0863, 21.5877, 26.6733, True),
    (5, 2.0, 2.3886, 1.6587, 2.7585, False),
    (9, 0.5, 53.9078, 43.6653, 49.3949, True),
    (9, 2.0, 4.7005, 3.8074, 5.1083, False),
    (9, INF, 2.3167, 1.8765, 2.9630, False),
]


@pytest.mark.parametrize(("points", "epsilon", "raw", "corrected", "term", "broken"), TABLE)
def test_the_table_of_the_specification(
    points: int, epsilon: float, raw: float, corrected: float, term: float, broken: bool
) -> None:
    """A user at the outermost point; raw is the paper's decoder, biased by |rho| q."""
    q = scalar_points(points, 1.0, "cell").positions[:, 0]
    beta = RandomizedResponse(epsilon).beta
    rho, last = correlation(points), q[-1]
    paper = float(noise_power(scalar_points(points, 1.0, "cell"), 1 / beta, rho)[0])
    exact = float(noise_power(scalar_points(points, 1.0, "cell"), 1 / (beta * (1 - rho)), rho)[0])
    bias = float(-rho) * last
    assert (q**2).sum() / float(beta) ** 2 == pytest.approx(term, abs=6e-5)
    assert paper - (last + bias) ** 2 == pytest.approx(raw, abs=6e-5)
    assert exact - last**2 == pytest.approx(corrected, abs=6e-5)
    assert (raw + bias**2 > term) == broken
    assert corrected <= term


@pytest.mark.parametrize(
    ("points", "half", "two"),
    [
        (2, 16.534, 1.587),
        (3, 24.869, 2.449),
        (4, 27.648, 2.737),
        (5, 34.594, 3.455),
        (8, 49.876, 5.035),
    ],
)
def test_closed_form_with_stochastic_rounding(points: int, half: float, two: float) -> None:
    for epsilon, expected in ((0.5, half), (2.0, two)):
        mechanism = hb.CPA(dim=1, epsilon_per_bit=epsilon, radius=1.0, points=points)
        edge = int(mechanism.quantizer.points.coords[-1, 0])
        error = law(mechanism, Fraction(37, 100) * edge)[1] / edge**2
        assert float(error) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0, INF])
@pytest.mark.parametrize("points", [2, 4, 6, 8])
def test_corrected_bound_holds_for_every_block(points: int, epsilon: float) -> None:
    """MSE of one user <= (1 - 1/N) Qc / (2p-1)², with equality at the centre."""
    mechanism = hb.CPA(dim=1, epsilon_per_bit=epsilon, radius=1.0, points=points)
    coords = [Fraction(int(c)) for c in mechanism.quantizer.points.coords[:, 0]]
    bound = Fraction(points - 1, points) * sum(c * c for c in coords)
    bound /= mechanism.stage_encoders[0].response.beta ** 2
    for x in [coords[-1] * Fraction(n, 7) for n in range(-7, 8)]:
        assert law(mechanism, x)[1] == bound - x**2
    # What a tally of K users reports as `noise` is this bound over K.
    tally = mechanism.tally(hb.RoundKey(bytes(32), 1))
    keys = tally.round_key.users(range(5))
    tally.add_many(mechanism.encode_many(np.zeros((5, 1)), keys))
    unit = float(mechanism.quantizer.points.basis[0, 0])
    assert mechanism.estimate(tally).noise == pytest.approx(float(bound) * unit**2 / 5)


def paper_bound(users: int) -> float:
    """(M/K) (Q / (2p-1)² + sigma²) as printed: N = 4, gamma = 1, epsilon 2, sigma² = Delta / 12."""
    return (1.25 / math.tanh(1.0) ** 2 + 0.5 / 12) / users


def raw_error(users: int) -> tuple[float, float]:
    """Exact MSE of the paper's decoder, x ~ U(0.1, 0.5): its variance over K, and its bias²."""
    beta, n = math.tanh(1.0), 4
    second = (0.5**3 - 0.1**3) / (3 * 0.4)
    spread = n / (n - 1) * 1.25 / beta**2 - (n / (n - 1)) ** 2 * second
    return spread / users, (0.3 / (n - 1)) ** 2 + (0.4**2 / 12) / users / (n - 1) ** 2


@pytest.mark.parametrize("users", [10, 100, 1000, 10_000, 100_000])
def test_the_paper_bound_is_violated_for_every_number_of_users(users: int) -> None:
    """The exact law of the library's paper decoder, for users that are spread over U(0.1, 0.5)."""
    mechanism = hb.CPA(1, 2.0, 1.0, points=4, preset="paper", rounding="stochastic")
    unit = float(mechanism.quantizer.points.basis[0, 0])
    grid = [Fraction(1, 10) + Fraction(4, 10) * Fraction(2 * n + 1, 400) for n in range(200)]
    laws = [law(mechanism, x / Fraction(unit), "paper") for x in grid]
    means = np.array([float(mean) * unit for mean, _ in laws])
    places = np.array([float(x) for x in grid])
    variances = np.array([float(e) for _, e in laws]) * unit**2 - (means - places) ** 2
    # The error of a mean of K users: variance over K, and the square of the bias of their mean.
    bias = (means - places).mean() ** 2 + (means - places).var() / users
    assert variances.mean() / users == pytest.approx(raw_error(users)[0], rel=1e-4)
    assert bias == pytest.approx(raw_error(users)[1], rel=1e-4)
    assert bias >= 1.0e-2 - 1e-12
    assert variances.mean() / users + bias > paper_bound(users)
    corrected = [law(mechanism, x / Fraction(unit), "corrected") for x in grid[::50]]
    assert [float(mean) * unit for mean, _ in corrected] == pytest.approx(list(places[::50]))
    table = {10: 2.2e-1, 100: 2.2e-2, 1000: 2.2e-3, 10_000: 2.2e-4, 100_000: 2.2e-5}
    assert paper_bound(users) == pytest.approx(table[users], rel=0.002)


def test_the_paper_decoder_is_biased_and_the_corrected_one_is_not() -> None:
    """20 000 real users, 60 entries: squared errors averaged over entries, five sigma apart."""
    users, entries = 20_000, 60
    mechanism = hb.CPA(dim=entries, epsilon_per_bit=2.0, radius=0.75, points=4)
    updates = np.random.default_rng(11).uniform(0.1, 0.5, (users, entries))
    key = hb.RoundKey(bytes(32), 1)
    tally = mechanism.tally(key)
    tally.add_many(mechanism.encode_many(updates, key.users(range(users)), hb.SeededCoins(3)))
    truth = updates.mean(axis=0)
    errors = {
        decoder: ((mechanism.estimate(tally, decoder=decoder).mean - truth) ** 2).mean()
        for decoder in ("paper", "corrected")
    }
    exact = sum(raw_error(users))
    assert errors["paper"] == pytest.approx(exact, rel=0.15)
    assert errors["paper"] > 50 * paper_bound(users)
    corrected = (1.25 * 0.75 / math.tanh(1.0) ** 2 - (updates**2).mean()) / users
    # A mean of 60 squares of normal errors: relative sigma sqrt(2/60) = 0.18.
    assert errors["corrected"] == pytest.approx(corrected, rel=0.9)
    assert errors["corrected"] < 0.75 * 2.1551 / users * 1.9
