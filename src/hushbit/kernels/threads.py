"""Splitting kernels over threads; results never depend on the number of threads."""

import os
import threading
from collections.abc import Callable
from itertools import pairwise
from queue import SimpleQueue

MAX_THREADS = 1024
_setting = {"threads": 0}
_worker_queues: dict[int, "SimpleQueue[_Task]"] = {}


def _reset_after_fork() -> None:
    # A forked child has none of the threads of its parent and must start its own.
    _worker_queues.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def get_threads() -> int:
    """Threads that kernels use: as set, otherwise HUSHBIT_THREADS, otherwise all cores."""
    if _setting["threads"]:
        return _setting["threads"]
    wanted = os.environ.get("HUSHBIT_THREADS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else available_cores()


def set_threads(count: int) -> None:
    """Use this many threads from now on; 0 restores the default."""
    if type(count) is not int or not 0 <= count <= MAX_THREADS:
        raise ValueError(f"threads must be a whole number from 0 to {MAX_THREADS}; got {count!r}")
    _setting["threads"] = count


def parallel_for(run: Callable[[int, int], None], parts: int) -> None:
    """Call run(first, last) on consecutive shares of range(parts), one share for each thread."""
    workers = min(get_threads(), parts)
    if workers <= 1:
        run(0, parts)
        return
    bounds = list(pairwise(parts * share // workers for share in range(workers + 1)))
    tasks = [_Task(run, low, high) for low, high in bounds[1:]]
    queue = _worker_queue(workers - 1)
    for task in tasks:
        queue.put(task)
    # The caller runs the first share itself: small jobs profit from waking one thread less.
    try:
        run(*bounds[0])
    finally:
        # No thread may write to the arrays after this function ends, not even after an error.
        for task in tasks:
            task.wait()
    for task in tasks:
        if task.error is not None:
            raise task.error


class _Task:
    """A share of the work for another thread; lighter than a `Future`, which takes more locks."""

    def __init__(self, run: Callable[[int, int], None], first: int, last: int) -> None:
        self.run, self.first, self.last = run, first, last
        self.error: BaseException | None = None
        self.busy = threading.Lock()
        self.busy.acquire()

    def execute(self) -> None:
        try:
            self.run(self.first, self.last)
        except BaseException as error:
            self.error = error
        finally:
            self.busy.release()

    def wait(self) -> None:
        self.busy.acquire()


def _worker_queue(size: int) -> "SimpleQueue[_Task]":
    """The queue of `size` threads that wait for tasks; they are started once."""
    queue = _worker_queues.get(size)
    if queue is None:
        queue = _worker_queues.setdefault(size, SimpleQueue())
        for _ in range(size):
            threading.Thread(target=_work, args=(queue,), name="hushbit", daemon=True).start()
    return queue


def _work(queue: "SimpleQueue[_Task]") -> None:
    while True:
        queue.get().execute()
