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

MECHANISM = CPA(2000, 0.5, 0.01, clip=0.2)
SIGMA = 0.01 / math.tanh(0.25)


def test_the_bounds_follow_their_formulas():
    bound = defended_shift(MECHANISM, 1000, 60, 0.3)
    z, h = DEFENCE.slack(1000, 60), math.log(3 * 60 * 61 / 0.01)
    assert bound.without_defence == pytest.approx(0.3 * SIGMA * math.sqrt(2000))
    assert bound.one_round == pytest.approx(0.3 * (0.2 + z * SIGMA))
    assert bound.every_round == pytest.approx(0.3 * SIGMA * (0.5 + (h + 0.2 / SIGMA + z) / 60))
    assert bound.every_round < bound.one_round < bound.without_defence


def test_a_shorter_clip_lowers_the_bounds_and_no_bound_exceeds_the_one_without_defence():
    assert defended_shift(MECHANISM, 1000, 60, 0.3, clip=0.1).one_round < 0.3 * 0.5
    few = CPA(20, 0.5, 0.01, clip=0.2)
    bound = defended_shift(few, 1000, 1, 0.3)
    assert bound.every_round == bound.one_round == bound.without_defence
    assert defended_shift(FedAvg(20), 1000, 60, 0.3) is None
    for wrong in (0.5, -0.1, "x"):
        with pytest.raises(InvalidInput):
            defended_shift(MECHANISM, 1000, 60, wrong)


@pytest.mark.parametrize("push", [0.6, 1.0, 3.0, 8.0])
def test_no_user_pushes_further_against_the_steps(push):
    """10 % of the users push in every round; the counted pushes stay below T / 2 + h + once."""
    attackers, rounds = np.arange(200) < 20, 60
    state, total = DEFENCE.start(200), np.zeros(200)
    for number in range(1, rounds + 1):
        means, axis = planted(200, 400, np.where(attackers, -push, 1.0))
        decoded = packed(votes(means, number))
        result = decide(decoded, state, axis, number)
        state, total = result.state, total + push * result.accepted
    once = decoded.max_score + DEFENCE.slack(200, rounds)
    most = rounds / 2 - math.log(DEFENCE.rate_in(rounds)) + once
    assert total[attackers].mean() <= most
