"""The run directory: configuration, metrics as they come, checkpoint, environment, summary."""

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no advisory locks of this kind
    fcntl = None  # type: ignore[assignment]

from hushbit.errors import DamagedFile, HushbitError, InvalidInput
from hushbit.files import write_text, write_whole
from hushbit.fl.rounds import Progress, Round
from hushbit.fl.settings import Settings, read_settings

CONFIG, ENVIRONMENT = "config.toml", "environment.json"
METRICS, CHECKPOINT = "metrics.jsonl", "checkpoint.npz"
LOCK = ".lock"
GROUPS = ("server", "local", "average", "tuning", "defence")


class Record:
    """One run on disk."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._made: list[Path] = []
        self._mark = np.zeros(0, dtype=np.uint8)
        self._held: IO[bytes] | None = None

    def _lock(self) -> None:
        """Keep other processes out of the folder for as long as this one lives."""
        try:
            self._held = (self.folder / LOCK).open("wb")
        except OSError as error:
            raise InvalidInput(f"{self.folder} cannot be a run folder: {error}") from error
        if fcntl is not None:
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InvalidInput(
                    f"another process is at work in {self.folder}: wait for it, or name another"
                ) from None

    def release(self) -> None:
        """Let other processes in again."""
        if self._held is not None:
            (self.folder / LOCK).unlink(missing_ok=True)
            self._held.close()
            self._held = None

    def begin(self, settings: Settings, notes: Mapping[str, Any]) -> None:
        """Make the folder and write what the run is; refuses a folder that is not empty."""
        self.refuse_full()
        self._made = _missing_folders(self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.withdraw()
            raise InvalidInput(f"{self.folder} cannot be a run folder: {error}") from error
        self._lock()
        self.refuse_full()
        try:
            # The configuration comes first: from then on a killed run can be resumed.
            self._mark = _mark(settings)
            write_text(self.folder / CONFIG, settings.resolved().to_toml())
            self._write_start(notes)
        except HushbitError:
            self.withdraw()
            raise

    def refuse_full(self) -> None:
        """Refuse a folder that holds a run, or anything else but what a kill left unnamed."""
        if (self.folder / CONFIG).exists():
            raise InvalidInput(
                f"{self.folder} already holds a run: go on with --resume, or name another folder"
            )
        try:
            names = [path.name for path in self.folder.iterdir()] if self.folder.exists() else []
        except OSError as error:
            raise InvalidInput(f"{self.folder} cannot be a run folder: {error}") from error
        if any(not name.startswith(".") for name in names):
            raise InvalidInput(f"{self.folder} is not empty: name a new folder for the run")

    @property
    def has_checkpoint(self) -> bool:
        """Whether a round was kept."""
        return (self.folder / CHECKPOINT).exists()

    def withdraw(self) -> None:
        """Take back what `begin` made, for a run that failed before its first round was kept."""
        for name in (CONFIG, ENVIRONMENT, METRICS, LOCK):
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def settings(self) -> Settings:
        """The settings of the run in this folder."""
        if not (self.folder / CONFIG).exists():
            raise InvalidInput(f"{self.folder} holds no run: there is no {CONFIG} in it")
        return Settings(**read_settings(self.folder / CONFIG))

    def save(self, progress: Progress, made: Round) -> None:
        """Keep one round: first its metrics, then the checkpoint that makes it count."""
        line = json.dumps(_finite(made.row())) + "\n"
        try:
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DamagedFile(f"{self.folder / METRICS} cannot be written: {error}") from error
        arrays: dict[str, Any] = {
            "round": np.array(progress.round), "settings": self._mark, **_arrays(progress)
        }  # fmt: skip
        write_whole(self.folder / CHECKPOINT, lambda file: np.savez(file, **arrays))

    def resume(self, settings: Settings, fresh: Progress, notes: Mapping[str, Any]) -> Progress:
        """The last checkpoint; metrics of rounds that it does not hold are dropped."""
        self._lock()
        self._mark = _mark(settings)
        path = self.folder / CHECKPOINT
        progress = _checkpoint(path, fresh, self._mark) if path.exists() else fresh
        for scratch in self.folder.glob(f".{CHECKPOINT}.*"):
            scratch.unlink(missing_ok=True)
        if not path.exists():
            self._write_start(notes)
            return progress
        kept = [row for row in self.rows() if row["round"] <= progress.round]
        if [row["round"] for row in kept] != list(range(1, progress.round + 1)):
            raise DamagedFile(
                f"{self.folder / METRICS} lacks rounds that {CHECKPOINT} holds; start the run again"
            )
        write_text(self.folder / METRICS, "".join(json.dumps(row) + "\n" for row in kept))
        return progress

    def rows(self) -> list[dict[str, Any]]:
        """The metrics so far; a line that a kill cut short is left out."""
        rows: list[dict[str, Any]] = []
        try:
            text = (self.folder / METRICS).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise DamagedFile(f"{self.folder / METRICS} cannot be read: {error}") from error
        for line in text.splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                break
            if not isinstance(row, dict) or type(row.get("round")) is not int:
                break
            rows.append(row)
        return rows

    def _write_start(self, notes: Mapping[str, Any]) -> None:
        write_text(self.folder / ENVIRONMENT, _json(environment() | dict(notes)))
        write_text(self.folder / METRICS, "")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, and the metrics once more as Parquet."""
        write_text(self.folder / "summary.json", _json(summary))
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [
            {k: float(v) if v in ("inf", "-inf", "nan") else v for k, v in row.items()}
            for row in self.rows()
        ]
        table = pa.Table.from_pylist(rows)
        write_whole(self.folder / "metrics.parquet", lambda file: pq.write_table(table, file))


def _mark(settings: Settings) -> NDArray[np.uint8]:
    """By which a checkpoint knows that it is gone on with under the settings it was made with."""
    digest = hashlib.sha256(settings.resolved().to_toml().encode()).digest()
    return np.frombuffer(digest, dtype=np.uint8)


def _checkpoint(path: Path, fresh: Progress, mark: NDArray[np.uint8]) -> Progress:
    """Read a checkpoint that has the arrays of a fresh start, with the same shapes."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        number, made_with = int(arrays.pop("round")), arrays.pop("settings")
    except (OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError,
            zipfile.BadZipFile) as error:  # fmt: skip
        raise DamagedFile(f"{path} is damaged: {error}; start the run again") from error
    if not np.array_equal(made_with, mark):
        raise InvalidInput(f"{path} was made with other settings than {CONFIG} holds now")
    wanted = _arrays(fresh)
    shapes = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    if number < 1 or shapes != {name: (a.shape, a.dtype) for name, a in wanted.items()}:
        raise DamagedFile(f"{path} is of another model or server; start the run again")
    groups: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    params = arrays.pop("params")
    for name, array in arrays.items():
        group, _, key = name.partition(" ")
        groups[group][key] = array
    return Progress(number, params, **groups)


def _arrays(progress: Progress) -> dict[str, NDArray[Any]]:
    """The arrays of a checkpoint by name."""
    arrays: dict[str, NDArray[Any]] = {"params": progress.params}
    for group in GROUPS:
        state: Mapping[str, NDArray[Any]] = getattr(progress, group)
        arrays |= {f"{group} {name}": array for name, array in state.items()}
    return arrays


def _missing_folders(folder: Path) -> list[Path]:
    """The folder and its parents that do not exist yet, innermost first."""
    return [place for place in (folder, *folder.parents) if not place.exists()]


def environment() -> dict[str, Any]:
    """What the run ran on: versions only, nothing that names a person or a machine."""
    names = ("hushbit", "numpy", "numba", "torch", "scikit-learn", "pyarrow")
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {"python": platform.python_version(), "machine": platform.machine(), **versions}


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()
    }


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(_finite(value), indent=2) + "\n"
