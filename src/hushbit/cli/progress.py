"""A live line for rounds: accuracy, SNR, epsilon spent, time left."""

from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from hushbit.cli.output import err
from hushbit.errors import MissingExtra
from hushbit.fl.rounds import Round
from hushbit.fl.settings import Settings
from hushbit.fl.setup import Setup

BAR_WIDTH, ROOM_FOR_BAR = 16, 92


class RoundProgress:
    """Shows each round on standard error, and writes TensorBoard events if asked.

    The whole line fits 80 columns; the bar itself is shown where there is room for it.
    """

    def __init__(
        self, settings: Settings, events: Path | None = None, label: str | None = None
    ) -> None:
        whole = Column(no_wrap=True, overflow="ignore")
        bar = [BarColumn(bar_width=BAR_WIDTH)] if err.width >= ROOM_FOR_BAR else []
        self._bar = Progress(
            TextColumn("{task.description}", table_column=whole), *bar,
            MofNCompleteColumn(table_column=whole),
            TextColumn("{task.fields[note]}", table_column=whole),
            TimeRemainingColumn(compact=True, table_column=whole), console=err,
        )  # fmt: skip
        self._task = self._bar.add_task(
            label or settings.mechanism, total=settings.rounds, note="preparing"
        )
        self._folder = events
        self._events: Any = None
        if events is not None:
            _writer_class()

    def __enter__(self) -> "RoundProgress":
        self._bar.start()
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            self._bar.stop()
        else:  # the line goes away: the error is all there is to read
            self._bar.live.transient = True
            self._bar.live.stop()
        if self._events is not None:
            self._events.close()

    def watch(self, setup: Setup, made: Round) -> None:
        """Called after every round."""
        spent = setup.mechanism.guarantee.epsilon_per_run(made.number)
        self._bar.update(self._task, completed=made.number, note=note(made, spent))
        if self._folder is not None:
            self._write_events(self._folder, made)

    def _write_events(self, folder: Path, made: Round) -> None:
        # Opened with the first round, so that a run which never starts leaves no folder behind.
        if self._events is None:
            self._events = _writer_class()(str(folder / "events"))
        for name, value in made.row().items():
            if isinstance(value, int | float) and name != "round":
                self._events.add_scalar(name, value, made.number)


def note(made: Round, spent: float) -> str:
    """What a round brought, short enough for one line.

    `spent` is the pure epsilon of all bits of all rounds so far: sequential composition.
    """
    accuracy = "" if made.test_accuracy is None else f"accuracy {made.test_accuracy:.1%}  "
    return f"{accuracy}SNR {made.distortion.snr_db:.1f} dB  pure epsilon spent {spent:.4g}"


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra("--tensorboard needs tensorboard: pip install tensorboard") from error
    return SummaryWriter
