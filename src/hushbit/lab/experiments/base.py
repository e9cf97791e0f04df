"""What every experiment is made of: a laboratory that runs cells, and findings it brings home."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hushbit.fl.settings import Settings
from hushbit.lab.bench import Bench
from hushbit.lab.cells import Outcome, cell_key, run_cells
from hushbit.lab.results import Axes, Cell, Check, PrivacyLine
from hushbit.lab.tuning import Grid, averaged, best, candidates

CONFIDENCE = 0.95
QUICK_SHARE = 3  # a quick form runs a third of the rounds
Where = dict[str, str | int | float]


@dataclass(frozen=True)
class Findings:
    """What an experiment found."""

    axes: Axes
    cells: tuple[Cell, ...]
    checks: tuple[Check, ...] = ()
    choices: tuple[str, ...] = ()
    privacy: tuple[PrivacyLine, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """One scheme at one place: settings that are run once for each seed.

    `at_most` limits the seeds of what takes long; the cells show how many there are.
    """

    scheme: str
    variant: str
    settings: Settings
    where: Where
    x: float | None = None
    at_most: int | None = None


Watch = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Lab:
    """Where cells are run and kept, and how large the experiments are.

    `spent` gathers the seconds of all cells that were asked for, kept ones included; a `bench` is
    shared with other experiments.
    """

    folder: Path
    seeds: tuple[int, ...]
    quick: bool = False
    rounds: int | None = None
    workers: int = 1
    data: str | None = None
    watch: Watch | None = None
    spent: dict[str, float] = field(default_factory=dict)
    bench: Bench | None = None

    def rounds_of(self, full: int) -> int:
        """The rounds to run where the paper has `full`."""
        if self.rounds is not None:
            return self.rounds
        return max(2, full // QUICK_SHARE) if self.quick else full

    def run(self, wanted: Sequence[Settings], step: str = "cells") -> list[Outcome]:
        """Outcomes of settings, in order, from the cache where they are kept."""
        done = 0

        def heard(settings: Settings, kept: bool) -> None:
            nonlocal done
            done += 1
            if self.watch is not None:
                self.watch(step, done, len(wanted))

        folder = self.folder / "cells"
        made = run_cells(
            wanted, folder, workers=self.workers, data=self.data, watch=heard, bench=self.bench
        )
        for settings, outcome in zip(wanted, made, strict=True):
            self.spent[cell_key(settings)] = outcome.seconds
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
        means = [[averaged([next(outcomes) for _ in range(seeds)]) for _ in g] for g in tried]
        return [best(group, found) for group, found in zip(tried, means, strict=True)]

    def measure(self, series: Sequence[Series]) -> list[list[Outcome]]:
        """The outcomes of each series, one for each of its seeds."""
        flat = [
            dataclasses.replace(one.settings, seed=seed)
            for one in series
            for seed in self.seeds[: one.at_most]
        ]
        outcomes = iter(self.run(flat))
        return [[next(outcomes) for _ in self.seeds[: one.at_most]] for one in series]


@dataclass(frozen=True)
class Experiment:
    """A named experiment: what it is about, and the function that does it.

    group     mnist, cifar or theory; `hushbit reproduce mnist` runs the first and the last
    seeds     how many seeds the full form takes unless told
    by_cells  all that takes long are cells, so that going through it without them plans them
    """

    name: str
    title: str
    paper: str
    about: str
    group: str
    find: Callable[[Lab], Findings]
    seeds: int = 3
    by_cells: bool = False


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval by Student's t; a single value stands for itself."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, mean, mean
    from scipy.stats import t

    half = t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * statistics.stdev(values)
    half = float(half) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def cells_of(one: Series, outcomes: Sequence[Outcome], metrics: Iterable[str]) -> list[Cell]:
    """A cell for each metric that every seed has; vanilla training has no noise to measure."""
    made = []
    for metric in metrics:
        values = [getattr(outcome, metric) for outcome in outcomes]
        if None not in values:
            made.append(cell_of(one, metric, values))
    return made


def cell_of(one: Series, metric: str, values: Sequence[float]) -> Cell:
    """A cell of the values that the seeds gave."""
    mean, low, high = interval(values)
    return Cell(one.scheme, one.variant, one.where, metric, mean, low, high, tuple(values), one.x)


def published(scheme: str, where: Where, metric: str, value: float, x: float | None = None) -> Cell:
    """A figure of the paper, which has one seed and no interval."""
    value = float(value)
    return Cell(scheme, "published", where, metric, value, value, value, (), x)


def privacy_lines(
    series: Sequence[Series], found: Sequence[Sequence[Outcome]]
) -> tuple[PrivacyLine, ...]:
    """What each scheme promises, once for each wording."""
    lines = {
        PrivacyLine(f"{one.scheme} ({one.variant})", *outcomes[0].privacy)
        for one, outcomes in zip(series, found, strict=True)
        if not outcomes[0].diverged
    }
    return tuple(sorted(lines, key=lambda line: (line.scheme, line.per_bit, line.per_run)))


def chosen_text(one: Series) -> str:
    """What tuning chose, in words."""
    settings = one.settings
    parts = [f"rate {settings.local_rate:g}"]
    if settings.server_name != "plain":
        parts.append(f"server {settings.server_name}")
    if settings.radius is not None:
        parts.append(f"radius {settings.radius:g}")
    if settings.sign_step is not None:
        parts.append(f"sign step {settings.sign_step:g}")
    place = [f"{key} {value}" for key, value in one.where.items()]
    place += [] if one.x is None else [f"x = {one.x:g}"]
    return f"{one.scheme} ({one.variant}; {', '.join(place)}): {', '.join(parts)}"
