"""Processes on this machine. One that dies is replaced, and its job is done again."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from hushbit.checks import whole
from hushbit.engine.parcel import Parcel, open_parcel
from hushbit.engine.tree import MergeTree
from hushbit.errors import HushbitError
from hushbit.kernels import threads

Result = TypeVar("Result")
RETRIES = 3
AHEAD = 2  # jobs that wait for each worker, so that none stands idle
_worker: dict[str, Any] = {}


class Local:
    """Worker processes, each with its share of the machine's threads.

    Results enter the merge tree in the order of jobs, each once, however often a job was begun.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = threads.available() if workers is None else whole("workers", workers, 1, 512)
        self._pool: ProcessPoolExecutor | None = None
        self._parcel: Parcel | None = None
        self._shared: Any = None

    def __enter__(self) -> "Local":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self._stop()
        if self._parcel is not None:
            self._parcel.close()
            self._parcel, self._shared = None, None

    def run(
        self,
        work: Callable[[Any, Any], Result],
        shared: Any,
        jobs: Iterable[Any],
        merge: Callable[[Result, Result], Result],
    ) -> Result:
        """Merge work(shared, job) over all jobs."""
        if self._shared is not shared:
            self.close()
            self._parcel, self._shared = Parcel(shared), shared
        tree = MergeTree(merge)
        queue, left = deque[tuple[Any, Future[Result]]](), iter(jobs)
        failures = 0
        while True:
            for job in left:
                queue.append((job, self._submit(work, job)))
                if len(queue) >= AHEAD * self.workers:
                    break
            if not queue:
                return tree.result()
            try:
                result = queue[0][1].result()
            except BrokenProcessPool:
                failures += 1
                self._stop()
                if failures > RETRIES:
                    raise HushbitError(
                        f"workers died {failures} times in a row, most likely for want of memory: "
                        "take fewer with --workers, or lower --memory-mb"
                    ) from None
                queue = deque((job, self._again(work, job, done)) for job, done in queue)
                continue
            except BaseException:
                self._stop()
                raise
            failures = 0
            queue.popleft()
            tree.add(result)

    def _again(self, work: Callable[[Any, Any], Result], job: Any, done: Any) -> Any:
        """The same future if it has a result, else the job once more."""
        kept = done.done() and not done.cancelled() and done.exception() is None
        return done if kept else self._submit(work, job)

    def _submit(self, work: Callable[[Any, Any], Result], job: Any) -> "Future[Result]":
        try:
            return self._started().submit(_do, work, job)
        except BrokenProcessPool:  # a worker died between two jobs
            self._stop()
            return self._started().submit(_do, work, job)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            assert self._parcel is not None
            share = max(1, threads.available() // self.workers)
            self._pool = ProcessPoolExecutor(
                self.workers,
                multiprocessing.get_context("spawn"),
                initializer=_begin,
                initargs=(share, self._parcel.address),
            )
        return self._pool

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _begin(share: int, address: tuple[bytes, str, list[tuple[int, int]]]) -> None:
    """Prepare a worker: its threads, its end with its parent's, what all jobs share."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    end_with_parent()
    os.environ["OMP_NUM_THREADS"] = str(share)
    threads.set_threads(share)
    _worker["address"] = address
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(share)


def end_with_parent() -> None:
    """End this worker as soon as its parent has ended: a killed one leaves nobody behind."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _do(work: Callable[[Any, Any], Result], job: Any) -> Result:
    if "shared" not in _worker:
        _worker["shared"] = open_parcel(*_worker["address"])
    return work(_worker["shared"], job)
