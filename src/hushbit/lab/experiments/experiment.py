"""What every experiment consists of: settings that are run as cells, and findings.

Tuning follows one rule for every scheme: the best validation accuracy on seeds that are not
reported. Each scheme gets a small grid over its local rate and over the size of its steps (the
radius of its points, the step of its signs). Training without privacy gets the same rates.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hushbit.lab.experiments import CATALOGUE
from hushbit.lab.experiments.cells import CellPool, Outcome, cell_key, run_cells
from hushbit.lab.experiments.results import RULE, Axes, Cell, Check, Metric, PrivacyLine
from hushbit.lab.intervals import interval
from hushbit.lab.sim.settings import Settings

TUNING_SEED = 9_001  # the first tuning seed; the others follow
TIE_POINTS = 0.5  # accuracy differences that 10 000 validation samples cannot resolve
QUICK_SHARE = 3  # a quick form runs a third of the rounds
METRIC_LABELS = {
    "accuracy": "test accuracy (%)",
    "validation": "validation accuracy (%)",
    "snr_authors_db": "SNR as published (20 log10, dB)",
    "snr_db": "SNR (10 log10, dB)",
    "snr_wiener_db": "SNR of the best guess (10 log10, dB)",
    "snr_median_db": "SNR, median over rounds (10 log10, dB)",
    "rmse": "root mean square error of an entry",
    "removed_attackers": "attackers removed (%)",
    "removed_honest": "honest users removed (%)",
    "ever_removed_attackers": "attackers removed in some round (%)",
    "ever_removed_honest": "honest users removed in some round (%)",
    "worst_class": "test accuracy of the worst class (%)",
    "backdoor": "trigger works (%)",
    "distortion": "E|w_CPA - w_FA|²",
    "gap": "E F(w_t) - F(w*)",
    "gradient_noise": "variance of the noisy mean gradient (Lemma 2)",
    "drift": "distance of the users' weights from their mean (Lemma 3)",
    "decay": "slope of log gap over log t in the last decade",
    "change": "accuracy less that of all of auto, seed by seed (points)",
    "nmse": "NMSE",
    "slope": "slope (1: not shrunken)",
    "bits": "bits an entry",
    "error_db": "error of one user and entry over its variance (10 log10, dB)",
}
Grid = Mapping[str, Sequence[Any]]
Coordinates = dict[str, str | int | float]
Watch = Callable[[str, int, int], None]


def table_axes(*metrics: str) -> Axes:
    """A table of each of these metrics."""
    return Axes("table", None, "", False, tuple(Metric(m, METRIC_LABELS[m]) for m in metrics))


def line_axes(x: str, label: str, *metrics: str, log: bool = False) -> Axes:
    """Lines of each of these metrics over `x`."""
    return Axes("lines", x, label, log, tuple(Metric(m, METRIC_LABELS[m]) for m in metrics))


@dataclass(frozen=True)
class Findings:
    """What an experiment found; choices and notes are added to those of the catalogue."""

    axes: Axes
    cells: tuple[Cell, ...]
    checks: tuple[Check, ...] = ()
    choices: tuple[str, ...] = ()
    privacy: tuple[PrivacyLine, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """One scheme at one place: settings that are run once for each seed.

    `max_seeds` limits the seeds of long runs; the cells show how many there are.
    """

    scheme: str
    variant: str
    settings: Settings
    where: Coordinates
    x: float | None = None
    max_seeds: int | None = None


@dataclass(frozen=True)
class Measured:
    """Series with their outcomes, one for each seed."""

    pairs: tuple[tuple[Series, tuple[Outcome, ...]], ...]

    def cells(self, metrics: Iterable[str]) -> list[Cell]:
        """A cell for each series and each metric that every seed has."""
        return [cell for pair in self.pairs for cell in cells_of(*pair, metrics)]

    def curves(self) -> list[Cell]:
        """Validation accuracy by round, a cell for each evaluated round."""
        return [
            cell_of(
                dataclasses.replace(one, x=float(points[0][0])),
                "validation",
                [p[1] for p in points],
            )
            for one, outcomes in self.pairs
            for points in zip(*(outcome.curve for outcome in outcomes), strict=False)
        ]

    @property
    def privacy(self) -> tuple[PrivacyLine, ...]:
        """The guarantee of each scheme, once for each distinct text."""
        lines = {
            PrivacyLine(f"{one.scheme} ({one.variant})", *outcomes[0].privacy)
            for one, outcomes in self.pairs
            if not outcomes[0].diverged
        }
        return tuple(sorted(lines, key=lambda line: (line.scheme, line.per_bit, line.per_run)))


@dataclass(frozen=True, eq=False)
class ExperimentRunner:
    """Where cells are run and stored, and the size of the experiments.

    `cpu_seconds` holds the time of every cell that was requested, stored ones included. A `pool`
    of workers is shared with other experiments.
    """

    folder: Path
    seeds: tuple[int, ...]
    quick: bool = False
    rounds: int | None = None
    workers: int = 1
    data: str | None = None
    watch: Watch = lambda step, done, total: None
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    pool: CellPool | None = None

    def rounds_of(self, full: int) -> int:
        """The rounds to run where the full form has `full`."""
        if self.rounds is not None:
            return self.rounds
        return max(2, full // QUICK_SHARE) if self.quick else full

    def run(self, wanted: Sequence[Settings], step: str = "cells") -> list[Outcome]:
        """Outcomes of settings, in order; stored cells are read, the others are computed."""
        made = run_cells(
            wanted,
            self.folder / "cells",
            workers=self.workers,
            data=self.data,
            watch=partial(self.watch, step),
            pool=self.pool,
        )
        for settings, outcome in zip(wanted, made, strict=True):
            self.cpu_seconds[cell_key(settings)] = outcome.seconds
        return made

    def tune(self, wanted: Sequence[tuple[Settings, Grid]], seeds: int = 1) -> list[Settings]:
        """The best settings of each grid, by mean validation accuracy on tuning seeds."""
        tried = [candidates(settings, grid) for settings, grid in wanted]
        flat = [
            dataclasses.replace(settings, seed=settings.seed + number)
            for group in tried
            for settings in group
            for number in range(seeds)
        ]
        outcomes = iter(self.run(flat, "tuning"))
        return [
            best_settings({one: [next(outcomes) for _ in range(seeds)] for one in group})
            for group in tried
        ]

    def measure(self, series: Sequence[Series]) -> Measured:
        """Run every series once for each of its seeds."""
        flat = [
            dataclasses.replace(one.settings, seed=seed)
            for one in series
            for seed in self.seeds[: one.max_seeds]
        ]
        outcomes = iter(self.run(flat))
        return Measured(
            tuple(
                (one, tuple(next(outcomes) for _ in self.seeds[: one.max_seeds])) for one in series
            )
        )


@dataclass(frozen=True)
class Experiment:
    """A named experiment: the function that runs it, and its entry of catalogue.toml.

    group     mnist, cifar, theory, ...; `hushbit reproduce mnist` runs mnist and theory
    seeds     number of seeds of the full form unless the caller gives one
    by_cells  all long computations are cells, so that a dry run can list them
    rule         RULE where settings are chosen by it
    first_seed   the seeds that are reported begin here; by default at 201 with a rule, else at 1
    cpu_minutes  estimated CPU time where it is not that of cells
    """

    name: str
    find: Callable[[ExperimentRunner], Findings]
    title: str
    paper: str
    about: str
    group: str
    seeds: int = 3
    by_cells: bool = False
    rule: str = ""
    first_seed: int | None = None
    cpu_minutes: float = 0.0
    choices: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    quick_notes: tuple[str, ...] = ()


SHARED_ENTRIES = {f"{{{name}}}": entry for name, entry in CATALOGUE["shared"].items()}


def experiment(
    name: str, find: Callable[[ExperimentRunner], Findings], **values: object
) -> Experiment:
    """The experiment with this name in the catalogue; `values` replace braces in its texts."""

    def filled(entry: Any) -> Any:
        if isinstance(entry, list):
            return tuple(map(filled, entry))
        if not isinstance(entry, str):
            return entry
        if entry in SHARED_ENTRIES:
            return filled(SHARED_ENTRIES[entry])
        return " ".join(entry.format(rule_name=RULE, **values).split())

    entries = CATALOGUE["experiments"][name].items()
    return Experiment(name, find, **{key: filled(entry) for key, entry in entries})


def listed(numbers: Iterable[float]) -> str:
    """Numbers with commas between them."""
    return ", ".join(f"{number:g}" for number in numbers)


def candidates(settings: Settings, grid: Grid) -> list[Settings]:
    """The settings with every combination of the grid, on the tuning seed.

    `reach` is a radius in units of the local rate: updates grow with the rate, and so must the
    radius of the points.
    """
    names = list(grid)
    made = []
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(names, values, strict=True))
        if "reach" in chosen:
            rate = chosen.get("rate", settings.local_rate)
            chosen["radius"] = round(float(rate * chosen.pop("reach")), 6)
        made.append(dataclasses.replace(settings, seed=TUNING_SEED, **chosen))
    return made


def best_settings(tried: Mapping[Settings, Sequence[Outcome]]) -> Settings:
    """The settings of the highest mean validation accuracy over their outcomes.

    Ties go to the highest mean SNR, then to the first. Accuracies within half a point are ties:
    that is the error of 10 000 samples.
    """
    accuracy = {
        one: statistics.fmean(outcome.validation for outcome in outcomes)
        for one, outcomes in tried.items()
    }

    def signal(one: Settings) -> float:
        ratios = [outcome.snr_db for outcome in tried[one] if outcome.snr_db is not None]
        return statistics.fmean(ratios) if len(ratios) == len(tried[one]) else accuracy[one]

    ties = [one for one in tried if accuracy[one] >= max(accuracy.values()) - TIE_POINTS]
    return max(ties, key=signal)


def cells_of(one: Series, outcomes: Sequence[Outcome], metrics: Iterable[str]) -> list[Cell]:
    """A cell for each metric that every seed has; training without noise has no SNR."""
    values = {metric: [getattr(outcome, metric) for outcome in outcomes] for metric in metrics}
    return [cell_of(one, metric, found) for metric, found in values.items() if None not in found]


def cell_of(one: Series, metric: str, values: Sequence[float]) -> Cell:
    """A cell with the mean and the 95 % interval of the values of all seeds."""
    place = one.scheme, one.variant, one.where, metric
    return Cell(*place, *interval(values), tuple(values), one.x)


def stated_cell(
    scheme: str,
    variant: str,
    where: Coordinates,
    metric: str,
    value: float,
    x: float | None = None,
) -> Cell:
    """A cell of one value that was not measured: it has no seeds and no interval."""
    value = float(value)
    return Cell(scheme, variant, where, metric, value, value, value, (), x)


def published(
    scheme: str, where: Coordinates, metric: str, value: float, x: float | None = None
) -> Cell:
    """A figure of the paper."""
    return stated_cell(scheme, "published", where, metric, value, x)


def select(cells: Iterable[Cell], **wanted: object) -> list[Cell]:
    """The cells whose attributes have these values."""
    return [
        cell
        for cell in cells
        if all(getattr(cell, name) == value for name, value in wanted.items())
    ]


def chosen_text(one: Series) -> str:
    """The settings that tuning chose, as text."""
    settings = one.settings
    parts = [f"rate {settings.local_rate:g}"]
    if settings.server_name != "plain":
        parts.append(f"server {settings.server_name}")
    if settings.radius is not None:
        parts.append(f"radius {settings.radius:g}")
    if settings.sign_step is not None:
        parts.append(f"sign step {settings.sign_step:g}")
    place = [place_text(one.where)] if one.where else []
    place += [] if one.x is None else [f"x = {one.x:g}"]
    return f"{one.scheme} ({one.variant}; {', '.join(place)}): {', '.join(parts)}"


def place_text(where: Coordinates, separator: str = " ") -> str:
    """Coordinates as text, such as "model linear, users 10"."""
    return ", ".join(f"{key}{separator}{value}" for key, value in where.items())
