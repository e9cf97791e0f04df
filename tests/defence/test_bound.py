"""Bounds on the shift of the mean: attained where exact, ordered, and in the right units."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest

from hushbit.baselines.fedavg import FedAvg
from hushbit.cpa import CPA
from hushbit.defence.bound import _limit_depth, shift_bounds, worst_shift
from hushbit.defence.rules import DEFAULT_RULE, LIMIT_SIGMAS, mark_below_tail
from hushbit.errors import InvalidInput
from hushbit.wrappers import Rotated
from lab.attacks.directed_ballots import MEAN, directed_ballots, mean_of


def test_directed_attackers_attain_the_bound_without_filter():
    mechanism = CPA(MEAN.size, 0.5, 0.02)
    shifted = mean_of(mechanism, directed_ballots(mechanism, -MEAN))
    bound = worst_shift(0.25, MEAN.size, 1000, mechanism.votes.scale.noise, 0.1).without_filter
    assert 0.25 * float(np.linalg.norm(shifted)) == pytest.approx(bound)


def test_the_bound_of_one_round_is_clip_plus_slack():
    found = worst_shift(0.2, 7850, 1000, 0.04, 0.4)
    assert found.one_round == pytest.approx(0.2 * (0.4 + DEFAULT_RULE.slack(1000) * 0.04))
    assert found.filtered == found.one_round < found.without_filter
    scaled = worst_shift(0.2, 7850, 1000, 0.4, 4.0)
    assert scaled.filtered == pytest.approx(10 * found.filtered)
    assert worst_shift(0.0, 7850, 1000, 0.04, 0.4).filtered == 0.0


def test_a_push_in_every_round_is_bounded_by_the_score_history():
    rule, share = DEFAULT_RULE, 0.2
    found = worst_shift(share, 7850, 1000, 1.0, 3.0, honest_spread=2.0)
    lagging = rule.natural_share * (3.0 + rule.slack(1000))
    push = (found.every_round - lagging) / (share - rule.natural_share)
    # A user who pushes that much in every round has a sum three sigma beyond the limit.
    decayed = rule.decay ** np.arange(2000)
    noise = math.sqrt((decayed**2).sum())
    limit = _limit_depth(rule, share) * math.hypot(1, 2.0 * decayed.sum() / noise)
    assert push * decayed.sum() / noise == pytest.approx(limit + LIMIT_SIGMAS, rel=1e-3)
    assert (
        worst_shift(share, 7850, 1000, 1.0, 3.0, honest_spread=3.0).every_round > found.every_round
    )
    assert found.every_round < 0.9 * found.one_round


def test_few_attackers_are_bounded_by_one_round_alone():
    for share in (0.05, DEFAULT_RULE.natural_share):
        found = worst_shift(share, 7850, 1000, 1.0, 20.0, honest_spread=0.0)
        assert found.every_round == found.one_round


def test_the_tail_limit_sinks_with_the_share_of_attackers_below_it():
    """A coalition just above the limit is not found; just below it is."""
    rule, users, honest = DEFAULT_RULE, 100_000, NormalDist()
    limits = rule.limits(users, 10.0, 0.2)
    for share in (0.2, 0.3, 0.4):
        below = round(share * users)
        ranks = (np.arange(users - below) + 0.5) / (users - below)
        sums = np.array([honest.inv_cdf(rank) for rank in ranks]) * 4.0 + 6.0
        everyone = np.ones(users, dtype=np.bool_)
        depth = _limit_depth(rule, share) * 4.0 - 6.0
        for more, found in ((-0.1, False), (0.1, True)):
            all_sums = np.concatenate([np.full(below, -depth - more), sums])
            out, nobody = ~everyone, ~everyone
            groups = everyone, nobody, nobody
            mark_below_tail(all_sums, *groups, rule.tail_sigmas, 0.0, everyone, limits, out)
            assert out[:below].all() == found


def test_attackers_who_accept_exclusion_leave_fewer_ballots_in_the_mean():
    found = worst_shift(0.4, 7850, 1000, 1.0, 200.0, honest_spread=0.0)
    lagging, once = DEFAULT_RULE.natural_share, 200.0 + DEFAULT_RULE.slack(1000)
    assert found.every_round == pytest.approx(lagging * once / (1 - 0.4 + lagging))


def test_the_bounds_grow_with_the_share_of_attackers():
    rows = shift_bounds(Rotated(CPA(7850, 0.5, 0.0084, clip=0.37)), 1000)
    assert [row.attackers for row in rows] == [0.1, 0.2, 0.3, 0.4]
    assert all(a.filtered < b.filtered for a, b in itertools.pairwise(rows))
    assert shift_bounds(FedAvg(10), 1000) == []
    clipped = shift_bounds(CPA(7850, 0.5, 0.0084), 1000, clip=0.37)
    assert clipped[1] == rows[1]


def test_wrong_arguments_are_refused():
    for wrong in (-0.1, 0.5, math.nan, "x", True):
        with pytest.raises(InvalidInput):
            worst_shift(wrong, 10, 100, 1.0, 1.0)
    with pytest.raises(InvalidInput):
        worst_shift(0.1, 10, 5, 1.0, 1.0)
    with pytest.raises(InvalidInput):
        worst_shift(0.1, 10, 100, 0.0, 1.0)
