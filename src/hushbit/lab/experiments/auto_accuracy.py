"""Accuracy of AutoCPA at one bit per weight and epsilon 0.5, against training without privacy.

Two more questions are answered beside it:

- What each part of AutoCPA contributes: all of them, then one left out or added (`ablation`).
- The signal-to-noise ratio in every round, AutoCPA and CPA as published decoding the same updates
  (`snr_beside_authors`). The claim is about the denoised mean of each round (`MeanDenoiser`); the
  estimate that moves the model, which is not shrunken, is reported beside it.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.lab.experiments.cells import Outcome
from hushbit.lab.experiments.experiment import (
    Coordinates,
    Experiment,
    ExperimentRunner,
    Findings,
    Grid,
    Series,
    candidates,
    cell_of,
    cells_of,
    chosen_text,
    interval,
    privacy_lines,
)
from hushbit.lab.experiments.results import Axes, Cell, Check, Metric
from hushbit.lab.sim.aggregate_sampler import AggregateSampler, aggregate_sampler
from hushbit.lab.sim.metrics import MeanDenoiser, distortion
from hushbit.lab.sim.rounds import ballots, initial_state, run_rounds
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import Setup, build_setup
from hushbit.lab.sim.training import LocalChunk

ABLATION_SEEDS = 20
REACHES = (0.05, 0.1, 0.2, 0.4)
PRIVATE = {"epsilon_per_bit": 0.5}
AUTO_OPTIONS = PRIVATE | {"mechanism": "cpa-auto"}
BY_HAND = PRIVATE | {"mechanism": "cpa", "server": "filter"}
"""A fixed radius, tuned on validation data; the norm vote needs no such tuning."""

WHOLE = "all of auto"
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    WHOLE: (AUTO_OPTIONS, {}),
    "without filter": (AUTO_OPTIONS | {"server": "plain"}, {}),
    "without vote: fixed radius tuned by hand": (BY_HAND | {"rotate": True}, {"reach": REACHES}),
    "without vote and rotation": (BY_HAND, {"reach": REACHES}),
    "without vote, rotation and filter": (BY_HAND | {"server": "plain"}, {"reach": REACHES}),
    "with weights averaged": (AUTO_OPTIONS | {"average_weights": True}, {}),
    "with k = 2 (four points)": (AUTO_OPTIONS | {"k": 2}, {}),
}


@dataclass(frozen=True)
class AblationTask:
    """A federation in which variants are compared: users, rounds, and the rates to choose from."""

    users: int
    rounds: int
    rates: tuple[float, ...]


ABLATION_TASKS = (
    AblationTask(100, 150, (0.05, 0.1, 0.2)),
    AblationTask(10, 150, (0.03, 0.06, 0.1)),
)


def ablation(lab: ExperimentRunner) -> tuple[list[Cell], tuple[str, ...]]:
    """Linear model on MNIST: all variants are tuned by the same rule and compared seed by seed."""
    seeds = lab.seeds if lab.quick else tuple(range(1, ABLATION_SEEDS + 1))
    many = dataclasses.replace(lab, seeds=seeds)
    cells: list[Cell] = []
    chosen: list[str] = []
    for task in ABLATION_TASKS[:1] if lab.quick else ABLATION_TASKS:
        series = [_tuned(many, task, name) for name in VARIANTS]
        found = many.measure(series)
        for one, outcomes in zip(series, found, strict=True):
            cells += cells_of(one, outcomes, ("accuracy", "snr_median_db"))
            if one is not series[0]:
                cells.append(cell_of(one, "change", changes(found[0], outcomes)))
        chosen += [_described(one) for one in series]
    return cells, tuple(chosen)


def changes(whole: list[Outcome], variant: list[Outcome]) -> list[float]:
    """Accuracy of a variant less that of all of AutoCPA, seed by seed: same users, same data."""
    return [b.accuracy - a.accuracy for a, b in zip(whole, variant, strict=True)]


def _tuned(lab: ExperimentRunner, task: AblationTask, name: str) -> Series:
    options, own = VARIANTS[name]
    rounds = lab.rounds_of(task.rounds)
    start = Settings(
        dataset="mnist",
        model="linear",
        users=task.users,
        validation=10_000,
        rounds=rounds,
        evaluate_every=rounds,
        **options,
    )
    best = most_accurate(lab, start, {"rate": task.rates, **own})
    where: Coordinates = {"ablation": name, "model": "linear", "users": task.users}
    return Series("CPA auto", "corrected", best, where)


def most_accurate(lab: ExperimentRunner, start: Settings, grid: Grid) -> Settings:
    """The settings of the grid with the highest validation accuracy on the tuning seed."""
    tried = candidates(start, grid)
    outcomes = lab.run(tried, "tuning")
    return tried[max(range(len(tried)), key=lambda n: outcomes[n].validation)]


def _described(one: Series) -> str:
    radius = f", radius {one.settings.radius:g}" if one.settings.radius else ""
    return (
        f"{one.where['ablation']}, K = {one.where['users']}: rate {one.settings.local_rate:g}"
        f"{radius}"
    )


OTHER_ROUNDS, PUBLISHED_RADIUS, WANTED = 30, 0.05, 5.0
OTHER_RATES = (1.0, 0.1, 0.03)
RATE_NAMES = {1.0: " (the published code's)", 0.1: " (its earlier revision's)", 0.03: " (default)"}


@dataclass(frozen=True)
class Ratios:
    """SNR of one round in dB: CPA as published, AutoCPA as trained on, its denoised mean."""

    published: float
    auto: float
    guess: float


def ratios(settings: Settings, data: str | None) -> list[Ratios]:
    """Train by AutoCPA; decode the updates of every round by the published decoder, too."""
    setup = build_setup(settings, data)
    denoiser = MeanDenoiser([slot.shape for slot in setup.model.shapes], setup.model.input_shape)
    samplers: dict[int, AggregateSampler] = {}

    def observe(number: int, chunk: LocalChunk) -> None:
        sampler = samplers.setdefault(number, _published_sampler(setup))
        sampler.add(chunk.updates, np.zeros(len(chunk.users), dtype=np.bool_))

    aggregator, found = partial(ballots, observer=observe), []
    for made in run_rounds(setup, initial_state(setup), aggregator=aggregator):
        number, auto = made.number - 1, made.estimate
        rng = np.random.default_rng([settings.seed, number, 0x5E])
        assert auto.noise is not None
        means = (
            samplers.pop(number).decode(rng),
            auto.mean,
            denoiser.denoise(auto.mean, auto.noise),
        )
        truth = made.true_mean
        found.append(Ratios(*(distortion(truth, truth, mean).snr_db for mean in means)))
    return found


def _published_sampler(setup: Setup) -> AggregateSampler:
    """Samples the published decoder's mean from its exact distribution."""
    authors = Settings(
        mechanism="cpa",
        preset="authors",
        radius=PUBLISHED_RADIUS,
        users=setup.settings.users,
        epsilon_per_bit=setup.settings.epsilon_per_bit,
    )
    sampler = aggregate_sampler(authors, setup.model.layers, setup.model.dim)
    assert sampler is not None
    return sampler


def snr_beside_authors(lab: ExperimentRunner, run: Settings) -> list[Check]:
    """Whether the denoised mean is 5 dB above the published decoder in every round.

    Checked for the run as it was tuned. A fixed radius suits one size of updates, so what the
    published decoder loses depends on the rate: other rates are checked, too.
    """
    others = () if lab.quick else OTHER_RATES
    rounds = lab.rounds_of(OTHER_ROUNDS)
    more = [
        dataclasses.replace(run, rate=rate, rounds=rounds, evaluate_every=rounds) for rate in others
    ]
    return [_snr_check(lab, settings) for settings in (run, *more)]


def mean_gains(runs: Sequence[Sequence[Ratios]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Decibels above the published decoder by round, mean over runs: denoised, as trained on."""
    best, plain = (
        np.mean([[getattr(one, name) - one.published for one in run] for run in runs], axis=0)
        for name in ("guess", "auto")
    )
    return best, plain


def _snr_check(lab: ExperimentRunner, settings: Settings) -> Check:
    runs = []
    for number, seed in enumerate(lab.seeds):
        runs.append(ratios(dataclasses.replace(settings, seed=seed), lab.data))
        if lab.watch is not None:
            lab.watch("SNR round by round", number + 1, len(lab.seeds))
    gains, plain = mean_gains(runs)
    worst, rate = int(np.argmin(gains)), settings.local_rate
    return Check(
        f"SNR at least {WANTED:g} dB above the authors preset in every round of "
        f"{settings.rounds}, K = {settings.users}, rate {rate:g}{RATE_NAMES.get(rate, '')}, server "
        f"{settings.server_name}, mean of {len(runs)} seeds",
        float(gains.min()) >= WANTED,
        f"best guess: {gains.min():.1f} dB at the least (round {worst + 1}), median "
        f"{np.median(gains):.1f}; as trained on, not shrunken: {plain.min():.1f} dB at the least, "
        f"median {np.median(plain):.1f}",
    )


EPSILON = 0.5
FAILED_BELOW = 20.0  # points below the median of its seeds
AUTO, VANILLA = "CPA auto", "vanilla FL"
ACCURACY_AXES = Axes(
    "table",
    None,
    "",
    False,
    (
        Metric("accuracy", "test accuracy (%)"),
        Metric("snr_median_db", "SNR, median over rounds (10 log10, dB)"),
        Metric("change", "accuracy less that of all of auto, seed by seed (points)"),
    ),
)


@dataclass(frozen=True)
class AccuracyTask:
    """A federation, the rates that both sides choose from, and the largest accuracy gap claimed.

    `max_seeds` limits the seeds of tasks that take long.
    """

    where: Coordinates
    options: dict[str, Any]
    rounds: int
    rates: tuple[float, ...]
    gap: float
    max_seeds: int = 5


def _mnist(
    model: str, users: int, rounds: int, rates: tuple[float, ...], gap: float, max_seeds: int = 5
) -> AccuracyTask:
    where: Coordinates = {"data": "MNIST", "model": model, "users": users}
    return AccuracyTask(where, {"model": model, "users": users}, rounds, rates, gap, max_seeds)


ACCURACY_TASKS = (
    _mnist("linear", 1000, 150, (0.1, 0.2), 0.5),
    _mnist("linear", 100, 150, (0.05, 0.1, 0.2), 0.5),
    _mnist("linear", 10, 150, (0.03, 0.06, 0.1), 2.0),
    AccuracyTask(
        {"data": "QMNIST by writer", "model": "linear", "users": 530},
        {"model": "linear", "users": 530, "partition": "writer"},
        150,
        (0.1, 0.2),
        1.0,
    ),
    _mnist("mlp", 1000, 150, (0.2, 0.3, 0.5), 1.0),
    _mnist("cnn2", 100, 300, (0.1, 0.2), 2.0),
)
CIFAR_TASKS = AccuracyTask(
    {"data": "CIFAR-10", "model": "cnn2", "users": 1000},
    {"dataset": "cifar10", "model": "cnn2", "users": 1000, "samples_per_user": 40, "batch_size": 5},
    200,
    (0.1, 0.2),
    2.0,
)
QUICK_TASKS = ACCURACY_TASKS[1:3]


def settings_of(task: AccuracyTask, scheme: str, rounds: int) -> Settings:
    """The settings of one side of a task, before its rate is tuned."""
    private: dict[str, Any] = {"mechanism": "cpa-auto", "epsilon_per_bit": EPSILON}
    side = private if scheme == AUTO else {"mechanism": "fedavg"}
    common: dict[str, Any] = {
        "dataset": "mnist",
        "validation": 10_000,
        "rounds": rounds,
        "evaluate_every": rounds,
    }
    return Settings(**(common | side | task.options))


def grid_of(task: AccuracyTask) -> Grid:
    """What both sides tune: the rate, and whether the server filters."""
    return {"rate": task.rates, "server": ("plain", "filter")}


def find_accuracy_auto(lab: ExperimentRunner) -> Findings:
    """Tune both sides by validation accuracy on one seed, measure on others, check the gaps."""
    return compared(lab, QUICK_TASKS if lab.quick else ACCURACY_TASKS, extras=True)


def find_accuracy_cifar(lab: ExperimentRunner) -> Findings:
    """As `find_accuracy_auto` on CIFAR-10, which takes hours."""
    return compared(lab, (CIFAR_TASKS,), extras=False)


def compared(lab: ExperimentRunner, tasks: Sequence[AccuracyTask], *, extras: bool) -> Findings:
    """Compare both sides of every task; with `extras`, also the ablation and the SNR by round."""
    series, found = [], []
    for task in tasks:
        sides = [
            Series(scheme, "corrected", tuned(lab, task, scheme), task.where)
            for scheme in (VANILLA, AUTO)
        ]
        fewer = dataclasses.replace(lab, seeds=lab.seeds[: task.max_seeds])
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
        ACCURACY_AXES,
        tuple(cells),
        tuple(checks),
        (*ACCURACY_CHOICES, *(chosen_text(one) for one in series)),
        privacy_lines(series, found),
        notes,
    )


def tuned(lab: ExperimentRunner, task: AccuracyTask, scheme: str) -> Settings:
    """The settings of one side of a task, tuned."""
    return most_accurate(lab, settings_of(task, scheme, lab.rounds_of(task.rounds)), grid_of(task))


def gap_check(cells: Sequence[Cell], task: AccuracyTask) -> Check:
    """Whether AutoCPA is at most so many points below vanilla training, on average over seeds."""
    at = {
        cell.scheme: cell
        for cell in cells
        if cell.where == task.where and cell.metric == "accuracy"
    }
    pairs = list(zip(at[VANILLA].seeds, at[AUTO].seeds, strict=True))
    # A seed on which vanilla training failed would hide a gap, so it is left out.
    usual = statistics.median(at[VANILLA].seeds)
    kept = [(a, b) for a, b in pairs if a > usual - FAILED_BELOW]
    mean, low, high = interval([a - b for a, b in kept])
    vanilla, auto = (statistics.fmean(side) for side in zip(*kept, strict=True))
    lost = [f"{a:.2f}" for a, b in pairs if (a, b) not in kept]
    excluded = f"; without seeds on which vanilla failed ({', '.join(lost)} %)" if lost else ""
    place = ", ".join(f"{key} {value}" for key, value in task.where.items())
    return Check(
        f"gap to vanilla at most {task.gap:g} points, {place}",
        mean <= task.gap,
        f"{auto:.2f} against {vanilla:.2f}: gap {mean:.2f} ({low:.2f} to {high:.2f}){excluded}",
    )


ACCURACY_CHOICES = (
    "Both sides: one local step of at most 16 samples a round (CIFAR-10: 5 of the user's 40), no "
    "local momentum, equal rounds. "
    "The rate and the server's step (plain or filtered) have the highest accuracy on 10 000 "
    "validation samples with one other seed.",
    "Rounds are not limited by privacy here: epsilon is per bit, as in the paper; the run's total "
    "is in the privacy table.",
)
ACCURACY_ABOUT = (
    "Test accuracy of AutoCPA at epsilon 0.5 per bit, one bit per weight and one more for the "
    "vote on the norm, against federated averaging of the same users without any privacy."
)
ACCURACY = Experiment(
    "accuracy",
    "Accuracy of one private bit against none",
    "beyond the paper",
    ACCURACY_ABOUT,
    "signal",
    find_accuracy_auto,
    seeds=5,
)
ACCURACY_CIFAR = dataclasses.replace(
    ACCURACY,
    name="accuracy-cifar",
    title="Accuracy of one private bit on CIFAR-10",
    group="cifar",
    find=find_accuracy_cifar,
)
