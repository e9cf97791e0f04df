"""What commands print: results on standard output, progress and messages on standard error."""

import importlib.util
import json
import math
import os
import shlex
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from hushbit.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from hushbit.lab.sim.rounds import RoundResult
    from hushbit.lab.sim.run import RunSummary
    from hushbit.lab.sim.settings import Settings
    from hushbit.lab.sim.setup import Setup

BAR_WIDTH = 16
WIDTH_FOR_BAR = 92
"""Terminal width from which the progress line of rounds has room for a bar."""

out = Console(soft_wrap=True)
err = Console(stderr=True)


class Interrupted(Exception):
    """Ctrl-C, with a message that tells how to continue."""


def need_lab() -> None:
    """Raise `MissingExtra` if a package of the extra `lab` is missing; imports none of them."""
    for package in ("torch", "sklearn", "pyarrow", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(f"this command needs {package}: pip install 'hushbit[lab]'")


def show_json(result: Any) -> None:
    """Print a result as JSON; numbers that JSON lacks become strings."""
    print(json.dumps(_json_value(result), indent=2))


def _json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A table whose first column is text and whose other columns are numbers."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made


def print_lines(lines: Sequence[str]) -> None:
    """Print lines as they are."""
    for line in lines:
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def without_history(summary: "RunSummary") -> dict[str, Any]:
    """The figures of a run, without those of single rounds."""
    return {name: value for name, value in summary.items() if name != "history"}


def print_title(summary: "RunSummary") -> None:
    """Print what was trained."""
    text = "{dataset}, {model} ({dim:,} weights), {users:,} users, {rounds:,} rounds"
    print_lines([text.format(**summary), ""])


def print_card(summaries: Sequence["RunSummary"]) -> str | None:
    """Print the decision card of runs on one task, or why there is none; return its best run."""
    from hushbit.lab.decision_card import DecisionCard

    try:
        card = DecisionCard.of(summaries)
    except InvalidInput as error:
        print_lines([str(error), ""])
        return None
    print_lines([card.text(), ""])
    return card.best.mechanism


def print_statement(summary: "RunSummary") -> None:
    """Print the privacy statement of a run."""
    print_lines(summary.statement.lines())


def print_simulation_note() -> None:
    """Print which figures only a simulation has."""
    from hushbit.lab.sim.privacy import SIMULATION_NOTE
    from hushbit.statement import WIDTH

    print_lines(textwrap.wrap(SIMULATION_NOTE, WIDTH))


def print_details(summary: "RunSummary") -> None:
    """Print every figure of a run."""
    figures = without_history(summary)
    rows = [[name, _formatted(value)] for name, value in figures.items() if value is not None]
    out.print(table(f"All figures of {summary['mechanism']}", ["", "value"], rows))


def _formatted(value: Any) -> str:
    """A number with separators and four significant digits; other values as text."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3e}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_formatted(part)}" for name, part in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(_formatted, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def announce_cluster(engine: str) -> None:
    """Print the address of the Ray cluster, since connecting to it may take long."""
    address = os.environ.get("RAY_ADDRESS")
    if engine == "ray" and address:
        err.print(f"connecting to the Ray cluster at {address} (RAY_ADDRESS)", highlight=False)


def resume_hint(folder: Path | None) -> str:
    """The message after Ctrl-C: how to continue the run, if it was stored."""
    from hushbit.lab.sim.settings import CONFIG

    if folder is None or not (folder / CONFIG).exists():
        return "interrupted; nothing was stored"
    return f"interrupted; continue with: hushbit run --resume --out {shlex.quote(str(folder))}"


class ProgressLine:
    """A progress line on standard error; an error removes it."""

    def __init__(self, *columns: ProgressColumn, **options: Any) -> None:
        self._bar = Progress(*columns, console=err, **options)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        self._bar.live.transient |= failure is not None
        if self._bar.live.transient:
            self._bar.live.stop()  # Progress.stop() would print an empty line
        else:
            self._bar.stop()


class CellProgress(ProgressLine):
    """Progress of one experiment: the tuning steps, then the cells."""

    def __init__(self, label: str) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR_WIDTH),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._label, self._step = label, ""
        self._task = self._bar.add_task(f"{label}: preparing", total=None)

    def watch(self, step: str, done: int, total: int) -> None:
        """Called after each cell of a step."""
        if step != self._step or done == 1:
            # Stored cells are read at once; the estimate of the time left starts after them.
            self._bar.reset(self._task, total=total, description=f"{self._label}: {step}")
            self._step = step
        self._bar.update(self._task, completed=done)


class TotalProgress(ProgressLine):
    """Progress of several experiments together; cells count by their expected CPU time."""

    def __init__(self, label: str, planned: Sequence["Settings"]) -> None:
        from hushbit.lab.experiments.cells import cell_cost

        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR_WIDTH),
            TimeElapsedColumn(),
            TextColumn("elapsed,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            speed_estimate_period=600,
        )
        self._label, self._count, self._done = label, len(planned), 0
        self._lock = threading.Lock()
        self._cost = cell_cost
        total = sum(cell_cost(settings) for settings in planned)
        self._task = self._bar.add_task(self._text(), total=total or None)

    def _text(self) -> str:
        return f"{self._label}: {self._done} of {self._count} cells"

    def done(self, settings: "Settings") -> None:
        """Called after each computed cell, from any thread."""
        with self._lock:
            self._done += 1
            self._count = max(self._count, self._done)
            self._bar.update(self._task, advance=self._cost(settings), description=self._text())


class RoundProgress(ProgressLine):
    """Progress of one run: accuracy, SNR, epsilon so far, time left.

    The line fits into 80 columns; a wider terminal also shows a bar.
    """

    def __init__(self, settings: "Settings", label: str | None = None) -> None:
        whole = Column(no_wrap=True, overflow="ignore")
        bar = [BarColumn(bar_width=BAR_WIDTH)] if err.width >= WIDTH_FOR_BAR else []
        super().__init__(
            TextColumn("{task.description}", table_column=whole),
            *bar,
            MofNCompleteColumn(table_column=whole),
            TextColumn("{task.fields[note]}", table_column=whole),
            TimeRemainingColumn(compact=True, table_column=whole),
        )
        self._task = self._bar.add_task(
            label or settings.mechanism, total=settings.rounds, note="preparing"
        )

    def watch(self, setup: "Setup", made: "RoundResult") -> None:
        """Called after every round."""
        result = ""
        if made.test_accuracy is not None:
            result = f"accuracy {made.test_accuracy:.1%}  "
        elif made.test_loss is not None:
            result = f"loss {made.test_loss:.3g}  "
        from hushbit.lab.sim.privacy import spent_text

        spent = spent_text(setup.settings, setup.mechanism.guarantee, made.number)
        note = f"{result}SNR {made.distortion.snr_db:.1f} dB  {spent}"
        self._bar.update(self._task, completed=made.number, note=note)


class DownloadProgress(ProgressLine):
    """Progress of downloads, with the methods that pooch calls; the line disappears at the end."""

    def __init__(self, label: str) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR_WIDTH),
            DownloadColumn(),
            transient=True,
        )
        self._task = self._bar.add_task(label, total=None)

    @property
    def total(self) -> int:
        """The size of the file that is downloaded now, in bytes."""
        return int(self._bar.tasks[0].total or 0)

    @total.setter
    def total(self, size: int) -> None:
        self._bar.reset(self._task, total=size or None)

    def update(self, size: int, /) -> None:
        """Add received bytes."""
        self._bar.advance(self._task, size)

    def reset(self) -> None:
        """Start again from 0 bytes."""
        self._bar.reset(self._task, total=self.total or None)

    def close(self) -> None:
        """End the file; another one may follow on the same line."""
