"""Memory and CPU time of a process and its descendants, from /proc (Linux)."""

import contextlib
import os
import threading
from pathlib import Path

SAMPLE_SECONDS = 0.05  # short, since the peak of a short run may last a tenth of a second


def process_tree(parent: int) -> list[int]:
    """The numbers of a process and its descendants."""
    members = [parent]
    for process in members:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                members += [int(child) for child in (thread / "children").read_text().split()]
    return members


def megabytes(parent: int) -> float:
    """Resident memory of a process and its descendants together.

    Anonymous memory counts for every process. File pages, which processes share (libraries, mapped
    arrays), count once: as many as the process that maps most of them has.
    """
    own, mapped = 0, 0
    for process in process_tree(parent):
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
            kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in text}
            own += kilobytes["Anonymous"]
            mapped = max(mapped, kilobytes["Rss"] - kilobytes["Anonymous"])
    return (own + mapped) / 1024


def cpu_seconds(parent: int) -> float:
    """CPU time of a process, of its running descendants and of those that have ended."""
    ticks = 0
    for process in process_tree(parent):
        with contextlib.suppress(OSError):
            # The process name may contain blanks and brackets; fields follow its last bracket.
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


class Peak:
    """The peak memory of a process and its descendants together."""

    def __init__(self, parent: int) -> None:
        self.megabytes = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(parent,), daemon=True)
        self._thread.start()

    def _watch(self, parent: int) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self.megabytes = max(self.megabytes, megabytes(parent))

    def end(self) -> float:
        """Stop sampling and return the peak in MB."""
        self._done.set()
        self._thread.join()
        return self.megabytes
