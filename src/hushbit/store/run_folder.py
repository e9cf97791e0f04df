"""The folder of one run: configuration, environment, metrics by round, checkpoint, summary.

    CONFIG            what the run is; the caller names the file, whose presence marks a run
    environment.json  versions of Python and of packages
    metrics.jsonl     one JSON object per round, in order
    checkpoint.npz    the arrays after the last complete round
    summary.json      written after the last round

A round is complete once its checkpoint is written. Its row in the metrics is written just before,
so a process that is killed leaves at most one row, possibly cut short, that no checkpoint confirms.
All files except the metrics are replaced atomically.
"""

import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import DamagedFile, HushbitError, InvalidInput
from hushbit.wire.files import remove_abandoned, write_atomic, write_text

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ENVIRONMENT, SUMMARY = "environment.json", "summary.json"
METRICS, CHECKPOINT = "metrics.jsonl", "checkpoint.npz"
LOCK = ".lock"
ArrayGroups = Mapping[str, Mapping[str, NDArray[Any]]]


class Checkpoint(NamedTuple):
    """The number of complete rounds, and arrays by group and name."""

    round: int
    groups: dict[str, dict[str, NDArray[Any]]]


class RunFolder:
    """Reads and writes the files of one run; the caller defines configuration and arrays."""

    def __init__(self, folder: str | Path, config: str) -> None:
        self.folder = Path(folder)
        self.config = self.folder / config

    @property
    def holds_run(self) -> bool:
        """Whether a run was started in this folder."""
        return self.config.exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other processes; create it first, remove it if it stays empty."""
        missing = [place for place in (self.folder, *self.folder.parents) if not place.exists()]
        try:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                file = (self.folder / LOCK).open("wb")
            except OSError as error:
                raise InvalidInput(f"{self.folder} cannot be a run folder: {error}") from error
            with file:
                self._lock(file.fileno())
                try:
                    yield
                finally:
                    (self.folder / LOCK).unlink(missing_ok=True)
        finally:
            for place in missing:
                with suppress(OSError):  # not empty
                    place.rmdir()

    def _lock(self, handle: int) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InvalidInput(
                    f"another process uses {self.folder}: wait for its end, or name another folder"
                ) from None

    def check_empty(self) -> None:
        """Refuse a folder with a run or other files; hidden files of killed processes may stay."""
        if self.holds_run:
            raise InvalidInput(
                f"{self.folder} already holds a run: continue it with --resume, or name another "
                "folder"
            )
        try:
            names = [path.name for path in self.folder.iterdir()] if self.folder.exists() else []
        except OSError as error:
            raise InvalidInput(f"{self.folder} cannot be a run folder: {error}") from error
        if any(not name.startswith(".") for name in names):
            raise InvalidInput(f"{self.folder} is not empty: name a new folder for the run")

    def create(self, config: str, environment: Mapping[str, Any]) -> None:
        """Write the first files of a run; if one cannot be written, remove the others."""
        try:
            # The configuration comes first: once it exists, a killed run can be resumed.
            write_text(self.config, config)
            write_text(self.folder / ENVIRONMENT, to_json(environment))
            write_text(self.folder / METRICS, "")
        except HushbitError:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the files of a run that failed before its first checkpoint."""
        for path in (self.config, self.folder / ENVIRONMENT, self.folder / METRICS):
            with suppress(OSError):
                path.unlink()

    def save(self, row: Mapping[str, Any], groups: ArrayGroups) -> None:
        """Store one round: append its metrics, then replace the checkpoint."""
        path = self.folder / METRICS
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_finite(row)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DamagedFile(f"{path} cannot be written: {error}") from error
        arrays: dict[str, Any] = {"round": np.array(row["round"])}
        for group, members in groups.items():
            arrays |= {f"{group} {name}": array for name, array in members.items()}
        write_atomic(self.folder / CHECKPOINT, lambda file: np.savez(file, **arrays))

    def rows(self) -> list[dict[str, Any]]:
        """The metrics by round, without a last line that a kill cut short."""
        path = self.folder / METRICS
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise DamagedFile(f"{path} cannot be read: {error}") from error
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                if number == len(lines):
                    break
                row = None
            found = row.get("round") if isinstance(row, dict) else None
            if type(found) is not int or found != number:
                raise DamagedFile(
                    f"line {number} of {path} is not the row of round {number}: restore a copy of "
                    "the file, or start the run again in another folder"
                )
            rows.append(row)
        return rows

    def read_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint; None if no round is complete. Changes no file."""
        path = self.folder / CHECKPOINT
        rows = len(self.rows()) if path.exists() or (self.folder / METRICS).exists() else 0
        if not path.exists():
            # A kill explains one row without a checkpoint, and no more.
            if rows > 1 or (rows == 1 and (self.folder / SUMMARY).exists()):
                raise DamagedFile(
                    f"{self.folder} has metrics of {rows} complete rounds but no {CHECKPOINT}: "
                    "restore it, or name another folder"
                )
            return None
        groups: dict[str, dict[str, NDArray[Any]]] = {}
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            number = int(arrays.pop("round"))
        except Exception as error:  # NumPy and zipfile raise many kinds for a damaged archive
            raise DamagedFile(
                f"{path} is damaged: {error}; start the run again in another folder"
            ) from error
        if not 1 <= number <= rows:
            raise DamagedFile(
                f"{self.folder / METRICS} has {rows} rows, {CHECKPOINT} is of round {number}: "
                "restore a copy of both, or name another folder"
            )
        for key, array in arrays.items():
            group, _, name = key.partition(" ")
            groups.setdefault(group, {})[name] = array
        return Checkpoint(number, groups)

    def rewind(self, rounds: int, environment: Mapping[str, Any]) -> None:
        """Prepare a run to continue after so many rounds: drop later rows and scratch files."""
        kept = self.rows()[:rounds] if rounds else []
        write_text(self.folder / METRICS, "".join(json.dumps(row) + "\n" for row in kept))
        if not (self.folder / ENVIRONMENT).exists():
            write_text(self.folder / ENVIRONMENT, to_json(environment))
        for name in (self.config.name, ENVIRONMENT, METRICS, CHECKPOINT, SUMMARY):
            remove_abandoned(self.folder / name)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        write_text(self.folder / SUMMARY, to_json(summary))

    def read_json(self, name: str) -> dict[str, Any]:
        """The object in one of the JSON files."""
        path = self.folder / name
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise DamagedFile(f"{path} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise DamagedFile(f"{path} must hold an object; got {type(found).__name__}")
        return found


def software_versions(packages: Sequence[str]) -> dict[str, Any]:
    """Versions of Python and of packages; nothing that identifies a person or a machine."""
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {"python": platform.python_version(), "machine": platform.machine(), **versions}


def to_json(value: Mapping[str, Any]) -> str:
    """A JSON object; numbers that JSON lacks become text: "inf", "-inf", "nan"."""
    return json.dumps(_finite(value), indent=2) + "\n"


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
