"""The asymmetry test: its error on fair coins by enumeration, and what it removes."""

import math

import numpy as np
import pytest

from hushbit.defence.asymmetry import (
    KEPT,
    asymmetric_group,
    lead_bound,
    leading_distances,
    reference_distances,
)


def crossing_probability(steps, least, per_user):
    """P(a walk of fair coins exceeds least + per_user · n for any n <= steps), exactly."""
    law, crossed = {0: 1.0}, 0.0
    for n in range(1, steps + 1):
        moved = {}
        for place, chance in law.items():
            for new in (place - 1, place + 1):
                moved[new] = moved.get(new, 0.0) + chance / 2
        crossed += sum(chance for place, chance in moved.items() if place > least + per_user * n)
        law = {place: chance for place, chance in moved.items() if place <= least + per_user * n}
    return crossed


@pytest.mark.parametrize("rate", [0.3, 0.05, 0.001])
@pytest.mark.parametrize("natural", [10, 40, 100])
def test_fair_coins_exceed_the_bound_with_at_most_the_rate(rate, natural):
    least, per_user = lead_bound(natural, rate)
    chance = crossing_probability(300, least, per_user)
    assert chance <= rate
    assert crossing_probability(300, least / 2, per_user) > rate / 2  # no bound to give away
    assert least + per_user * 1.5 * natural == pytest.approx(
        math.sqrt(3 * natural * math.log(1 / rate))
    )


def test_symmetric_scores_of_any_spread_are_kept():
    """10 000 tests of symmetric users at a rate of 5 %, and 10 % of users anywhere."""
    rng = np.random.default_rng(0)
    everyone, removed = np.ones(200, dtype=np.bool_), 0
    for trial in range(10_000):
        scores = [rng.normal, rng.standard_cauchy, rng.uniform][trial % 3](size=200)
        scores[:20] -= trial % 2 * 50.0
        removed += asymmetric_group(scores, everyone, everyone, 20, 0.05).any()
    assert removed <= 1000  # two sides


@pytest.mark.parametrize("seed", range(20))
def test_the_kernel_equals_its_definition(seed):
    rng = np.random.default_rng(seed)
    users = int(rng.integers(1, 400))
    deviation = rng.normal(size=users) - rng.uniform(0, 9) * (rng.uniform(size=users) < 0.3)
    tested = rng.uniform(size=users) < 0.9
    for least, per_user in ((0.0, 0.0), (0.1 * users, 0.1), (3.0, 0.5), (1e9, 0.0)):
        made = leading_distances(deviation, tested, least, per_user)
        assert made == pytest.approx(reference_distances(deviation, tested, least, per_user))


def test_nobody_and_equal_scores_are_kept():
    for users in (0, 1, 50):
        flags = np.ones(users, dtype=np.bool_)
        assert not asymmetric_group(np.zeros(users), flags, flags, 0.1, 0.01).any()
    assert not asymmetric_group(np.arange(50.0), flags, ~flags, 1, 0.01).any()


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_a_group_is_removed_at_the_midpoint(side):
    rng = np.random.default_rng(1)
    scores, group = rng.normal(size=1000), np.arange(1000) < 300
    scores[group] += side * 12
    everyone = np.ones(1000, dtype=np.bool_)
    found = asymmetric_group(scores, everyone, everyone, 100, 1e-4)
    assert (found == group).all()


def test_a_group_no_larger_than_natural_is_kept():
    scores = np.random.default_rng(2).normal(size=1000)
    scores[:100] -= 12
    everyone = np.ones(1000, dtype=np.bool_)
    assert not asymmetric_group(scores, everyone, everyone, 100, 1e-4).any()


def test_a_group_that_overlaps_costs_few_honest_users():
    rng = np.random.default_rng(3)
    scores, group = rng.normal(size=2000), np.arange(2000) < 600
    scores[group] -= 4
    found = asymmetric_group(scores, np.ones(2000, dtype=np.bool_), ~group, 200, 1e-4)
    assert found[group].mean() > 0.95
    assert found[~group].mean() < 2 * (1 - KEPT)


def test_absent_users_are_neither_counted_nor_removed():
    scores = np.random.default_rng(4).normal(size=1000)
    scores[:300] -= 12
    present = np.arange(1000) >= 300
    assert not asymmetric_group(scores, present, present, 70, 1e-4).any()
