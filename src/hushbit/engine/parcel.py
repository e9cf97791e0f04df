"""What all jobs share, packed once: workers map its arrays from one file, none copies them."""

import mmap
import pickle
import tempfile
from pathlib import Path
from typing import Any

from hushbit.errors import DamagedFile

ALIGNMENT = 64


class Parcel:
    """An object in a temporary file: its pickle, and its arrays beside it as plain bytes.

    Memory stays flat in workers: the pages of a mapped file are in memory once for all of them.
    """

    def __init__(self, content: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self.pickled = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
        self.slots: list[tuple[int, int]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="hushbit-")
        self.path = Path(self._folder.name) / "arrays"
        try:
            with self.path.open("wb") as file:
                for buffer in buffers:
                    raw = buffer.raw()
                    file.write(bytes(-file.tell() % ALIGNMENT))
                    self.slots.append((file.tell(), raw.nbytes))
                    file.write(raw)
                file.write(b"\0")  # an empty file cannot be mapped
        except OSError as error:
            self.close()
            raise DamagedFile(f"no room to share data with workers: {error}") from error

    @property
    def address(self) -> tuple[bytes, str, list[tuple[int, int]]]:
        """What a worker needs to open the parcel."""
        return self.pickled, str(self.path), self.slots

    def close(self) -> None:
        """Take the file away; workers that mapped it keep their pages."""
        self._folder.cleanup()


def open_parcel(pickled: bytes, path: str, slots: list[tuple[int, int]]) -> Any:
    """The object, its arrays read-only views of the file."""
    with open(path, "rb") as file:
        pages = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return pickle.loads(pickled, buffers=[pages[at : at + size] for at, size in slots])
