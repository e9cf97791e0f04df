"""The two rules and the scores they read, on numbers chosen by hand."""

import numpy as np
import pytest
from scipy.stats import chi2

from hushbit import CPA, NestedCPA, Rotated, RoundKey, SeededCoins, Subset
from hushbit.baselines import SignRR
from hushbit.fl.attacks import cast_attacked
from hushbit.robust.pulls import unmask
from hushbit.robust.rules import (
    FAR,
    GAP,
    SCORE_VARIANCE,
    TOLERATED,
    Rule,
    beyond_reach,
    chi_square,
    far_off,
    loaded_coins,
    of_other_mind,
    other_minds,
)
from hushbit.robust.spectrum import look

RULE = Rule()
EVERYONE = np.ones(1000, dtype=np.bool_)
REACH = 10.0


def judged(scores, reach=REACH):
    scores, everyone = np.asarray(scores), np.ones(len(scores), np.bool_)
    beyond = beyond_reach(scores[:, None], everyone, reach, RULE)
    return beyond, of_other_mind(scores, everyone, RULE)


def test_whoever_scores_beyond_the_reach_goes_and_nobody_within():
    scores = np.zeros(1000)
    limit = REACH + RULE.slack(1000)
    scores[:4] = limit + 0.01, -limit - 0.01, limit - 0.01, -limit + 0.01
    beyond, group = judged(scores)
    assert np.flatnonzero(beyond).tolist() == [0, 1]
    assert not group.any()


def two_groups(share, apart, seed=0):
    scores = np.random.default_rng(seed).normal(size=1000)
    scores[: round(1000 * share)] -= apart
    return scores


@pytest.mark.parametrize("share", [0.2, 0.3, 0.45])
def test_the_smaller_of_two_minds_goes(share):
    for sign in (1, -1):
        _, group = judged(sign * two_groups(share, 9.0))
        assert (group == (np.arange(1000) < 1000 * share)).mean() > 0.999


def test_a_natural_group_stays():
    assert not judged(two_groups(0.1, 9.0))[1].any()


def test_groups_that_noise_could_blur_stay():
    assert not judged(two_groups(0.3, GAP - 1))[1].any()


@pytest.mark.parametrize("draw", [
    lambda rng: rng.uniform(-20, 20, 1000), lambda rng: rng.normal(0, 10, 1000),
    lambda rng: rng.triangular(-5, -5, 30, 1000), lambda rng: rng.exponential(8, 1000),
    lambda rng: rng.laplace(0, 8, 1000),
])  # fmt: skip
def test_one_humped_spreads_stay_however_wide(draw):
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = draw(rng) + rng.normal(size=1000)
        assert not judged(scores, reach=1000.0)[1].any()


def test_removed_users_have_no_say():
    scores = two_groups(0.3, 9.0)
    accepted = np.arange(1000) >= 300
    assert not of_other_mind(scores, accepted, RULE).any()
    assert not beyond_reach(scores[:, None], accepted, REACH, RULE).any()
    assert not far_off(scores[:, None], accepted).any()


def test_chi_square_quantiles():
    for freedom in (1, 2, 5, 8):
        for tail in (1e-2, FAR):
            assert chi_square(freedom, tail) == pytest.approx(chi2.isf(tail, freedom), rel=0.04)


@pytest.mark.parametrize("directions", [1, 3, 8])
def test_gaussian_users_are_not_far_off_and_wide_ones_are(directions):
    rng = np.random.default_rng(directions)
    scores = rng.normal(1.0, 2.0, (1000, directions))
    assert not far_off(scores, EVERYONE).any()
    scores[:200] = rng.normal(1.0, 30.0, (200, directions))
    out = far_off(scores, EVERYONE)
    assert out[:200].mean() > (0.65 if directions == 1 else 0.95)
    assert out[200:].mean() < 10 * FAR


def test_users_of_one_class_each_are_alike():
    rng = np.random.default_rng(0)
    places = 12.0 * np.eye(10)[rng.integers(0, 10, 1000)] + rng.normal(size=(1000, 10))
    assert not far_off(places[:, :9], EVERYONE).any()
    turned = places[:, :9].copy()  # one direction has two classes on its side
    turned[:, 0], turned[:, 1] = places[:, 0] + places[:, 1], places[:, 0] - places[:, 1]
    assert 100 < of_other_mind(turned[:, 0], EVERYONE, RULE).sum() < 300
    assert not other_minds(turned, EVERYONE, RULE).any()
    places[:250] = rng.normal(size=(250, 10))
    places[:250, 0] -= 20.0
    assert (other_minds(places[:, :9], EVERYONE, RULE) == (np.arange(1000) < 250)).all()


def test_a_few_far_users_are_a_natural_tail():
    scores = np.random.default_rng(0).normal(size=(1000, 2))
    scores[: round(1000 * TOLERATED) - 5] += 50.0
    assert not far_off(scores, EVERYONE).any()
    scores[: round(1000 * TOLERATED) + 5] += 50.0
    assert far_off(scores, EVERYONE)[:20].all()


@pytest.mark.parametrize("mechanism", [
    CPA(800, 0.5, 0.02), CPA(800, 8.0, 0.02), CPA(800, 1.0, 0.02, points=4),
    NestedCPA(804, 0.5, 0.02, stages=(2, 4)), Rotated(CPA(800, 0.5, 0.02)),
    CPA(800, 0.5, 0.03, lattice="E8", points=16), Subset(CPA(800, 0.5, 0.02), 300),
    CPA(800, 0.5, 0.02, points=3, words="uniform"),
])  # fmt: skip
def test_honest_bits_are_fair_coins_whatever_the_update_and_ones_are_not(mechanism):
    key, users = RoundKey(bytes(32), 0), 400
    updates = np.full((users, mechanism.dim), 1.0, dtype=np.float32)  # far beyond every point
    ballots = mechanism.encode_many(updates, key.users(np.arange(users)), SeededCoins(0))
    assert not loaded_coins(mechanism, ballots).any()
    attackers = np.arange(users) < 100
    loaded = cast_attacked(mechanism, ballots, "ones", attackers, 0)
    assert (loaded_coins(mechanism, loaded) == attackers).all()


def test_bits_without_words_are_not_judged_as_coins():
    mechanism = SignRR(100, 8.0, 0.1)
    ballots = mechanism.encode_many(np.ones((30, 100)), RoundKey(bytes(32), 0).users(np.arange(30)))
    assert not loaded_coins(mechanism, ballots).any()


def test_scores_leave_out_the_users_own_ballot():
    key, users, dim = RoundKey(bytes(32), 0), 300, 3000
    mechanism = CPA(dim, 0.5, 0.02)
    zero = np.zeros((users, dim), dtype=np.float32)
    zero[:60] = -0.02  # a fifth of all users share a direction, so there is something to look at
    ballots = mechanism.encode_many(zero, key.users(np.arange(users)), SeededCoins(0))
    seen = look(unmask(mechanism, ballots, key), np.ones(users, np.bool_), 4)
    assert seen.found >= 1
    # With the own ballot in it the direction would lend every score about sqrt(dim / users) = 3.2
    # of its own side: a variance of 10 and more among users who send coin flips.
    assert 0.5 < seen.scores[60:, 0].var() < SCORE_VARIANCE
    assert abs(float(seen.scores[:60, 0].mean() - seen.scores[60:, 0].mean())) > 10
