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
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hushbit.checks import Floats
from hushbit.lab.experiments.experiment import (
    Coordinates,
    ExperimentRunner,
    Findings,
    Grid,
    Series,
    candidates,
    cell_of,
    cells_of,
    chosen_text,
    experiment,
    place_text,
    select,
    table_axes,
)
from hushbit.lab.experiments.results import Cell, Check
from hushbit.lab.intervals import interval
from hushbit.lab.sim.aggregate_sampler import AggregateSampler, aggregate_sampler
from hushbit.lab.sim.learning_task import layer_slices
from hushbit.lab.sim.metrics import MeanDenoiser, distortion
from hushbit.lab.sim.rounds import ballots, initial_state, run_rounds
from hushbit.lab.sim.settings import PAPER_TRAINING, Settings
from hushbit.lab.sim.setup import Setup, build_setup
from hushbit.lab.sim.training import LocalChunk

AUTO, VANILLA = "CPA auto", "vanilla FL"
METRICS = ("accuracy", "snr_median_db")
MAX_SEEDS, ABLATION_SEEDS = 5, 20
REACHES = (0.05, 0.1, 0.2, 0.4)
PRIVATE = {"epsilon_per_bit": 0.5}
AUTO_OPTIONS = PRIVATE | {"mechanism": "cpa-auto"}
BY_HAND = PRIVATE | {"mechanism": "cpa", "server": "filter"}
"""A fixed radius, tuned on validation data; the norm vote needs no such tuning."""

VARIANTS: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "all of auto": (AUTO_OPTIONS, {}),
    "without filter": (AUTO_OPTIONS | {"server": "plain"}, {}),
    "without vote: fixed radius tuned by hand": (BY_HAND | {"rotate": True}, {"reach": REACHES}),
    "without vote and rotation": (BY_HAND, {"reach": REACHES}),
    "without vote, rotation and filter": (BY_HAND | {"server": "plain"}, {"reach": REACHES}),
    "with weights averaged": (AUTO_OPTIONS | {"average_weights": True}, {}),
    "with k = 2 (four points)": (AUTO_OPTIONS | {"k": 2}, {}),
}


ABLATION_RATES = {100: (0.05, 0.1, 0.2), 10: (0.03, 0.06, 0.1)}  # by the number of users
ABLATION_ROUNDS = 150


def ablation(lab: ExperimentRunner) -> tuple[list[Cell], tuple[str, ...]]:
    """Linear model on MNIST: all variants are tuned by the same rule and compared seed by seed."""
    seeds = lab.seeds if lab.quick else tuple(range(1, ABLATION_SEEDS + 1))
    many = dataclasses.replace(lab, seeds=seeds)
    cells: list[Cell] = []
    chosen: list[str] = []
    for users in list(ABLATION_RATES)[: 1 if lab.quick else None]:
        found = many.measure([_tuned(many, users, name) for name in VARIANTS])
        (_, whole), *_ = found.pairs
        for one, outcomes in found.pairs:
            cells += cells_of(one, outcomes, METRICS)
            if outcomes is not whole:
                # Seed by seed: same users, same data.
                changes = [b.accuracy - a.accuracy for a, b in zip(whole, outcomes, strict=True)]
                cells.append(cell_of(one, "change", changes))
            radius = f", radius {one.settings.radius:g}" if one.settings.radius else ""
            chosen.append(
                f"{one.where['ablation']}, K = {users}: rate {one.settings.local_rate:g}{radius}"
            )
    return cells, tuple(chosen)


def _tuned(lab: ExperimentRunner, users: int, name: str) -> Series:
    options, own = VARIANTS[name]
    start = _task_settings(lab.rounds_of(ABLATION_ROUNDS), model="linear", users=users, **options)
    best = most_accurate(lab, start, {"rate": ABLATION_RATES[users], **own})
    where: Coordinates = {"ablation": name, "model": "linear", "users": users}
    return Series(AUTO, "corrected", best, where)


def _task_settings(rounds: int, **options: Any) -> Settings:
    task = PAPER_TRAINING | {"dataset": "mnist"} | options
    return Settings(validation=10_000, rounds=rounds, evaluate_every=rounds, **task)


def most_accurate(lab: ExperimentRunner, start: Settings, grid: Grid) -> Settings:
    """The settings of the grid with the highest validation accuracy on the tuning seed."""
    tried = candidates(start, grid)
    outcomes = lab.run(tried, "tuning")
    return tried[max(range(len(tried)), key=lambda n: outcomes[n].validation)]


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
    denoiser = MeanDenoiser([slot.shape for slot in setup.task.slots], setup.task.image_shape)
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
    sampler = aggregate_sampler(authors, layer_slices(setup.task), setup.task.dim)
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


def mean_gains(runs: Sequence[Sequence[Ratios]]) -> tuple[Floats, Floats]:
    """Decibels above the published decoder by round, mean over runs: denoised, as trained on."""
    best, plain = (
        np.mean([[getattr(one, name) - one.published for one in run] for run in runs], axis=0)
        for name in ("guess", "auto")
    )
    return best, plain


def _snr_check(lab: ExperimentRunner, settings: Settings) -> Check:
    runs = []
    for number, seed in enumerate(lab.seeds, 1):
        runs.append(ratios(dataclasses.replace(settings, seed=seed), lab.data))
        lab.watch("SNR round by round", number, len(lab.seeds))
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


FAILED_BELOW = 20.0  # points below the median of its seeds


@dataclass(frozen=True)
class AccuracyTask:
    """A federation, the rates that both sides choose from, and the largest accuracy gap claimed."""

    data: str
    model: str
    users: int
    rounds: int
    rates: tuple[float, ...]
    gap: float
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> Coordinates:
        """The coordinates of its cells."""
        return {"data": self.data, "model": self.model, "users": self.users}


ACCURACY_TASKS = (
    AccuracyTask("MNIST", "linear", 1000, 150, (0.1, 0.2), 0.5),
    AccuracyTask("MNIST", "linear", 100, 150, (0.05, 0.1, 0.2), 0.5),
    AccuracyTask("MNIST", "linear", 10, 150, (0.03, 0.06, 0.1), 2.0),
    AccuracyTask("QMNIST by writer", "linear", 530, 150, (0.1, 0.2), 1.0, {"partition": "writer"}),
    AccuracyTask("MNIST", "mlp", 1000, 150, (0.2, 0.3, 0.5), 1.0),
    AccuracyTask("MNIST", "cnn2", 100, 300, (0.1, 0.2), 2.0),
)
CIFAR_OPTIONS = {"dataset": "cifar10", "samples_per_user": 40, "batch_size": 5}
CIFAR_TASK = AccuracyTask("CIFAR-10", "cnn2", 1000, 200, (0.1, 0.2), 2.0, CIFAR_OPTIONS)
QUICK_TASKS = ACCURACY_TASKS[1:3]


def settings_of(task: AccuracyTask, scheme: str, rounds: int) -> Settings:
    """The settings of one side of a task, before its rate is tuned."""
    side = AUTO_OPTIONS if scheme == AUTO else {"mechanism": "fedavg"}
    return _task_settings(rounds, model=task.model, users=task.users, **side, **task.options)


def compared(lab: ExperimentRunner, tasks: Sequence[AccuracyTask], *, extras: bool) -> Findings:
    """Compare both sides of every task; with `extras`, also the ablation and the SNR by round."""
    series = [
        Series(s, "corrected", tuned(lab, task, s), task.where, max_seeds=MAX_SEEDS)
        for task in tasks
        for s in (VANILLA, AUTO)
    ]
    found = lab.measure(series)
    cells = found.cells(METRICS)
    checks = [gap_check(cells, task) for task in tasks]
    notes: tuple[str, ...] = ()
    if extras:
        more, notes = ablation(lab)
        cells += more
        checks += snr_beside_authors(lab, series[1].settings)
    choices = tuple(map(chosen_text, series))
    axes = table_axes(*METRICS, "change")
    return Findings(axes, tuple(cells), tuple(checks), choices, found.privacy, notes)


def tuned(lab: ExperimentRunner, task: AccuracyTask, scheme: str) -> Settings:
    """The settings of one side of a task, with the most accurate rate and server step."""
    start = settings_of(task, scheme, lab.rounds_of(task.rounds))
    return most_accurate(lab, start, {"rate": task.rates, "server": ("plain", "filter")})


def gap_check(cells: Sequence[Cell], task: AccuracyTask) -> Check:
    """Whether AutoCPA is at most so many points below vanilla training, on average over seeds."""
    at = {cell.scheme: cell for cell in select(cells, where=task.where, metric="accuracy")}
    pairs = list(zip(at[VANILLA].seeds, at[AUTO].seeds, strict=True))
    # A seed on which vanilla training failed would hide a gap, so it is left out.
    usual = statistics.median(at[VANILLA].seeds)
    kept = [(a, b) for a, b in pairs if a > usual - FAILED_BELOW]
    mean, low, high = interval([a - b for a, b in kept])
    vanilla, auto = (statistics.fmean(side) for side in zip(*kept, strict=True))
    lost = [f"{a:.2f}" for a, b in pairs if (a, b) not in kept]
    excluded = f"; without seeds on which vanilla failed ({', '.join(lost)} %)" if lost else ""
    return Check(
        f"gap to vanilla at most {task.gap:g} points, {place_text(task.where)}",
        mean <= task.gap,
        f"{auto:.2f} against {vanilla:.2f}: gap {mean:.2f} ({low:.2f} to {high:.2f}){excluded}",
    )


EXPERIMENTS = (
    experiment(
        "accuracy",
        lambda lab: compared(lab, QUICK_TASKS if lab.quick else ACCURACY_TASKS, extras=True),
    ),
    experiment("accuracy-cifar", lambda lab: compared(lab, (CIFAR_TASK,), extras=False)),
)
