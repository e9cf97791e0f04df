"""The filter over rounds: coalitions stay removed, readmitted users are scored first."""

import numpy as np
import pytest

from defence.planted_votes import packed, votes
from hushbit.cpa import CPA
from hushbit.defence.filter import (
    ScoreHistory,
    filter_scores,
    filtered_tally,
    power_iteration_scores,
)
from hushbit.defence.rules import FilterRule, bimodal_group
from hushbit.errors import InvalidInput
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey

DIM = 2000
RNG = np.random.default_rng(0)
FORWARD, ASIDE = RNG.choice([-1.0, 1.0], (2, DIM)) / np.sqrt(DIM)
RULE = FilterRule()


def ballots_of(ahead, aside, seed):
    """Votes of users at `ahead` sigma along the drift direction and `aside` along another."""
    return votes(np.outer(ahead, FORWARD) + np.outer(aside, ASIDE), seed)


def history_of(sums, excluded):
    """A history of ten rounds in which all users took part."""
    users, rounds = excluded.size, 10.0
    sums = np.broadcast_to(sums, users) * np.sqrt(rounds)
    shared = np.random.default_rng(1).normal(size=users)
    everyone = np.ones(users, dtype=np.bool_)
    return ScoreHistory(sums, sums, np.full(users, rounds), shared, excluded, everyone)


@pytest.mark.parametrize("groups", [((0.3, 14.0),), ((0.3, 14.0), (0.12, -14.0))])
def test_a_coalition_is_found_in_every_round(groups):
    """It does not push against mean or drift, so the sums do not show it."""
    users, history, aside, first = 400, ScoreHistory.fresh(400), np.zeros(400), 0
    for share, place in groups:
        aside[first : first + round(share * users)] = place
        first += round(share * users)
    for number in range(8):
        decoded = packed(ballots_of(np.full(users, 10.0), aside, number))
        result = filter_scores(decoded, RULE, None, history, FORWARD if number else None)
        history = result.history
        assert (result.accepted == (aside == 0)).mean() > 0.98, number


def test_a_coalition_is_found_with_partial_participation():
    """A fifth of the users per round: scores of the last round are those of other users."""
    rng, history = np.random.default_rng(2), ScoreHistory.fresh(1500)
    attackers = rng.permutation(1500) < 450
    for number in range(8):
        some = np.sort(rng.permutation(1500)[:300])
        decoded = packed(ballots_of(np.full(300, 10.0), 14.0 * attackers[some], number))
        result = filter_scores(decoded, RULE, None, history.rows(some), FORWARD if number else None)
        history = history.replace_rows(some, result.history)
        assert (result.accepted == ~attackers[some]).mean() > 0.98, number


def test_readmitted_users_count_only_after_a_round_has_scored_them():
    """Their sums are restored, and now every bit pushes aside, beyond the maximum score."""
    users, excluded = 400, np.arange(400) < 100
    rows = ballots_of(np.full(users, 2.0), np.zeros(users), 0)
    rows[excluded] = np.sign(ASIDE)
    first = filter_scores(packed(rows), RULE, None, history_of(6.0, excluded), FORWARD)
    assert not first.history.excluded.any()
    assert not first.accepted[excluded].any()
    assert first.accepted[~excluded].all()
    assert (first.biased, first.excluded_by_round, first.excluded_by_history) == (0, 0, 100)
    second = filter_scores(packed(rows), RULE, None, first.history, FORWARD)
    assert not second.accepted[excluded].any()
    assert second.excluded_by_round == 100


@pytest.mark.parametrize("held", [90, 120])
def test_new_attackers_are_removed_even_if_many_users_are_excluded(held):
    """100 of 400 users exceed the maximum score; with 120 excluded that is more than half."""
    users = np.arange(400)
    excluded, new = users < held, (users >= held) & (users < held + 100)
    rows = ballots_of(np.full(400, 2.0), np.zeros(400), 0)
    rows[new] = np.sign(ASIDE)
    result = filter_scores(
        packed(rows), RULE, None, history_of(np.where(excluded, -1.5, 2.0), excluded), FORWARD
    )
    assert not result.accepted[new].any()
    assert result.accepted[~(excluded | new)].all()
    assert result.accepted[excluded].all() == (held > 100)  # released and scored with all others


def test_few_users_are_not_compared_but_excluded_users_stay_excluded():
    excluded = np.arange(19) < 5
    rows = ballots_of(np.zeros(19), np.zeros(19), 0)
    result = filter_scores(
        packed(rows), RULE, None, history_of(np.where(excluded, -9.0, 6.0), excluded), FORWARD
    )
    assert (result.accepted == ~excluded).all()
    assert result.excluded_by_history == 5


def test_a_read_only_history_is_accepted():
    """Cluster engines pass read-only arrays."""
    for aside in (0.0, np.where(np.arange(100) < 30, 14.0, 0.0)):
        history = history_of(2.0, np.zeros(100, dtype=np.bool_))
        decoded = packed(ballots_of(np.full(100, 2.0), np.broadcast_to(aside, 100), 0))
        writeable = filter_scores(decoded, RULE, None, history, FORWARD)
        for part in vars(history).values():
            part.flags.writeable = False
        drift_direction = FORWARD.copy()
        drift_direction.flags.writeable = False
        read_only = filter_scores(decoded, RULE, None, history, drift_direction)
        assert (read_only.accepted == writeable.accepted).all()
        assert (read_only.history.mean == writeable.history.mean).all()


def test_no_ballots_and_constant_bits_of_most_users_are_accepted():
    mechanism, key = CPA(200, 0.5, 0.1), RoundKey(bytes(32), 1)
    for users in (0, 30):
        keys = key.users(np.arange(users))
        ballots = mechanism.encode_many(np.zeros((users, 200)), keys, SeededCoins(0))
        ballots.payload[: round(0.6 * users)] = 255
        tally, result = filtered_tally(mechanism, ballots, key)
        assert result.accepted.shape == (users,)
        assert (tally.count, result.biased) == (users, 0)


def test_users_of_many_kinds_stay_in_every_round():
    """Scores are bimodal, but users of each group differ as much among themselves."""
    rng, users = np.random.default_rng(4), 400
    kinds = rng.choice([-1.0, 1.0], (10, DIM)) / np.sqrt(DIM)
    kind = np.arange(users) % 10
    means = 18.0 * kinds[kind] + 3.0 * FORWARD + np.outer(np.where(kind < 4, -8.4, 5.6), ASIDE)
    history, found = ScoreHistory.fresh(users), 0
    for number in range(12):
        decoded = packed(votes(means, number))
        scores = power_iteration_scores(decoded, history.excluded | True, FORWARD)
        found += bimodal_group(scores[:2], history.excluded | True, RULE).any()
        result = filter_scores(decoded, RULE, None, history, FORWARD)
        history = result.history
        assert result.removed == 0, number
    assert found > 6  # or the test shows nothing


@pytest.mark.parametrize(
    ("rows", "drift_direction", "word"),
    [
        (1, np.ones(200), "30 ballots; got 1"),
        (31, None, "30 ballots; got 31"),
        (30, np.ones(199), "200 entries"),
        (30, np.ones((1, 200)), "200 entries"),
    ],
)
def test_a_history_or_drift_of_another_size_is_refused(rows, drift_direction, word):
    mechanism, key = CPA(200, 0.5, 0.1), RoundKey(bytes(32), 1)
    ballots = mechanism.encode_many(np.zeros((30, 200)), key.users(np.arange(30)), SeededCoins(0))
    with pytest.raises(InvalidInput, match=word):
        filtered_tally(
            mechanism,
            ballots,
            key,
            history=ScoreHistory.fresh(rows),
            drift_direction=drift_direction,
        )
    filtered_tally(
        mechanism, ballots, key, history=ScoreHistory.fresh(30), drift_direction=np.ones(200)
    )
