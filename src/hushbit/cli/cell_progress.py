"""Live lines for cells: which step, how many are done, time left."""

from typing import Any, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from hushbit.cli.output import err

BAR_WIDTH = 16


class LiveLine:
    """A line on standard error while work goes on; after an error nothing is left of it."""

    def __init__(self, *columns: ProgressColumn, **options: Any) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=BAR_WIDTH), *columns,
            console=err, **options,
        )  # fmt: skip

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        # After an error the line goes away: the error is all there is to read.
        self._bar.live.transient = failure is not None
        self._bar.stop()


class CellProgress(LiveLine):
    """Shows tuning and then the cells of one experiment."""

    def __init__(self, label: str) -> None:
        super().__init__(MofNCompleteColumn(), TimeRemainingColumn())
        self._label, self._step = label, ""
        self._task = self._bar.add_task(f"{label}: preparing", total=None)

    def watch(self, step: str, done: int, total: int) -> None:
        """Called with each finished cell of a step."""
        if step != self._step or done == 1:
            # Cells that were kept come at once; time left counts from here on.
            self._bar.reset(self._task, total=total, description=f"{self._label}: {step}")
            self._step = step
        self._bar.update(self._task, completed=done)
