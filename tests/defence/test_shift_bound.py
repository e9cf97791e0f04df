"""Bounds on the shift of the mean: their formulas, and attacks that attain them."""

import math

import numpy as np
import pytest

from defence.planted_votes import packed, planted, votes
from defence.test_defence import DEFENCE, decide
from hushbit.baselines import FedAvg
from hushbit.cpa import CPA
from hushbit.defence.shift_bound import defended_shift
from hushbit.errors import InvalidInput
from lab.attacks.directed_ballots import MEAN, directed_ballots, mean_of

MECHANISM = CPA(2000, 0.5, 0.01, clip=0.2)
SIGMA = 0.01 / math.tanh(0.25)


def test_the_bounds_follow_their_formulas():
    bound = defended_shift(MECHANISM, 1000, 60, 0.3)
    z, log_rate = DEFENCE.slack(1000, 60), math.log(6 * 60 * 61 / 0.01)
    once = 0.2 + z * SIGMA
    free = 0.1 + (0.01 + math.sqrt(0.02 * log_rate) + 2 * log_rate / 3) / 1000
    assert bound.without_defence == pytest.approx(0.3 * SIGMA * math.sqrt(2000))
    assert bound.one_round == pytest.approx(0.3 * once)
    lasting = SIGMA * (0.5 + math.log(1000 / 0.01) / 55)
    assert bound.every_round == pytest.approx(free * once + (0.3 - free) * lasting)
    assert bound.every_round < bound.one_round < bound.without_defence
    few = defended_shift(MECHANISM, 1000, 60, 0.05)
    assert few.every_round == pytest.approx(few.one_round)


def test_directed_attackers_attain_the_bound_without_defence():
    mechanism = CPA(MEAN.size, 0.5, 0.02)
    shifted = mean_of(mechanism, directed_ballots(mechanism, -MEAN))
    bound = defended_shift(mechanism, 1000, 1, 0.25).without_defence
    assert 0.25 * float(np.linalg.norm(shifted)) == pytest.approx(bound)


def test_a_shorter_clip_lowers_the_bounds_and_no_bound_exceeds_the_one_without_defence():
    sharper = CPA(2000, 0.5, 0.01, clip=0.1)
    least, more = (defended_shift(one, 1000, 60, 0.3).one_round for one in (sharper, MECHANISM))
    assert least == pytest.approx(more - 0.3 * 0.1)
    few = CPA(20, 0.5, 0.01, clip=0.2)
    bound = defended_shift(few, 1000, 1, 0.3)
    assert bound.every_round == bound.one_round == bound.without_defence
    assert defended_shift(FedAvg(20), 1000, 60, 0.3) is None
    for wrong in (0.5, -0.1, "x"):
        with pytest.raises(InvalidInput):
            defended_shift(MECHANISM, 1000, 60, wrong)


def counted_pushes(strategy, rounds=60, users=200, attackers=60):
    """Sum of pushes of accepted ballots for each attacker, noise included, and the bound.

    The direction of the model is reversed in every third round: the sign follows the majority. The
    last value is the number of users whom the bound excepts.
    """
    bad, state = np.arange(users) < attackers, DEFENCE.start(users)
    total = np.zeros(users)
    for number in range(1, rounds + 1):
        means, axis = planted(users, 400, np.where(bad, -strategy(state, number), 1.0))
        decoded = packed(votes(means, number))
        model = axis if number % 3 else -axis
        result = decide(decoded, state, model, number)
        assert 2 * result.removed <= users
        scores = decoded.score(bad, ~bad, axis)[2]
        total -= np.where(result.accepted, scores, 0)
        state = result.state
    bound = rounds / 2 + DEFENCE.least_evidence(users)
    return total[bad], bound, DEFENCE.most_with_evidence(users, rounds)


@pytest.mark.parametrize("push", [0.3, 0.6, 1.0, 3.0, 8.0])
def test_few_users_push_further_against_the_model(push):
    pushes, bound, excepted = counted_pushes(lambda state, number: push)
    assert (pushes > bound).sum() <= excepted


@pytest.mark.parametrize("push", [2.0, 5.0, 8.0])
@pytest.mark.parametrize("back", [1.0, 8.0])
def test_no_user_gains_by_good_scores_that_do_not_count(push, back):
    """Push until held, send good scores until released, and push again."""
    pushes, bound, excepted = counted_pushes(
        lambda state, number: np.where(state["excluded"] > 0, -back, push)
    )
    assert (pushes > bound).sum() <= excepted


def test_no_user_gains_by_scores_out_of_range():
    """A score beyond the range in every second round is removed and lowers no evidence."""
    pushes, bound, excepted = counted_pushes(lambda state, number: -19.0 if number % 2 else 6.0)
    assert (pushes > bound).sum() <= excepted


def test_accepted_scores_are_within_the_range():
    """One user of 200 far out on the model: removed; the bound of one round holds for the rest."""
    for place in (5.0, 12.0, 19.0):
        means, axis = planted(200, 400, np.where(np.arange(200) < 1, place, 1.0))
        decoded = packed(votes(means, 3))
        result = decide(decoded, DEFENCE.start(200), axis, 1)
        everyone = np.ones(200, dtype=np.bool_)
        scores = decoded.score(everyone, ~everyone, axis)[2]
        limit = decoded.max_score + DEFENCE.slack(200, 1)
        assert (np.abs(scores[result.accepted]) <= limit).all()
        assert result.accepted[0] == (abs(scores[0]) <= limit)
