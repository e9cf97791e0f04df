"""Robustness: the runs that the protocol asks for, and the claims made from their outcomes."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from hushbit.lab.experiments.cells import Outcome
from hushbit.lab.experiments.experiment import ExperimentRunner, Measured
from hushbit.lab.experiments.paper import STATED
from hushbit.lab.experiments.reproduce import (
    EXPERIMENTS,
    CostRunner,
    cpu_hours,
    planned_cells,
    seeds_for,
)
from hushbit.lab.experiments.robustness import (
    ATTACKS,
    COMPARED_ATTACKS,
    DIM,
    DIRICHLET,
    IID,
    LINEAR,
    NORM_ATTACKS,
    SPECIAL_ATTACKS,
    comparators,
    findings,
    linear_series,
    norm_votes,
    private,
    run_series,
)
from hushbit.lab.sim.models import build_model
from hushbit.lab.sim.settings import FIELDS

NAMES = ("robustness", "robustness-mlp", "robustness-cnn2")
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
    worst_class=70.0,
)


def asked(name):
    """All runs of an experiment."""
    experiment = EXPERIMENTS[name]
    runner = CostRunner(Path(), seeds_for(experiment, False, None))
    experiment.find(runner)
    return runner.asked


def claims(attack, changes, split=IID, seeds=1, **options):
    """The claims about one attack where the outcomes are plain ones with changes by defence."""
    pairs = []
    for one in (
        run_series(LINEAR, split, name, defence, 5, None, **options)
        for name in dict.fromkeys(("none", attack))
        for defence in ("none", "scores")
    ):
        defended = one.settings.defence != "none"
        made = dict.fromkeys(("removed_honest", "ever_removed_honest"), 0.0) if defended else {}
        if one.settings.attack == attack:
            made |= changes.get(one.settings.defence, {})
        lists = {name: value for name, value in made.items() if isinstance(value, tuple)}
        pairs.append(
            (
                one,
                tuple(
                    dataclasses.replace(
                        PLAIN, **made | {name: values[n] for name, values in lists.items()}
                    )
                    for n in range(seeds)
                ),
            )
        )
    found = findings(Measured(tuple(pairs))).checks
    word = "clean" if attack == "none" else attack
    return {check.claim.split(": ")[1]: check for check in found if word in check.claim}


def test_every_option_is_stated():
    assert set(STATED) == set(FIELDS)
    settings = private("linear", 60)
    assert (settings.batch_size, settings.pixels, settings.seed) == (16, "symmetric", 0)
    assert settings.radius == pytest.approx(0.13 / 7850**0.5)
    changed = {name for name in FIELDS if getattr(settings, name) is None}
    assert not changed & {"clip", "radius", "rate", "points", "rounding", "words", "server"}


@pytest.mark.parametrize(("model", "channels"), [("linear", 1), ("mlp", 1), ("cnn2", 3)])
def test_the_radius_uses_the_size_of_the_model(model, channels):
    side = 28 if channels == 1 else 32
    assert build_model(model, (channels, side, side), 10).dim == DIM[model]


@pytest.mark.parametrize("name", NAMES)
def test_no_reported_seed_was_used_before(name):
    assert seeds_for(EXPERIMENTS[name], False, None)[0] == 331
    assert min(settings.seed for settings in asked(name)) == 331
    assert {settings.rounds for settings in asked(name)} == {60}


@pytest.mark.parametrize(
    ("name", "partition", "seeds"),
    [
        ("robustness", "writer", 10),
        ("robustness-mlp", "shards", 10),
        ("robustness-cnn2", "per-user", 3),
        ("robustness-cnn2", "shards", 1),
    ],
)
def test_runs_without_attackers_have_their_seeds(name, partition, seeds):
    found = Counter(
        (one.dataset, one.defence)
        for one in asked(name)
        if one.partition == partition and not one.attackers and one.mechanism == "cpa" and one.clip
    )
    assert {count for (_, defence), count in found.items() if defence == "scores"} == {seeds}
    assert {defence for _, defence in found} == {"none", "scores"}


def test_every_attack_is_run_with_every_defence_on_every_task():
    found = Counter(
        (one.dataset, one.model, one.partition, one.attack, one.defence)
        for name in NAMES
        for one in asked(name)
        if one.mechanism == "cpa" and one.attackers
    )
    for task in (("mnist", "linear", 3), ("fashion-mnist", "linear", 3), ("mnist", "mlp", 2)):
        *place, seeds = task
        for partition in ("per-user", "dirichlet"):
            for attack in ATTACKS:
                for defence in ("none", "scores"):
                    assert found[*place, partition, attack, defence] == seeds
    for attack in SPECIAL_ATTACKS:
        assert found["mnist", "linear", "per-user", attack, "scores"] == 3
    assert found["mnist", "linear", "shards", "targeted", "scores"] == 3
    assert found["cifar10", "cnn2", "per-user", "label-flip", "scores"] == 1
    shares = {one.attack: one.attackers for one in asked("robustness") if one.attackers}
    fewer = {"adaptive": 0.2, "targeted": 0.2, "fresh-identities": 0.14}
    assert shares == {a: fewer.get(a, 0.3) for a in shares}
    assert len(shares) == len(ATTACKS) + len(SPECIAL_ATTACKS) + len(NORM_ATTACKS) + 1


def test_forged_norm_votes_run_where_there_are_such_votes():
    series = norm_votes(5)
    assert {one.settings.mechanism for one in series} == {"cpa-auto"}
    assert {one.settings.attack for one in series} == {"none", *NORM_ATTACKS}
    assert len({(one.scheme, one.where["attack"]) for one in series}) == len(series) == 6


def test_robust_means_get_plain_updates_and_the_histogram_is_private():
    series = comparators(5, COMPARED_ATTACKS)
    assert len(series) == 4 * (1 + len(COMPARED_ATTACKS))
    for one in series:
        private_one = one.scheme.startswith("CPA histogram")
        assert (one.settings.epsilon_per_bit == 0.5) == private_one
        assert (one.settings.mechanism != "fedavg") == private_one
        assert one.settings.users == 1000


@pytest.mark.parametrize(
    ("attack", "lost", "holds"),
    [
        ("flip", 1.9, True),
        ("flip", 2.1, False),
        ("label-flip", 2.9, True),
        ("label-flip", 3.1, False),
        ("adaptive", 4.9, True),
        ("adaptive", 5.1, False),
        ("fresh-identities", 2.1, False),
    ],
)
def test_points_lost_decide_a_claim(attack, lost, holds):
    made = claims(attack, {"scores": {"accuracy": 88.0 - lost}}, DIRICHLET)
    (claim,) = (check for claim, check in made.items() if "points lost" in claim)
    assert claim.holds == holds
    assert claim.figure.startswith(f"{lost:.2f} lost")


def test_means_over_the_same_seeds_are_compared():
    made = claims("ones", {"scores": {"accuracy": (87.0, 85.2)}}, seeds=2)
    assert made["at most 2 points lost"].holds
    longer = run_series(LINEAR, IID, "none", "none", 5, None)
    shorter = run_series(LINEAR, IID, "ones", "scores", 5, 1)
    plain = (PLAIN, dataclasses.replace(PLAIN, accuracy=60.0))
    found = findings(Measured(((longer, plain), (shorter, (PLAIN,)))))
    assert [check.figure[:5] for check in found.checks] == ["0.00 "]


@pytest.mark.parametrize("removed", [0.9, 1.1, None])
def test_honest_users_removed_decide_the_claims_without_attackers(removed):
    made = claims("none", {"scores": {"ever_removed_honest": removed, "removed_honest": 0.1}})
    assert made["at most 1 % of honest users removed in a round"].holds
    assert made["at most 1 % of honest users removed in a run"].holds == (removed == 0.9)


def test_the_targeted_class_is_reported_without_a_limit():
    assert claims("targeted", {}) == {}


def test_norm_votes_are_compared_with_runs_of_the_same_mechanism():
    series = norm_votes(5)
    series += [run_series(LINEAR, IID, "none", defence, 5, None) for defence in ("none", "scores")]
    outcomes = []
    for one in series:
        auto = 2.0 if one.settings.mechanism == "cpa-auto" else 0.0
        lost = 1.0 if one.settings.attack == "norm-high" else 0.0
        outcomes.append((dataclasses.replace(PLAIN, accuracy=88.0 + auto - lost),))
    found = findings(Measured(tuple(zip(series, outcomes, strict=True)))).checks
    (check,) = (c for c in found if "norm-high" in c.claim and "lost" in c.claim)
    assert check.claim == "linear, iid, AutoCPA, 30% norm-high: at most 2 points lost"
    assert check.figure == "1.00 lost: 89.00 against 90.00 without attackers"


def test_experiments_are_estimated_and_cells_are_planned_once(tmp_path):
    for name in NAMES:
        assert EXPERIMENTS[name].group == "robust"
        assert 0.1 < cpu_hours(EXPERIMENTS[name]) < 20
    quick = planned_cells([(EXPERIMENTS["robustness"], ExperimentRunner(tmp_path, (1,), True))])
    assert len(quick) == 2 + 3 * 2
    assert len({(s.scheme, *s.where.values()) for s in linear_series(5, False)}) == len(
        linear_series(5, False)
    )
