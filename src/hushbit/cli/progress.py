"""A live line for rounds: accuracy, SNR, epsilon spent, time left."""

from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hushbit.cli.output import err
from hushbit.errors import MissingExtra
from hushbit.fl.rounds import Round
from hushbit.fl.settings import Settings
from hushbit.fl.setup import Setup


class RoundProgress:
    """Shows each round on standard error, and writes TensorBoard events if asked."""

    def __init__(
        self, settings: Settings, events: Path | None = None, label: str | None = None
    ) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"), TimeRemainingColumn(), console=err,
        )  # fmt: skip
        self._task = self._bar.add_task(
            label or settings.mechanism, total=settings.rounds, note="preparing"
        )
        self._events = None if events is None else _event_writer(events)

    def __enter__(self) -> "RoundProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if self._events is not None:
            self._events.close()

    def watch(self, setup: Setup, made: Round) -> None:
        """Called after every round."""
        spent = setup.mechanism.guarantee.epsilon_per_run(made.number)
        accuracy = "" if made.test_accuracy is None else f"accuracy {made.test_accuracy:.1%}  "
        note = (
            f"{accuracy}SNR {made.distortion.snr_db:.1f} dB  "
            f"epsilon spent {spent:.4g} (pure, all rounds)"
        )
        self._bar.update(self._task, completed=made.number, note=note)
        if self._events is not None:
            for name, value in made.row().items():
                if isinstance(value, int | float) and name != "round":
                    self._events.add_scalar(name, value, made.number)


def _event_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra("--tensorboard needs tensorboard: pip install tensorboard") from error
    return SummaryWriter(str(folder / "events"))
