"""The run directory: configuration, metrics as they come, checkpoint, environment, summary."""

import importlib.metadata
import json
import math
import os
import platform
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import DamagedFile, InvalidInput
from hushbit.fl.rounds import Progress, Round
from hushbit.fl.settings import Settings, read_settings
from hushbit.files import write_text, write_whole

CONFIG, METRICS, CHECKPOINT = "config.toml", "metrics.jsonl", "checkpoint.npz"
GROUPS = ("server", "local", "average")


class Record:
    """One run on disk."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def begin(self, settings: Settings, notes: Mapping[str, Any]) -> None:
        """Make the folder and write what the run is; refuses a folder that holds another run."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"{self.folder} cannot be a run folder: {error}") from error
        if (self.folder / CONFIG).exists():
            raise InvalidInput(
                f"{self.folder} already holds a run: go on with --resume, or name another folder"
            )
        if any(self.folder.iterdir()):
            raise InvalidInput(f"{self.folder} is not empty: name a new folder for the run")
        write_text(self.folder / "environment.json", _json(environment() | dict(notes)))
        write_text(self.folder / METRICS, "")
        write_text(self.folder / CONFIG, settings.to_toml())

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
        arrays: dict[str, Any] = {"round": np.array(progress.round), "params": progress.params}
        for group in GROUPS:
            state: Mapping[str, NDArray[Any]] = getattr(progress, group)
            arrays |= {f"{group} {name}": array for name, array in state.items()}
        write_whole(self.folder / CHECKPOINT, lambda file: np.savez(file, **arrays))

    def resume(self, fresh: Progress) -> Progress:
        """The last checkpoint; metrics of rounds that it does not hold are dropped."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            write_text(self.folder / METRICS, "")
            return fresh
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            number, params = int(arrays.pop("round")), arrays.pop("params")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DamagedFile(f"{path} is damaged: {error}; start the run again") from error
        if params.shape != fresh.params.shape or params.dtype != fresh.params.dtype:
            raise DamagedFile(f"{path} is of another model; start the run again")
        groups: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
        for name, array in arrays.items():
            group, _, key = name.partition(" ")
            groups.setdefault(group, {})[key] = array
        kept = [row for row in self.rows() if row["round"] <= number]
        write_text(self.folder / METRICS, "".join(json.dumps(row) + "\n" for row in kept))
        return Progress(number, params, groups["server"], groups["local"], groups["average"])

    def rows(self) -> list[dict[str, Any]]:
        """The metrics so far; a line that a kill cut short is left out."""
        rows = []
        for line in (self.folder / METRICS).read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, and the metrics once more as Parquet."""
        write_text(self.folder / "summary.json", _json(summary))
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [
            {k: math.inf if v == "inf" else -math.inf if v == "-inf" else v for k, v in row.items()}
            for row in self.rows()
        ]
        table = pa.Table.from_pylist(rows)
        write_whole(self.folder / "metrics.parquet", lambda file: pq.write_table(table, file))


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
