"""What is remembered of users: exact sums, and small pushes that only many rounds tell."""

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.robust.filter import judge, turned
from hushbit.robust.memory import Memory
from hushbit.robust.rules import Rule
from robust.test_look import packed, planted, votes

USERS, DIM = 400, 500


def test_sums_fade_and_their_noise_is_counted():
    memory = Memory.fresh(3)
    for score in (4.0, 2.0):
        memory = memory.heard(np.full(3, score), np.full(3, -score), 0.5)
    assert memory.mean.tolist() == [4.0] * 3
    assert memory.way.tolist() == [-4.0] * 3
    assert memory.rounds.tolist() == [1.25] * 3  # variances of 0.5 · noise + noise


def test_rows_of_some_users_come_and_go():
    memory = Memory.fresh(5)
    some = np.array([1, 4])
    heard = memory.of(some).heard(np.array([1.0, 2.0]), np.zeros(2), 0.9)
    after = memory.with_rows(some, heard)
    assert after.mean.tolist() == [0, 1, 0, 0, 2]
    assert after.rounds.tolist() == [0, 1, 0, 0, 1]
    assert not memory.mean.any()


def test_a_checkpoint_brings_all_of_it_back():
    memory = Memory.fresh(4).heard(np.arange(4.0), np.ones(4), 0.9)
    memory = Memory(memory.mean, memory.way, memory.rounds, np.ones(4), np.arange(4) > 2)
    back = Memory.resumed(memory.state)
    assert all((getattr(back, name) == part).all() for name, part in vars(memory).items())
    assert back.gone.dtype == np.bool_
    for wrong in ({}, {**memory.state, "mean": np.zeros(3)}, {**memory.state, "more": np.ones(4)}):
        with pytest.raises(InvalidInput):
            Memory.resumed(wrong)


def rounds_of(places, count, seed=0):
    """Verdicts of rounds in which users stand at `places` along the way of the model."""
    memory, verdicts = Memory.fresh(USERS), []
    for number in range(count):
        means, axis = planted(USERS, DIM, places, seed)
        pulls = packed(votes(means, 100 * seed + number))
        verdicts.append(judge(pulls, Rule(), None, memory, axis))
        memory = verdicts[-1].memory
    return verdicts


def test_a_small_push_in_every_round_is_found_and_in_one_round_is_not():
    """Honest users half a noise ahead, a fifth of all users 1.5 noises back."""
    places = np.where(np.arange(USERS) < 80, -1.5, 0.5)
    verdicts = rounds_of(places, 20)
    assert verdicts[0].removed == 0
    assert (~verdicts[-1].accepted[:80]).mean() > 0.95
    assert (~verdicts[-1].accepted[80:]).mean() <= 0.01
    assert verdicts[-1].against == verdicts[-1].removed


@pytest.mark.parametrize("seed", range(3))
def test_honest_users_stay_over_rounds_even_if_few_gain_nothing(seed):
    rng = np.random.default_rng(seed)
    for places in (np.zeros(USERS), np.full(USERS, 2.0), rng.normal(1.0, 1.0, USERS)):
        verdicts = rounds_of(places, 12, seed)
        assert sum(verdict.removed for verdict in verdicts) <= 0.01 * 12 * USERS


def test_who_comes_round_is_counted_again():
    memory, accepted = Memory.fresh(USERS), []
    for number in range(60):
        bad = number < 15
        places = np.where(np.arange(USERS) < 80, -2.0 if bad else 1.0, 1.0)
        means, axis = planted(USERS, DIM, places)
        verdict = judge(packed(votes(means, number)), Rule(), None, memory, axis)
        memory = verdict.memory
        accepted.append(verdict.accepted[:80].mean())
    assert accepted[14] < 0.05
    assert accepted[59] > 0.95


def test_who_was_found_stays_out_while_rounds_say_nothing():
    """Sums fade; that they are small is no sign of having come round."""
    memory = Memory.fresh(USERS)
    for number in range(80):
        places = np.where(np.arange(USERS) < 80, -2.0, 1.0) if number < 15 else 0.0
        means, axis = planted(USERS, DIM, places)
        verdict = judge(packed(votes(means, number)), Rule(), None, memory, axis)
        memory = verdict.memory
        if number == 40:
            assert (~verdict.accepted[:80]).mean() > 0.6
    assert verdict.accepted[80:].mean() > 0.98


def test_most_users_have_scores_above_zero():
    scores = np.array([-3.0, -2.0, -1.0, 5.0, 6.0])
    assert (turned(scores, np.arange(5) < 4) == -scores).all()
    assert (turned(scores, np.arange(5) > 1) == scores).all()


def test_the_majority_says_which_way_is_forward():
    """The way leads back: honest users, 70 %, score against it, and still the others go."""
    places = np.where(np.arange(USERS) < 120, 3.0, -2.0)
    verdicts = rounds_of(places, 20)
    assert (~verdicts[-1].accepted[:120]).mean() > 0.95
    assert (~verdicts[-1].accepted[120:]).mean() <= 0.01


def test_a_majority_is_never_against_the_others():
    places = np.where(np.arange(USERS) < 240, -3.0, 3.0)
    for verdict in rounds_of(places, 12):
        assert 2 * verdict.accepted.sum() >= USERS
