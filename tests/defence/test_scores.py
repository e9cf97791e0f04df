"""Scores exclude the own ballot, find the shared direction, and take linear time."""

import math
from unittest import mock

import numpy as np
import pytest

from defence.planted_votes import packed, planted, votes
from defence.test_defence import DEFENCE, decide
from hushbit.defence.asymmetry import split_at_median
from hushbit.defence.defence import POWER_STEPS, REPEATS, SHARED_VARIANCE, power_scores


def everyone(users):
    return np.ones(users, dtype=np.bool_)


def test_scores_of_pure_noise_have_variance_one():
    drift_direction = np.random.default_rng(5).normal(size=2000)
    for seed in range(5):
        decoded = packed(votes(np.zeros((400, 2000)), seed))
        mean, shared, along = power_scores(decoded, everyone(400), drift_direction)
        # Four standard errors of a variance from 400 users; the mean's weights are all alike.
        for scores in (mean, along):
            assert abs(float(scores.var()) - 1) < 4 * math.sqrt(2 / 400)
            # Users share the noise of the mean, so their scores on it average out more slowly.
            assert abs(float(scores.mean())) < 8 / math.sqrt(400)
        assert shared.var() < SHARED_VARIANCE


@pytest.mark.parametrize("users", [299, 300])
def test_scores_on_the_mean_exclude_the_own_ballot(users):
    rows = votes(planted(users, 3000, 4.0)[0])
    mean = power_scores(packed(rows), everyone(users), None)[0]
    total = rows.sum(axis=0)
    exact = (rows @ total - 3000) / np.linalg.norm(total)
    assert float(np.corrcoef(mean, exact)[0, 1]) > 0.85  # the direction is rounded: 90 % of it
    # With the own ballot every score would be about sqrt(dim / users) = 3.2 higher.
    assert float(mean.mean()) == pytest.approx(0.9 * float(exact.mean()), abs=0.3)


@pytest.mark.parametrize("users", [120, 121])
def test_the_own_part_is_that_of_a_direction_computed_without_the_ballot(users):
    """Compared with directions recomputed without each user, on average over users."""
    rows = votes(np.zeros((users, 400)), seed=users)
    above, below = split_at_median(np.arange(users, dtype=np.float64), everyone(users))
    decoded = packed(rows)
    scores = decoded.score(above, below, None)
    for number, sides in enumerate((np.ones(users), 1.0 * above - below)):
        left_out = []
        for user in range(users):
            rest = sides @ rows - sides[user] * rows[user]
            limit = 0.612 * math.sqrt(float(((sides @ rows) ** 2).mean()))
            levels = np.sign(rest) * (np.abs(rest) > limit)
            left_out.append(float(rows[user] @ levels) / math.sqrt(float(np.abs(levels).sum())))
        # Both are means over the same users, so they differ by rounding alone.
        assert float(scores[number].mean()) == pytest.approx(np.mean(left_out), abs=0.15)


def test_absent_users_are_scored_but_do_not_change_the_directions():
    places = np.where(np.arange(300) < 75, -30.0, 3.0)
    mean, _, _ = power_scores(
        packed(votes(planted(300, 2000, places)[0])), np.arange(300) >= 75, None
    )
    assert mean[75:].mean() > 1.0
    assert mean[:75].mean() < -10.0


@pytest.mark.parametrize("seed", range(3))
def test_the_shared_direction_is_found_within_eight_rounds(seed):
    """The mean is zero: 25 % at -9, 75 % at +3; only the shared direction separates them."""
    places = np.where(np.arange(400) < 100, -9.0, 3.0)
    scores = np.random.default_rng(seed).normal(size=400)
    for number in range(8):
        means, _ = planted(400, 1000, places, seed)
        decoded = packed(votes(means, 10 * seed + number))
        scores = decoded.score(*split_at_median(scores, everyone(400)), None)[1]
    assert abs(float(scores[:100].mean() - scores[100:].mean())) > 8
    assert scores[100:].std() < 1.5


def test_the_number_of_passes_does_not_grow_with_users():
    """Linear time: the number of passes is fixed, and a pass is linear in K · dim."""
    counts = []
    for users in (100, 400, 1600):
        places = np.where(np.arange(users) < 0.3 * users, 9.0, 0.0)
        decoded = packed(votes(planted(users, 200, places)[0]))
        with mock.patch.object(decoded, "score", wraps=decoded.score) as score:
            decide(decoded, DEFENCE.start(users), np.ones(200), 1)
        counts.append(score.call_count)
    assert max(counts) <= (1 + 2 * REPEATS) * POWER_STEPS
    assert counts[1] == counts[2]


def test_a_later_round_in_which_nobody_is_removed_takes_one_pass():
    decoded = packed(votes(np.zeros((400, 2000))))
    state = DEFENCE.start(400) | {"shared": np.arange(400.0), "last_round": np.ones(400)}
    with mock.patch.object(decoded, "score", wraps=decoded.score) as score:
        assert decide(decoded, state, np.ones(2000), 2).removed == 0
    assert score.call_count == 1
