"""A folder of `hushbit run` as data: settings, rounds, summary, guarantee."""

import json
import math
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hushbit.errors import DamagedFile, HushbitError
from hushbit.fl.settings import FIELDS, Settings

CONFIG, ENVIRONMENT, SUMMARY = "config.toml", "environment.json", "summary.json"
NUMBERS = (
    "test_accuracy", "snr_db", "bytes_up", "bytes_down", "epsilon_per_bit", "epsilon_per_message",
    "epsilon_per_message_at_delta", "epsilon_run", "epsilon_run_at_delta", "delta", "seconds",
)  # fmt: skip
Row = dict[str, float | None]


@dataclass(frozen=True)
class RunFolder:
    """One run; `summary` is empty until the run is finished."""

    name: str
    settings: Settings
    environment: dict[str, str]
    rows: tuple[Row, ...]
    summary: dict[str, float]

    @property
    def finished(self) -> bool:
        """Whether the run reached its last round."""
        return bool(self.summary)

    @property
    def command(self) -> str:
        """The command that runs it again, into a new folder."""
        words = ["hushbit", "run"]
        for name, value in asdict(self.settings).items():
            if value != FIELDS[name].default:
                flag = "--" + name.replace("_", "-")
                words += [flag] if value is True else [flag, str(value)]
        return shlex.join(words) + " --out NEW"

    def last(self, metric: str) -> float | None:
        """The last value of a metric that was measured."""
        measured = [row.get(metric) for row in self.rows]
        return next((value for value in reversed(measured) if value is not None), None)


def read_run(folder: Path, name: str) -> RunFolder:
    """Read a run folder, finished or not; anything unexpected is refused."""
    from hushbit.lab.record import Record

    record = Record(folder)
    try:
        settings = record.settings()
    except HushbitError as error:
        raise DamagedFile(f"{folder} holds no run that can be read: {error}") from error
    rows = tuple(_figures(row, folder) for row in record.rows())
    environment = _object(folder / ENVIRONMENT)
    summary: dict[str, float] = {}
    if (folder / SUMMARY).exists():
        raw = _object(folder / SUMMARY)
        lacking = [key for key in NUMBERS if _number(raw.get(key)) is None]
        if lacking:
            raise DamagedFile(f"{folder / SUMMARY} lacks numbers: {', '.join(lacking)}")
        summary = {key: float(raw[key]) for key in NUMBERS}
    return RunFolder(name, settings, {k: str(v) for k, v in environment.items()}, rows, summary)


def _figures(row: dict[str, Any], folder: Path) -> Row:
    """The numbers of a round; what JSON cannot hold was written as text, such as "inf"."""
    made: Row = {}
    for key, value in row.items():
        found = _number(value)
        if found is None and value is not None:
            raise DamagedFile(
                f"{folder}: round {row['round']} has {key} = {str(value)[:40]!r}, not a number"
            )
        made[key] = None if found is None or math.isnan(found) else found
    return made


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise DamagedFile(f"{path} must hold an object; got {type(found).__name__}")
    return found
