"""The compiled rules equal their NumPy definitions, on random scores and at the limits."""

import numpy as np
import pytest

from defence import reference_rules
from hushbit.cpa import CPA
from hushbit.defence.filter import (
    ScoreHistory,
    apply_rules,
    filter_scores,
    filtered_tally,
    score_groups,
)
from hushbit.defence.modality import split_at_median, upper_median
from hushbit.defence.rules import (
    LIMIT_SIGMAS,
    TOLERATED_SHARE,
    FilterRule,
    history_exclusions,
    is_minority,
    remaining,
)
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey

RULE = FilterRule()


class FixedScores:
    """Decoded ballots whose scores are given."""

    dim, max_score, max_entry = 1, 10.0, 0.2

    def __init__(self, scores):
        self.scores, self.users = scores, scores.shape[1]

    def score(self, above, below, drift_direction):
        return self.scores


def drawn(rng, users, kind):
    """Scores of users: unimodal, bimodal, a tail at the limits, integers, wide, zeros."""
    share = rng.uniform(0, 0.5)
    some, noise = rng.uniform(size=users) < share, rng.normal(size=users)
    if kind == "bimodal":
        return noise + rng.choice([-1, 1]) * rng.uniform(5, 50) * some + rng.normal(0, 4)
    if kind == "tail":
        limit = rng.choice([TOLERATED_SHARE, RULE.natural_share])
        count = min(users, max(0, round(users * limit) + int(rng.integers(-2, 3))))
        noise = np.abs(noise)
        noise[:count] = -LIMIT_SIGMAS - rng.choice([0.0, 1e-9, 3.0], count)
        return noise
    if kind == "integers":
        return rng.integers(-9, 9, users).astype(np.float64)
    if kind == "wide":
        return rng.normal(0, rng.uniform(1, 30), users)
    return noise if kind == "noise" else np.zeros(users)


KINDS = ("noise", "bimodal", "tail", "integers", "wide", "zeros")


def case(seed):
    """Scores, a history and biased users; most scores are such that nobody is removed."""
    rng = np.random.default_rng(seed)
    users = int(rng.integers(20, 400))
    usual = ("noise", "noise", "integers", "zeros")
    kinds = usual if seed % 8 else KINDS
    scores = np.stack([drawn(rng, users, rng.choice(kinds)) for _ in range(3)])
    rounds = rng.choice([0.0, 0.5, 1.0, 10.0], users)
    sums = [drawn(rng, users, rng.choice(KINDS)) * np.sqrt(np.maximum(rounds, 1)) for _ in range(2)]
    excluded = rng.uniform(size=users) < rng.choice([0.0, 0.3, 0.6])
    excluded |= (sums[0] < -4) & (rng.uniform() < 0.5)
    biased = rng.uniform(size=users) < rng.choice([0.0, 0.0, 0.1, 0.6])
    everyone = np.ones(users, dtype=np.bool_)
    history = ScoreHistory(*sums, rounds, rng.normal(size=users), excluded, everyone)
    return scores, history, biased if is_minority(biased) else np.zeros_like(biased)


def assert_same(one, other):
    assert one.accepted.dtype == np.bool_
    assert (one.accepted == other.accepted).all()
    for name in ("max_score", "biased", "excluded_by_round", "excluded_by_history"):
        assert getattr(one, name) == getattr(other, name), name
    for name, part in vars(one.history).items():
        assert (part == getattr(other.history, name)).all(), name


@pytest.mark.parametrize("batch", range(4))
def test_apply_rules_fast_equals_apply_rules(batch):
    found, new = 0, 0
    for seed in range(300 * batch, 300 * (batch + 1)):
        scores, history, biased = case(seed)
        decoded, drift_direction = FixedScores(scores), np.ones(1)
        groups = score_groups(history, biased)
        result = filter_scores(decoded, RULE, biased, history, drift_direction)
        arguments = decoded, RULE, biased, history, drift_direction, groups, scores
        assert_same(result, apply_rules(*arguments))
        found += result.excluded_by_history > 0
        new += bool((result.history.excluded & ~history.excluded).any())
    assert found > 30  # or the cases show nothing
    assert new > 30


@pytest.mark.parametrize("earlier", ["nobody", "some", "low", "everybody"])
def test_the_compiled_rules_over_rounds_equal_the_reference(earlier):
    """Many rounds are such that sums are compared at the limits exactly."""
    found, held = 0, 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        users = int(rng.choice([20, 100, 200, rng.integers(20, 300)]))  # 3 % of 100 is an integer
        both = [drawn(rng, users, rng.choice(KINDS)) for _ in range(2)]
        rounds = rng.choice([0.0, 1.0, 4.0], users, p=[0.05, 0.05, 0.9])
        mean, drift = (np.sqrt(np.maximum(rounds, 1.0)) * sums for sums in both)
        excluded = {
            "nobody": np.zeros(users, dtype=np.bool_),
            "some": rng.uniform(size=users) < rng.choice([0.1, 0.3, 0.6]),
            "low": both[0] < -LIMIT_SIGMAS,
            "everybody": np.ones(users, dtype=np.bool_),
        }[earlier]
        present = rng.uniform(size=users) < 0.8
        present &= ~(excluded & (earlier == "low"))
        present[0] = True
        columns = mean, drift, rounds, present, excluded
        exact = reference_rules.history_exclusions(*columns, RULE, 0.5)
        assert (history_exclusions(*columns, RULE.limits(users, 1.0, 0.5)) == exact).all()
        found += bool((exact & ~excluded).any())
        held += bool((exact & excluded).any())
    assert earlier == "everybody" or 30 < found < 270
    assert earlier == "nobody" or held > 30


def test_medians_groups_and_remaining_users_equal_their_definitions():
    rng = np.random.default_rng(0)
    for number in range(400):
        users = int(rng.integers(1, 80))
        values = drawn(rng, users, KINDS[number % len(KINDS)]) * 10.0 ** rng.integers(-200, 200)
        present = rng.uniform(size=users) < rng.uniform(0.1, 1)
        present[rng.integers(users)] = True
        inside = np.sort(values[present])
        assert upper_median(values, present) == inside[inside.size // 2]
        above, below = split_at_median(values, present)
        assert (above == present & (values > inside[inside.size // 2])).all()
        assert (below == present & ~above).all()
        biased, excluded = rng.uniform(size=(2, users)) < rng.uniform(0, 0.8, size=(2, 1))
        out = biased | excluded
        out = out if is_minority(out) else biased if is_minority(biased) else np.zeros_like(out)
        assert (remaining(biased, excluded) == ~out).all()


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan, 1e308, -1e308])
def test_a_median_of_extreme_values_stays_within_its_arrays(wrong):
    values = np.array([wrong, 1.0, -1e308, 1e308, 2.0])
    assert upper_median(values, np.array([False, True, False, False, True])) == 2.0
    upper_median(values, np.ones(5, dtype=np.bool_))


def test_payloads_of_another_width_are_refused_before_a_kernel_reads_them():
    key, wide, narrow = RoundKey(bytes(32), 1), CPA(9000, 0.5, 0.02), CPA(100, 0.5, 0.02)
    keys = key.users(np.arange(30))
    ballots = narrow.encode_many(np.zeros((30, 100)), keys, SeededCoins(0))
    with pytest.raises(RefusedBallot):
        wide.votes.decode_each(ballots, key)
    with pytest.raises(InvalidInput, match="shape"):
        wide.add_payload(wide.empty_counters(True), ballots.payload, keys)


def test_readmitted_users_are_counted_from_the_next_round():
    """Their ballots are in no score group before."""
    users, key = 300, RoundKey(bytes(32), 1)
    mechanism = CPA(5000, 0.5, 0.02)
    ballots = mechanism.encode_many(
        np.zeros((users, 5000)), key.users(np.arange(users)), SeededCoins(0)
    )
    sums, excluded = np.full(users, 8.0), np.arange(users) < 100
    everyone = np.ones(users, dtype=np.bool_)
    history = ScoreHistory(sums, sums, np.ones(users), np.arange(users) - 150.0, excluded, everyone)
    drift_direction = np.ones(5000)
    tally, result = filtered_tally(
        mechanism, ballots, key, history=history, drift_direction=drift_direction
    )
    assert not result.accepted[excluded].any()
    assert result.history.excluded[excluded].mean() < 0.05
    tally, result = filtered_tally(
        mechanism, ballots, key, history=result.history, drift_direction=drift_direction
    )
    assert result.accepted[excluded].mean() > 0.95
    plain = mechanism.tally(key, histogram=False)
    plain.add_many(ballots[result.accepted])
    assert (tally.counters["stage 0"] == plain.counters["stage 0"]).all()
