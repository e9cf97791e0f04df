"""From round to round: who was found is found again, who comes back is looked at first."""

import numpy as np
import pytest

from hushbit import CPA, RoundKey, SeededCoins
from hushbit.errors import InvalidInput
from hushbit.robust.filter import judge, look_from_chance
from hushbit.robust.filtered import filtered_tally
from hushbit.robust.memory import Memory
from hushbit.robust.rules import Rule, other_minds
from robust.test_look import packed, votes

DIM = 2000
RNG = np.random.default_rng(0)
FORWARD, ASIDE = RNG.choice([-1.0, 1.0], (2, DIM)) / np.sqrt(DIM)
RULE = Rule()


def ballots_of(ahead, aside, seed):
    """Votes of users so many noises ahead and aside of the model's way."""
    return votes(np.outer(ahead, FORWARD) + np.outer(aside, ASIDE), seed)


def remembered(sums, gone):
    """A memory of ten rounds in which all took part; who is found keeps aside."""
    users, rounds = gone.size, 10.0
    sums = np.broadcast_to(sums, users) * np.sqrt(rounds)
    shared = np.random.default_rng(1).normal(size=users)
    everyone = np.ones(users, dtype=np.bool_)
    return Memory(sums, sums, np.full(users, rounds), shared, gone, everyone)


@pytest.mark.parametrize("groups", [((0.3, 14.0),), ((0.3, 14.0), (0.12, -14.0))])
def test_a_coalition_that_this_round_finds_is_found_in_the_next_ones(groups):
    """It does not work against mean or way, so sums do not tell it."""
    users, memory, aside, first = 400, Memory.fresh(400), np.zeros(400), 0
    for share, place in groups:
        aside[first : first + round(share * users)] = place
        first += round(share * users)
    for number in range(8):
        pulls = packed(ballots_of(np.full(users, 10.0), aside, number))
        verdict = judge(pulls, RULE, None, memory, FORWARD if number else None)
        memory = verdict.memory
        assert (verdict.accepted == (aside == 0)).mean() > 0.98, number


def test_a_coalition_is_found_whoever_takes_part():
    """A fifth of all users a round: what the last round's shared says nothing of these."""
    rng, memory = np.random.default_rng(2), Memory.fresh(1500)
    attackers = rng.permutation(1500) < 450
    for number in range(8):
        some = np.sort(rng.permutation(1500)[:300])
        pulls = packed(ballots_of(np.full(300, 10.0), 14.0 * attackers[some], number))
        verdict = judge(pulls, RULE, None, memory.of(some), FORWARD if number else None)
        memory = memory.with_rows(some, verdict.memory)
        assert (verdict.accepted == ~attackers[some]).mean() > 0.98, number


def test_who_comes_back_counts_only_after_a_round_has_looked_at_it():
    """Sums are restored, and now every bit pulls aside: no honest user could send that."""
    users, gone = 400, np.arange(400) < 100
    rows = ballots_of(np.full(users, 2.0), np.zeros(users), 0)
    rows[gone] = np.sign(ASIDE)
    back = judge(packed(rows), RULE, None, remembered(6.0, gone), FORWARD)
    assert not back.memory.gone.any()
    assert not back.accepted[gone].any()
    assert back.accepted[~gone].all()
    assert (back.coins, back.minds, back.against) == (0, 0, 100)
    after = judge(packed(rows), RULE, None, back.memory, FORWARD)
    assert not after.accepted[gone].any()
    assert after.minds == 100


@pytest.mark.parametrize("held", [90, 120])
def test_where_too_many_are_held_those_found_now_go_all_the_same(held):
    """A quarter of all users beyond any reach; with 120 of 400 held that is more than half."""
    users = np.arange(400)
    gone, new = users < held, (users >= held) & (users < held + 100)
    rows = ballots_of(np.full(400, 2.0), np.zeros(400), 0)
    rows[new] = np.sign(ASIDE)
    verdict = judge(packed(rows), RULE, None, remembered(np.where(gone, -1.5, 2.0), gone), FORWARD)
    assert not verdict.accepted[new].any()
    assert verdict.accepted[~(gone | new)].all()
    assert verdict.accepted[gone].all() == (held > 100)  # these were looked at with all others


def test_few_users_are_not_compared_but_who_was_found_stays_out():
    gone = np.arange(19) < 5
    rows = ballots_of(np.zeros(19), np.zeros(19), 0)
    verdict = judge(packed(rows), RULE, None, remembered(np.where(gone, -9.0, 6.0), gone), FORWARD)
    assert (verdict.accepted == ~gone).all()
    assert verdict.against == 5


def test_a_memory_that_may_not_be_written_to_is_read():
    """Cluster engines hand out such arrays."""
    for aside in (0.0, np.where(np.arange(100) < 30, 14.0, 0.0)):
        memory = remembered(2.0, np.zeros(100, dtype=np.bool_))
        pulls = packed(ballots_of(np.full(100, 2.0), np.broadcast_to(aside, 100), 0))
        free = judge(pulls, RULE, None, memory, FORWARD)
        for part in vars(memory).values():
            part.flags.writeable = False
        way = FORWARD.copy()
        way.flags.writeable = False
        bound = judge(pulls, RULE, None, memory, way)
        assert (bound.accepted == free.accepted).all()
        assert (bound.memory.mean == free.memory.mean).all()


def test_no_ballots_are_no_error_and_constant_bits_of_most_users_no_finding():
    mechanism, key = CPA(200, 0.5, 0.1), RoundKey(bytes(32), 1)
    for users in (0, 30):
        keys = key.users(np.arange(users))
        ballots = mechanism.encode_many(np.zeros((users, 200)), keys, SeededCoins(0))
        ballots.payload[: round(0.6 * users)] = 255
        tally, verdict = filtered_tally(mechanism, ballots, key)
        assert verdict.accepted.shape == (users,)
        assert (tally.count, verdict.coins) == (users, 0)


def test_users_of_many_kinds_stay_round_after_round():
    """Two groups divide along a direction, but in each there are kinds that differ as much."""
    rng, users = np.random.default_rng(4), 400
    kinds = rng.choice([-1.0, 1.0], (10, DIM)) / np.sqrt(DIM)
    kind = np.arange(users) % 10
    means = 18.0 * kinds[kind] + 3.0 * FORWARD + np.outer(np.where(kind < 4, -8.4, 5.6), ASIDE)
    memory, found = Memory.fresh(users), 0
    for number in range(12):
        pulls = packed(votes(means, number))
        look = look_from_chance(pulls, memory.gone | True, FORWARD)
        found += other_minds(look[:2], memory.gone | True, RULE).any()
        verdict = judge(pulls, RULE, None, memory, FORWARD)
        memory = verdict.memory
        assert verdict.removed == 0, number
    assert found > 6  # or the test would show nothing


@pytest.mark.parametrize(
    ("rows", "way", "word"),
    [
        (1, np.ones(200), "30 ballots; got 1"), (31, None, "30 ballots; got 31"),
        (30, np.ones(199), "200 numbers"), (30, np.ones((1, 200)), "200 numbers"),
    ],
)  # fmt: skip
def test_what_other_users_or_another_model_left_is_refused(rows, way, word):
    mechanism, key = CPA(200, 0.5, 0.1), RoundKey(bytes(32), 1)
    ballots = mechanism.encode_many(np.zeros((30, 200)), key.users(np.arange(30)), SeededCoins(0))
    with pytest.raises(InvalidInput, match=word):
        filtered_tally(mechanism, ballots, key, memory=Memory.fresh(rows), way=way)
    filtered_tally(mechanism, ballots, key, memory=Memory.fresh(30), way=np.ones(200))
