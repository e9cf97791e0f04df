"""The accuracy experiment: both sides tuned by one rule, gaps judged seed by seed."""

import dataclasses

import pytest

from hushbit.lab.experiments.accuracy import (
    AUTO,
    CIFAR,
    TASKS,
    VANILLA,
    gap_check,
    settings_of,
    tuned,
)
from hushbit.lab.experiments.base import Lab
from hushbit.lab.results import Cell


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


@pytest.mark.parametrize("task", [*TASKS, CIFAR], ids=lambda task: str(task.where))
@pytest.mark.parametrize("scheme", [AUTO, VANILLA])
def test_sides_differ_in_the_mechanism_only(task, scheme):
    made = settings_of(task, scheme, 10)
    assert made.mechanism == ("cpa-auto" if scheme == AUTO else "fedavg")
    assert made.epsilon_per_bit == (0.5 if scheme == AUTO else None)
    same = dataclasses.replace(made, mechanism="fedavg", epsilon_per_bit=None)
    assert same == settings_of(task, VANILLA, 10)


def test_tuning_takes_the_best_validation():
    lab = FakeLab()
    assert tuned(lab, TASKS[1], AUTO).rate == 0.1
    chosen = tuned(lab, TASKS[1], VANILLA)
    assert (chosen.rate, chosen.server) == (0.1, "filter")
    assert len({s.seed for s in lab.asked}) == 1
    assert len(lab.asked) == 3 + 6


@pytest.mark.parametrize(("auto", "holds"), [((89.7, 89.9), True), ((89.0, 89.5), False)])
def test_gaps_are_judged(auto, holds):
    def cell(scheme, seeds):
        mean = sum(seeds) / len(seeds)
        return Cell(scheme, "corrected", TASKS[0].where, "accuracy", mean, mean, mean, seeds)

    check = gap_check([cell(VANILLA, (90.0, 90.4)), cell(AUTO, auto)], TASKS[0])
    assert check.holds is holds
    assert "gap" in check.figure


def test_a_lab_has_what_tuning_needs():
    assert all(hasattr(Lab, name) for name in ("run", "rounds_of", "measure"))
