"""Atomic writes: a file or a folder appears complete or not at all.

Data are written under a temporary name beside the target and renamed at the end. The writer locks
the temporary file, and the operating system releases the lock when the process ends. A temporary
file without a lock was therefore left by a killed process (`remove_abandoned`).
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

LOCK = "lock"  # a file in a temporary folder


@contextmanager
def atomic_file(target: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which replaces `target` at the end; an error leaves it unchanged."""
    temporary = _temporary_path(target)
    try:
        with locked_file(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    except OSError as error:
        raise DamagedFile(
            f"{target} could not be written: {error.strerror or error}; what was there is unchanged"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_atomic(target: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Replace `target` by what `write(file)` writes; after an error it is unchanged."""
    with atomic_file(target) as file:
        write(file)


def write_text(target: Path, text: str) -> None:
    """Replace `target` by a text file in UTF-8; after an error it is unchanged."""
    write_atomic(target, lambda file: file.write(text.encode()))


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, renamed to `target` at the end; an error leaves nothing behind."""
    if target.exists():
        raise InvalidInput(f"{target} exists already: name a new folder")
    temporary = _temporary_path(target)
    try:
        remove_abandoned(target)
        temporary.mkdir(parents=True)
        with locked_file(temporary / LOCK):
            yield temporary
            (temporary / LOCK).unlink()
            os.rename(temporary, target)
    except OSError as error:
        if target.exists():
            raise InvalidInput(
                f"{target} was created by another process in the meantime"
            ) from error
        raise DamagedFile(f"{target} could not be written: {error}; nothing was kept") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
    """Remove temporary files and folders (.NAME.*) that killed writers of `target` left."""
    if fcntl is None:
        return
    for left in target.parent.glob(f".{glob.escape(target.name)}.*"):
        lock = left / LOCK if left.is_dir() else left
        with suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the writer is alive
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()


def _temporary_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(6)}")
