"""Callbacks of a run, among them those that pass its figures to experiment trackers.

A callback gets the settings when the run starts, the figures of each round and the summary. The
packages of the trackers are extras, imported when a tracker is made.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from hushbit.errors import MissingExtra


class Callback:
    """Base class of callbacks; override the methods that you need.

    A run that fails or is interrupted does not call `on_end`. A resumed run calls `on_start` again
    and `on_round` for the remaining rounds.
    """

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Called before the first round, with the options that have a value."""

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Called after each round, with the row of the metrics file."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Called after the last round, with the figures of the run."""


class TensorBoard(Callback):
    """Writes TensorBoard events into a folder."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = str(folder)
        self._writer_class = _extra("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer: Any = None

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Write the numbers of the round."""
        # Opened in the first round, so that a run that fails before it leaves no folder behind.
        if self._writer is None:
            self._writer = self._writer_class(self._folder)
        for name, value in _numbers(row).items():
            self._writer.add_scalar(name, value, row["round"])
        self._writer.flush()  # an interrupted run keeps its events

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Close the file, if there was a round."""
        if self._writer is not None:
            self._writer.close()


class MLflow(Callback):
    """Logs into the active MLflow run, else into a new one, which it ends."""

    def __init__(self) -> None:
        self._mlflow = _extra("mlflow", "mlflow")
        self._own_run = False

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Log the settings as parameters."""
        self._own_run = self._mlflow.active_run() is None
        if self._own_run:
            self._mlflow.start_run()
        self._mlflow.log_params(dict(settings))

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Log the numbers of the round."""
        self._mlflow.log_metrics(_numbers(row), step=row["round"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Log the figures of the run under names that begin with `final_`."""
        finals = {f"final_{name}": value for name, value in _numbers(summary).items()}
        self._mlflow.log_metrics(finals)
        if self._own_run:
            self._mlflow.end_run()


class WandB(Callback):
    """Logs into the active W&B run, else into a new one, which it finishes."""

    def __init__(self) -> None:
        self._wandb = _extra("wandb", "wandb")
        self._own_run = False

    def on_start(self, settings: Mapping[str, Any]) -> None:
        """Store the settings as configuration."""
        self._own_run = self._wandb.run is None
        self._run = self._wandb.init() if self._own_run else self._wandb.run
        self._run.config.update(dict(settings), allow_val_change=True)

    def on_round(self, row: Mapping[str, Any]) -> None:
        """Log the numbers of the round."""
        self._run.log(_numbers(row), step=row["round"])

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Store the figures of the run as summary."""
        self._run.summary.update(_numbers(summary))
        if self._own_run:
            self._run.finish()


def _extra(module: str, extra: str) -> Any:
    """The module of an extra."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{extra} is not installed: pip install 'hushbit[{extra}]'") from error


def _numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """The figures that are numbers, without the number of the round."""
    return {
        name: value
        for name, value in figures.items()
        if isinstance(value, int | float) and name != "round"
    }
