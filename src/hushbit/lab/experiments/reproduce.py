"""Experiments by name, and how they are run into result files.

`EXPERIMENTS` lists them in the order of catalogue.toml. `reproduce` runs one, `reproduce_together`
runs several that share a pool of workers, `planned_cells` lists the cells they still need.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from hushbit.checks import check_int
from hushbit.errors import InvalidInput
from hushbit.kernels.threads import get_threads, set_threads
from hushbit.lab.experiments import (
    CATALOGUE,
    auto_accuracy,
    central,
    nmse,
    paper_runs,
    robustness,
    theorems,
    whole_message,
)
from hushbit.lab.experiments.cells import Outcome, cell_cost, cell_key, read_cell
from hushbit.lab.experiments.experiment import Experiment, ExperimentRunner
from hushbit.lab.experiments.results import FILE, Result, read_result
from hushbit.lab.sim.run import PACKAGES
from hushbit.lab.sim.settings import Settings
from hushbit.store.run_folder import software_versions

_MODULES = (
    paper_runs,
    theorems,
    nmse,
    auto_accuracy,
    robustness,
    whole_message,
    central,
)
_BY_NAME = {one.name: one for module in _MODULES for one in module.EXPERIMENTS}
EXPERIMENTS: dict[str, Experiment] = {name: _BY_NAME[name] for name in CATALOGUE["experiments"]}

UNKNOWN_OUTCOME = Outcome(
    *(50.0, 50.0, 0.0, 0.0, 0.0, 1.0, ((1, 50.0, 50.0),), ("", "", ""), 0.0),
    snr_wiener_db=0.0,
)


@dataclass(frozen=True, eq=False)
class DryRunner(ExperimentRunner):
    """A runner that returns stored outcomes and collects the cells that have none."""

    missing: dict[str, Settings] = field(default_factory=dict)

    def run(self, wanted: Sequence[Settings], step: str = "cells") -> list[Outcome]:
        """Stored outcomes; UNKNOWN_OUTCOME where there is none."""
        stored = [read_cell(self.folder / "cells", settings) for settings in wanted]
        pairs = zip(wanted, stored, strict=True)
        self.missing.update({cell_key(one): one for one, outcome in pairs if outcome is None})
        return [outcome or UNKNOWN_OUTCOME for outcome in stored]


def planned_cells(jobs: Sequence[tuple[Experiment, ExperimentRunner]]) -> list[Settings]:
    """The cells that experiments made of cells still need, each once.

    Tuning chooses among settings that take equally long, so it does not matter that its choice is
    not known yet.
    """
    missing: dict[str, Settings] = {}
    for experiment, runner in jobs:
        if experiment.by_cells:
            dry = DryRunner(runner.folder, runner.seeds, runner.quick, runner.rounds)
            experiment.find(dry)
            missing |= dry.missing
    return list(missing.values())


@dataclass(frozen=True, eq=False)
class CostRunner(ExperimentRunner):
    """A runner that runs nothing and collects all cells, stored ones included."""

    asked: set[Settings] = field(default_factory=set)

    def run(self, wanted: Sequence[Settings], step: str = "cells") -> list[Outcome]:
        """An unknown outcome for each cell."""
        self.asked.update(wanted)
        return [UNKNOWN_OUTCOME] * len(wanted)


def cpu_hours(experiment: Experiment) -> float | None:
    """A rough estimate of the full form; None if there is none.

    A search for settings is counted with its first step only: it may take twice as long.
    """
    if not (experiment.rule or experiment.first_seed):
        return experiment.cpu_minutes / 60 or None
    runner = CostRunner(Path(), seeds_for(experiment, False, None))
    experiment.find(runner)
    return sum(map(cell_cost, runner.asked)) / 3600


GROUPS = {"mnist": ("mnist", "theory"), "cifar": ("cifar",), "scale": ("scale",)}
"""Names for several experiments, by their `group`; "all" names every experiment."""
QUICK_SEEDS = 2
RULE_SEED = 201  # no earlier run used seeds from here on


def select_experiments(names: Sequence[str]) -> list[Experiment]:
    """The experiments with these names, or in the groups with these names, each once."""
    selected: dict[str, Experiment] = {}
    for name in names:
        if name in EXPERIMENTS:
            selected[name] = EXPERIMENTS[name]
        elif name == "all":
            selected |= EXPERIMENTS
        elif name in GROUPS:
            selected |= {k: one for k, one in EXPERIMENTS.items() if one.group in GROUPS[name]}
        else:
            allowed = ", ".join([*EXPERIMENTS, *GROUPS, "all"])
            raise InvalidInput(f"unknown experiment {name!r}; choose from {allowed}")
    return list(selected.values())


def stored_results(folder: Path) -> dict[str, Result]:
    """The results of experiments in a folder, by name."""
    return {
        name: read_result(folder / name) for name in EXPERIMENTS if (folder / name / FILE).is_file()
    }


def seeds_for(experiment: Experiment, quick: bool, count: int | None) -> tuple[int, ...]:
    """`count` seeds, or as many as the experiment has, from its first one on."""
    usual = min(QUICK_SEEDS, experiment.seeds) if quick else experiment.seeds
    number = check_int("seeds", usual if count is None else count, 1, 1000)
    first = experiment.first_seed or (RULE_SEED if experiment.rule else 1)
    return tuple(range(first, first + number))


def reproduce(experiment: Experiment, runner: ExperimentRunner, command: str) -> Result:
    """Run an experiment (or read its stored cells) and write its result."""
    start = time.thread_time()  # other threads may run other experiments
    found = experiment.find(runner)
    notes = (*(experiment.quick_notes if runner.quick else ()), *experiment.notes, *found.notes)
    if runner.quick or runner.rounds is not None:
        form = "the quick form" if runner.quick else f"a run of {runner.rounds} rounds"
        notes = (f"This is {form}: fewer rounds or seeds than the full one.", *notes)
    result = Result(
        name=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        quick=runner.quick,
        command=command,
        seeds=runner.seeds,
        about=experiment.about,
        choices=experiment.choices + found.choices,
        privacy=found.privacy,
        axes=found.axes,
        cells=found.cells,
        checks=found.checks,
        notes=notes,
        rule="" if runner.quick or runner.rounds else experiment.rule,
        environment={key: str(value) for key, value in software_versions(PACKAGES).items()},
        seconds=round(max(time.thread_time() - start, sum(runner.cpu_seconds.values())), 1),
    )
    result.save(runner.folder)
    return result


Job = tuple[Experiment, ExperimentRunner, str]
"""An experiment, its runner, and the command that runs it again."""


def reproduce_together(jobs: Sequence[Job]) -> Iterator[Result]:
    """Run experiments in threads that share a pool of workers; yield results as they finish.

    The pool computes cells of one experiment while another waits. This process computes on one
    thread, like the workers.
    """
    results: SimpleQueue[Result | BaseException] = SimpleQueue()

    def run(*job: *Job) -> None:
        try:
            results.put(reproduce(*job))
        except BaseException as error:
            results.put(error)

    before = get_threads()
    set_threads(1)
    try:
        for job in jobs:
            # After an error these threads are not joined: finished cells are stored one by one.
            Thread(target=run, args=job, daemon=True).start()
        for _ in jobs:
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        set_threads(before)


def command_line(name: str, options: Mapping[str, object]) -> str:
    """The command that runs an experiment again."""
    words = ["hushbit reproduce", name]
    for option, value in options.items():
        if value is True:
            words.append(f"--{option}")
        elif value is not None and value is not False:
            words.append(f"--{option} {value}")
    return " ".join(words)
