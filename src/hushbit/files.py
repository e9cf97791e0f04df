"""Writing files whole or not at all."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from hushbit.errors import DamagedFile


def write_whole(target: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Let `write` fill a temporary file beside the target, then put it in place at once."""
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        try:
            with scratch.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, target)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        raise DamagedFile(
            f"{target} could not be written: {error.strerror or error}; what was there is unchanged"
        ) from error


def write_text(target: Path, text: str) -> None:
    """Write a text file whole."""
    write_whole(target, lambda file: file.write(text.encode()))


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
