"""The server's run folder: what the run is, metrics as they come, a checkpoint, a summary."""

import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import DamagedFile, InvalidInput
from hushbit.files import write_text, write_whole
from hushbit.flower.arrays import Arrays

CONFIG, ENVIRONMENT, SUMMARY = "flower.json", "environment.json", "summary.json"
METRICS, CHECKPOINT = "metrics.jsonl", "checkpoint.npz"
PACKAGES = ("hushbit", "flwr", "numpy", "numba")


@dataclass(frozen=True)
class Kept:
    """A checkpoint: the rounds that are done, the model and the optimizer's memory."""

    round: int
    model: Arrays
    optimizer: dict[str, NDArray[Any]]

    def model_like(self, before: Arrays) -> Arrays:
        """The kept model, if it has just the arrays of `before`."""
        if _kinds(self.model) != _kinds(before):
            raise DamagedFile(f"{CHECKPOINT} does not hold the run's model; restore a copy of it")
        return {name: self.model[name] for name in before}


class RunFolder:
    """One run on disk; a killed server goes on from its last whole round."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def open(self, config: Mapping[str, Any]) -> Kept | None:
        """Begin a run, or return the checkpoint of the same run if there is one."""
        place = self.folder / CONFIG
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            known = json.loads(place.read_text(encoding="utf-8")) if place.exists() else None
        except (OSError, ValueError) as error:
            raise DamagedFile(f"{self.folder} cannot be a run folder: {error}") from error
        if known is None:
            write_text(place, _json(config))
            write_text(self.folder / ENVIRONMENT, _json(_environment()))
            write_text(self.folder / METRICS, "")
            return None
        if known != json.loads(_json(config)):
            raise InvalidInput(
                f"{self.folder} holds a run with another {_different(known, config)}: go on "
                "with the same as before, or name another folder"
            )
        if (self.folder / CHECKPOINT).exists():
            return self._resume()
        self._start_again()
        return None

    def save(self, kept: Kept, row: Mapping[str, Any]) -> None:
        """Keep one round: first its metrics, then the checkpoint that makes it count."""
        try:
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(_finite(row)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DamagedFile(f"{self.folder / METRICS} cannot be written: {error}") from error
        arrays: dict[str, Any] = {"round": np.array(kept.round)}
        arrays |= {f"model {name}": array for name, array in kept.model.items()}
        arrays |= {f"optimizer {name}": array for name, array in kept.optimizer.items()}
        write_whole(self.folder / CHECKPOINT, lambda file: np.savez(file, **arrays))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        write_text(self.folder / SUMMARY, _json(summary))

    def rows(self) -> list[dict[str, Any]]:
        """The metrics of the rounds so far; a line that a kill cut short is left out."""
        try:
            lines = (self.folder / METRICS).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DamagedFile(f"{self.folder / METRICS} cannot be read: {error}") from error
        rows: list[dict[str, Any]] = []
        for at, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError:
                if at == len(lines):
                    break
                row = None
            if not isinstance(row, dict) or row.get("round") != at:
                raise DamagedFile(
                    f"line {at} of {self.folder / METRICS} is not the row of round {at}; restore "
                    "a copy of the file, or name another folder"
                )
            rows.append(row)
        return rows

    def _start_again(self) -> None:
        """Clear what a kill left before the first checkpoint; more than that is refused."""
        rows = len(self.rows()) if (self.folder / METRICS).exists() else 0
        # A row is written just before its checkpoint, so a kill explains one row and no more.
        if rows > 1 or (rows == 1 and (self.folder / SUMMARY).exists()):
            raise DamagedFile(
                f"{self.folder} has metrics of {rows} finished rounds but no {CHECKPOINT}: restore "
                "it, or name another folder"
            )
        self._keep([])

    def _keep(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Leave these rows, the environment and nothing of a write that was cut short."""
        write_text(self.folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows))
        if not (self.folder / ENVIRONMENT).exists():
            write_text(self.folder / ENVIRONMENT, _json(_environment()))
        for scratch in self.folder.glob(f".{CHECKPOINT}.*"):
            scratch.unlink(missing_ok=True)

    def _resume(self) -> Kept:
        path = self.folder / CHECKPOINT
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            number = int(arrays.pop("round"))
        except Exception as error:  # a damaged archive makes NumPy and zipfile raise many kinds
            raise DamagedFile(f"{path} is damaged: {error}; start the run again") from error
        parts: dict[str, Arrays] = {"model": {}, "optimizer": {}}
        for name, array in arrays.items():
            group, _, rest = name.partition(" ")
            parts.setdefault(group, {})[rest] = array
        rows = self.rows()
        if not 1 <= number <= len(rows):
            raise DamagedFile(
                f"{self.folder / METRICS} has {len(rows)} rows, {CHECKPOINT} is of round {number}; "
                "restore a copy of both, or name another folder"
            )
        self._keep(rows[:number])
        return Kept(number, parts["model"], parts["optimizer"])


def _kinds(arrays: Arrays) -> dict[str, Any]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


def _different(known: Any, config: Mapping[str, Any]) -> str:
    """What two runs do not have in common, such as "key, optimizer"."""
    own = json.loads(_json(config))
    had = known if isinstance(known, dict) else {}
    return ", ".join(sorted(key for key in {*own, *had} if had.get(key) != own.get(key)))


def _environment() -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), "machine": platform.machine(), **versions}


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(_finite(value), indent=2) + "\n"
