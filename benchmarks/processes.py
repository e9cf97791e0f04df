"""Memory and CPU time of a process with all that descend from it, from /proc (Linux)."""

import contextlib
import os
import threading
from pathlib import Path

SAMPLE_SECONDS = 0.05  # a short run may hold its most for a tenth of a second


def family(parent: int) -> list[int]:
    """A process and all that descend from it."""
    members = [parent]
    for process in members:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                members += [int(child) for child in (thread / "children").read_text().split()]
    return members


def megabytes(parent: int) -> float:
    """Resident memory of a process and its descendants together.

    What is each one's own counts in full; pages of files, which they share (libraries, arrays in
    a parcel), count once: as many as the process has that maps most of them.
    """
    own, mapped = 0, 0
    for process in family(parent):
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
            kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in text}
            own += kilobytes["Anonymous"]
            mapped = max(mapped, kilobytes["Rss"] - kilobytes["Anonymous"])
    return (own + mapped) / 1024


def cpu_seconds(parent: int) -> float:
    """CPU time of a process, of its living descendants and of those that have ended."""
    ticks = 0
    for process in family(parent):
        with contextlib.suppress(OSError):
            # The name may hold blanks and brackets; what follows its last bracket does not.
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


class Peak:
    """The most memory that a process and its descendants held together."""

    def __init__(self, parent: int) -> None:
        self.megabytes = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(parent,), daemon=True)
        self._thread.start()

    def _watch(self, parent: int) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self.megabytes = max(self.megabytes, megabytes(parent))

    def end(self) -> float:
        """Stop and tell."""
        self._done.set()
        self._thread.join()
        return self.megabytes
