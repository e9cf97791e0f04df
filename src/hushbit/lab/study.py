"""`Study`: compare mechanisms on one task, over several seeds, with one server step for all.

result = Study(task, budget=budget, rounds=60, seeds=3).compare(["fedavg", "cpa-auto"])
result                       # in a notebook: a card with the result; print(result) elsewhere
result.report("out.html")
"""

import html
import importlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hushbit.budget import Budget
from hushbit.checks import check_int
from hushbit.errors import InvalidInput, MissingExtra
from hushbit.lab.decision_card import DecisionCard
from hushbit.lab.intervals import MIN_SEEDS
from hushbit.lab.report import write_report
from hushbit.lab.sim.run import RunSummary, metric_text
from hushbit.lab.sim.settings import mechanism_name
from hushbit.lab.sim.setup import OPTIONS, accepted_options, build_setup
from hushbit.lab.sim.task import Task
from hushbit.lab.task_run import parameter_names, run, settings_of

REFERENCE = "fedavg"
NO_MECHANISM = "none was given; name at least one, as in ['fedavg', 'cpa-auto']"


class Study:
    """A task, a privacy budget, and what all mechanisms have in common.

    `seeds` is a number of seeds (0, 1, ...) or a list of them. All mechanisms use the same server
    step. Further options are those of `run`; a mechanism gets only those that it takes.
    """

    def __init__(
        self,
        task: Task,
        *,
        budget: Budget | None = None,
        rounds: int = 30,
        seeds: int | Sequence[int] = MIN_SEEDS,
        server: str = "plain",
        **options: Any,
    ) -> None:
        if not isinstance(task, Task):
            raise InvalidInput(f"a Study takes a hushbit.lab.Task; got {type(task).__name__}")
        self.task, self.budget = task, budget
        if not isinstance(seeds, int | Sequence) or isinstance(seeds, str):
            raise InvalidInput(f"seeds must be a number, or a list of numbers; got {seeds!r}")
        chosen = range(check_int("seeds", seeds, 1)) if isinstance(seeds, int) else seeds
        self.seeds = tuple(check_int("seed", seed, 0) for seed in chosen)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise InvalidInput("seeds must be a number, or a list of different numbers")
        if "mechanism" in options:
            raise InvalidInput("a Study compares mechanisms: name them in compare([...])")
        if "seed" in options:
            raise InvalidInput("a Study has several seeds: write seeds=3, or seeds=[1, 2, 3]")
        self.options = {"rounds": rounds, "server": server, **options}

    def compare(
        self,
        mechanisms: str | Sequence[str] = (REFERENCE, "cpa-auto", "gaussian"),
        *,
        out: str | Path | None = None,
        resume: bool = False,
        workers: int | None = None,
        on_run: Callable[[str, RunSummary], None] | None = None,
    ) -> "StudyResult":
        """Run every mechanism with every seed; `on_run` is called after each run.

        `out` is a folder for all runs; by default they are stored in a temporary folder. With
        `resume=True` the runs in it continue. A mechanism that the budget does not suit is left
        out, and the result states why.
        """
        if resume and out is None:
            raise InvalidInput("resume=True needs out: the folder of the study to continue")
        if on_run is not None and not callable(on_run):
            raise InvalidInput(
                "on_run must be a function of a mechanism's name and a run; got "
                f"{type(on_run).__name__}"
            )
        if isinstance(mechanisms, str):
            mechanisms = [mechanisms]
        if not isinstance(mechanisms, Sequence):
            raise InvalidInput(
                "compare takes the names of mechanisms, such as ['fedavg', 'cpa-auto']; got "
                f"{type(mechanisms).__name__}"
            )
        names = list(dict.fromkeys(mechanism_name(name) for name in mechanisms))
        planned: dict[str, dict[str, Any]] = {}
        refused: dict[str, str] = {}
        for name in names:
            options = {"budget": self._budget(name), **self._options(name)}
            try:
                with parameter_names():
                    settings = settings_of(self.task, name, seed=self.seeds[0], **options)
                    build_setup(settings, task=self.task)
            except InvalidInput as error:
                refused[name] = str(error)
            else:
                planned[name] = options
        if not planned:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
            raise InvalidInput(f"no mechanism can be run: {reasons or NO_MECHANISM}")
        folder = StudyFolder(out)
        runs: dict[str, list[RunSummary]] = {}
        for name, options in planned.items():
            for seed in self.seeds:
                place = folder.path / f"{name}-seed-{seed}"
                made = run(
                    self.task,
                    name,
                    seed=seed,
                    out=place,
                    resume=resume and place.exists(),
                    workers=workers,
                    **options,
                )
                runs.setdefault(name, []).append(made)
                if on_run is not None:
                    on_run(name, made)
        return StudyResult({name: tuple(one) for name, one in runs.items()}, refused, folder)

    def _budget(self, name: str) -> Budget | None:
        """The budget; none for FedAvg, the reference without privacy."""
        return None if name == REFERENCE else self.budget

    def _options(self, name: str) -> dict[str, Any]:
        """The options of one mechanism."""
        accepted = accepted_options(name, None if self.budget is None else self.budget.per)
        return {k: v for k, v in self.options.items() if k not in OPTIONS or k in accepted}


class StudyFolder:
    """The folder of all runs; a temporary one disappears with the result."""

    def __init__(self, out: str | Path | None) -> None:
        self._temporary = None
        if out is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="hushbit-study-")
            out = self._temporary.name
        self.path = Path(out)


@dataclass(frozen=True, eq=False)
class StudyResult:
    """The runs of a study: `runs` by mechanism, and why other mechanisms were left out."""

    runs: Mapping[str, tuple[RunSummary, ...]]
    refused: Mapping[str, str]
    folder: StudyFolder = field(repr=False)

    @property
    def card(self) -> DecisionCard:
        """The decision card: the best private mechanism beside FedAvg, and a ranking."""
        return DecisionCard.of([one for runs in self.runs.values() for one in runs])

    @property
    def best(self) -> str:
        """The best private mechanism; the best of all if none is private."""
        return self.card.best.name

    @property
    def verdict(self) -> str:
        """One sentence: what privacy costs, and how strong the guarantee is."""
        return self.card.verdict

    def _left_out(self) -> list[str]:
        return [f"Left out: {name}: {reason}" for name, reason in self.refused.items()]

    def __str__(self) -> str:
        return "\n".join([self.card.text(), *self._left_out()])

    def _repr_html_(self) -> str:
        """The card in a notebook."""
        left_out = "".join(f"<p>{html.escape(text)}</p>" for text in self._left_out())
        return self.card.notebook() + left_out

    def report(self, path: str | Path) -> Path:
        """Write the report of all runs as one HTML page, with Markdown and CSV beside it."""
        return write_report([self.folder.path], Path(path), "Study").html

    def run_of(self, mechanism: str | None = None) -> RunSummary:
        """The run of a mechanism, by default the best private one, with the first seed."""
        name = self.best if mechanism is None else mechanism_name(mechanism)
        if name not in self.runs:
            raise InvalidInput(f"the study has runs of {', '.join(self.runs)}; got {name}")
        return self.runs[name][0]

    def state_dict(self, mechanism: str | None = None) -> dict[str, Any]:
        """The weights of `run_of(mechanism)`."""
        return self.run_of(mechanism).state_dict()

    def save(self, path: str | Path, mechanism: str | None = None) -> None:
        """Write the weights of `run_of(mechanism)` as a safetensors file."""
        self.run_of(mechanism).save(path)

    def privacy_note(self, mechanism: str | None = None) -> str:
        """The privacy note of `run_of(mechanism)`, as Markdown, with the results of all seeds."""
        run = self.run_of(mechanism)
        others = self.runs[run["mechanism"]]
        if len(others) == 1:
            return run.privacy_note()
        scores = ", ".join(metric_text(*next(iter(one.metrics.items()))) for one in others)
        metric = next(iter(run.metrics))
        return run.privacy_note(
            f"these are the figures of seed {run['seed']}; test {metric} of all {len(others)} "
            f"seeds: {scores}"
        )

    def to_records(self) -> list[dict[str, Any]]:
        """The figures of every round of every run."""
        return [
            {"mechanism": name, "seed": one["seed"], **row}
            for name, runs in self.runs.items()
            for one in runs
            for row in one.history
        ]

    def to_pandas(self) -> Any:
        """`to_records` as a DataFrame."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise MissingExtra("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.to_records())
