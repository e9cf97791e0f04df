"""The server's secret: 32 bytes in a file that only its owner can read."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from hushbit.errors import DamagedFile
from hushbit.keys import SECRET_BYTES


def load_secret(path: str | Path) -> bytes:
    """The secret in a file, made from the system's entropy if there is none yet."""
    place = Path(path)
    try:
        with suppress(FileExistsError):
            place.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
        found = place.read_bytes()
    except OSError as error:
        raise DamagedFile(f"the secret {place} cannot be read or made: {error}") from error
    if len(found) != SECRET_BYTES:
        raise DamagedFile(f"{place} does not hold {SECRET_BYTES} bytes; delete it or restore it")
    return found
