"""Reads what a report is about: results of experiments and folders of runs."""

import math
import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hushbit.errors import DamagedFile, HushbitError, InvalidInput
from hushbit.lab.experiments.results import FILE, Result, read_result
from hushbit.lab.sim.settings import CONFIG, FIELDS, Settings, read_settings
from hushbit.store.run_folder import ENVIRONMENT, SUMMARY, RunFolder

NUMBERS = (
    "test_accuracy",
    "snr_db",
    "bytes_up",
    "bytes_down",
    "epsilon_bit",
    "pure_epsilon_message_server",
    "pure_epsilon_run_server",
    "epsilon_message_server",
    "epsilon_run_server",
    "epsilon_run_model",
    "delta",
    "seconds",
)
OPTIONAL_NUMBERS = ("epsilon_spent", "honest", "server_rate", "start_accuracy", "start_loss")
"""Numbers that not every run has."""

Row = dict[str, float | None]


@dataclass(frozen=True)
class RunReport:
    """One run folder as data; `summary` is empty until the run is finished."""

    name: str
    settings: Settings
    environment: dict[str, str]
    rows: tuple[Row, ...]
    summary: dict[str, float]

    @property
    def finished(self) -> bool:
        """Whether the run completed its last round."""
        return bool(self.summary)

    @property
    def command(self) -> str:
        """The command that repeats the run in a new folder; a call for a task made in Python."""
        given = {
            name: value
            for name, value in asdict(self.settings).items()
            if value != FIELDS[name].default
        }
        if self.settings.rotate == self.settings.rotates_by_default:
            given.pop("rotate", None)
        if self.settings.task is not None:  # it brings its own names and users
            given = {k: v for k, v in given.items() if k not in ("dataset", "model", "users")}
            if ":" not in self.settings.task:
                del given["task"]
                return f"hushbit.lab.run(task, {', '.join(f'{k}={v!r}' for k, v in given.items())})"
        words = ["hushbit", "run"]
        for name, value in given.items():
            flag = "--" + name.replace("_", "-")
            if isinstance(value, bool):
                words.append(flag if value else f"--no-{flag[2:]}")
            else:
                words += [flag, str(value)]
        return shlex.join(words) + " --out NEW"

    def last(self, metric: str) -> float | None:
        """The last measured value of a metric."""
        measured = [row.get(metric) for row in self.rows]
        return next((value for value in reversed(measured) if value is not None), None)


def read_run(folder: Path, name: str) -> RunReport:
    """Read a run folder, finished or not; anything unexpected is refused."""
    run = RunFolder(folder, CONFIG)
    try:
        settings = Settings(**read_settings(run.config))
    except HushbitError as error:
        raise DamagedFile(f"{folder} holds no run that can be read: {error}") from error
    rows = tuple(_figures(row, folder) for row in run.rows())
    environment = {key: str(value) for key, value in run.read_json(ENVIRONMENT).items()}
    summary: dict[str, float] = {}
    if (folder / SUMMARY).exists():
        raw = run.read_json(SUMMARY)
        lacking = [key for key in NUMBERS if _number(raw.get(key)) is None]
        if lacking:
            raise DamagedFile(f"{folder / SUMMARY} lacks numbers: {', '.join(lacking)}")
        known = [*NUMBERS, *(key for key in OPTIONAL_NUMBERS if raw.get(key) is not None)]
        summary = {key: float(raw[key]) for key in known}
    return RunReport(name, settings, environment, rows, summary)


def _figures(row: dict[str, Any], folder: Path) -> Row:
    """The numbers of a round; those that JSON lacks are stored as text, such as "inf"."""
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


DEPTH = 2  # levels below a named folder that are searched for runs and results


@dataclass(frozen=True)
class Sources:
    """The results and runs that were found, in the order in which they were named."""

    results: tuple[Result, ...] = field(default=())
    runs: tuple[RunReport, ...] = field(default=())


def read_sources(places: list[Path]) -> Sources:
    """Read every result file and run folder in or below the named places."""
    if not places:
        raise InvalidInput("nothing to report on: name folders of hushbit run or reproduce")
    found: list[Path] = []
    for place in places:
        found += [path for path in _below(place) if path not in found]
    folders = [path for path in found if path.is_dir()]
    return Sources(
        tuple(read_result(path) for path in found if not path.is_dir()),
        tuple(read_run(path, name) for path, name in zip(folders, _names(folders), strict=True)),
    )


def _below(place: Path) -> list[Path]:
    """Result files and run folders at or below a place."""
    if not place.exists():
        raise InvalidInput(f"{place} does not exist: name folders of hushbit run or reproduce")
    if not place.is_dir():
        return [place.resolve()]
    found = _look(place.resolve(), DEPTH)
    if not found:
        raise InvalidInput(
            f"{place} holds no run ({CONFIG}) and no result ({FILE}), nor do folders in it: "
            "name folders of hushbit run or reproduce"
        )
    return found


def _look(folder: Path, depth: int) -> list[Path]:
    try:
        if (folder / FILE).is_file():
            return [folder / FILE]
        if (folder / CONFIG).is_file():
            return [folder]
        inner = [] if depth == 0 else sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be read: {error}") from error
    return [
        found for path in inner if not path.name.startswith(".") for found in _look(path, depth - 1)
    ]


def _names(folders: list[Path]) -> list[str]:
    """Short names of runs: the folder's own, with parents where two would be the same."""
    names = [path.name for path in folders]
    return [
        path.name if names.count(path.name) == 1 else f"{path.parent.name}/{path.name}"
        for path in folders
    ]
