"""Processes that compute cells for all experiments of a command, the longest cells first.

They start once, so libraries, compiled kernels and data are loaded once a process; and while one
experiment waits for its last tuning cell, the cells of another keep the processes busy.
"""

import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from hushbit.engine.local import end_with_parent
from hushbit.fl.settings import Settings
from hushbit.lab.cells import Outcome, cell_key, compute, one_thread, one_thread_each

# What a user's round takes, in units of the linear model's.
MODEL_COST = {"linear": 1.0, "mlp": 3.0, "cnn2": 5.0, "cnn3": 60.0, "resnet18": 3000.0}
AHEAD = 1  # cells handed over beyond those being computed, so that no process waits for the next
Done = Callable[[Settings], None]


def cost(settings: Settings) -> float:
    """Roughly how long a cell takes, in no unit: ballots cost as much again as training."""
    cast = 1.0 if settings.preset == "authors" or settings.mechanism == "fedavg" else 2.0
    return MODEL_COST[settings.model] * cast * settings.users * settings.rounds


class Bench:
    """Workers that take the longest waiting cell; the same cell is computed once.

    `done` hears of every cell as it is finished.
    """

    def __init__(self, workers: int, data: str | None = None, done: Done | None = None) -> None:
        self._data, self._done = data, done
        self._lock, self._order = threading.Lock(), itertools.count()
        self._waiting: list[tuple[float, int, Settings, Path, Future[Outcome]]] = []
        self._asked: dict[tuple[str, str], Future[Outcome]] = {}
        self._free, self._closed = workers + AHEAD, False
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def ask(self, settings: Settings, folder: Path) -> "Future[Outcome]":
        """The outcome of a cell, as soon as a worker has made it."""
        key = str(folder), cell_key(settings)
        with self._lock:
            if key in self._asked:
                return self._asked[key]
            made = self._asked[key] = Future()
            if self._closed:
                _cancel(made)
                return made
            place = (-cost(settings), next(self._order), settings, folder, made)
            heapq.heappush(self._waiting, place)
        self._hand_over()
        return made

    def _hand_over(self) -> None:
        while True:
            with self._lock:
                if self._closed or not self._free or not self._waiting:
                    return
                *_, settings, folder, made = heapq.heappop(self._waiting)
                self._free -= 1
                pool = self._started()
            job = pool.submit(compute, settings, folder, self._data)
            job.add_done_callback(lambda job, s=settings, m=made: self._finish(job, s, m))  # type: ignore[misc]

    def _started(self) -> ProcessPoolExecutor:
        """The workers, who start with the first cell."""
        if self._pool is None:
            # Processes start afresh: threads of this one would not survive a fork.
            with one_thread_each():
                method = get_context("spawn")
                self._pool = ProcessPoolExecutor(self._workers, method, initializer=_begin)
                # Each of these starts a process, which must be born with the settings in force.
                for _ in range(self._workers):
                    self._pool.submit(one_thread)
        return self._pool

    def _finish(self, job: "Future[Outcome]", settings: Settings, made: "Future[Outcome]") -> None:
        with self._lock:
            self._free += 1
            if made.done():
                return
            failure = CancelledError() if job.cancelled() else job.exception()
            if failure is not None:
                made.set_exception(failure)
            else:
                made.set_result(job.result())
        if failure is None and self._done is not None:
            self._done(settings)
        self._hand_over()

    def close(self) -> None:
        """End the workers; cells that are not finished are cancelled, finished ones are kept."""
        with self._lock:
            self._closed = True
            for made in self._asked.values():
                _cancel(made)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _begin() -> None:
    """Prepare a worker."""
    end_with_parent()
    one_thread()


def _cancel(made: "Future[Outcome]") -> None:
    """Tell everyone who waits that nothing will come."""
    if made.cancel():
        made.set_running_or_notify_cancel()
