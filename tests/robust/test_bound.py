"""The bounds: attained where they are exact, ordered, and in the right units."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest

from hushbit import CPA, Rotated
from hushbit.baselines import FedAvg
from hushbit.errors import InvalidInput
from hushbit.robust.bound import _depth, shifts_of, worst_shift
from hushbit.robust.pulls import noise_size
from hushbit.robust.rules import STEPS_BACK, Rule, far_behind
from robust.test_attacks import MEAN, directed_ballots, mean_of


def test_without_defence_directed_attackers_attain_it():
    mechanism = CPA(MEAN.size, 0.5, 0.02)
    pushed = mean_of(mechanism, directed_ballots(mechanism, -MEAN))
    bound = worst_shift(0.25, MEAN.size, 1000, noise_size(mechanism), 0.1).open
    assert 0.25 * float(np.linalg.norm(pushed)) == pytest.approx(bound)


def test_the_filter_bounds_by_the_clip_and_the_slack():
    found = worst_shift(0.2, 7850, 1000, 0.04, 0.4)
    assert found.accepted == pytest.approx(0.2 * (0.4 + Rule().slack(1000) * 0.04))
    assert found.filtered == found.accepted < found.open
    scaled = worst_shift(0.2, 7850, 1000, 0.4, 4.0)
    assert scaled.filtered == pytest.approx(10 * found.filtered)
    assert worst_shift(0.0, 7850, 1000, 0.04, 0.4).filtered == 0.0


def test_a_lasting_push_is_bounded_by_the_memory_of_rounds():
    rule, share = Rule(), 0.2
    found = worst_shift(share, 7850, 1000, 1.0, 3.0, natural=2.0)
    alone = rule.share * (3.0 + rule.slack(1000))
    push = (found.lasting - alone) / (share - rule.share)
    # A user who pushes that much in every round has a sum three noises beyond the limit.
    fading = rule.memory ** np.arange(2000)
    noise = math.sqrt((fading**2).sum())
    limit = _depth(rule, share) * math.hypot(1, 2.0 * fading.sum() / noise)
    assert push * fading.sum() / noise == pytest.approx(limit + STEPS_BACK, rel=1e-3)
    assert worst_shift(share, 7850, 1000, 1.0, 3.0, natural=3.0).lasting > found.lasting
    assert found.lasting < 0.9 * found.accepted


def test_as_few_as_training_may_set_back_are_bounded_by_the_round_alone():
    for share in (0.05, Rule().share):
        found = worst_shift(share, 7850, 1000, 1.0, 20.0, natural=0.0)
        assert found.lasting == found.accepted


def test_the_limit_sinks_with_the_coalition_below_it():
    """Who stands just above the limit of a round of sums is not far behind, just below it is."""
    rule, users, honest = Rule(), 100_000, NormalDist()
    for share in (0.2, 0.3, 0.4):
        below = round(share * users)
        ranks = (np.arange(users - below) + 0.5) / (users - below)
        sums = np.array([honest.inv_cdf(rank) for rank in ranks]) * 4.0 + 6.0
        everyone = np.ones(users, dtype=np.bool_)
        depth = _depth(rule, share) * 4.0 - 6.0
        for more, found in ((-0.1, False), (0.1, True)):
            all_sums = np.concatenate([np.full(below, -depth - more), sums])
            out = far_behind(
                all_sums, everyone, ~everyone, ~everyone, rule.depth, rule.newly(users), everyone
            )
            assert out[:below].all() == found


def test_who_lets_itself_be_removed_leaves_fewer_to_divide_by():
    found = worst_shift(0.4, 7850, 1000, 1.0, 200.0, natural=0.0)
    few, once = Rule().share, 200.0 + Rule().slack(1000)
    assert found.lasting == pytest.approx(few * once / (1 - 0.4 + few))


def test_more_attackers_more_shift():
    rows = shifts_of(Rotated(CPA(7850, 0.5, 0.0084, clip=0.37)), 1000)
    assert [row.attackers for row in rows] == [0.1, 0.2, 0.3, 0.4]
    assert all(a.filtered < b.filtered for a, b in itertools.pairwise(rows))
    assert shifts_of(FedAvg(10), 1000) == []
    clipped = shifts_of(CPA(7850, 0.5, 0.0084), 1000, clip=0.37)
    assert clipped[1] == rows[1]


def test_refusals():
    for wrong in (-0.1, 0.5, math.nan, "x", True):
        with pytest.raises(InvalidInput):
            worst_shift(wrong, 10, 100, 1.0, 1.0)
    with pytest.raises(InvalidInput):
        worst_shift(0.1, 10, 5, 1.0, 1.0)
    with pytest.raises(InvalidInput):
        worst_shift(0.1, 10, 100, 0.0, 1.0)
