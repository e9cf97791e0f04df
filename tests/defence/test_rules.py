"""Each rule of the filter, on scores chosen by hand."""

import math

import numpy as np
import pytest

from hushbit.baselines.signsgd import SignRR
from hushbit.cpa import CPA, NestedCPA
from hushbit.defence.rules import (
    BIAS_BITS,
    LIMIT_SIGMAS,
    TOLERATED_SHARE,
    UPPER_SIGMAS,
    FilterRule,
    above_max_score,
    biased_bits,
    bimodal_group,
    mark_below_midpoint,
    mark_below_tail,
    mark_beyond_split,
)
from hushbit.lab.attacks.ballots import attack_ballots
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey
from hushbit.wrappers import Rotated, Subset

RULE = FilterRule()
EVERYONE = np.ones(1000, dtype=np.bool_)
NOBODY = ~EVERYONE
MAX_SCORE = 10.0


def marked(rule, sums, *arguments):
    """The users whom a compiled rule marks."""
    found = np.zeros(sums.size, dtype=np.bool_)
    rule(sums, *arguments, RULE.limits(sums.size, MAX_SCORE, 0.2), found)
    return found


def beyond_split(sums):
    """The users beyond a split point of a sum."""
    found = np.zeros(sums.size, dtype=np.bool_)
    mark_beyond_split(sums, RULE.limits(sums.size, MAX_SCORE, 0.2), LIMIT_SIGMAS, found)
    return found


def below_midpoint(sums, present, excluded):
    """The users below the midpoint between present and excluded users."""
    return marked(mark_below_midpoint, sums, present, excluded)


def below_mean_tail(sums, present=EVERYONE, excluded=NOBODY, separated=NOBODY):
    """The users in the tail of the mean sum."""
    groups, seen = (present, separated, separated | excluded), sums < np.inf
    return marked(mark_below_tail, sums, *groups, RULE.tail_sigmas, 0.0, seen)


def below_drift_tail(sums, present=EVERYONE, excluded=NOBODY, separated=NOBODY):
    """The users in the tail of the drift sum."""
    groups, seen = (present, separated, separated | excluded), sums < np.inf
    max_natural = RULE.max_lagging(sums.size, 0.2)
    return marked(mark_below_tail, sums, *groups, UPPER_SIGMAS, max_natural, seen)


def outliers_and_group(scores, max_score=MAX_SCORE):
    """The users above the maximum score, and the smaller group of bimodal scores."""
    outliers = above_max_score(scores[None], max_score, RULE)
    return outliers, bimodal_group(scores[None], np.ones(scores.size, np.bool_), RULE)


def test_the_maximum_score_is_exact():
    scores = np.zeros(1000)
    limit = MAX_SCORE + RULE.slack(1000)
    scores[:4] = limit + 0.01, -limit - 0.01, limit - 0.01, -limit + 0.01
    outliers, group = outliers_and_group(scores)
    assert np.flatnonzero(outliers).tolist() == [0, 1]
    assert not group.any()


def two_groups(share, distance, seed=0):
    scores = np.random.default_rng(seed).normal(size=1000)
    scores[: round(1000 * share)] -= distance
    return scores


@pytest.mark.parametrize("share", [0.2, 0.3, 0.45])
def test_the_smaller_of_two_groups_is_found(share):
    for sign in (1, -1):
        _, group = outliers_and_group(sign * two_groups(share, 9.0))
        assert (group == (np.arange(1000) < 1000 * share)).mean() > 0.999


def test_a_natural_group_is_not_found():
    assert not outliers_and_group(two_groups(0.1, 9.0))[1].any()


def test_groups_that_overlap_are_not_found():
    assert not outliers_and_group(two_groups(0.3, 4.0))[1].any()


def test_a_small_group_within_a_wide_spread_is_found_by_the_split():
    """A fifth of the users at -14.7, others spread by 4.5 around 3.5."""
    rng = np.random.default_rng(0)
    scores = rng.normal(3.5, 4.5, 1000)
    scores[:200] = rng.normal(-14.7, 1.0, 200)
    group = outliers_and_group(scores)[1]
    assert group[:200].all()
    assert group[200:].mean() < 0.01


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.uniform(-20, 20, 1000),
        lambda rng: rng.normal(0, 10, 1000),
        lambda rng: rng.triangular(-5, -5, 30, 1000),
        lambda rng: rng.exponential(8, 1000),
        lambda rng: rng.laplace(0, 8, 1000),
    ],
)
def test_unimodal_scores_are_not_split_at_any_spread(draw):
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = draw(rng) + rng.normal(size=1000)
        assert not outliers_and_group(scores, max_score=1000.0)[1].any()


def test_absent_users_do_not_change_the_limits():
    scores = two_groups(0.3, 9.0)
    accepted = np.arange(1000) >= 300
    assert not bimodal_group(scores[None], accepted, RULE).any()
    assert below_mean_tail(scores - 9.0, accepted)[:300].all()


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_gaussian_users_stay_and_a_group_below_is_found(spread):
    rng = np.random.default_rng(0)
    for _ in range(20):
        sums = rng.normal(1.0, spread, 1000)
        assert not below_mean_tail(sums).any()
        assert not beyond_split(sums).any()
    sums[:250] = rng.normal(1.0 - 6 * spread, spread, 250)
    out = below_mean_tail(sums) | beyond_split(sums)
    assert out[:250].mean() > 0.9
    assert out[250:].mean() < 2 * RULE.tail_share


def test_a_narrow_coalition_within_the_spread_of_the_others_is_beyond_a_split():
    """A tenth of the others are there too, so the tail rule does not find it."""
    rng = np.random.default_rng(1)
    sums = rng.normal(7.8, 8.5, 1000)
    sums[:300] = rng.normal(-10.0, 1.0, 300)
    assert not below_mean_tail(sums)[:300].all()
    out = beyond_split(sums)
    assert out[:300].all()
    assert out[300:].mean() < 0.15  # honest users on the coalition's side of the split


def test_a_second_mode_near_zero_stays():
    rng = np.random.default_rng(0)
    sums = rng.normal(20.0, 1.0, 1000)
    sums[:300] = rng.normal(-LIMIT_SIGMAS + 2.5, 1.0, 300)
    assert not beyond_split(sums).any()
    sums[:300] -= 5.0
    assert beyond_split(sums)[:300].all()
    assert not beyond_split(sums)[300:].any()


def test_a_minority_that_moves_the_mean_by_itself_is_beyond_a_split_above():
    rng = np.random.default_rng(0)
    sums = rng.normal(1.3, 1.4, 1000)
    sums[:300] = rng.normal(13.6, 1.0, 300)
    assert (beyond_split(sums) == (np.arange(1000) < 300)).all()


def test_the_tail_begins_three_sigma_below_zero():
    sums = np.full(1000, 5.0)
    sums[:300] = -LIMIT_SIGMAS + 0.01  # far below the others, but close to zero
    assert not below_mean_tail(sums).any()
    sums[:300] = -LIMIT_SIGMAS - 0.01
    assert below_mean_tail(sums)[:300].all()


def test_few_new_users_below_are_tolerated():
    sums = np.random.default_rng(0).normal(size=1000)
    few = round(1000 * TOLERATED_SHARE)
    sums[: few - 5] -= 50.0
    assert not below_mean_tail(sums).any()
    sums[: few + 5] -= 50.0
    assert below_mean_tail(sums)[:20].all()
    assert not below_mean_tail(sums, excluded=np.arange(1000) < 10).any()


def test_more_than_a_natural_group_in_the_tail_of_the_drift_sum_is_found():
    """A wide tail, as hard samples cause it, above the limit of the mean sum."""
    rng = np.random.default_rng(0)
    sums = rng.normal(2.0, 2.5, 1000)
    for share, expected in ((0.1, False), (0.3, True)):
        some = np.arange(1000) < share * 1000
        sums[some] = rng.normal(-5.0, 1.5, int(some.sum()))
        out = below_drift_tail(sums)
        assert out.any() == expected
    assert out[some].mean() > 0.6
    assert out[~some].mean() < 0.06
    assert below_mean_tail(sums)[some].mean() < 0.3


def test_the_lagging_share_grows_with_the_information_per_bit():
    low, some, much, most = (RULE.lagging_share(math.tanh(eps / 2)) for eps in (0.1, 0.5, 2.0, 99))
    assert low == some == RULE.natural_share
    assert 0.26 < much < 0.33  # measured: natural tails below, label-flip above
    assert much < most < 0.4


@pytest.mark.parametrize("users", [20, 50, 100, 400])
def test_few_honest_users_are_rarely_found_by_chance(users):
    rng, trials = np.random.default_rng(users), 200
    everyone = np.ones(users, dtype=np.bool_)
    wrong = 0
    for _ in range(trials):
        sums = rng.normal(0.0, 5.0, users)
        wrong += below_mean_tail(sums, everyone, ~everyone, ~everyone).any()
        wrong += below_drift_tail(sums, everyone, ~everyone, ~everyone).any()
    assert wrong < 0.06 * trials


def test_symmetric_drift_sums_stay_at_any_spread():
    rng = np.random.default_rng(1)
    for spread in (1.0, 3.0, 10.0, 100.0):
        for draw in (rng.normal, rng.laplace):
            assert not below_drift_tail(draw(0.5, spread, 1000)).any()


def test_separated_users_do_not_count_in_the_tail():
    sums = np.random.default_rng(0).normal(1.0, 1.0, 1000)
    sums[:300], sums[300:400] = -20.0, -4.0
    separated = np.arange(1000) < 300
    assert below_drift_tail(sums)[:400].all()
    assert not below_drift_tail(sums, ~separated, separated, separated).any()


def test_the_midpoint_between_two_separate_groups_decides_for_everybody():
    sums = np.random.default_rng(0).normal(1.0, 1.0, 1000)
    sums[:300] -= 11.0
    excluded = np.arange(1000) < 200
    excluded[900:] = True  # honest users who were excluded with the coalition
    assert (below_midpoint(sums, ~excluded, excluded) == (np.arange(1000) < 300)).all()


def test_the_midpoint_needs_more_than_a_natural_group_at_a_distance():
    few, more = np.arange(1000) < 150, np.arange(1000) < 151
    assert not below_midpoint(np.where(few, -20.0, 1.0), ~few, few).any()
    sums = np.where(more, -20.0, 1.0)
    sums[-2:] = -9.51, -9.49  # the midpoint is -9.5
    out = below_midpoint(sums, ~more, more)
    assert np.flatnonzero(out & ~more).tolist() == [998]
    assert out[more].all()
    assert not below_midpoint(np.where(more, -4.9, 1.0), ~more, more).any()
    wide = np.random.default_rng(0).normal(20.0, 10.0, 1000) - 8.0 * more
    assert not below_midpoint(wide, ~more, more).any()


def test_groups_of_all_directions_are_found():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 1000))
    scores[0, :200] += 20.0
    scores[1, 200:400] -= 20.0
    assert (bimodal_group(scores, EVERYONE, RULE) == (np.arange(1000) < 400)).all()


@pytest.mark.parametrize(
    "mechanism",
    [
        CPA(800, 0.5, 0.02),
        CPA(800, 8.0, 0.02),
        CPA(800, 1.0, 0.02, points=4),
        NestedCPA(804, 0.5, 0.02, stages=(2, 4)),
        Rotated(CPA(800, 0.5, 0.02)),
        CPA(800, 0.5, 0.03, lattice="E8", points=16),
        Subset(CPA(800, 0.5, 0.02), 300),
        CPA(800, 0.5, 0.02, points=3, words="uniform"),
        CPA(BIAS_BITS + 99, 0.5, 0.02),
    ],
)
def test_honest_bits_are_fair_coins_for_any_update_and_ones_are_not(mechanism):
    key, users = RoundKey(bytes(32), 0), 400
    updates = np.full((users, mechanism.dim), 1.0, dtype=np.float32)  # far outside the points
    ballots = mechanism.encode_many(updates, key.users(np.arange(users)), SeededCoins(0))
    assert not biased_bits(mechanism, ballots).any()
    attackers = np.arange(users) < 100
    biased = attack_ballots(mechanism, ballots, "ones", attackers, 0)
    assert (biased_bits(mechanism, biased) == attackers).all()


def test_bits_without_words_are_not_tested_for_bias():
    mechanism = SignRR(100, 8.0, 0.1)
    ballots = mechanism.encode_many(np.ones((30, 100)), RoundKey(bytes(32), 0).users(np.arange(30)))
    assert not biased_bits(mechanism, ballots).any()
