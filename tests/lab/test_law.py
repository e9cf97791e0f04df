"""The law of a tally: exact moments, and the same law as ballots of preset authors."""

import math
from fractions import Fraction

import numpy as np
import pytest

import hushbit as hb
from hushbit.coins import SimulationCoins
from hushbit.errors import InvalidInput
from hushbit.fl.settings import Settings
from hushbit.lab.law import VoteLaw, draw_tally, vote_laws
from hushbit.lab.standings import (
    Noisy,
    Points,
    Signs,
    count_nearest,
    reference_nearest,
    standings,
)
from hushbit.response import Response
from hushbit.words import correlation


@pytest.mark.parametrize("points", range(2, 8))
@pytest.mark.parametrize("epsilon", [0.5, math.inf])
def test_moments_are_those_of_the_estimator(points, epsilon):
    rho, beta = correlation(points), Response(epsilon).beta
    unit = 1 if points % 2 else 2
    places = [unit * j - unit * (points - 1) // 2 for j in range(points)]
    energy = sum(q * q for q in places)
    *laws, apart = vote_laws(points, epsilon)
    for place, law in zip(places, laws, strict=True):
        assert sum(law.chances) == 1
        assert law.mean == beta * (1 - rho) * place
        assert law.variance == (1 - rho) * energy - law.mean**2
    assert apart.mean == 0
    assert apart.variance == (1 - rho) * energy


def test_published_gain():
    top = vote_laws(3, 0.5)[2]
    assert float(top.mean) == pytest.approx(0.3266, abs=1e-4)
    assert float(top.variance) == pytest.approx(2.560, abs=1e-3)
    assert vote_laws(3, math.inf)[2] == VoteLaw((-2, 0, 2), (0, Fraction(1, 3), Fraction(2, 3)))


def test_one_user_is_drawn_by_the_law_itself():
    law = vote_laws(3, 1.0)
    counts = np.zeros((4, 200_000), np.int64)
    counts[0] = 1
    drawn = draw_tally(counts, law, np.random.default_rng(1))
    for value, chance in zip(law[0].values, law[0].chances, strict=True):
        p = float(chance)
        # 6 standard errors: fails by chance less than once in 10^8.
        assert abs((drawn == value).mean() - p) < 6 * math.sqrt(p * (1 - p) / drawn.size)


@pytest.mark.parametrize("counts", [np.zeros(3, np.int64), np.full((2, 2), -1), np.ones((9, 2))])
def test_counts_that_do_not_fit_are_refused(counts):
    with pytest.raises(InvalidInput):
        draw_tally(counts, vote_laws(3, 1.0), np.random.default_rng(0))


def _authors(**options):
    return Settings(preset="authors", users=40, radius=0.3, **options)


def decoded_rounds(mechanism, updates, rounds):
    made = []
    for number in range(rounds):
        key = hb.RoundKey(b"0123456789abcdef0123456789abcdef", number)
        tally = mechanism.tally(key)
        keys = key.users(np.arange(len(updates)))
        tally.add_many(mechanism.encode_many(updates, keys, SimulationCoins(3)))
        made.append(mechanism.estimate(tally).mean)
    return np.array(made)


@pytest.mark.parametrize("points", [3, 9])
def test_nearest_points_are_counted_as_defined(points):
    """With a step that is a power of two, ties are exact and go to the even point."""
    rng = np.random.default_rng(2)
    updates = (rng.integers(-50, 51, (60, 30)) / 64).astype(np.float32)
    updates[:, 10:] = rng.normal(0, 0.3, (60, 20))
    apart = rng.random(60) < 0.2
    ours, wanted = (np.ones((points + 1, 30), np.int64) for _ in range(2))
    count_nearest(updates, apart, 0.125, ours)
    reference_nearest(updates, apart, 0.125, wanted)
    assert np.array_equal(ours, wanted)


@pytest.mark.parametrize("nested", [False, True])
def test_standings_have_the_law_of_ballots(nested):
    """Mean and variance of the decoded entries agree with ballots within 6 standard errors."""
    settings = _authors(mechanism="nested" if nested else "cpa", epsilon_per_bit=1.0)
    row = np.random.default_rng(5).uniform(-0.4, 0.4, (40, 1))
    updates = np.repeat(row, 300, axis=1).astype(np.float32)
    kind = hb.NestedCPA if nested else hb.CPA
    ballots = decoded_rounds(kind(300, 1.0, 0.3, preset="authors"), updates, 40).ravel()
    gathered = Points(settings, 300)
    gathered.add(updates, np.zeros(40, np.bool_))
    rng = np.random.default_rng(6)
    drawn = np.array([gathered.decode(rng) for _ in range(40)]).ravel()
    spread = ballots.std() / math.sqrt(ballots.size)
    assert abs(ballots.mean() - drawn.mean()) < 6 * math.sqrt(2) * spread
    assert drawn.var() == pytest.approx(ballots.var(), rel=6 * math.sqrt(4 / ballots.size))


def test_signs_and_noise_have_the_published_moments():
    updates = np.full((40, 50), 0.1, np.float32)
    updates[:, ::2] *= -1
    signs = Signs(_authors(mechanism="signsgd", epsilon_per_bit=math.inf), 50)
    signs.add(updates, np.zeros(40, np.bool_))
    assert np.array_equal(signs.decode(np.random.default_rng(0)), np.sign(updates[0]))
    wide = np.tile(updates, (1, 400))
    noisy = Noisy(_authors(mechanism="laplace", epsilon_per_bit=2.0), (slice(0, 20_000),), 20_000)
    noisy.add(wide, np.zeros(40, np.bool_))
    error = noisy.decode(np.random.default_rng(0)) - wide[0]
    # 40 users with scale 2/eps * 3 * 0.1: the variance of the mean is 2 * 0.3^2 / 40.
    assert error.var() == pytest.approx(2 * 0.3**2 / 40, rel=0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"mechanism": "cpa", "epsilon_per_bit": 1.0, "preset": None},
        {"mechanism": "cpa", "epsilon_per_bit": 1.0, "rotate": True},
        {"mechanism": "cpa", "epsilon_per_bit": 1.0, "words": "uniform"},
        {"mechanism": "cpa", "epsilon_per_bit": 1.0, "attack": "directed", "attackers": 0.1},
        {"mechanism": "signsgd", "epsilon_per_bit": 1.0, "attack": "ones", "attackers": 0.1},
        {"mechanism": "laplace", "epsilon_per_bit": 1.0, "users": 10},
        {"mechanism": "jopeq", "epsilon_per_bit": 1.0, "users": 10},
        {"mechanism": "jopeq", "epsilon_per_bit": 1.0, "mode": "layered", "preset": None},
        {"mechanism": "laplace", "epsilon_per_bit": math.inf, "preset": None},
        {"mechanism": "fedavg", "preset": None, "defence": "median"},
    ],
)
def test_everything_else_is_cast_ballot_by_ballot(options):
    assert standings(Settings(**({"preset": "authors"} | options)), (), 1) is None
