"""A live line for several experiments at once: how many cells are done, time left of the whole."""

import threading
from collections.abc import Sequence

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hushbit.cli.output import err
from hushbit.fl.settings import Settings
from hushbit.lab.bench import cost

BAR_WIDTH = 16


class WholeProgress:
    """Counts cells by how long they take, so that the time left is that of all of them."""

    def __init__(self, label: str, planned: Sequence[Settings]) -> None:
        self._label, self._count, self._done = label, len(planned), 0
        self._lock = threading.Lock()
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=BAR_WIDTH),
            TimeElapsedColumn(), TextColumn("passed,"), TimeRemainingColumn(),
            TextColumn("left"), console=err, speed_estimate_period=600,
        )  # fmt: skip
        total = sum(cost(settings) for settings in planned)
        self._task = self._bar.add_task(self._text(), total=total or None)

    def _text(self) -> str:
        return f"{self._label}: {self._done} of {self._count} cells"

    def __enter__(self) -> "WholeProgress":
        self._bar.start()
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        # After an error the line goes away: the error is all there is to read.
        self._bar.live.transient = failure is not None
        self._bar.stop()

    def done(self, settings: Settings) -> None:
        """Called with each cell that was computed, by any thread."""
        with self._lock:
            self._done += 1
            self._count = max(self._count, self._done)
            self._bar.update(self._task, advance=cost(settings), description=self._text())
