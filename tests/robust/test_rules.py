"""The rules, on numbers chosen by hand."""

import math

import numpy as np
import pytest

from hushbit import CPA, NestedCPA, Rotated, RoundKey, SeededCoins, Subset
from hushbit.baselines import SignRR
from hushbit.fl.attacks import cast_attacked
from hushbit.robust.rules import (
    COIN_BITS,
    STEPS_BACK,
    TOLERATED,
    UPPER_SPREADS,
    Rule,
    between,
    beyond_reach,
    cut_off,
    far_behind,
    loaded_coins,
    other_minds,
)

RULE = Rule()
EVERYONE = np.ones(1000, dtype=np.bool_)
NOBODY = ~EVERYONE
REACH = 10.0


def behind(sums, present=EVERYONE, gone=NOBODY, apart=NOBODY):
    """Who is far behind on the others' mean."""
    return far_behind(sums, present, apart, gone, RULE.depth, RULE.newly(sums.size), sums < np.inf)


def set_back(sums, present=EVERYONE, gone=NOBODY, apart=NOBODY):
    """Who is far behind on the model's way."""
    newly, natural = RULE.newly(sums.size), RULE.many_back(sums.size, 0.2)
    return far_behind(sums, present, apart, gone, UPPER_SPREADS, newly, sums < np.inf, natural)


def judged(scores, reach=REACH):
    scores, everyone = np.asarray(scores), np.ones(len(scores), np.bool_)
    return beyond_reach(scores[None], reach, RULE), other_minds(scores[None], everyone, RULE)


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
    assert not judged(two_groups(0.3, 4.0))[1].any()


def test_a_small_group_far_away_is_told_from_a_wide_spread_by_the_valley():
    """Nothing but the valley shows it: a fifth of users within the spread of a third of them."""
    rng = np.random.default_rng(0)
    scores = rng.normal(3.5, 4.5, 1000)
    scores[:200] = rng.normal(-14.7, 1.0, 200)
    group = judged(scores)[1]
    assert group[:200].all()
    assert group[200:].mean() < 0.01


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
    assert not other_minds(scores[None], accepted, RULE).any()
    assert behind(scores - 9.0, accepted)[:300].all()


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_gaussian_users_are_not_against_the_others_and_a_group_below_is(spread):
    rng = np.random.default_rng(0)
    for _ in range(20):
        sums = rng.normal(1.0, spread, 1000)
        assert not behind(sums).any()
        assert not cut_off(sums, RULE).any()
    sums[:250] = rng.normal(1.0 - 6 * spread, spread, 250)
    out = behind(sums) | cut_off(sums, RULE)
    assert out[:250].mean() > 0.9
    assert out[250:].mean() < 2 * RULE.tail


def test_a_coalition_of_one_voice_within_the_spread_of_the_others_is_cut_off():
    """Where it stands a tenth of the others do, so no quantile tells it; the valley does."""
    rng = np.random.default_rng(1)
    sums = rng.normal(7.8, 8.5, 1000)
    sums[:300] = rng.normal(-10.0, 1.0, 300)
    assert not behind(sums)[:300].all()
    out = cut_off(sums, RULE)
    assert out[:300].all()
    assert out[300:].mean() < 0.15  # who stands on the coalition's side of the valley goes with it


def test_a_second_hump_that_is_not_set_back_stays():
    rng = np.random.default_rng(0)
    sums = rng.normal(20.0, 1.0, 1000)
    sums[:300] = rng.normal(-STEPS_BACK + 2.5, 1.0, 300)
    assert not cut_off(sums, RULE).any()
    sums[:300] -= 5.0
    assert cut_off(sums, RULE)[:300].all()
    assert not cut_off(sums, RULE)[300:].any()


def test_a_minority_that_moves_the_mean_by_itself_is_cut_off_above():
    rng = np.random.default_rng(0)
    sums = rng.normal(1.3, 1.4, 1000)
    sums[:300] = rng.normal(13.6, 1.0, 300)
    assert (cut_off(sums, RULE) == (np.arange(1000) < 300)).all()


def test_nobody_is_behind_who_is_within_the_noise_of_no_step_back():
    sums = np.full(1000, 5.0)
    sums[:300] = -STEPS_BACK + 0.01  # far below the others, but not for certain against them
    assert not behind(sums).any()
    sums[:300] = -STEPS_BACK - 0.01
    assert behind(sums)[:300].all()


def test_a_few_users_below_are_a_natural_tail_beside_those_who_are_known():
    sums = np.random.default_rng(0).normal(size=1000)
    few = round(1000 * TOLERATED)
    sums[: few - 5] -= 50.0
    assert not behind(sums).any()
    sums[: few + 5] -= 50.0
    assert behind(sums)[:20].all()
    assert not behind(sums, gone=np.arange(1000) < 10).any()


def test_on_the_way_more_than_a_natural_group_below_the_mirror_of_the_upper_tenth_goes():
    """A wide tail below, as hard samples make it, and not as far as one in a hundred stands."""
    rng = np.random.default_rng(0)
    sums = rng.normal(2.0, 2.5, 1000)
    for share, goes in ((0.1, False), (0.3, True)):
        some = np.arange(1000) < share * 1000
        sums[some] = rng.normal(-5.0, 1.5, int(some.sum()))
        out = set_back(sums)
        assert out.any() == goes
    assert out[some].mean() > 0.6
    assert out[~some].mean() < 0.06
    assert behind(sums)[some].mean() < 0.3


def test_the_more_bits_say_the_more_honest_users_may_be_set_back():
    low, some, much, all_of_it = (RULE.set_back(math.tanh(eps / 2)) for eps in (0.1, 0.5, 2.0, 99))
    assert low == some == RULE.share
    assert 0.26 < much < 0.33  # natural tails and label-flip's, as measured
    assert much < all_of_it < 0.4


@pytest.mark.parametrize("users", [20, 50, 100, 400])
def test_few_honest_users_are_not_mistaken_by_chance(users):
    rng, looks = np.random.default_rng(users), 200
    everyone = np.ones(users, dtype=np.bool_)
    wrong = 0
    for _ in range(looks):
        sums = rng.normal(0.0, 5.0, users)
        wrong += behind(sums, everyone, ~everyone, ~everyone).any()
        wrong += set_back(sums, everyone, ~everyone, ~everyone).any()
    assert wrong < 0.06 * looks


def test_symmetric_spreads_are_not_set_back_however_wide():
    rng = np.random.default_rng(1)
    for spread in (1.0, 3.0, 10.0, 100.0):
        for draw in (rng.normal, rng.laplace):
            assert not set_back(draw(0.5, spread, 1000)).any()


def test_who_is_set_apart_does_not_make_a_natural_tail_a_coalition():
    sums = np.random.default_rng(0).normal(1.0, 1.0, 1000)
    sums[:300], sums[300:400] = -20.0, -4.0
    apart = np.arange(1000) < 300
    assert set_back(sums)[:400].all()
    assert not set_back(sums, present=~apart, apart=apart, gone=apart).any()


def test_halfway_between_two_clear_groups_decides_for_everybody():
    sums = np.random.default_rng(0).normal(1.0, 1.0, 1000)
    sums[:300] -= 11.0
    out = np.arange(1000) < 200
    out[900:] = True  # honest users who went with them
    cut = between(sums, ~out, out, RULE)
    assert ((sums < cut) == (np.arange(1000) < 300)).all()


def test_halfway_is_nowhere_for_a_natural_group_or_within_the_spread_of_the_others():
    rng = np.random.default_rng(0)
    few = np.arange(1000) < 150
    assert between(np.where(few, -20.0, 1.0), ~few, few, RULE) == -np.inf
    more = np.arange(1000) < 151
    assert between(np.where(more, -20.0, 1.0), ~more, more, RULE) == pytest.approx(-9.5)
    assert between(np.where(more, -4.9, 1.0), ~more, more, RULE) == -np.inf
    wide = rng.normal(20.0, 10.0, 1000) - 8.0 * more
    assert between(wide, ~more, more, RULE) == -np.inf


def test_groups_of_several_directions_go_together():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 1000))
    scores[0, :200] += 20.0
    scores[1, 200:400] -= 20.0
    assert (other_minds(scores, EVERYONE, RULE) == (np.arange(1000) < 400)).all()


@pytest.mark.parametrize("mechanism", [
    CPA(800, 0.5, 0.02), CPA(800, 8.0, 0.02), CPA(800, 1.0, 0.02, points=4),
    NestedCPA(804, 0.5, 0.02, stages=(2, 4)), Rotated(CPA(800, 0.5, 0.02)),
    CPA(800, 0.5, 0.03, lattice="E8", points=16), Subset(CPA(800, 0.5, 0.02), 300),
    CPA(800, 0.5, 0.02, points=3, words="uniform"), CPA(COIN_BITS + 99, 0.5, 0.02),
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
