"""Atomic writes: a file or a folder appears complete or not at all.

Data are written under a temporary name beside the target and renamed at the end. The writer holds a
lock on the temporary file, which the operating system releases when the process ends, so what a
killed process left behind can be told from what another process is writing (`remove_abandoned`).
"""

import glob
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from hushbit.errors import DamagedFile, InvalidInput

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = "being-filled"


@contextmanager
def atomic_file(target: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which replaces `target` at the end; an error leaves it unchanged."""
    scratch = _scratch_path(target)
    try:
        with locked_file(scratch) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, target)
        sync_folder(target.parent)
    except OSError as error:
        raise DamagedFile(
            f"{target} could not be written: {error.strerror or error}; what was there is unchanged"
        ) from error
    finally:
        with suppress(OSError):
            scratch.unlink()


def write_atomic(target: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write what `write` writes to an open file, or change nothing."""
    with atomic_file(target) as file:
        write(file)


def write_text(target: Path, text: str) -> None:
    """Write a text file in UTF-8, or change nothing."""
    write_atomic(target, lambda file: file.write(text.encode()))


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, renamed to `target` at the end; an error leaves nothing behind."""
    if target.exists():
        raise InvalidInput(f"{target} exists already: name a new folder")
    scratch = _scratch_path(target)
    try:
        remove_abandoned(target)
        scratch.mkdir(parents=True)
        with locked_file(scratch / LOCK):
            yield scratch
            (scratch / LOCK).unlink()
            os.rename(scratch, target)
    except OSError as error:
        if target.exists():
            raise InvalidInput(f"{target} was made by another process meanwhile") from error
        raise DamagedFile(f"{target} could not be written: {error}; nothing was kept") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def locked_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file, locked until it is closed or its process ends."""
    with path.open("xb") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def remove_abandoned(target: Path) -> None:
    """Remove what killed writers of a target left: files .NAME.*, and folders with a LOCK."""
    if fcntl is None:
        return
    for left in target.parent.glob(f".{glob.escape(target.name)}.*"):
        lock = left / LOCK if left.is_dir() else left
        with suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the writer is alive
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()


def _scratch_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(6)}")
