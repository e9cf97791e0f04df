"""Scratch files that a killed process may leave: a lock that died with it tells them apart."""

import glob
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = "being-filled"


@contextmanager
def held(path: Path) -> Iterator[IO[bytes]]:
    """A new file, locked until it is closed or its process ends, however it ends."""
    with path.open("xb") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def remove_abandoned(target: Path) -> None:
    """Take away what killed processes left of a target: files .NAME.*, and folders with a LOCK."""
    if fcntl is None:
        return
    for left in target.parent.glob(f".{glob.escape(target.name)}.*"):
        lock = left / LOCK if left.is_dir() else left
        with suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a living owner has it
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()
