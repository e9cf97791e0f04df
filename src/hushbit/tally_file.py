"""Tallies at rest: one archive of integer arrays, without the key, written whole or not at all."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import DamagedFile, InvalidInput
from hushbit.files import write_whole

if TYPE_CHECKING:
    from hushbit.tally import Tally

FORMAT = 1
Arrays = dict[str, NDArray[Any]]


def arrays_of(tally: "Tally") -> Arrays:
    """Everything that a file must hold: what it belongs to, who voted, the counters."""
    tally.check_whole()
    head = (
        FORMAT.to_bytes(8, "little")
        + tally.mechanism.fingerprint
        + tally.round_key.mark
        + tally.round_key.round.to_bytes(8, "little")
    )
    counters = {f"counter {name}": array for name, array in tally.counters.items()}
    return {"head": np.frombuffer(head, dtype=np.uint8), "users": tally.roll.users(), **counters}


def check_arrays(tally: "Tally", data: Arrays, path: Path) -> None:
    """Refuse arrays that do not belong to this empty tally."""
    if tally.count:
        raise InvalidInput("load fills an empty tally; merge this one with another instead")
    head = data.get("head", np.empty(0)).tobytes()
    if len(head) != 32 or int.from_bytes(head[:8], "little") != FORMAT:
        raise DamagedFile(f"{path} is not a tally of format {FORMAT}")
    if head[8:16] != tally.mechanism.fingerprint:
        raise InvalidInput(f"{path} belongs to another mechanism than {tally.mechanism!r}")
    if head[16:24] != tally.round_key.mark:
        number = int.from_bytes(head[24:], "little")
        raise InvalidInput(f"{path} belongs to round {number} of another key")
    wanted = {name: (array.shape, array.dtype) for name, array in arrays_of(tally).items()}
    found = {name: (array.shape, array.dtype) for name, array in data.items()}
    users = data.get("users", np.empty(0))
    wanted["users"] = (users.shape, np.dtype(np.uint64))
    if wanted != found or users.ndim != 1:
        raise DamagedFile(f"{path} does not hold this tally's counters")
    if np.unique(users).size != users.size:
        raise DamagedFile(f"{path} names a user twice")


def fill(tally: "Tally", data: Arrays) -> None:
    """Take over checked arrays."""
    for name, array in tally.counters.items():
        array[...] = data[f"counter {name}"]
    tally.roll.add(data["users"])


def write_arrays(path: str | os.PathLike[str], arrays: Arrays) -> None:
    """Write an archive in place of whatever is there, at once."""
    write_whole(as_path(path), lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def read_arrays(path: str | os.PathLike[str]) -> Arrays:
    """Read an archive; anything else is refused."""
    source = as_path(path)
    try:
        with np.load(source, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # a damaged archive makes NumPy and zipfile raise many kinds
        raise DamagedFile(f"{path} is not a readable tally: {error}") from error


def as_path(path: str | os.PathLike[str]) -> Path:
    """A path from text or a Path."""
    try:
        return Path(path)
    except TypeError:
        raise InvalidInput(f"a path is text or a Path; got {type(path).__name__}") from None
