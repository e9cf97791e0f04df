"""The bounds: attained where they are exact, ordered, and in the right units."""

import itertools
import math

import numpy as np
import pytest

from hushbit import CPA, Rotated
from hushbit.baselines import FedAvg
from hushbit.errors import InvalidInput
from hushbit.robust.bound import hidden_spike, shifts_of, worst_shift
from hushbit.robust.pulls import noise_size
from hushbit.robust.rules import Rule
from hushbit.robust.spectrum import noise_edge
from robust.test_attacks import MEAN, directed_ballots, mean_of


def test_without_defence_directed_attackers_attain_it():
    mechanism = CPA(MEAN.size, 0.5, 0.02)
    pushed = mean_of(mechanism, directed_ballots(mechanism, -MEAN))
    bound = worst_shift(0.25, MEAN.size, 1000, noise_size(mechanism), 0.1).open
    assert 0.25 * float(np.linalg.norm(pushed)) == pytest.approx(bound)


def test_the_filter_bounds_by_the_clip_and_the_slack():
    found = worst_shift(0.2, 7850, 1000, 0.04, 0.4)
    assert found.accepted == pytest.approx(0.2 * (0.4 + Rule().slack(1000) * 0.04))
    assert found.filtered == max(min(found.accepted, found.median), found.hidden) < found.open
    # Four fifths honest: the median is their quantile 0.5 / 0.8, spread by noise and half the clip.
    assert found.median == pytest.approx(0.04 * 0.318639 * math.sqrt(1 + 5.0**2), rel=1e-5)
    scaled = worst_shift(0.2, 7850, 1000, 0.4, 4.0)
    assert scaled.filtered == pytest.approx(10 * found.filtered)
    assert worst_shift(0.0, 7850, 1000, 0.04, 0.4).filtered == 0.0


def test_the_hidden_push_is_the_spike_that_reaches_the_edge():
    found = worst_shift(0.2, 7850, 1000, 1.0, 1.0)
    theta = found.hidden**2 * 0.8 / 0.2
    ratio = 7850 / 1000
    assert theta == pytest.approx(hidden_spike(1000, 7850))
    assert theta > math.sqrt(ratio)
    assert (1 + theta) * (1 + ratio / theta) == pytest.approx(noise_edge(1000, 7850))


def test_more_attackers_more_shift_more_users_less_hiding():
    rows = shifts_of(Rotated(CPA(7850, 0.5, 0.0084, clip=0.37)), 1000)
    assert [row.attackers for row in rows] == [0.1, 0.2, 0.3, 0.4]
    assert all(a.filtered < b.filtered for a, b in itertools.pairwise(rows))
    many = shifts_of(CPA(7850, 0.5, 0.0084, clip=0.37), 100_000)
    assert many[1].hidden < rows[1].hidden
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
