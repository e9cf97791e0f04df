"""`Study`: compare mechanisms on one task, over several seeds, with one server step for all.

result = Study(task, budget=budget, rounds=60, seeds=3).compare(["fedavg", "cpa-auto"])
result                       # in a notebook: a card with the result; print(result) elsewhere
result.report("out.html")
"""

import html
import importlib
import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hushbit.budget import Budget
from hushbit.checks import check_int
from hushbit.errors import InvalidInput, MissingExtra
from hushbit.lab.report import write_report
from hushbit.lab.sim.run import RunSummary, metric_text
from hushbit.lab.sim.settings import mechanism_name
from hushbit.lab.sim.setup import OPTIONS, accepted_options, build_setup
from hushbit.lab.sim.task import Task
from hushbit.lab.task_run import run, settings_of

MIN_SEEDS = 3  # fewer seeds give no range
REFERENCE = "fedavg"


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
        self.task, self.budget = task, budget
        chosen = range(check_int("seeds", seeds, 1)) if isinstance(seeds, int) else seeds
        self.seeds = tuple(chosen)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise InvalidInput("seeds must be a number, or a list of different numbers")
        self.options = {"rounds": rounds, "server": server, **options}

    def compare(
        self,
        mechanisms: Sequence[str] = (REFERENCE, "cpa-auto", "gaussian"),
        *,
        out: str | Path | None = None,
        workers: int | None = None,
        on_run: Callable[[str, RunSummary], None] | None = None,
    ) -> "StudyResult":
        """Run every mechanism with every seed; `on_run` is called after each run.

        `out` is a folder for all runs; by default they are stored in a temporary folder. A
        mechanism that the budget does not suit is left out, and the result states why.
        """
        names = list(dict.fromkeys(mechanism_name(name) for name in mechanisms))
        planned: dict[str, dict[str, Any]] = {}
        refused: dict[str, str] = {}
        for name in names:
            options = self._options(name)
            try:
                settings = settings_of(self.task, name, self.budget, seed=self.seeds[0], **options)
                build_setup(settings, task=self.task)
            except InvalidInput as error:
                refused[name] = str(error)
            else:
                planned[name] = options
        if not planned:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
            raise InvalidInput(f"no mechanism can be run: {reasons or 'none was named'}")
        folder = StudyFolder(out)
        runs: dict[str, list[RunSummary]] = {}
        for name, options in planned.items():
            for seed in self.seeds:
                made = run(
                    self.task,
                    name,
                    budget=self.budget,
                    seed=seed,
                    out=folder.path / f"{name}-seed-{seed}",
                    workers=workers,
                    **options,
                )
                runs.setdefault(name, []).append(made)
                if on_run is not None:
                    on_run(name, made)
        return StudyResult({name: tuple(one) for name, one in runs.items()}, refused, folder)

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


@dataclass(frozen=True)
class StudyRow:
    """One mechanism: test result over seeds, privacy of the run, and what a user sends.

    `low` and `high` are the range over at least three seeds, else None.
    """

    mechanism: str
    metric: str
    mean: float
    low: float | None
    high: float | None
    seeds: int
    epsilon_run_server: float
    epsilon_run_model: float
    delta: float
    bytes_per_user_and_round: float
    server: str
    server_rate: float

    @property
    def private(self) -> bool:
        """Whether the run has a guarantee against one of the observers."""
        return math.isfinite(min(self.epsilon_run_server, self.epsilon_run_model))

    def result_text(self) -> str:
        """The test result with its range."""
        text = metric_text(self.metric, self.mean)
        if self.low is None or self.high is None:
            return text
        low, high = (metric_text(self.metric, value) for value in (self.low, self.high))
        return f"{text} ({low} to {high})"


@dataclass(frozen=True, eq=False)
class StudyResult:
    """The runs of a study: `runs` by mechanism, and why other mechanisms were left out."""

    runs: Mapping[str, tuple[RunSummary, ...]]
    refused: Mapping[str, str]
    folder: StudyFolder = field(repr=False)

    @property
    def metric(self) -> str:
        """The test result by which mechanisms are ranked: the accuracy, else the loss."""
        found = [one.metrics for runs in self.runs.values() for one in runs]
        return "accuracy" if all("accuracy" in one for one in found) else "loss"

    @property
    def rows(self) -> list[StudyRow]:
        """The mechanisms, the best first."""
        made = [self._row(name, runs) for name, runs in self.runs.items()]
        return sorted(made, key=lambda row: row.mean, reverse=self.metric == "accuracy")

    def _row(self, name: str, runs: tuple[RunSummary, ...]) -> StudyRow:
        values, first = [one.metrics[self.metric] for one in runs], runs[0]
        enough = len(values) >= MIN_SEEDS
        sent = sum(row["users"] for row in first.history)
        return StudyRow(
            name,
            self.metric,
            statistics.fmean(values),
            min(values) if enough else None,
            max(values) if enough else None,
            len(values),
            first["epsilon_run_server"],
            first["epsilon_run_model"],
            first["delta"],
            first["bytes_up"] / sent,
            first["server"],
            first["server_rate"],
        )

    @property
    def best(self) -> str:
        """The best private mechanism; the best of all if none is private."""
        rows = self.rows
        return next((row for row in rows if row.private), rows[0]).mechanism

    @property
    def verdict(self) -> str:
        """One sentence: the best private mechanism beside FedAvg."""
        by_name = {row.mechanism: row for row in self.rows}
        best = by_name[self.best]
        text = f"{best.mechanism} reaches a test {self.metric} of {best.result_text()}"
        plain = by_name.get(REFERENCE)
        if plain is not None and plain is not best:
            text += f", FedAvg without privacy {plain.result_text()}"
        if not best.private:
            return f"{text}; no mechanism of this study is private."
        epsilons = []
        for name, epsilon in (
            ("the server", best.epsilon_run_server),
            ("those who see only the model", best.epsilon_run_model),
        ):
            if math.isfinite(epsilon):
                epsilons.append(f"{epsilon:.3g} against {name}")
        return (
            f"{text}; epsilon of the run at delta {best.delta:g}: {' and '.join(epsilons)}; a user "
            f"sends {best.bytes_per_user_and_round / 1e3:,.3g} kB in each round."
        )

    def _table(self) -> list[list[str]]:
        return [
            [
                row.mechanism,
                row.result_text(),
                _epsilon(row.epsilon_run_server),
                _epsilon(row.epsilon_run_model),
                f"{row.bytes_per_user_and_round / 1e3:,.3g} kB",
                f"{row.server}, rate {row.server_rate:.3g}",
            ]
            for row in self.rows
        ]

    @property
    def _heads(self) -> list[str]:
        seeds = len(next(iter(self.runs.values())))
        over = "1 seed" if seeds == 1 else f"{seeds} seeds"
        return [
            "mechanism",
            f"test {self.metric}, {over}",
            "epsilon, server",
            "epsilon, model",
            "sent per user and round",
            "server step",
        ]

    def __str__(self) -> str:
        table = [self._heads, *self._table()]
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in table]
        left_out = [f"left out: {name}: {reason}" for name, reason in self.refused.items()]
        return "\n".join([self.verdict, "", *(line.rstrip() for line in lines), *left_out])

    def _repr_html_(self) -> str:
        """The card of a notebook: the verdict, then a table."""
        heads = "".join(f"<th scope='col'>{html.escape(text)}</th>" for text in self._heads)
        rows = "".join(
            f"<tr><th scope='row'>{html.escape(first)}</th>"
            + "".join(f"<td>{html.escape(text)}</td>" for text in rest)
            + "</tr>"
            for first, *rest in self._table()
        )
        left_out = "".join(
            f"<p>Left out: {html.escape(name)}: {html.escape(reason)}</p>"
            for name, reason in self.refused.items()
        )
        return (
            f"<div><p><strong>{html.escape(self.verdict)}</strong></p>"
            f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{left_out}</div>"
        )

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
        """The privacy note of `run_of(mechanism)`, as Markdown."""
        return self.run_of(mechanism).privacy_note()

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


def _epsilon(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "no guarantee"
