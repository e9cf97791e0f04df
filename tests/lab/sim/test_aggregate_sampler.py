"""Sampled aggregates: exact moments, and the distribution of the ballots that they replace."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import hushbit as hb
from hushbit.baselines.gaussian import Gaussian
from hushbit.baselines.jopeq import JoPEQ, ScalarCode
from hushbit.baselines.laplace import Laplace
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.encoding.words import correlation
from hushbit.errors import InvalidInput
from hushbit.lab.sim.aggregate_sampler import (
    CELLS,
    ClippedLaplaceSampler,
    GaussianAggregator,
    JopeqSampler,
    LaplaceSampler,
    MeanSampler,
    PointSampler,
    SignSampler,
    VoteLaw,
    add_moments,
    aggregate_sampler,
    can_sample_aggregate,
    count_nearest,
    decoded_moments,
    draw_tally,
    published_attackers,
    reference_moments,
    reference_nearest,
    sampled,
    vote_laws,
)
from hushbit.lab.sim.rounds import ballots, initial_state, run_rounds, train_users
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import build_setup
from hushbit.wire.coins import SimulationCoins


def moments(law: VoteLaw) -> tuple[Fraction, Fraction]:
    """E[t] and Var(t)."""
    pairs = list(zip(law.values, law.probabilities, strict=True))
    mean = sum((v * p for v, p in pairs), Fraction(0))
    return mean, sum((v * v * p for v, p in pairs), Fraction(0)) - mean**2


@pytest.mark.parametrize("points", range(2, 8))
@pytest.mark.parametrize("epsilon", [0.5, math.inf])
def test_moments_are_those_of_the_estimator(points, epsilon):
    rho, beta = correlation(points), RandomizedResponse(epsilon).beta
    unit = 1 if points % 2 else 2
    places = [unit * j - unit * (points - 1) // 2 for j in range(points)]
    energy = sum(q * q for q in places)
    *laws, attacker = vote_laws(points, epsilon)
    for place, law in zip(places, laws, strict=True):
        assert sum(law.probabilities) == 1
        mean = beta * (1 - rho) * place
        assert moments(law) == (mean, (1 - rho) * energy - mean**2)
    assert moments(attacker) == (0, (1 - rho) * energy)


def test_published_gain():
    mean, variance = moments(vote_laws(3, 0.5)[2])
    assert float(mean) == pytest.approx(0.3266, abs=1e-4)
    assert float(variance) == pytest.approx(2.560, abs=1e-3)
    assert vote_laws(3, math.inf)[2] == VoteLaw((-2, 0, 2), (0, Fraction(1, 3), Fraction(2, 3)))


def test_one_user_has_the_exact_distribution():
    law = vote_laws(3, 1.0)
    counts = np.zeros((4, 200_000), np.int64)
    counts[0] = 1
    drawn = draw_tally(counts, law, np.random.default_rng(1))
    for value, chance in zip(law[0].values, law[0].probabilities, strict=True):
        p = float(chance)
        # 6 standard errors: fails by chance less than once in 10^8.
        assert abs((drawn == value).mean() - p) < 6 * math.sqrt(p * (1 - p) / drawn.size)


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
    is_attacker = rng.random(60) < 0.2
    ours, wanted = (np.ones((points + 1, 30), np.int64) for _ in range(2))
    count_nearest(updates, is_attacker, 0.125, ours)
    reference_nearest(updates, is_attacker, 0.125, wanted)
    assert np.array_equal(ours, wanted)


@pytest.mark.parametrize("nested", [False, True])
def test_point_counts_have_the_distribution_of_ballots(nested):
    """Mean and variance of the decoded entries agree with ballots within 6 standard errors."""
    settings = _authors(mechanism="nested" if nested else "cpa", epsilon_per_bit=1.0)
    row = np.random.default_rng(5).uniform(-0.4, 0.4, (40, 1))
    updates = np.repeat(row, 300, axis=1).astype(np.float32)
    kind = hb.NestedCPA if nested else hb.CPA
    ballots = decoded_rounds(kind(300, 1.0, 0.3, preset="authors"), updates, 40).ravel()
    sampler = PointSampler(settings, 300)
    sampler.add(updates, np.zeros(40, np.bool_))
    rng = np.random.default_rng(6)
    drawn = np.array([sampler.decode(rng) for _ in range(40)]).ravel()
    spread = ballots.std() / math.sqrt(ballots.size)
    assert abs(ballots.mean() - drawn.mean()) < 6 * math.sqrt(2) * spread
    assert drawn.var() == pytest.approx(ballots.var(), rel=6 * math.sqrt(4 / ballots.size))


def test_signs_and_noise_have_the_published_moments():
    updates = np.full((40, 50), 0.1, np.float32)
    updates[:, ::2] *= -1
    signs = SignSampler(_authors(mechanism="signsgd", epsilon_per_bit=math.inf), 50)
    signs.add(updates, np.zeros(40, np.bool_))
    assert np.array_equal(signs.decode(np.random.default_rng(0)), np.sign(updates[0]))
    wide = np.tile(updates, (1, 400))
    noisy = LaplaceSampler(
        _authors(mechanism="laplace", epsilon_per_bit=2.0), (slice(0, 20_000),), 20_000
    )
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
        {"mechanism": "laplace", "epsilon_per_bit": math.inf, "preset": None},
        {"mechanism": "fedavg", "preset": None, "defence": "median"},
    ],
)
def test_other_settings_need_ballots(options):
    assert aggregate_sampler(Settings(**({"preset": "authors"} | options)), (), 1) is None


USERS, COPIES, ROUNDS = 100, 200, 20


def updates_of(scale):
    """Every user has one value of its own, many times; some beyond the clip."""
    row = np.random.default_rng(5).normal(0.2 * scale, 0.8 * scale, (USERS, 1))
    return np.repeat(row, COPIES, axis=1).astype(np.float32)


def drawn_of(settings, updates):
    rng, made = np.random.default_rng(6), []
    for _ in range(ROUNDS):
        sampler = aggregate_sampler(settings, (), COPIES)
        assert sampler is not None
        sampler.add(updates, np.zeros(USERS, np.bool_))
        made.append(sampler.decode(rng))
    return np.array(made).ravel()


@pytest.mark.parametrize("kind", ["laplace", "jopeq", "jopeq authors"])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_sums_have_the_moments_of_ballots(kind, epsilon):
    """Mean and variance agree within 6 standard errors: by chance once in 10^8 it would fail."""
    scale = 0.02
    preset = "authors" if "authors" in kind else None
    settings = Settings(
        mechanism=kind.split()[0], preset=preset, epsilon_per_bit=epsilon, radius=scale, users=USERS
    )
    mechanism = Laplace(COPIES, epsilon, scale)
    if kind != "laplace":
        mechanism = JoPEQ(COPIES, epsilon, scale, preset=preset or "honest")
    updates = updates_of(scale)
    ballots, drawn = decoded_rounds(mechanism, updates, ROUNDS).ravel(), drawn_of(settings, updates)
    error = ballots.std() / math.sqrt(ballots.size)
    assert abs(ballots.mean() - drawn.mean()) < 6 * math.sqrt(2) * error
    assert drawn.var() == pytest.approx(ballots.var(), rel=6 * math.sqrt(4 / ballots.size))


@pytest.mark.parametrize("levels", [2, 3, 5])
@pytest.mark.parametrize("moment", [False, True])
def test_without_overload_an_entry_is_kept_and_its_variance_known(levels, moment):
    """A quantizer that reaches far is unbiased, with the variance that the code states."""
    code = ScalarCode(
        4.0,
        1.0,
        levels,
        moment,
        40.0 if levels > 3 and not moment else None,
        1e-12 if not moment else 0.01,
    )
    entries = np.linspace(-1, 1, 9)
    mean, variance = decoded_moments(code, entries)
    tolerance = 0.03 if moment else 1e-3
    assert np.abs(mean - entries).max() < tolerance
    assert variance == pytest.approx(np.full(9, code.variance), rel=0.2 if moment else 1e-3)


def test_moments_are_symmetric():
    code = JoPEQ(1, 0.5, 1.0, preset="authors").code
    assert isinstance(code, ScalarCode)
    mean, variance = decoded_moments(code, np.linspace(-1, 1, 21))
    assert mean == pytest.approx(-mean[::-1], abs=1e-9)
    assert variance == pytest.approx(variance[::-1])
    # The published rule overloads: a value of 1 leans to zero by more than a fifth.
    assert mean[-1] - 1 == pytest.approx(-0.2252, abs=1e-4)


def test_the_kernel_adds_what_the_definition_adds():
    rng = np.random.default_rng(1)
    updates = rng.normal(0, 0.05, (30, 41)).astype(np.float32)
    table = rng.normal(0, 1, (CELLS + 1, 2)).astype(np.float32)
    ours, wanted = ([np.ones(41), np.zeros(41)] for _ in range(2))
    add_moments(updates, 12.5, table, *ours)
    reference_moments(updates, 12.5, table, *wanted)
    for mine, theirs in zip(ours, wanted, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-9)


def test_fedavg_gives_the_exact_mean():
    updates = np.random.default_rng(1).normal(0, 1, (7, 5)).astype(np.float32)
    plain = MeanSampler(Settings(mechanism="fedavg", users=7), 5)
    plain.add(updates[:3], np.zeros(3, np.bool_))
    plain.add(updates[3:], np.zeros(4, np.bool_))
    got = plain.decode(np.random.default_rng(0))
    assert got == pytest.approx(updates.astype(np.float64).mean(axis=0), abs=1e-15)


def test_gaussian_clips_updates_and_adds_the_noise_of_the_mechanism():
    updates = np.random.default_rng(1).normal(0, 0.01, (7, 4000)).astype(np.float32)
    settings = Settings(mechanism="gaussian", users=7, noise_multiplier=2.0, clip=0.5)
    sampler = aggregate_sampler(settings, (), 4000)
    sampler.add(updates, np.zeros(7, np.bool_))
    key, mechanism = hb.RoundKey(bytes(32), 1), Gaussian(4000, 2.0, 0.5)
    tally = mechanism.tally(key)
    tally.add_many(mechanism.encode_many(updates, key.users(range(7))))
    exact = mechanism.codec.total(tally.counters["sum"]) / 7
    assert np.linalg.norm(updates, axis=1).min() > 0.5
    assert sampler.total / 7 == pytest.approx(exact, abs=1e-8)
    noise = sampler.decode(np.random.default_rng(0)) - exact
    assert (noise**2).mean() == pytest.approx(sampler.noise, rel=0.1)
    assert sampler.noise == pytest.approx(mechanism.estimate(tally).noise, rel=1e-3)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "jopeq"])
def test_mechanisms_that_a_budget_calibrates_are_not_sampled(name):
    """Their noise is not in the settings."""
    budget = {"epsilon": 1.0, "delta": 1e-5, "per": "run", "against": "model"}
    assert not can_sample_aggregate(Settings(mechanism=name, users=200, **budget))
    assert can_sample_aggregate(Settings(mechanism="fedavg", users=200))


def test_noise_is_stated_where_the_server_can_compute_it():
    honest = Settings(mechanism="jopeq", epsilon_per_bit=0.5, radius=0.1, users=200)
    published = Settings(**{**vars(honest), "preset": "authors"})
    mechanism = JoPEQ(4, 0.5, 0.1)
    assert isinstance(mechanism.code, ScalarCode)
    assert JopeqSampler(honest, 4).noise == pytest.approx(mechanism.code.variance / 200)
    assert JopeqSampler(published, 4).noise is None
    laplace = Settings(mechanism="laplace", epsilon_per_bit=0.5, radius=0.1, users=200)
    assert ClippedLaplaceSampler(laplace, 4).noise == pytest.approx(8 * 0.1**2 / 0.5**2 / 200)


def test_published_attackers_are_drawn_with_replacement():
    settings = Settings(users=10_000, attack="ones", attackers=0.2)
    found = published_attackers(settings)
    # 1 - exp(-0.2) of 10 000 users, within 5 standard deviations.
    assert abs(found.mean() - 0.1813) < 0.01
    assert np.array_equal(found, published_attackers(settings))


@pytest.mark.parametrize("rotate", [False, True])
def test_sampled_rounds_follow_ballots_without_noise(rotate):
    """Laplace noise of epsilon 1000 is small, so both aggregators train nearly the same model."""
    setup = build_setup(
        Settings(
            users=20,
            rounds=3,
            mechanism="laplace",
            epsilon_per_bit=1000.0,
            radius=0.5,
            rotate=rotate,
            momentum=0.5,
            keep_momentum=True,
        )
    )
    states = [initial_state(setup) for _ in range(2)]
    cast = list(run_rounds(setup, states[0]))
    drawn = list(run_rounds(setup, states[1], aggregator=sampled))
    start = initial_state(setup).params
    assert np.abs(states[0].params - states[1].params).max() < 5e-3
    assert np.abs(states[0].params - start).max() > 2e-2
    for one, two in zip(cast, drawn, strict=True):
        assert two.training_loss == pytest.approx(one.training_loss, rel=1e-2)
        assert two.test_accuracy == pytest.approx(one.test_accuracy, abs=0.01)
    velocities = [state.local["velocity"] for state in states]
    assert np.abs(velocities[0]).max() > 0
    assert np.allclose(*velocities, atol=5e-2)


def test_copies_of_users_give_the_mean_of_few_and_the_noise_of_many():
    """Ten copies of 20 users: the same mean, a tenth of the variance."""
    few = Settings(
        dataset="digits", users=20, mechanism="laplace", epsilon_per_bit=1.0, radius=0.05, seed=3
    )
    errors = []
    for copies in (1, 10):
        setup = build_setup(replace(few, copies=copies))
        made = sampled(setup, initial_state(setup))
        errors.append(float(np.var(made.estimate.mean - made.true_mean)))
        assert made.noise == pytest.approx(2 * 0.1**2 / (20 * copies))
    # 650 entries: a ratio of variances within 20 % is more than three standard errors.
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.2)


def test_ballots_are_not_cast_by_copies():
    setup = build_setup(Settings(dataset="digits", users=5, epsilon_per_bit=1.0, copies=2))
    with pytest.raises(InvalidInput, match="not by copies"):
        ballots(setup, initial_state(setup))


def test_settings_without_a_sampler_are_refused():
    settings = Settings(users=5, rounds=1, mechanism="cpa", epsilon_per_bit=1.0)
    assert not can_sample_aggregate(settings)
    setup = build_setup(settings)
    with pytest.raises(InvalidInput, match="cast ballots"):
        list(run_rounds(setup, initial_state(setup), aggregator=sampled))


def test_gaussian_aggregates_take_the_next_users_and_add_the_noise():
    setup = build_setup(Settings(users=10, rounds=3, mechanism="fedavg"))
    state = initial_state(setup)
    seen, before, params = [], state.params, []

    def halved(updates):
        seen.append(updates)
        return updates / 2

    aggregator = GaussianAggregator(halved, 0.25, 4, np.random.default_rng(1))
    for made in run_rounds(setup, state, aggregator=aggregator):
        params.append(state.params)
        noise = made.estimate.mean - made.true_mean
        assert noise.var() == pytest.approx(0.25, rel=6 * math.sqrt(2 / noise.size))
        assert made.noise == 0.25
    (first,) = train_users(setup, 0, np.arange(4), before)
    assert np.array_equal(seen[0], first.updates)
    (third,) = train_users(setup, 2, np.array([0, 1, 8, 9]), params[1])
    assert np.array_equal(seen[2], third.updates)
