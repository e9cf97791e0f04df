"""Splitting kernels over threads; results never depend on how many there are."""

import os
import threading
from collections.abc import Callable
from itertools import pairwise
from queue import SimpleQueue

from hushbit.checks import whole

_setting = {"threads": 0}
_crews: dict[int, "SimpleQueue[_Share]"] = {}


def _forget() -> None:
    # A forked child has none of its parent's threads, so it must not wait for them.
    _crews.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def available() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def get_threads() -> int:
    """Threads that kernels use: as set, else HUSHBIT_THREADS, else all cores."""
    if _setting["threads"]:
        return _setting["threads"]
    asked = os.environ.get("HUSHBIT_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else available()


def set_threads(count: int) -> None:
    """Use this many threads from now on; 0 goes back to the default."""
    _setting["threads"] = whole("threads", count, 0, 1024)


def spread(run: Callable[[int, int], None], parts: int) -> None:
    """Call run(first, last) on consecutive shares of range(parts), one share a thread."""
    workers = min(get_threads(), parts)
    if workers <= 1:
        run(0, parts)
        return
    bounds = list(pairwise(parts * share // workers for share in range(workers + 1)))
    shares = [_Share(run, low, high) for low, high in bounds[1:]]
    jobs = _crew(workers - 1)
    for share in shares:
        jobs.put(share)
    # The caller takes a share itself: waking one thread less is worth it for small jobs.
    try:
        run(*bounds[0])
    finally:
        # Nobody may write into the arrays any more when the caller goes on, even after an error.
        for share in shares:
            share.wait()
    for share in shares:
        if share.error is not None:
            raise share.error


class _Share:
    """A part of the work in another thread. A `Future` does the same, with far more locks."""

    def __init__(self, run: Callable[[int, int], None], first: int, last: int) -> None:
        self.run, self.first, self.last = run, first, last
        self.error: BaseException | None = None
        self.busy = threading.Lock()
        self.busy.acquire()

    def do(self) -> None:
        try:
            self.run(self.first, self.last)
        except BaseException as error:
            self.error = error
        finally:
            self.busy.release()

    def wait(self) -> None:
        self.busy.acquire()


def _crew(size: int) -> "SimpleQueue[_Share]":
    """The queue of so many threads that wait for work; started once."""
    jobs = _crews.get(size)
    if jobs is None:
        jobs = _crews.setdefault(size, SimpleQueue())
        for _ in range(size):
            threading.Thread(target=_work, args=(jobs,), name="hushbit", daemon=True).start()
    return jobs


def _work(jobs: "SimpleQueue[_Share]") -> None:
    while True:
        jobs.get().do()
