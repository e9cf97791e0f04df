"""What all jobs share, packed once: workers map its arrays from one file, none copies them."""

import mmap
import os
import pickle
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hushbit.errors import DamagedFile

ALIGNMENT = 64


class Parcel:
    """An object in a temporary file: its pickle, and its arrays beside it as plain bytes.

    Memory stays flat in workers: the pages of a mapped file are in memory once for all of them.
    Where the system can name an open file, it has no other name, and ends with this process.
    """

    def __init__(self, content: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self.pickled = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
        self.slots: list[tuple[int, int]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="hushbit-")
        self.path = Path(self._folder.name) / "arrays"
        self._file = self.path.open("wb")
        try:
            for buffer in buffers:
                raw = buffer.raw()
                self._file.write(bytes(-self._file.tell() % ALIGNMENT))
                self.slots.append((self._file.tell(), raw.nbytes))
                self._file.write(raw)
            self._file.write(b"\0")  # an empty file cannot be mapped
            self._file.flush()
        except OSError as error:
            self.close()
            raise DamagedFile(f"no room to share data with workers: {error}") from error
        opened = Path(f"/proc/{os.getpid()}/fd/{self._file.fileno()}")
        if opened.exists():
            self.path = opened
            self._folder.cleanup()

    @property
    def address(self) -> tuple[bytes, str, list[tuple[int, int]]]:
        """What a worker needs to open the parcel."""
        return self.pickled, str(self.path), self.slots

    def close(self) -> None:
        """Take the file away; workers that mapped it keep their pages."""
        with suppress(OSError):  # what could not be written for want of room
            self._file.close()
        self._folder.cleanup()


def open_parcel(pickled: bytes, path: str, slots: list[tuple[int, int]]) -> Any:
    """The object, its arrays read-only views of the file."""
    with open(path, "rb") as file:
        pages = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return pickle.loads(pickled, buffers=[pages[at : at + size] for at, size in slots])
