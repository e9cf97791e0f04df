"""The score history: exact sums, and small pushes that only many rounds show."""

import math

import numpy as np
import pytest

from defence.planted_votes import packed, planted, votes
from hushbit.defence.filter import ScoreHistory, filter_scores, oriented
from hushbit.defence.rules import FilterRule
from hushbit.errors import InvalidInput

USERS, DIM = 400, 500


def test_sums_decay_and_the_variance_of_their_noise_is_counted():
    history = ScoreHistory.fresh(3)
    for score in (4.0, 2.0):
        history = history.add_scores(np.full(3, score), np.full(3, -score), 0.5)
    assert history.mean.tolist() == [4.0] * 3
    assert history.drift.tolist() == [-4.0] * 3
    assert history.rounds.tolist() == [1.25] * 3  # variances of 0.5 · noise + noise


def test_rows_of_some_users_are_taken_and_replaced():
    history = ScoreHistory.fresh(5)
    some = np.array([1, 4])
    rows = history.rows(some).add_scores(np.array([1.0, 2.0]), np.zeros(2), 0.9)
    after = history.replace_rows(some, rows)
    assert after.mean.tolist() == [0, 1, 0, 0, 2]
    assert after.rounds.tolist() == [0, 1, 0, 0, 1]
    assert not history.mean.any()


def test_last_scores_are_used_only_if_all_users_took_part_in_the_last_round():
    history = ScoreHistory.fresh(5)
    for some in (np.array([1, 4]), np.array([0, 1, 2])):
        rows = history.rows(some)
        assert not rows.covers_all
        history = history.replace_rows(some, rows.end_round(np.ones(some.size), some < 0))
        assert history.in_last_round.tolist() == [user in some for user in range(5)]
    assert history.rows(np.array([0, 2])).covers_all
    assert not history.rows(np.array([0, 4])).covers_all


def test_a_history_is_restored_from_its_state():
    history = ScoreHistory.fresh(4).add_scores(np.arange(4.0), np.ones(4), 0.9)
    history = history.end_round(np.ones(4), np.arange(4) > 2)
    restored = ScoreHistory.from_state(history.state)
    assert all((getattr(restored, name) == part).all() for name, part in vars(history).items())
    assert restored.excluded.dtype == np.bool_
    for wrong in (
        {},
        {**history.state, "mean": np.zeros(3)},
        {**history.state, "more": np.ones(4)},
    ):
        with pytest.raises(InvalidInput):
            ScoreHistory.from_state(wrong)


def rounds_of(places, count, seed=0):
    """Results of rounds in which users are at `places` sigma along the drift direction."""
    history, results = ScoreHistory.fresh(USERS), []
    for number in range(count):
        means, axis = planted(USERS, DIM, places, seed)
        decoded = packed(votes(means, 100 * seed + number))
        results.append(filter_scores(decoded, FilterRule(), None, history, axis))
        history = results[-1].history
    return results


def test_a_small_push_is_found_over_rounds_and_not_in_one_round():
    """Honest users at +0.5 sigma, a fifth of all users at -1.5 sigma."""
    places = np.where(np.arange(USERS) < 80, -1.5, 0.5)
    results = rounds_of(places, 20)
    assert results[0].removed == 0
    assert (~results[-1].accepted[:80]).mean() > 0.95
    assert (~results[-1].accepted[80:]).mean() <= 0.01
    assert results[-1].excluded_by_history == results[-1].removed


@pytest.mark.parametrize("seed", range(3))
def test_honest_users_stay_over_rounds(seed):
    rng = np.random.default_rng(seed)
    for places in (np.zeros(USERS), np.full(USERS, 2.0), rng.normal(1.0, 1.0, USERS)):
        results = rounds_of(places, 12, seed)
        assert sum(result.removed for result in results) <= 0.01 * 12 * USERS


def test_attackers_who_become_honest_are_readmitted():
    history, accepted = ScoreHistory.fresh(USERS), []
    for number in range(90):
        attack = -2.0 if number < 15 else 1.0
        places = np.where(np.arange(USERS) < 80, attack, 1.0)
        means, axis = planted(USERS, DIM, places)
        result = filter_scores(packed(votes(means, number)), FilterRule(), None, history, axis)
        history = result.history
        accepted.append(result.accepted[:80].mean())
    assert accepted[14] < 0.05
    assert accepted[89] > 0.9


def test_excluded_users_stay_excluded_while_scores_are_noise():
    """Sums decay; a small sum is no evidence of honest behaviour."""
    history = ScoreHistory.fresh(USERS)
    for number in range(80):
        places = np.where(np.arange(USERS) < 80, -2.0, 1.0) if number < 15 else 0.0
        means, axis = planted(USERS, DIM, places)
        result = filter_scores(packed(votes(means, number)), FilterRule(), None, history, axis)
        history = result.history
        if number == 40:
            assert (~result.accepted[:80]).mean() > 0.6
    assert result.accepted[80:].mean() > 0.98


def test_two_rounds_exclude_nobody():
    """A natural group scores low in the first two rounds and high later."""
    history = ScoreHistory.fresh(USERS)
    for number in range(12):
        places = np.where(np.arange(USERS) < 24, -6.0 if number < 2 else 3.0, 3.0)
        means, axis = planted(USERS, DIM, places)
        result = filter_scores(packed(votes(means, number)), FilterRule(), None, history, axis)
        history = result.history
        assert result.removed == 0


def test_the_median_of_oriented_scores_is_not_negative():
    scores = np.array([-3.0, -2.0, -1.0, 5.0, 6.0])
    assert (oriented(scores, np.arange(5) < 4) == -scores).all()
    assert (oriented(scores, np.arange(5) > 1) == scores).all()


def test_the_majority_decides_the_sign_of_the_sums():
    """Honest users, 70 %, score against the drift direction; the others are excluded."""
    places = np.where(np.arange(USERS) < 120, 3.0, -2.0)
    results = rounds_of(places, 20)
    assert (~results[-1].accepted[:120]).mean() > 0.95
    assert (~results[-1].accepted[120:]).mean() <= 0.01


def test_a_majority_is_never_excluded():
    places = np.where(np.arange(USERS) < 240, -3.0, 3.0)
    for result in rounds_of(places, 12):
        assert 2 * result.accepted.sum() >= USERS


def excluded_after(mean, drift, excluded=False):
    """The excluded users after a round of pure noise, given the sums of earlier rounds."""
    rounds, decay = 10.0, FilterRule().decay
    before = math.sqrt(decay**2 * rounds + 1) / decay
    sums = (np.full(USERS, before * np.asarray(part)) for part in (mean, drift))
    shared = np.random.default_rng(3).normal(size=USERS)
    everyone = np.ones(USERS, dtype=np.bool_)
    history = ScoreHistory(*sums, np.full(USERS, rounds), shared, everyone & excluded, everyone)
    means, axis = planted(USERS, DIM, 0.0)
    return filter_scores(
        packed(votes(means, 1)), FilterRule(), None, history, axis
    ).history.excluded


def test_as_many_as_training_leaves_behind_stay_and_more_do_not():
    """A natural group may be in the tail of the drift sum, but not of the mean sum."""
    natural = FilterRule().natural_share
    for share, expected in ((natural - 0.02, False), (natural + 0.05, True)):
        some = np.arange(USERS) < share * USERS
        out = excluded_after(2.0, np.where(some, -9.0, 1.0))
        assert (out[some] == expected).all()
        assert not out[~some].any()
    some = np.arange(USERS) < (natural - 0.02) * USERS
    assert excluded_after(np.where(some, -9.0, 1.0), 2.0)[some].all()


@pytest.mark.parametrize(("mean", "drift"), [(0.7, 2.0), (4.0, 0.2), (4.0, 8.0), (11.0, 2.0)])
def test_excluded_users_out_of_range_of_the_others_stay_excluded(mean, drift):
    """The others are at 2 and 1; one sum of the excluded is too small or too large."""
    known = np.arange(USERS) < 40
    sums = np.where(known, mean, 2.0), np.where(known, drift, 1.0)
    assert excluded_after(*sums, known)[known].mean() > 0.9
    assert not excluded_after(*sums).any()  # nobody is newly excluded
    assert excluded_after(np.where(known, 4.0, 2.0), 1.0, known)[known].mean() > 0.9


def test_excluded_users_return_together_if_the_others_have_large_sums():
    known = np.arange(USERS) < 40
    for forward, stays in ((4.0, False), (2.0, True)):  # noise may explain 2.0
        out = excluded_after(
            np.where(known, forward + 0.7, forward), np.where(known, 1.7, 1.0), known
        )
        assert (out[known].mean() > 0.9) == stays
        assert (out[known].mean() < 0.5) != stays
        assert not out[~known].any()


def test_one_user_who_leaves_the_excluded_returns_alone():
    """The excluded are at -9, this user is among the others."""
    known, one = np.arange(USERS) < 40, np.arange(USERS) == 7
    sums = np.where(known & ~one, -9.0, np.where(one, 3.2, 2.0))
    out = excluded_after(sums, np.where(one, 2.2, 1.0), known)
    assert (out == (known & ~one)).all()


def test_the_midpoint_readmits_honest_users_and_excludes_the_coalition():
    """40 honest users were excluded, 10 of the coalition were not."""
    bad = np.arange(USERS) < 120
    known = (np.arange(USERS) < 110) | (np.arange(USERS) >= 360)
    drift = np.where(bad, -9.0, np.where(known, -1.0, 1.0))
    assert (excluded_after(2.0, drift, known) == bad).all()


def test_earlier_exclusions_are_dropped_where_they_would_remove_a_majority():
    """Users found now and users excluded before are more than half together."""
    known, new = np.arange(USERS) >= 0.6 * USERS, np.arange(USERS) < 0.12 * USERS
    out = excluded_after(np.where(new, -9.0, 4.0), np.where(known, -1.5, 1.0), known)
    assert (out == new).all()


@pytest.mark.parametrize(
    "bad",
    [
        np.full(3, np.nan),
        np.full(3, np.inf),
        np.zeros(2),
        np.zeros((3, 1)),
        np.zeros(3, complex),
        np.array(["a", "b", "c"]),
    ],
)
@pytest.mark.parametrize("name", ["mean", "shared", "excluded"])
def test_a_damaged_history_is_refused(name, bad):
    state = ScoreHistory.fresh(3).state
    assert ScoreHistory.from_state(state).mean.tolist() == [0, 0, 0]
    with pytest.raises(InvalidInput, match="one finite number per user"):
        ScoreHistory.from_state({**state, name: bad})
    with pytest.raises(InvalidInput, match="negative"):
        ScoreHistory.from_state({**state, "rounds": np.array([1.0, -5.0, 1.0])})
