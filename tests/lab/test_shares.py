"""Accuracy against the share of attackers: which runs it asks for, and how it judges them."""

from dataclasses import replace

import pytest

from hushbit.lab.cells import Outcome
from hushbit.lab.experiments import EXPERIMENTS, Lab
from hushbit.lab.experiments.robustness import ATTACKS, SHARE, private
from hushbit.lab.experiments.shares import FILTERED, SHARES, findings, series_of
from hushbit.lab.plan import planned

PLAIN = Outcome(
    accuracy=88.0, validation=0.0, snr_db=None, snr_median_db=None, snr_authors_db=None, rmse=0.0,
    curve=((60, 0.0, 88.0),), privacy=("a", "b", "c"), seconds=1.0,
)  # fmt: skip


def test_every_attack_is_run_at_every_share_with_and_without_defence_and_privacy():
    series = series_of(5, ("directed", "adaptive"), SHARES)
    places = {(one.scheme, one.where["attack"], one.x) for one in series}
    assert len(places) == len(series) == 4 * 2 * len(SHARES)
    for one in series:
        assert one.x == pytest.approx(100 * one.settings.attackers)
        assert (one.settings.attack == "none") == (one.x == 0)
        assert (one.settings.mechanism == "fedavg") == ("no privacy" in one.scheme)


def test_runs_are_those_of_the_other_experiment_where_they_meet():
    asked = {one.settings for one in series_of(5, ATTACKS, SHARES)}
    for attack in ATTACKS:
        assert private("linear", 5, attack=attack, attackers=SHARE, defence="spectral") in asked


@pytest.mark.parametrize(
    ("attack", "x", "lost", "holds"),
    [
        ("sybils", 10.0, 2.1, False), ("sybils", 30.0, 1.9, True), ("sybils", 40.0, 30.0, True),
        ("adaptive", 20.0, 4.9, True), ("adaptive", 10.0, 5.1, False),
        ("adaptive", 30.0, 30.0, True),
    ],
)  # fmt: skip
def test_claims_are_about_all_shares_up_to_the_stated_one(attack, x, lost, holds):
    series = series_of(5, ("sybils", "adaptive"), SHARES)
    hit = [
        one.scheme == FILTERED and one.where["attack"] == attack and one.x == x for one in series
    ]
    assert sum(hit) == 1
    outcomes = [[replace(PLAIN, accuracy=88.0 - lost * is_hit)] for is_hit in hit]
    made = {check.claim.split(":")[0]: check for check in findings(series, outcomes).checks}
    other = {"sybils": "adaptive", "adaptive": "sybils"}[attack]
    assert (made[attack].holds, made[other].holds) == (holds, True)
    if not holds:
        assert f"{lost} at {x:g} %" in made[attack].figure


def test_a_run_without_attackers_is_planned_once(tmp_path):
    experiment = EXPERIMENTS["robustness-shares"]
    quick = planned([(experiment, Lab(tmp_path, (1,), quick=True))])
    assert len(quick) == 4 * (1 + 3 * 2)
    full = planned([(experiment, Lab(tmp_path, (1,)))])
    assert len(full) == 4 * (1 + 11 * 4)
