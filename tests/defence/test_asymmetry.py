"""The asymmetry test: its error on fair coins by enumeration, and what it removes."""

import math

import numpy as np
import pytest

from hushbit.defence.asymmetry import BINS, asymmetric_group, is_apart, leading_distances


def reference_distance(away, natural, log_rate):
    """The distance for the positive side of `leading_distances`, in NumPy."""
    distance = np.abs(away)
    edges = np.arange(BINS) * (distance.max() / BINS)
    ahead = ((away > 0) & (distance >= edges[:, None])).sum(axis=1)
    behind = ((away < 0) & (distance >= edges[:, None])).sum(axis=1)
    more = np.maximum(ahead + behind - natural, 0) + 1
    excess = ahead - behind - natural - np.sqrt(more * (log_rate + np.log(more)))
    last = BINS - 1 - int(np.argmax(excess[::-1]))
    return float(edges[last]) if excess[last] > 0 else np.inf


def found_by(scores, tested, trusted, natural, rate):
    """The group that the test finds."""
    log_rate = -2 * math.log(rate)
    return asymmetric_group(scores, tested, trusted, float(natural), log_rate)


def crossing_probability(steps, rate):
    """P(a walk of fair coins exceeds the bound at any n <= steps), exactly."""
    law, crossed = {0: 1.0}, 0.0
    for n in range(1, steps + 1):
        moved = {}
        for place, chance in law.items():
            for new in (place - 1, place + 1):
                moved[new] = moved.get(new, 0.0) + chance / 2
        bound = math.sqrt((n + 1) * (2 * math.log(1 / rate) + math.log(n + 1)))
        crossed += sum(chance for place, chance in moved.items() if abs(place) > bound)
        law = {place: chance for place, chance in moved.items() if abs(place) <= bound}
    return crossed


@pytest.mark.parametrize("rate", [0.3, 0.05, 0.001])
def test_fair_coins_exceed_the_bound_with_at_most_the_rate(rate):
    assert rate / 30 < crossing_probability(1000, rate) <= rate


@pytest.mark.parametrize("natural", [0, 20, 100])
@pytest.mark.parametrize("others", [0, 7, 60])
def test_the_bound_is_that_of_users_who_are_not_natural(natural, others):
    """A group on one side, and `others` as many on either side further away: the least size."""
    rate = 1e-4

    def is_found(size):
        away = np.concatenate([np.full(size, 1.0), np.full(others, 2.0), np.full(others, -2)])
        return leading_distances(away, natural, -2 * math.log(rate))[1] < np.inf

    def exceeds(size):
        n = size + 2 * others - natural
        return size - natural > math.sqrt((n + 1) * (-2 * math.log(rate) + math.log(n + 1)))

    sizes = range(max(natural, 1), natural + 150)
    least = next(size for size in sizes if exceeds(size))
    assert next(size for size in sizes if is_found(size)) == least
    assert least <= natural + 70


@pytest.mark.parametrize("rate", [0.3, 1e-3, 1e-9])
def test_natural_users_raise_the_lead_most_if_all_are_visited(rate):
    """For n visited, k + min(bound(n - k), n - k) is largest at the largest k."""

    def most(n, k):
        m = n - k
        return k + min(m, math.sqrt((m + 1) * (-2 * math.log(rate) + math.log(m + 1))))

    for n in range(1, 300):
        values = [most(n, k) for k in range(min(n, 50) + 1)]
        assert max(values) <= values[-1] + 1e-9


def test_symmetric_scores_of_any_spread_are_kept():
    """10 000 tests of symmetric users at a rate of 5 %, and 10 % of users anywhere."""
    rng = np.random.default_rng(0)
    everyone, removed = np.ones(200, dtype=np.bool_), 0
    for trial in range(10_000):
        scores = [rng.normal, rng.standard_cauchy, rng.uniform][trial % 3](size=200)
        scores[:20] -= trial % 2 * 50.0
        removed += found_by(scores, everyone, everyone, 20, 0.05).any()
    assert removed <= 500


@pytest.mark.parametrize("seed", range(20))
def test_the_kernel_equals_its_definition(seed):
    rng = np.random.default_rng(seed)
    users = int(rng.integers(1, 400))
    deviation = rng.normal(size=users) - rng.uniform(0, 9) * (rng.uniform(size=users) < 0.3)
    for natural, log_rate in ((0.0, 0.0), (0.1 * users, 0.1), (3.0, 5.0), (1e9, 0.0)):
        made = leading_distances(deviation, natural, log_rate)
        for away, distance in zip((-deviation, deviation), made, strict=True):
            assert distance == pytest.approx(reference_distance(away, natural, log_rate))


def test_nobody_and_equal_scores_are_kept():
    for users in (0, 1, 50):
        flags = np.ones(users, dtype=np.bool_)
        assert not found_by(np.zeros(users), flags, flags, 0.1, 0.01).any()
    assert not found_by(np.arange(50.0), flags, ~flags, 1, 0.01).any()


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_a_group_is_removed_at_the_midpoint(side):
    rng = np.random.default_rng(1)
    scores, group = rng.normal(size=1000), np.arange(1000) < 300
    scores[group] += side * 12
    everyone = np.ones(1000, dtype=np.bool_)
    found = found_by(scores, everyone, everyone, 100, 1e-4)
    assert (found == group).all()


def test_a_group_no_larger_than_natural_is_kept():
    scores = np.random.default_rng(2).normal(size=1000)
    scores[:100] -= 12
    everyone = np.ones(1000, dtype=np.bool_)
    assert not found_by(scores, everyone, everyone, 100, 1e-4).any()


def test_a_group_that_overlaps_costs_few_honest_users():
    rng = np.random.default_rng(3)
    scores, group = rng.normal(size=2000), np.arange(2000) < 600
    scores[group] -= 4
    found = found_by(scores, np.ones(2000, dtype=np.bool_), ~group, 200, 1e-4)
    assert found[group].mean() > 0.95
    assert found[~group].mean() < 2 * 0.05


def test_absent_users_are_neither_counted_nor_removed():
    scores = np.random.default_rng(4).normal(size=1000)
    scores[:300] -= 12
    present = np.arange(1000) >= 300
    assert not found_by(scores, present, present, 70, 1e-4).any()


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_a_group_is_apart_if_there_are_few_users_at_its_edge(side):
    rng, everyone = np.random.default_rng(4), np.ones(1000, dtype=np.bool_)
    scores = 3 * rng.normal(size=1000)
    assert not is_apart(side * scores, scores < -2, everyone)  # a tail
    assert not is_apart(side * scores, ~everyone, everyone)
    scores[:300] = rng.normal(-12, 1, 300)
    assert is_apart(side * scores, np.arange(1000) < 300, everyone)
    scores[:300] = rng.normal(-6, 1, 300)  # in the tail of the others, but denser
    assert is_apart(side * scores, scores < -4, everyone)
