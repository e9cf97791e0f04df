"""Robustness: the runs that the experiments ask for, and the claims made from their outcomes."""

from dataclasses import replace

import pytest

from hushbit.lab.experiments.cells import Outcome
from hushbit.lab.experiments.experiment import ExperimentRunner, Measured
from hushbit.lab.experiments.reproduce import EXPERIMENTS, planned_cells
from hushbit.lab.experiments.robustness import (
    ATTACKS,
    COMPARED_ATTACKS,
    FILTERED,
    ROBUST_MEANS,
    SHARE,
    SHARES,
    findings,
    heterogeneous,
    private,
    robust_means,
    share_findings,
    share_series,
    with_ballots,
)

PLAIN = Outcome(
    accuracy=88.0,
    validation=0.0,
    snr_db=None,
    snr_median_db=None,
    snr_authors_db=None,
    rmse=0.0,
    curve=((60, 0.0, 88.0),),
    privacy=("a", "b", "c"),
    seconds=1.0,
)


def measured(series, outcomes):
    """Series with these outcomes."""
    return Measured(tuple(zip(series, map(tuple, outcomes), strict=True)))


def findings_with(changes, series):
    """Findings where every outcome is the plain one except for changes by attack."""
    outcomes = []
    for one in series:
        spectral = "spectral" in one.scheme
        more = {"removed_honest": 0.0, "removed_attackers": 90.0} if spectral else {}
        if spectral:
            more |= changes.get(one.where["attack"], {})
        outcomes.append([replace(PLAIN, **more)])
    return findings(measured(series, outcomes))


def test_every_attack_is_run_with_and_without_the_filter():
    series = with_ballots("linear", 5, ATTACKS)
    attacks = {"none", "adaptive", *ATTACKS}
    for scheme in ("CPA, no defence", "CPA, spectral"):
        assert {one.where["attack"] for one in series if one.scheme == scheme} == attacks
    shares = {one.where["attack"]: one.settings.attackers for one in series}
    assert shares == {a: 0.0 if a == "none" else 0.2 if a == "adaptive" else 0.3 for a in attacks}


def test_robust_means_get_plain_updates_and_the_histogram_is_private():
    series = robust_means(5, COMPARED_ATTACKS, ROBUST_MEANS)
    assert len(series) == (1 + len(COMPARED_ATTACKS)) * (len(ROBUST_MEANS) + 2)
    for one in series:
        private_one = one.scheme.startswith("CPA histogram")
        assert (one.settings.epsilon_per_bit == 0.5) == private_one
        assert (one.settings.mechanism == "fedavg") != private_one


def test_claims_hold_or_fail_by_the_points_lost():
    series = with_ballots("mlp", 5, ("directed", "flip")) + heterogeneous("mlp", 5)
    found = findings_with(
        {
            "flip": {"accuracy": 85.9},
            "adaptive": {"accuracy": 83.1},
            "none (by writer)": {"removed_honest": 1.5},
        },
        series,
    )
    holds = {check.claim: check.holds for check in found.checks}
    assert len(holds) == 6
    failed = [claim for claim, fine in holds.items() if not fine]
    assert sorted(word for word in ("flip", "by writer") for c in failed if word in c) == [
        "by writer",
        "flip",
    ]
    assert len(failed) == 2
    assert {cell.metric for cell in found.cells} >= {"accuracy", "removed_attackers"}


def test_a_claim_must_hold_for_every_seed():
    series = [
        one for one in with_ballots("mlp", 5, ("little",)) if one.where["attack"] != "adaptive"
    ]
    removed = {"removed_honest": 0.0, "removed_attackers": 90.0}
    for lost, holds in ((1.9, True), (2.1, False)):
        outcomes = [
            [
                replace(PLAIN, accuracy=88.0 + i, **(removed if "spectral" in one.scheme else {}))
                for i in range(3)
            ]
            for one in series
        ]
        place = next(i for i, one in enumerate(series) if one.where["attack"] == "little")
        outcomes[place][1] = replace(outcomes[place][1], accuracy=89.0 - lost)
        (check,) = (c for c in findings(measured(series, outcomes)).checks if "little" in c.claim)
        assert check.holds == holds
        assert f"at most {lost} lost in 3 seeds" in check.figure


def test_figures_compare_means_over_the_same_seeds():
    series = [one for one in with_ballots("mlp", 5, ("flip",)) if one.where["attack"] != "adaptive"]
    removed = {"removed_honest": 0.0, "removed_attackers": 0.0}
    outcomes = [
        [
            replace(PLAIN, accuracy=88.0 - 4 * i, **(removed if "spectral" in one.scheme else {}))
            for i in range(1 if one.where["attack"] == "flip" else 2)
        ]
        for one in series
    ]
    (check,) = (c for c in findings(measured(series, outcomes)).checks if "flip" in c.claim)
    assert check.figure == "88.0 against 88.0 without attackers"


def test_robustness_is_listed_and_its_settings_are_valid():
    assert EXPERIMENTS["robustness"].group == "robust"
    settings = private("linear", 3, attack="sybils", attackers=0.3, defence="spectral")
    assert settings.radius == pytest.approx(0.13 / 7850**0.5)


def test_every_attack_is_run_at_every_share_with_and_without_defence_and_privacy():
    series = share_series(5, ("directed", "adaptive"), SHARES)
    places = {(one.scheme, one.where["attack"], one.x) for one in series}
    assert len(places) == len(series) == 4 * 2 * len(SHARES)
    for one in series:
        assert one.x == pytest.approx(100 * one.settings.attackers)
        assert (one.settings.attack == "none") == (one.x == 0)
        assert (one.settings.mechanism == "fedavg") == ("no privacy" in one.scheme)


def test_runs_at_the_common_share_are_those_of_the_robustness_experiment():
    wanted = {one.settings for one in share_series(5, ATTACKS, SHARES)}
    for attack in ATTACKS:
        assert private("linear", 5, attack=attack, attackers=SHARE, defence="spectral") in wanted


@pytest.mark.parametrize(
    ("attack", "x", "lost", "holds"),
    [
        ("sybils", 10.0, 2.1, False),
        ("sybils", 30.0, 1.9, True),
        ("sybils", 40.0, 30.0, True),
        ("adaptive", 20.0, 4.9, True),
        ("adaptive", 10.0, 5.1, False),
        ("adaptive", 30.0, 30.0, True),
    ],
)
def test_claims_are_about_all_shares_up_to_the_stated_one(attack, x, lost, holds):
    series = share_series(5, ("sybils", "adaptive"), SHARES)
    attacked = [
        one.scheme == FILTERED and one.where["attack"] == attack and one.x == x for one in series
    ]
    assert sum(attacked) == 1
    outcomes = [[replace(PLAIN, accuracy=88.0 - lost * here)] for here in attacked]
    made = {
        check.claim.split(":")[0]: check
        for check in share_findings(measured(series, outcomes)).checks
    }
    other = {"sybils": "adaptive", "adaptive": "sybils"}[attack]
    assert (made[attack].holds, made[other].holds) == (holds, True)
    if not holds:
        assert f"{lost} at {x:g} %" in made[attack].figure


def test_a_run_without_attackers_is_planned_once(tmp_path):
    experiment = EXPERIMENTS["robustness-shares"]
    quick = planned_cells([(experiment, ExperimentRunner(tmp_path, (1,), quick=True))])
    assert len(quick) == 4 * (1 + 3 * 2)
    full = planned_cells([(experiment, ExperimentRunner(tmp_path, (1,)))])
    assert len(full) == 4 * (1 + 11 * 4)
