"""The membership attack succeeds without privacy and stays within what the claim allows."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.attacks.audit import AuditFinding
from hushbit.lab.attacks.membership import (
    DELTAS,
    LOW_RATE,
    TARGET,
    MembershipResult,
    attacked_run,
    compare_scores,
    evidence,
    largest_auc,
    largest_hit_rate,
    membership,
    with_canary,
)
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import build_setup
from hushbit.privacy.accountant import Bound

SMALL = attacked_run("digits", 0.5, users=6, rounds=2, delta=1e-5, seed=0)
FEDAVG = Settings(users=6, samples_per_user=5, batch_size=5, rounds=2, mechanism="fedavg")


def test_the_attack_succeeds_without_privacy() -> None:
    found = membership(FEDAVG, 3)
    assert found.auc == found.hit_rate == 1.0
    assert found.claim == math.inf
    assert found.limit_auc == found.limit_rate == 1.0
    assert found.passed


def test_the_attack_succeeds_with_little_noise() -> None:
    found = membership(dataclasses.replace(SMALL, epsilon_per_bit=8.0), 8)
    assert found.auc > 0.8


def test_a_private_run_is_within_its_claim() -> None:
    done: list[float] = []
    found = membership(dataclasses.replace(SMALL, epsilon_per_bit=0.1), 12, progress=done.append)
    guarantee = build_setup(dataclasses.replace(SMALL, epsilon_per_bit=0.1)).mechanism.guarantee
    claim = guarantee.of_tally(6, 2, delta=1e-5)
    assert (found.claim, found.delta) == (claim.epsilon, 1e-5)
    tighter = [
        largest_auc(guarantee.of_tally(6, 2, delta=delta).epsilon, delta) for delta in DELTAS
    ]
    assert found.limit_auc == min(tighter) < largest_auc(claim.epsilon, 1e-5)
    assert found.passed
    assert 0.2 < found.auc < 0.8
    assert done[-1] == 1.0


def test_a_score_beyond_the_claim_is_caught() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.normal(2.0, 1.0, 200), rng.normal(0.0, 1.0, 200)
    found = compare_scores(first, second, [Bound(0.5, 1e-5, "test")], 0.95)
    assert not found.passed
    assert "BROKEN" in found.sentence()
    within = compare_scores(first, second, [Bound(6.0, 1e-5, "test")], 0.95)
    assert within.passed


def test_rates_are_those_of_all_pairs() -> None:
    rng = np.random.default_rng(2)
    first, second = rng.integers(1, 30, 60) * 1.0, rng.integers(0, 28, 60) * 1.0
    found = compare_scores(first, second, [Bound(1.0, 0.0, "test")], 0.95)
    pairs = np.sign(first[:, None] - second)
    assert found.auc == pytest.approx(0.5 + pairs.mean() / 2)
    assert found.auc_interval[0] < found.auc < found.auc_interval[1]
    level = min(level for level in second if (second > level).mean() <= LOW_RATE)
    assert found.hit_rate == (first > level).mean()


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (0.7, 0.1), (3.0, 0.01)])
def test_limits_are_those_of_the_trade_off_curve(epsilon: float, delta: float) -> None:
    alarms = np.linspace(0, 1, 200_001)
    missed = np.maximum(
        0,
        np.maximum(
            1 - delta - math.exp(epsilon) * alarms, math.exp(-epsilon) * (1 - delta - alarms)
        ),
    )
    assert largest_auc(epsilon, delta) == pytest.approx(1 - np.trapezoid(missed, alarms), abs=1e-6)
    for rate in (0.0, 0.01, 0.4, 1.0):
        expected = 1 - np.interp(rate, alarms, missed)
        assert largest_hit_rate(rate, epsilon, delta) == pytest.approx(expected, abs=1e-6)


def test_the_canary_replaces_the_data_of_the_target_only() -> None:
    ordinary = build_setup(SMALL)
    changed = with_canary(ordinary)
    rows = ordinary.task.federation.samples_of(TARGET)
    others = np.setdiff1d(np.arange(len(ordinary.task.federation.labels)), rows)
    assert set(np.unique(changed.task.federation.images[rows])) == {0, 255}
    before, after = ordinary.task.federation, changed.task.federation
    assert np.array_equal(before.images[others], after.images[others])
    assert np.array_equal(before.labels[others], after.labels[others])
    assert not np.array_equal(before.images[rows], after.images[rows])


@pytest.mark.parametrize(
    "changed",
    [
        {"participation": 0.5},
        {"batch_size": 2},
        {"attack": "label-flip", "attackers": 0.3},
        {"replace": True},
    ],
)
def test_runs_that_the_attack_does_not_cover_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="membership attack needs"):
        membership(dataclasses.replace(FEDAVG, **changed), 2)


def test_evidence_names_each_attack() -> None:
    tally = AuditFinding("one tally", 1.9, 1e-5, 1.21, 4000, 0.99)
    interval = (0.5, 0.6)
    found = MembershipResult(9, 0.55, interval, 0.1, (0.0, 0.2), 4.0, 1e-5, 0.8, 0.3, 0.95)
    assert evidence() == {}
    told = evidence(tally, found)
    assert list(told) == ["tally audit", "membership"]
    assert "1.21" in told["tally audit"]
    assert "AUC 0.550 (0.500 to 0.600" in told["membership"]
    broken = dataclasses.replace(tally, lower_bound=2.0)
    assert "BROKEN" in evidence(broken)["tally audit"]
