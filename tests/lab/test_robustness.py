"""The robustness experiment: which runs it asks for, and how it judges them."""

from dataclasses import replace

import pytest

from hushbit.lab.cells import Outcome
from hushbit.lab.experiments import EXPERIMENTS
from hushbit.lab.experiments.robustness import (
    ATTACKS,
    COMPARED,
    OPEN,
    comparators,
    findings,
    natural,
    private,
    with_ballots,
)

PLAIN = Outcome(
    accuracy=88.0, validation=0.0, snr_db=None, snr_median_db=None, snr_authors_db=None, rmse=0.0,
    curve=((60, 0.0, 88.0),), privacy=("a", "b", "c"), seconds=1.0,
)  # fmt: skip


def judged(changes, series):
    """Findings where every outcome is the plain one but for the changes by attack."""
    outcomes = []
    for one in series:
        spectral = "spectral" in one.scheme
        more = {"removed_honest": 0.0, "removed_attackers": 90.0} if spectral else {}
        if spectral:
            more |= changes.get(one.where["attack"], {})
        outcomes.append([replace(PLAIN, **more)])
    return findings(series, outcomes)


def test_every_attack_is_run_with_and_without_the_filter():
    series = with_ballots("linear", 5, ATTACKS)
    attacks = {"none", "adaptive", *ATTACKS}
    for scheme in ("CPA, no defence", "CPA, spectral"):
        assert {one.where["attack"] for one in series if one.scheme == scheme} == attacks
    shares = {one.where["attack"]: one.settings.attackers for one in series}
    assert shares == {a: 0.0 if a == "none" else 0.2 if a == "adaptive" else 0.3 for a in attacks}


def test_comparators_see_plain_updates_and_the_histogram_is_private():
    series = comparators(5, COMPARED, OPEN)
    assert len(series) == (1 + len(COMPARED)) * (len(OPEN) + 2)
    for one in series:
        private_one = one.scheme.startswith("CPA histogram")
        assert (one.settings.epsilon_per_bit == 0.5) == private_one
        assert (one.settings.mechanism == "fedavg") != private_one


def test_claims_hold_or_fall_by_the_points_lost():
    series = with_ballots("mlp", 5, ("directed", "flip")) + natural("mlp", 5)
    found = judged(
        {"flip": {"accuracy": 85.9}, "adaptive": {"accuracy": 83.1},
         "none (by writer)": {"removed_honest": 1.5}},
        series,
    )  # fmt: skip
    holds = {check.claim: check.holds for check in found.checks}
    assert len(holds) == 6
    fallen = [claim for claim, fine in holds.items() if not fine]
    assert sorted(word for word in ("flip", "by writer") for c in fallen if word in c) == [
        "by writer", "flip",
    ]  # fmt: skip
    assert len(fallen) == 2
    assert {cell.metric for cell in found.cells} >= {"accuracy", "removed_attackers"}


def test_a_claim_is_about_every_seed():
    series = [
        one for one in with_ballots("mlp", 5, ("little",)) if one.where["attack"] != "adaptive"
    ]
    gone = {"removed_honest": 0.0, "removed_attackers": 90.0}
    for lost, holds in ((1.9, True), (2.1, False)):
        outcomes = [
            [replace(PLAIN, accuracy=88.0 + i, **(gone if "spectral" in one.scheme else {}))
             for i in range(3)]
            for one in series
        ]  # fmt: skip
        place = next(i for i, one in enumerate(series) if one.where["attack"] == "little")
        outcomes[place][1] = replace(outcomes[place][1], accuracy=89.0 - lost)
        (check,) = (c for c in findings(series, outcomes).checks if "little" in c.claim)
        assert check.holds == holds
        assert f"at most {lost} lost in 3 seeds" in check.figure


def test_figures_compare_the_same_seeds():
    series = [one for one in with_ballots("mlp", 5, ("flip",)) if one.where["attack"] != "adaptive"]
    gone = {"removed_honest": 0.0, "removed_attackers": 0.0}
    outcomes = [
        [replace(PLAIN, accuracy=88.0 - 4 * i, **(gone if "spectral" in one.scheme else {}))
         for i in range(1 if one.where["attack"] == "flip" else 2)]
        for one in series
    ]  # fmt: skip
    (check,) = (c for c in findings(series, outcomes).checks if "flip" in c.claim)
    assert check.figure == "88.0 against 88.0 without attackers"


def test_it_is_listed_and_its_runs_are_legal():
    assert EXPERIMENTS["robustness"].group == "robust"
    settings = private("linear", 3, attack="sybils", attackers=0.3, defence="spectral")
    assert settings.radius == pytest.approx(0.13 / 7850**0.5)
