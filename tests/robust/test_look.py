"""Scores of a look: own ballots are left out, what users share is found, cost is linear."""

import math
from unittest import mock

import numpy as np
import pytest

from hushbit.robust.filter import FIRST_STEPS, judge, look_at
from hushbit.robust.memory import Memory
from hushbit.robust.pulls import PackedPulls
from hushbit.robust.rules import SCORE_VARIANCE, Rule


def packed(votes):
    """Pulls of rows of ±1."""
    users, dim = votes.shape
    rows = np.zeros((users, 8 * -(-dim // 64)), dtype=np.uint8)
    bits = np.packbits(votes > 0, axis=1, bitorder="little")
    rows[:, : bits.shape[1]] = bits
    return PackedPulls(rows.view(np.uint64), dim, reach=10.0)


def votes(means, seed=0):
    """±1 with the given means, each within [-1, 1]."""
    drawn = np.random.default_rng(seed).uniform(-1, 1, size=means.shape)
    return np.where(drawn < means, 1.0, -1.0)


def planted(users, dim, places, seed=0):
    """Users at `places` noises along one direction."""
    axis = np.random.default_rng(seed + 9).choice([-1.0, 1.0], dim) / math.sqrt(dim)
    return np.outer(np.broadcast_to(places, users), axis), axis


def everyone(users):
    return np.ones(users, dtype=np.bool_)


def test_on_pure_noise_scores_are_of_one_noise():
    for seed in range(5):
        look = look_at(packed(votes(np.zeros((400, 2000)), seed)), everyone(400), np.zeros(400))
        # Four standard errors of a variance from 400 users; the mean's weights are all alike.
        assert abs(float(look.mean.var()) - 1) < 4 * math.sqrt(2 / 400)
        assert look.shared.var() < SCORE_VARIANCE


def test_scores_on_the_mean_leave_out_the_users_own_ballot():
    rows = votes(planted(300, 3000, 4.0)[0])
    look = look_at(packed(rows), everyone(300), np.zeros(300))
    total = rows.sum(axis=0)
    exact = (rows @ total - 3000) / np.linalg.norm(total)
    assert np.abs(look.mean - exact).max() < 1.0  # the direction is rounded to a few bits
    assert float((look.mean - exact).std()) < 0.3
    # With the own ballot every score would be about sqrt(dim / users) = 3.2 higher.
    assert float(look.mean.mean()) == pytest.approx(4.0 * 4 / math.sqrt(16 + 10), abs=0.3)


def test_users_who_are_not_present_have_no_say_but_a_score():
    places = np.where(np.arange(300) < 75, -30.0, 3.0)
    means, axis = planted(300, 2000, places)
    look = look_at(packed(votes(means)), np.arange(300) >= 75, np.zeros(300))
    assert look.mean[75:].mean() > 1.0
    assert look.mean[:75].mean() < -10.0
    assert abs(float(look.axis @ axis)) < 0.2 * float(np.linalg.norm(look.axis))


@pytest.mark.parametrize("seed", range(3))
def test_what_users_share_is_found_within_rounds(seed):
    """The mean is cancelled: 25 % at -9, 75 % at +3; only what users share tells them apart."""
    places = np.where(np.arange(400) < 100, -9.0, 3.0)
    scores = np.zeros(400)
    for number in range(4):
        means, axis = planted(400, 1000, places, seed)
        look = look_at(packed(votes(means, 10 * seed + number)), everyone(400), scores)
        scores = look.shared
    assert abs(float(look.axis @ axis)) > 0.85 * float(np.linalg.norm(look.axis))
    assert abs(float(scores[:100].mean() - scores[100:].mean())) > 9
    assert scores[100:].std() < 1.5


def test_passes_over_ballots_do_not_grow_with_users():
    """Linear time: the number of passes is fixed, and a pass is linear in K · dim."""
    counts = []
    for users in (100, 400, 1600):
        places = np.where(np.arange(users) < 0.3 * users, 9.0, 0.0)
        pulls = packed(votes(planted(users, 200, places)[0]))
        memory = Memory.fresh(users).heard(np.ones(users), np.ones(users), 0.9)
        with mock.patch.object(pulls, "scores", wraps=pulls.scores) as asked:
            judge(pulls, Rule(looks=2), None, memory, np.ones(200))
        counts.append(asked.call_count)
    assert max(counts) <= 1 + 2 * (1 + FIRST_STEPS)
    assert max(counts) <= 1.5 * min(counts)
