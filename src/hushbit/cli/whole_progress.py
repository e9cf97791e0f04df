"""A live line for several experiments at once: how many cells are done, time left of the whole."""

import threading
from collections.abc import Sequence

from rich.progress import TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hushbit.cli.cell_progress import LiveLine
from hushbit.fl.settings import Settings
from hushbit.lab.bench import cost


class WholeProgress(LiveLine):
    """Counts cells by how long they take, so that the time left is that of all of them."""

    def __init__(self, label: str, planned: Sequence[Settings]) -> None:
        super().__init__(
            TimeElapsedColumn(), TextColumn("passed,"), TimeRemainingColumn(), TextColumn("left"),
            speed_estimate_period=600,
        )  # fmt: skip
        self._label, self._count, self._done = label, len(planned), 0
        self._lock = threading.Lock()
        total = sum(cost(settings) for settings in planned)
        self._task = self._bar.add_task(self._text(), total=total or None)

    def _text(self) -> str:
        return f"{self._label}: {self._done} of {self._count} cells"

    def done(self, settings: Settings) -> None:
        """Called with each cell that was computed, by any thread."""
        with self._lock:
            self._done += 1
            self._count = max(self._count, self._done)
            self._bar.update(self._task, advance=cost(settings), description=self._text())
