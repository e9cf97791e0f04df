"""Scores of a look: own ballots are left out, what users share is found, cost is linear."""

import math
from unittest import mock

import numpy as np
import pytest

from hushbit.robust.filter import FIRST_STEPS, judge, look_from_chance
from hushbit.robust.humps import halved
from hushbit.robust.memory import Memory
from hushbit.robust.pulls import PackedPulls
from hushbit.robust.rules import SCORE_VARIANCE, Rule


def packed(votes):
    """Pulls of rows of ±1."""
    users, dim = votes.shape
    rows = np.zeros((users, 8 * -(-dim // 64)), dtype=np.uint8)
    bits = np.packbits(votes > 0, axis=1, bitorder="little")
    rows[:, : bits.shape[1]] = bits
    return PackedPulls.of_rows(rows.view(np.uint64), dim, reach=10.0)


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
    way = np.random.default_rng(5).normal(size=2000)
    for seed in range(5):
        pulls = packed(votes(np.zeros((400, 2000)), seed))
        mean, shared, along = look_from_chance(pulls, everyone(400), way)
        # Four standard errors of a variance from 400 users; the mean's weights are all alike.
        for scores in (mean, along):
            assert abs(float(scores.var()) - 1) < 4 * math.sqrt(2 / 400)
            # Users share the mean's noise, so theirs on it do not average out as fast.
            assert abs(float(scores.mean())) < 8 / math.sqrt(400)
        assert shared.var() < SCORE_VARIANCE


@pytest.mark.parametrize("users", [299, 300])
def test_scores_on_the_mean_leave_out_the_users_own_ballot(users):
    rows = votes(planted(users, 3000, 4.0)[0])
    mean = look_from_chance(packed(rows), everyone(users), None)[0]
    total = rows.sum(axis=0)
    exact = (rows @ total - 3000) / np.linalg.norm(total)
    assert float(np.corrcoef(mean, exact)[0, 1]) > 0.85  # the direction is rounded: 90 % of it
    # With the own ballot every score would be about sqrt(dim / users) = 3.2 higher.
    assert float(mean.mean()) == pytest.approx(0.9 * float(exact.mean()), abs=0.3)


@pytest.mark.parametrize("users", [120, 121])
def test_the_own_part_is_what_the_direction_would_lack_without_the_ballot(users):
    """Against every direction made again without the user; on average over users."""
    rows = votes(np.zeros((users, 400)), seed=users)
    above, below = halved(np.arange(users, dtype=np.float64), everyone(users))
    pulls = packed(rows)
    look = pulls.look(above, below, None)
    for number, sides in enumerate((np.ones(users), 1.0 * above - below)):
        left_out = []
        for user in range(users):
            rest = sides @ rows - sides[user] * rows[user]
            limit = 0.612 * math.sqrt(float(((sides @ rows) ** 2).mean()))
            levels = np.sign(rest) * (np.abs(rest) > limit)
            left_out.append(float(rows[user] @ levels) / math.sqrt(float(np.abs(levels).sum())))
        # Both are means of the same users' scores, so they differ by rounding alone.
        assert float(look[number].mean()) == pytest.approx(np.mean(left_out), abs=0.15)


def test_users_who_are_not_present_have_no_say_but_a_score():
    places = np.where(np.arange(300) < 75, -30.0, 3.0)
    mean, _, _ = look_from_chance(
        packed(votes(planted(300, 2000, places)[0])), np.arange(300) >= 75, None
    )
    assert mean[75:].mean() > 1.0
    assert mean[:75].mean() < -10.0


@pytest.mark.parametrize("seed", range(3))
def test_what_users_share_is_found_within_rounds(seed):
    """The mean is cancelled: 25 % at -9, 75 % at +3; only what users share tells them apart."""
    places = np.where(np.arange(400) < 100, -9.0, 3.0)
    scores = np.random.default_rng(seed).normal(size=400)
    for number in range(8):
        means, _ = planted(400, 1000, places, seed)
        pulls = packed(votes(means, 10 * seed + number))
        scores = pulls.look(*halved(scores, everyone(400)), None)[1]
    assert abs(float(scores[:100].mean() - scores[100:].mean())) > 8
    assert scores[100:].std() < 1.5


def test_passes_over_ballots_do_not_grow_with_users():
    """Linear time: the number of passes is fixed, and a pass is linear in K · dim."""
    counts = []
    for users in (100, 400, 1600):
        places = np.where(np.arange(users) < 0.3 * users, 9.0, 0.0)
        pulls = packed(votes(planted(users, 200, places)[0]))
        memory = Memory.fresh(users).heard(np.ones(users), np.ones(users), 0.9)
        with mock.patch.object(pulls, "look", wraps=pulls.look) as asked:
            judge(pulls, Rule(looks=2), None, memory, np.ones(200))
        counts.append(asked.call_count)
    assert max(counts) <= (1 + 2) * FIRST_STEPS
    assert counts[1] == counts[2]


def test_a_round_with_a_warm_memory_and_nobody_to_find_looks_once():
    pulls = packed(votes(np.zeros((400, 2000))))
    memory = Memory.fresh(400).heard(np.ones(400), np.ones(400), 0.9)
    memory = memory.after(np.arange(400.0), memory.gone)
    with mock.patch.object(pulls, "look", wraps=pulls.look) as asked:
        assert judge(pulls, Rule(), None, memory, np.ones(2000)).removed == 0
    assert asked.call_count == 1
