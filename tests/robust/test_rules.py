"""The rules, on numbers chosen by hand."""

import numpy as np
import pytest

from hushbit import CPA, NestedCPA, Rotated, RoundKey, SeededCoins, Subset
from hushbit.baselines import SignRR
from hushbit.fl.attacks import cast_attacked
from hushbit.robust.rules import (
    GAP,
    STEPS_BACK,
    TOLERATED,
    Rule,
    against_the_others,
    beyond_reach,
    loaded_coins,
    of_other_mind,
    other_minds,
)

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
    assert against_the_others(scores - 9.0, accepted, RULE)[:300].all()


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_gaussian_users_are_not_against_the_others_and_a_group_below_is(spread):
    rng = np.random.default_rng(0)
    for _ in range(20):
        sums = rng.normal(1.0, spread, 1000)
        assert not against_the_others(sums, EVERYONE, RULE).any()
    sums[:250] = rng.normal(1.0 - 6 * spread, spread, 250)
    out = against_the_others(sums, EVERYONE, RULE)
    assert out[:250].mean() > 0.9
    assert out[250:].mean() < 2 * RULE.tail


def test_nobody_is_against_who_is_within_the_noise_of_no_step_back():
    sums = np.full(1000, 5.0)
    sums[:300] = -STEPS_BACK + 0.01  # far below the others, but not for certain against them
    assert not against_the_others(sums, EVERYONE, RULE).any()
    sums[:300] = -STEPS_BACK - 0.01
    assert against_the_others(sums, EVERYONE, RULE)[:300].all()


def test_where_the_typical_user_is_set_back_the_limit_moves_with_it():
    sums = np.random.default_rng(0).normal(-4.0, 0.5, 1000)
    assert not against_the_others(sums, EVERYONE, RULE).any()


def test_a_few_users_below_are_a_natural_tail():
    sums = np.random.default_rng(0).normal(size=1000)
    sums[: round(1000 * TOLERATED) - 5] -= 50.0
    assert not against_the_others(sums, EVERYONE, RULE).any()
    sums[: round(1000 * TOLERATED) + 5] -= 50.0
    assert against_the_others(sums, EVERYONE, RULE)[:20].all()


def test_groups_of_several_directions_go_together():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(1000, 2))
    scores[:200, 0] += 20.0
    scores[200:400, 1] -= 20.0
    assert (other_minds(scores, EVERYONE, RULE) == (np.arange(1000) < 400)).all()


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
