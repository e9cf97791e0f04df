"""The two rules and the scores they read, on numbers chosen by hand."""

import numpy as np
import pytest

from hushbit import CPA, RoundKey, SeededCoins
from hushbit.robust.filter import GAP, SCORE_VARIANCE, Rule, _sharpen, _suspects
from hushbit.robust.pulls import unmask

RULE = Rule()
EVERYONE = np.ones(1000, dtype=np.bool_)
REACH = 10.0


def judged(scores, reach=REACH):
    beyond, group, _ = _suspects(np.asarray(scores), np.ones(len(scores), np.bool_), reach, RULE)
    return beyond, group


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
    beyond, group, variance = _suspects(scores, accepted, REACH, RULE)
    assert not beyond.any()
    assert not group.any()
    assert 0.8 < variance < 1.2


def test_scores_leave_out_the_users_own_ballot():
    key, users, dim = RoundKey(bytes(32), 0), 300, 3000
    mechanism = CPA(dim, 0.5, 0.02)
    zero = np.zeros((users, dim), dtype=np.float32)
    ballots = mechanism.encode_many(zero, key.users(np.arange(users)), SeededCoins(0))
    pulls = unmask(mechanism, ballots, key)
    weights = np.random.default_rng(0).normal(size=users)
    scores = _sharpen(pulls, np.ones(users, np.bool_), weights)
    # Pure coin flips: with the own ballot in it the direction would lend every score about
    # sqrt(dim / users) = 3.2 of its own side, a variance of 10 and more.
    assert 0.7 < scores.var() < SCORE_VARIANCE
