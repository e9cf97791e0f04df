"""What is remembered of users: exact sums, and small pushes that only many rounds tell."""

import math

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


def test_scores_of_the_last_round_are_gone_on_with_only_if_all_were_there():
    memory = Memory.fresh(5)
    for some in (np.array([1, 4]), np.array([0, 1, 2])):
        rows = memory.of(some)
        assert not rows.goes_on
        memory = memory.with_rows(some, rows.after(np.ones(some.size), some < 0))
        assert memory.last.tolist() == [user in some for user in range(5)]
    assert memory.of(np.array([0, 2])).goes_on
    assert not memory.of(np.array([0, 4])).goes_on


def test_a_checkpoint_brings_all_of_it_back():
    memory = Memory.fresh(4).heard(np.arange(4.0), np.ones(4), 0.9)
    memory = memory.after(np.ones(4), np.arange(4) > 2)
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
    for number in range(90):
        bad = number < 15
        places = np.where(np.arange(USERS) < 80, -2.0 if bad else 1.0, 1.0)
        means, axis = planted(USERS, DIM, places)
        verdict = judge(packed(votes(means, number)), Rule(), None, memory, axis)
        memory = verdict.memory
        accepted.append(verdict.accepted[:80].mean())
    assert accepted[14] < 0.05
    assert accepted[89] > 0.9


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


def test_one_round_is_no_record():
    """A natural group against the others in the first rounds, with them later: nobody is out."""
    memory = Memory.fresh(USERS)
    for number in range(12):
        places = np.where(np.arange(USERS) < 24, -6.0 if number < 2 else 3.0, 3.0)
        means, axis = planted(USERS, DIM, places)
        verdict = judge(packed(votes(means, number)), Rule(), None, memory, axis)
        memory = verdict.memory
        assert verdict.removed == 0


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


def judged_after(mean, way, gone=False):
    """Who is out after a round of pure noise, the sums of earlier rounds being these."""
    rounds, keep = 10.0, Rule().memory
    before = math.sqrt(keep**2 * rounds + 1) / keep
    sums = (np.full(USERS, before * np.asarray(part)) for part in (mean, way))
    shared = np.random.default_rng(3).normal(size=USERS)
    everyone = np.ones(USERS, dtype=np.bool_)
    memory = Memory(*sums, np.full(USERS, rounds), shared, everyone & gone, everyone)
    means, axis = planted(USERS, DIM, 0.0)
    return judge(packed(votes(means, 1)), Rule(), None, memory, axis).memory.gone


def test_a_tail_that_training_leaves_behind_stays_and_a_coalition_does_not():
    """As many as a natural group below on the model's way, but not on the others' mean."""
    natural = Rule().share
    for share, expected in ((natural - 0.02, False), (natural + 0.05, True)):
        some = np.arange(USERS) < share * USERS
        out = judged_after(2.0, np.where(some, -9.0, 1.0))
        assert (out[some] == expected).all()
        assert not out[~some].any()
    some = np.arange(USERS) < (natural - 0.02) * USERS
    assert judged_after(np.where(some, -9.0, 1.0), 2.0)[some].all()


@pytest.mark.parametrize(("mean", "way"), [(0.7, 2.0), (4.0, 0.2), (4.0, 8.0), (11.0, 2.0)])
def test_who_was_found_stays_out_unless_it_stands_with_the_others(mean, way):
    """Beside users at 2 and 1: barely above zero, or far ahead on either sum; and all together."""
    known = np.arange(USERS) < 40
    sums = np.where(known, mean, 2.0), np.where(known, way, 1.0)
    assert judged_after(*sums, known)[known].mean() > 0.9
    assert not judged_after(*sums).any()  # nobody would be found anew
    assert judged_after(np.where(known, 4.0, 2.0), 1.0, known)[known].mean() > 0.9


def test_those_found_come_back_together_where_the_others_stand_forward():
    known = np.arange(USERS) < 40
    for forward, stays in ((4.0, False), (2.0, True)):  # of 2.0 noise may be the reason
        out = judged_after(
            np.where(known, forward + 0.7, forward), np.where(known, 1.7, 1.0), known
        )
        assert (out[known].mean() > 0.9) == stays
        assert (out[known].mean() < 0.5) != stays
        assert not out[~known].any()


def test_one_who_leaves_those_found_comes_back_alone():
    """They stand at -9, it stands with the others."""
    known, one = np.arange(USERS) < 40, np.arange(USERS) == 7
    sums = np.where(known & ~one, -9.0, np.where(one, 3.2, 2.0))
    out = judged_after(sums, np.where(one, 2.2, 1.0), known)
    assert (out == (known & ~one)).all()


def test_honest_users_who_went_with_a_coalition_come_back_once_the_gap_is_clear():
    """Below the median of the others, as half of them are; the coalition's last users go."""
    bad = np.arange(USERS) < 120
    known = (np.arange(USERS) < 110) | (np.arange(USERS) >= 360)
    way = np.where(bad, -9.0, np.where(known, -1.0, 1.0))
    assert (judged_after(2.0, way, known) == bad).all()


def test_found_before_and_newly_found_leave_a_majority():
    """Those found now go alone if with those of earlier rounds they were more than half."""
    known, new = np.arange(USERS) >= 0.6 * USERS, np.arange(USERS) < 0.12 * USERS
    out = judged_after(np.where(new, -9.0, 4.0), np.where(known, -1.5, 1.0), known)
    assert (out == new).all()


@pytest.mark.parametrize("bad", [
    np.full(3, np.nan), np.full(3, np.inf), np.zeros(2), np.zeros((3, 1)), np.zeros(3, complex),
    np.array(["a", "b", "c"]),
])  # fmt: skip
@pytest.mark.parametrize("name", ["mean", "shared", "gone"])
def test_a_damaged_memory_is_refused(name, bad):
    state = Memory.fresh(3).state
    assert Memory.resumed(state).mean.tolist() == [0, 0, 0]
    with pytest.raises(InvalidInput, match="each a finite number for every user"):
        Memory.resumed({**state, name: bad})
    with pytest.raises(InvalidInput, match="negative"):
        Memory.resumed({**state, "rounds": np.array([1.0, -5.0, 1.0])})
