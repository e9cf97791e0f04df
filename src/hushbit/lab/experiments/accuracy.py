"""Accuracy at one bit and epsilon 0.5: CPA without knobs against training without privacy."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hushbit.fl.settings import Settings
from hushbit.lab.experiments.ablation import ablation
from hushbit.lab.experiments.base import (
    Experiment,
    Findings,
    Lab,
    Series,
    Where,
    cells_of,
    chosen_text,
    interval,
    privacy_lines,
)
from hushbit.lab.experiments.same_updates import snr_beside_authors
from hushbit.lab.results import Axes, Cell, Check, Metric
from hushbit.lab.tuning import Grid, candidates

EPSILON = 0.5
FAILED = 20.0  # points below the median of its seeds
AUTO, VANILLA = "CPA auto", "vanilla FL"
AXES = Axes("table", None, "", False, (
    Metric("accuracy", "test accuracy (%)"),
    Metric("snr_median_db", "SNR, median over rounds (10 log10, dB)"),
    Metric("change", "accuracy less that of all of auto, seed by seed (points)"),
))  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A federation, the rates that both sides may choose from, and the gap that is allowed.

    `at_most` limits the seeds of what takes long.
    """

    where: Where
    options: dict[str, Any]
    rounds: int
    rates: tuple[float, ...]
    gap: float
    at_most: int = 5


def _mnist(
    model: str, users: int, rounds: int, rates: tuple[float, ...], gap: float, at_most: int = 5
) -> Task:
    where: Where = {"data": "MNIST", "model": model, "users": users}
    return Task(where, {"model": model, "users": users}, rounds, rates, gap, at_most)


TASKS = (
    _mnist("linear", 1000, 150, (0.1, 0.2), 0.5),
    _mnist("linear", 100, 150, (0.05, 0.1, 0.2), 0.5),
    _mnist("linear", 10, 150, (0.03, 0.06, 0.1), 2.0),
    Task(
        {"data": "QMNIST by writer", "model": "linear", "users": 530},
        {"model": "linear", "users": 530, "partition": "writer"}, 150, (0.1, 0.2), 1.0,
    ),
    _mnist("mlp", 1000, 150, (0.2, 0.3, 0.5), 1.0),
    _mnist("cnn2", 100, 300, (0.1, 0.2), 2.0),
)  # fmt: skip
CIFAR = Task(
    {"data": "CIFAR-10", "model": "cnn2", "users": 1000},
    {"dataset": "cifar10", "model": "cnn2", "users": 1000, "samples_per_user": 40, "batch_size": 5},
    200, (0.1, 0.2), 2.0,
)  # fmt: skip
QUICK = TASKS[1:3]


def settings_of(task: Task, scheme: str, rounds: int) -> Settings:
    """A side of a task before its rate is tuned."""
    private: dict[str, Any] = {"mechanism": "cpa-auto", "epsilon_per_bit": EPSILON}
    side = private if scheme == AUTO else {"mechanism": "fedavg"}
    common: dict[str, Any] = {
        "dataset": "mnist", "validation": 10_000, "rounds": rounds, "evaluate_every": rounds,
    }  # fmt: skip
    return Settings(**(common | side | task.options))


def grid_of(task: Task) -> Grid:
    """What both sides choose: the rate, and whether the server filters."""
    return {"rate": task.rates, "server": ("plain", "filter")}


def find(lab: Lab) -> Findings:
    """Tune both sides by validation accuracy on one seed, measure on others, hold to the gaps."""
    return compared(lab, QUICK if lab.quick else TASKS, extras=True)


def find_cifar(lab: Lab) -> Findings:
    """The same on CIFAR-10, which takes hours."""
    return compared(lab, (CIFAR,), extras=False)


def compared(lab: Lab, tasks: Sequence[Task], *, extras: bool) -> Findings:
    """Both sides of every task, and (extras) the ablation and the SNR round by round."""
    series, found = [], []
    for task in tasks:
        sides = [
            Series(scheme, "corrected", tuned(lab, task, scheme), task.where)
            for scheme in (VANILLA, AUTO)
        ]
        fewer = dataclasses.replace(lab, seeds=lab.seeds[: task.at_most])
        series += sides
        found += fewer.measure(sides)
    cells: list[Cell] = []
    for one, outcomes in zip(series, found, strict=True):
        cells += cells_of(one, outcomes, ("accuracy", "snr_median_db"))
    checks = [gap_check(cells, task) for task in tasks]
    notes: tuple[str, ...] = ()
    if extras:
        more, notes = ablation(lab)
        cells += more
        checks += snr_beside_authors(lab, series[1].settings)
    return Findings(
        AXES, tuple(cells), tuple(checks), (*CHOICES, *(chosen_text(one) for one in series)),
        privacy_lines(series, found), notes,
    )  # fmt: skip


def tuned(lab: Lab, task: Task, scheme: str) -> Settings:
    """The settings of the highest validation accuracy on the tuning seed."""
    start = settings_of(task, scheme, lab.rounds_of(task.rounds))
    tried = candidates(start, grid_of(task))
    outcomes = lab.run(tried, "tuning")
    return tried[max(range(len(tried)), key=lambda n: outcomes[n].validation)]


def gap_check(cells: Sequence[Cell], task: Task) -> Check:
    """Whether auto is at most so many points below vanilla, seed by seed on average."""
    at = {
        cell.scheme: cell for cell in cells
        if cell.where == task.where and cell.metric == "accuracy"
    }  # fmt: skip
    pairs = list(zip(at[VANILLA].seeds, at[AUTO].seeds, strict=True))
    # Where vanilla training failed on a seed, its mean says nothing: the gap is that of the others.
    usual = statistics.median(at[VANILLA].seeds)
    kept = [(a, b) for a, b in pairs if a > usual - FAILED]
    mean, low, high = interval([a - b for a, b in kept])
    vanilla, auto = (statistics.fmean(side) for side in zip(*kept, strict=True))
    lost = [f"{a:.2f}" for a, b in pairs if (a, b) not in kept]
    told = f"; without seeds on which vanilla failed ({', '.join(lost)} %)" if lost else ""
    place = ", ".join(f"{key} {value}" for key, value in task.where.items())
    return Check(
        f"gap to vanilla at most {task.gap:g} points, {place}",
        mean <= task.gap,
        f"{auto:.2f} against {vanilla:.2f}: gap {mean:.2f} ({low:.2f} to {high:.2f}){told}",
    )


CHOICES = (
    "Both sides: one local step of at most 16 samples a round (CIFAR-10: 5 of the user's 40), no "
    "local momentum, equal rounds. "
    "The rate and the server's step (plain or filtered) have the highest accuracy on 10 000 "
    "validation samples with one other seed.",
    "Rounds are not limited by privacy here: epsilon is per bit, as in the paper; the run's total "
    "is in the privacy table.",
)
ABOUT = (
    "Test accuracy of CPA.auto at epsilon 0.5 per bit, one bit per weight and one more for the "
    "vote on the norm, against federated averaging of the same users without any privacy."
)
ACCURACY = Experiment(
    "accuracy", "Accuracy of one private bit against none", "beyond the paper", ABOUT, "signal",
    find, seeds=5,
)  # fmt: skip
ACCURACY_CIFAR = dataclasses.replace(
    ACCURACY, name="accuracy-cifar", title="Accuracy of one private bit on CIFAR-10",
    group="cifar", find=find_cifar,
)  # fmt: skip
