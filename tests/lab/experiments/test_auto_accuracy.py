"""The accuracy experiment: both sides tuned by one rule, gaps computed seed by seed."""

import dataclasses
from pathlib import Path

import pytest

from hushbit.lab.experiments import auto_accuracy
from hushbit.lab.experiments.auto_accuracy import (
    ACCURACY_TASKS,
    AUTO,
    CIFAR_TASK,
    VANILLA,
    gap_check,
    settings_of,
    tuned,
)
from hushbit.lab.experiments.experiment import ExperimentRunner, Measured
from hushbit.lab.experiments.results import Cell
from hushbit.lab.sim.run import run
from hushbit.lab.sim.settings import Settings


@dataclasses.dataclass(frozen=True)
class Seen:
    validation: float


class FakeLab:
    """Validation accuracy is highest for rate 0.1 with a filter."""

    def __init__(self):
        self.asked = []

    def rounds_of(self, full):
        return full

    def run(self, wanted, step):
        self.asked += wanted
        return [Seen(-abs(s.rate - 0.1) + (s.server_name == "filter")) for s in wanted]


@pytest.mark.parametrize("task", [*ACCURACY_TASKS, CIFAR_TASK], ids=lambda task: str(task.where))
@pytest.mark.parametrize("scheme", [AUTO, VANILLA])
def test_sides_differ_in_the_mechanism_only(task, scheme):
    made = settings_of(task, scheme, 10)
    assert made.mechanism == ("cpa-auto" if scheme == AUTO else "fedavg")
    assert made.epsilon_per_bit == (0.5 if scheme == AUTO else None)
    same = dataclasses.replace(made, mechanism="fedavg", epsilon_per_bit=None)
    assert same == settings_of(task, VANILLA, 10)


def test_tuning_chooses_the_highest_validation_accuracy():
    lab = FakeLab()
    for scheme in (AUTO, VANILLA):
        chosen = tuned(lab, ACCURACY_TASKS[1], scheme)
        assert (chosen.rate, chosen.server) == (0.1, "filter")
    assert len({s.seed for s in lab.asked}) == 1
    assert len(lab.asked) == 6 + 6


@pytest.mark.parametrize(("auto", "holds"), [((89.7, 89.9), True), ((89.0, 89.5), False)])
def test_a_gap_above_the_limit_fails_the_check(auto, holds):
    def cell(scheme, seeds):
        mean = sum(seeds) / len(seeds)
        return Cell(
            scheme, "corrected", ACCURACY_TASKS[0].where, "accuracy", mean, mean, mean, seeds
        )

    check = gap_check([cell(VANILLA, (90.0, 90.4)), cell(AUTO, auto)], ACCURACY_TASKS[0])
    assert check.holds is holds
    assert "gap" in check.figure


def test_seeds_on_which_vanilla_failed_are_left_out_of_the_gap():
    def cell(scheme, seeds):
        mean = sum(seeds) / len(seeds)
        return Cell(
            scheme, "corrected", ACCURACY_TASKS[0].where, "accuracy", mean, mean, mean, seeds
        )

    vanilla, auto = (25.0, 90.0, 90.4, 91.0), (89.0, 89.0, 89.4, 90.0)
    check = gap_check([cell(VANILLA, vanilla), cell(AUTO, auto)], ACCURACY_TASKS[0])
    assert not check.holds
    assert "gap 1.00" in check.figure
    assert "vanilla failed (25.00 %)" in check.figure


def test_the_runner_has_the_methods_of_the_fake_one():
    assert all(hasattr(ExperimentRunner, name) for name in ("run", "rounds_of", "measure"))


@dataclasses.dataclass
class AblationLab(FakeLab):
    """Each variant in turn is one point less accurate; seeds differ by ten."""

    seeds: tuple[int, ...] = (1, 2)
    quick: bool = False
    asked: list[object] = dataclasses.field(default_factory=list)

    def measure(self, series):
        return Measured(
            tuple(
                (one, tuple(Gave(90.0 - n + 10 * seed) for seed in self.seeds))
                for n, one in enumerate(series)
            )
        )


@dataclasses.dataclass(frozen=True)
class Gave:
    accuracy: float
    snr_median_db: float = -10.0


def test_variants_are_compared_seed_by_seed():
    cells, chosen = auto_accuracy.ablation(AblationLab())
    change = {(c.where["ablation"], c.where["users"]): c for c in cells if c.metric == "change"}
    assert len(change) == 2 * (len(auto_accuracy.VARIANTS) - 1)
    assert {users for _, users in change} == {100, 10}
    for users in (100, 10):
        left_out = change["without filter", users]
        assert left_out.mean == pytest.approx(-1.0)
        assert left_out.high - left_out.low < 1e-9
        assert len(left_out.seeds) == auto_accuracy.ABLATION_SEEDS
    assert len(chosen) == 2 * len(auto_accuracy.VARIANTS)
    assert any("radius" in text for text in chosen)


def test_gains_are_means_over_runs_round_by_round():
    runs = [
        [auto_accuracy.Ratios(1.0, 2.0, 6.0), auto_accuracy.Ratios(0.0, 4.0, 5.0)],
        [auto_accuracy.Ratios(1.0, 4.0, 8.0), auto_accuracy.Ratios(2.0, 4.0, 9.0)],
    ]
    shrunken, plain = auto_accuracy.mean_gains(runs)
    assert shrunken.tolist() == [6.0, 6.0]
    assert plain.tolist() == [2.0, 3.0]


def test_the_gain_is_checked_in_every_round_of_all_rates(monkeypatch):
    def made(settings, data):
        gain = {1.0: 5.5, 0.2: 5.2, 0.03: 10.0}.get(settings.rate, 6.0)
        dip = 1.0 if settings.rate == 0.1 and settings.seed == 2 else gain
        rounds = [auto_accuracy.Ratios(0.0, 0.0, gain)] * settings.rounds
        return [*rounds[:-1], auto_accuracy.Ratios(0.0, 0.0, dip)]

    monkeypatch.setattr(auto_accuracy, "ratios", made)
    base = dataclasses.replace(settings_of(ACCURACY_TASKS[0], AUTO, 150), rate=0.2, server="filter")
    checks = auto_accuracy.snr_beside_authors(ExperimentRunner(Path(), (1, 2)), base)
    assert [check.holds for check in checks] == [True, True, False, True]
    assert "of 150, K = 1000, rate 0.2, server filter" in checks[0].claim
    assert "(round 30)" in checks[2].figure


def test_ratios_of_the_same_updates_are_those_of_the_run():
    """AutoCPA is decoded as in the run itself; the published decoder gets the same updates."""
    settings = Settings(users=40, rounds=3, mechanism="cpa-auto", epsilon_per_bit=0.5, seed=2)
    found = auto_accuracy.ratios(settings, None)
    rows = run(settings)["history"]
    assert len(found) == 3
    for one, row in zip(found, rows, strict=True):
        assert one.auto == pytest.approx(row["snr_db"])
        assert one.guess > one.auto
        assert -60 < one.published < 20
    assert len({one.published for one in found}) == 3
