"""Attacks do the harm that theory predicts, exactly where it can be said exactly."""

import dataclasses
import math
from statistics import NormalDist

import numpy as np
import pytest

from hushbit import CPA, NestedCPA, Rotated, RoundKey, SeededCoins, Subset
from hushbit.baselines import MVU, FedAvg, SignRR
from hushbit.errors import InvalidInput
from hushbit.robust.adaptive import allowed_score, hidden_push, one_hump
from hushbit.robust.attacks import CRAFTED, craft, little_z
from hushbit.robust.forged import against_clip, directed_bits
from hushbit.robust.pulls import noise_size
from hushbit.robust.rules import STEPS_BACK, TOLERATED, Rule
from hushbit.robust.view import Pull, View, honest_norm, pull_of
from hushbit.tuning.norm_vote import NormVote
from hushbit.words import all_words

KEY = RoundKey(b"a" * 32, 1)
DIM, USERS = 300, 50
RNG = np.random.default_rng(0)
MEAN = RNG.normal(0, 0.004, DIM)
UPDATES = (MEAN + RNG.normal(0, 0.01, (USERS, DIM))).astype(np.float32)
VIEW = View(UPDATES.mean(axis=0, dtype=np.float64), UPDATES.std(axis=0, dtype=np.float64), 500, 50)


def directed_ballots(mechanism, target, users=USERS):
    keys = KEY.users(np.arange(users))
    ballots = mechanism.encode_many(np.zeros((users, mechanism.dim)), keys, SeededCoins(0))
    payload = directed_bits(mechanism, ballots, keys, target)
    return dataclasses.replace(ballots, payload=payload)


def mean_of(mechanism, ballots):
    tally = mechanism.tally(KEY, histogram=False)
    tally.add_many(ballots)
    return mechanism.estimate(tally).mean


@pytest.mark.parametrize("epsilon", [0.5, 2.0, math.inf])
def test_directed_two_point_attackers_push_every_entry_by_radius_over_beta(epsilon):
    mechanism = CPA(DIM, epsilon, 0.02)
    pushed = mean_of(mechanism, directed_ballots(mechanism, -MEAN))
    beta = float(mechanism.stages[0].response.beta)
    assert np.allclose(pushed, -np.sign(MEAN) * 0.02 / beta, rtol=1e-12)


@pytest.mark.parametrize("points", [4, 8])
def test_directed_attackers_push_by_the_mean_size_of_the_words_pull(points):
    mechanism = CPA(DIM, 0.5, 0.02, points=points)
    stage = mechanism.stages[0]
    pulls = all_words("hadamard", points) @ stage.points.positions[:, 0]
    gain = 1 / float(stage.response.beta * (1 - stage.rho))
    pushed = mean_of(mechanism, directed_ballots(mechanism, -MEAN))
    predicted = gain * float(np.abs(pulls).mean())
    # 15 000 words; five standard errors of their mean.
    error = 5 * gain * float(np.abs(pulls).std()) / math.sqrt(USERS * DIM)
    assert abs(float((pushed * -np.sign(MEAN)).mean()) - predicted) < error


@pytest.mark.parametrize("mechanism", [
    CPA(DIM, 0.5, 0.02), Rotated(CPA(DIM, 0.5, 0.02)), NestedCPA(DIM, 0.5, 0.02, stages=(2, 4)),
    CPA(DIM, 0.5, 0.03, lattice="E8", points=16), CPA(DIM, 0.5, 0.02, points=3, words="uniform"),
    Subset(CPA(DIM, 0.5, 0.02), 100), SignRR(DIM, 0.5, 0.01), MVU(DIM, 0.5, 0.02),
])  # fmt: skip
def test_no_other_bits_push_further(mechanism):
    ballots = directed_ballots(mechanism, -MEAN)
    best = float(mean_of(mechanism, ballots) @ -MEAN)
    assert best > 0
    rng = np.random.default_rng(1)
    for _ in range(5):
        other = mechanism.encode_many(
            rng.normal(0, 0.02, (USERS, DIM)) - MEAN, KEY.users(np.arange(USERS)), SeededCoins(2)
        )
        assert float(mean_of(mechanism, other) @ -MEAN) < best


def test_a_fifth_of_directed_attackers_turn_the_mean_around():
    mechanism = CPA(DIM, 0.5, 0.03)
    ballots = directed_ballots(mechanism, -MEAN, users=100)
    rng = np.random.default_rng(2)
    honest = (MEAN + rng.normal(0, 0.01, (400, DIM))).astype(np.float32)
    cast = mechanism.encode_many(honest, KEY.users(np.arange(100, 500)), SeededCoins(1))
    tally = mechanism.tally(KEY, histogram=False)
    tally.add_many(ballots)
    tally.add_many(cast)
    found = mechanism.estimate(tally).mean
    truth = honest.mean(axis=0)
    cosine = found @ truth / np.linalg.norm(found) / np.linalg.norm(truth)
    assert cosine < -0.6


def test_every_balanced_word_cancels_a_constant_bit():
    for points in (2, 4, 8):
        assert (all_words("hadamard", points).sum(axis=0) == 0).all()  # so `ones` pulls nowhere


def test_crafted_updates():
    mechanism = CPA(DIM, 0.5, 0.02, clip=0.2)
    own = UPDATES[:8]
    made = {name: craft(name, own, VIEW, mechanism, 3) for name in CRAFTED}
    unit = VIEW.mean / np.linalg.norm(VIEW.mean)
    assert np.allclose(made["scaled"], -20 * own)
    assert np.allclose(made["inner-product"], -VIEW.mean, atol=1e-7)
    assert np.allclose(made["directed-stealth"] @ unit, -0.4, rtol=1e-5)
    assert np.allclose(made["little"], VIEW.mean - little_z(500, 50) * VIEW.spread, atol=1e-6)
    lengths = np.linalg.norm(made["adaptive"], axis=1)
    assert (lengths <= 0.2 * (1 + 1e-6)).all()  # never beyond the clip
    assert np.allclose(made["adaptive"] @ unit, -lengths, rtol=1e-4, atol=1e-6)
    sybils = made["sybils"]
    assert np.allclose(sybils[0], sybils[4])
    assert not np.allclose(sybils[0], sybils[1])
    assert np.allclose(np.linalg.norm(sybils, axis=1), 0.4, rtol=1e-5)
    assert ((sybils @ unit) < 0).all()


def test_inner_product_shortens_the_mean_by_twice_the_share():
    crafted = craft("inner-product", UPDATES[:10], VIEW, CPA(DIM, 0.5, 0.02), 0)
    everyone = np.concatenate([np.tile(VIEW.mean, (30, 1)), crafted])
    assert np.allclose(everyone.mean(axis=0), (1 - 2 * 0.25) * VIEW.mean, atol=1e-8)


def test_the_attackers_encoder_differs_in_the_clip_alone():
    for mechanism in (
        CPA(DIM, 0.5, 0.02, clip=0.1), Rotated(CPA(DIM, 0.5, 0.02, clip=0.1)),
        Subset(CPA(DIM, 0.5, 0.02, clip=0.1), 40),
        NormVote(Rotated(CPA(DIM, 0.5, 0.02, clip=0.1)), 1e9, 0.5),
    ):  # fmt: skip
        free = against_clip(mechanism)
        short, long = 0.001 * UPDATES, 50 * UPDATES
        keys = KEY.users(np.arange(USERS))
        same = [m.encode_many(short, keys, SeededCoins(4)).payload for m in (mechanism, free)]
        other = [m.encode_many(long, keys, SeededCoins(4)).payload for m in (mechanism, free)]
        assert (same[0] == same[1]).all()
        assert (other[0] != other[1]).any()
        assert free.payload_bits == mechanism.payload_bits


def test_without_a_clip_the_others_norm_is_the_measure():
    expected = math.sqrt(float(VIEW.mean @ VIEW.mean + VIEW.spread @ VIEW.spread))
    assert honest_norm(SignRR(DIM, 0.5, 0.1), VIEW) == pytest.approx(expected)
    assert honest_norm(CPA(DIM, 0.5, 0.02, clip=0.2), VIEW) == 0.2


def test_unknown_attacks_are_refused():
    with pytest.raises(InvalidInput):
        craft("nice", UPDATES, VIEW, CPA(DIM, 0.5, 0.02), 0)


def test_the_adaptive_push_stays_where_the_filter_forgives():
    rule, allowed = Rule(), allowed_score(0.2)
    fading = rule.memory ** np.arange(2000)
    depth = allowed * fading.sum() / math.sqrt((fading**2).sum())
    # As many of the coalition as are tolerated fall below the limit by noise alone.
    assert NormalDist().cdf(depth - STEPS_BACK) * 0.2 == pytest.approx(TOLERATED, rel=1e-3)
    for length, natural in ((4.0, 0.0), (1.0, 2.0), (0.2, 3.0)):
        push = hidden_push(length, natural, 0.2, 1000, 7850)
        assert one_hump(length + push, natural, 0.2, 1000)
        left = 0.8 * length - 0.2 * push
        assert -push * left / math.sqrt(left**2 + 7.85) >= -allowed - 1e-9
    assert hidden_push(9.0, 0.0, 0.2, 1000, 7850) == 0.0  # two humps already


def test_one_hump_ends_where_spreads_no_longer_meet():
    for natural in (0.0, 4.0):
        spread = math.hypot(1, natural)
        assert one_hump(2 * spread, natural, 0.2, 1000)  # no two Gaussians that close have a dip
        assert not one_hump(max(8.0, 5 * spread), natural, 0.2, 1000)


def test_the_adaptive_attacker_leaves_the_way_of_the_model_alone():
    mechanism = CPA(DIM, 0.5, 0.02, clip=0.2)
    way = np.zeros(DIM)
    way[0] = 3.0
    pull = Pull(VIEW.mean, 0.0)
    view = dataclasses.replace(VIEW, pull=pull, way=way)
    made = craft("adaptive", UPDATES[:5], view, mechanism, 0)
    sigma, share = noise_size(mechanism), VIEW.attackers / VIEW.users
    assert np.allclose(made[:, 0], -allowed_score(share, Rule().share) * sigma, rtol=1e-5)
    assert (made[:, 1:] @ VIEW.mean[1:] < 0).all()
    wide = dataclasses.replace(view, pull=Pull(VIEW.mean, 3 * sigma))
    along = craft("adaptive", UPDATES, wide, mechanism, 0)[:, 1:] @ VIEW.mean[1:]
    spread = float(along.std() / np.linalg.norm(VIEW.mean[1:]) / sigma)
    assert spread == pytest.approx(3.0, rel=0.2)  # hides among users who differ


def test_pull_is_what_ballots_decode_to_where_points_cut():
    rng = np.random.default_rng(2)
    updates = rng.normal(0.01, 0.03, (600, 64)).astype(np.float32)
    for mechanism in (CPA(64, math.inf, 0.02), Rotated(CPA(64, math.inf, 0.02, clip=0.2))):
        pull = pull_of(mechanism, updates, KEY)
        ballots = mechanism.encode_many(updates, KEY.users(np.arange(600)), SeededCoins(1))
        tally = mechanism.tally(KEY)
        tally.add_many(ballots)
        away = mechanism.estimate(tally).mean - pull.mean
        assert np.abs(away).max() < 5 * 0.02 / math.sqrt(600)  # a bit's noise is below the radius
        assert 0 < pull.natural < 0.02 * 8
    assert pull_of(FedAvg(64), updates, KEY) is None
