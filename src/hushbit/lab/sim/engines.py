"""Engines that run jobs in other processes: worker processes on this machine, or a Ray cluster.

`WorkerPool` runs functions in worker processes and replaces workers that die. `ProcessEngine` runs
the jobs of a round on it; `hushbit.lab.experiments.cells` runs whole simulations on it.
"""

import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, cast

from hushbit.checks import check_choice, check_int
from hushbit.engine import Engine, MergeTree, SerialEngine
from hushbit.errors import DamagedFile, HushbitError, InvalidInput, MissingExtra
from hushbit.kernels import threads

Result = TypeVar("Result")
Work = Callable[[Any, Any], Result]
Merge = Callable[[Result, Result], Result]

THREAD_VARIABLES = (
    "HUSHBIT_THREADS",
    "NUMBA_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)
RETRIES = 3  # how often a job is run again after a worker died
ALIGNMENT = 64


PICKLING_ERRORS = (pickle.PicklingError, AttributeError, TypeError)


def not_picklable(content: Any) -> InvalidInput:
    """An error that names the part of an object that cannot be sent to other processes."""
    name, part = _unpicklable_part(type(content).__name__.lower(), content)
    what = getattr(part, "__qualname__", None) or type(part).__qualname__
    return InvalidInput(
        f"{name} ({what}) cannot be sent to worker processes: define it with def or class at the "
        "top level of a module that they can import, or use one worker (--workers 1)"
    )


def _unpicklable_part(name: str, value: Any) -> tuple[str, Any]:
    """The innermost attribute or item that cannot be pickled, with its name."""
    parts = dict(value) if isinstance(value, dict) else getattr(value, "__dict__", {})
    for key, part in {} if isinstance(value, type) else parts.items():
        try:
            pickle.dumps(part)
        except PICKLING_ERRORS:
            return _unpicklable_part(f"{name}.{key}", part)
    return name, value


class SharedArrays:
    """A pickled object whose arrays lie beside it in a temporary file that workers map.

    The pages of a mapped file are in memory once for all workers. Where the system can name an
    open file, the file has no other name and disappears with this process.
    """

    def __init__(self, content: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        try:
            self.pickled = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
        except PICKLING_ERRORS as error:
            raise not_picklable(content) from error
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
        """The arguments of `open_shared` in a worker."""
        return self.pickled, str(self.path), self.slots

    def close(self) -> None:
        """Remove the file; workers that mapped it keep their pages."""
        with suppress(OSError):  # buffered bytes that did not fit on the disk
            self._file.close()
        self._folder.cleanup()


def open_shared(pickled: bytes, path: str, slots: list[tuple[int, int]]) -> Any:
    """The shared object; its arrays are read-only views of the file."""
    with open(path, "rb") as file:
        pages = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return pickle.loads(pickled, buffers=[pages[at : at + size] for at, size in slots])


@dataclass
class _PoolJob:
    """A submitted call, and how many times workers died before it was finished."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    deaths: int = 0


class WorkerPool:
    """Worker processes that are replaced when one dies; unfinished jobs are then run again.

    Each worker uses `threads_each` threads. The workers start with the first job and end at once
    when the pool is stopped or this process ends, however it ends. Nothing tells which job killed
    a worker, so a job fails after more than RETRIES deaths that it has been waiting through.
    """

    def __init__(self, workers: int, threads_each: int, shared: SharedArrays | None = None) -> None:
        self.workers = workers
        self._threads, self._shared = threads_each, shared
        self._lock = threading.RLock()
        self._jobs: dict[Future[Any], _PoolJob] = {}
        self._executor: ProcessPoolExecutor | None = None
        self._lifeline: Connection | None = None
        self._replacing = False

    def submit(self, work: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        """The future result of work(*arguments) in a worker; `work` must be picklable."""
        future: Future[Result] = Future()
        with self._lock:
            self._jobs[future] = _PoolJob(work, arguments)
            self._start(future)
        return future

    def stop(self) -> None:
        """End the workers and cancel unfinished jobs; the next job starts new workers."""
        with self._lock:
            executor, self._executor = self._executor, None
            unfinished, self._jobs = list(self._jobs), {}
            if unfinished and self._lifeline is not None:
                self._lifeline.close()  # busy workers exit
        for future in unfinished:
            if future.cancel():
                future.set_running_or_notify_cancel()
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)

    def _start(self, future: "Future[Any]") -> None:
        """Hand a job to the workers, unless they are being replaced."""
        if self._replacing:
            return
        job = self._jobs[future]
        try:
            executor = self._started()
            attempt = executor.submit(job.work, *job.arguments)
        except BrokenProcessPool:  # a worker died between two jobs
            self._replace(self._executor)
        else:
            attempt.add_done_callback(lambda done: self._finish(executor, future, done))

    def _started(self) -> ProcessPoolExecutor:
        if self._executor is None:
            # Spawn: threads of this process would not survive a fork.
            context = multiprocessing.get_context("spawn")
            reader, self._lifeline = context.Pipe(duplex=False)
            address = None if self._shared is None else self._shared.address
            self._executor = ProcessPoolExecutor(
                self.workers,
                context,
                initializer=_begin_worker,
                initargs=(self._threads, reader, address),
            )
            with _thread_variables(self._threads):
                for _ in range(self.workers):  # each call starts a process
                    self._executor.submit(int)
        return self._executor

    def _finish(
        self, executor: ProcessPoolExecutor, future: "Future[Any]", attempt: "Future[Any]"
    ) -> None:
        """Pass a result on; called by the executor's own thread."""
        with self._lock:
            if future not in self._jobs:  # the pool was stopped
                return
            failure = BrokenProcessPool() if attempt.cancelled() else attempt.exception()
            if isinstance(failure, BrokenProcessPool):
                self._replace(executor)
                return
            del self._jobs[future]
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(attempt.result())

    def _replace(self, executor: ProcessPoolExecutor | None) -> None:
        """Replace broken workers from a thread of its own: their executor's thread has to end."""
        if executor is not None and self._executor is executor:
            self._executor, self._replacing = None, True
            threading.Thread(target=self._restart, args=(executor,), daemon=True).start()

    def _restart(self, executor: ProcessPoolExecutor) -> None:
        # No old worker may still write files when a job is run again.
        executor.shutdown(wait=True)
        failed = []
        with self._lock:
            self._replacing = False
            for future, job in list(self._jobs.items()):
                job.deaths += 1
                if job.deaths > RETRIES:
                    del self._jobs[future]
                    failed.append(future)
            for future in list(self._jobs):
                self._start(future)
        for future in failed:
            future.set_exception(
                HushbitError(
                    f"workers died {RETRIES + 1} times, most likely for lack of memory: use fewer "
                    "with --workers, or lower --memory-mb"
                )
            )


@contextmanager
def _thread_variables(count: int) -> Iterator[None]:
    """Set the environment of processes that start meanwhile to so many threads.

    Numerical libraries read these variables once, when they are loaded.
    """
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(count)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_worker: dict[str, Any] = {}


def _begin_worker(
    count: int, lifeline: Connection, address: tuple[bytes, str, list[tuple[int, int]]] | None
) -> None:
    """Prepare a worker process: its threads, its end, the address of shared arrays."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_exit_at_end_of, args=(lifeline,), daemon=True).start()
    threads.set_threads(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
    _worker["address"] = address


def _exit_at_end_of(lifeline: Connection) -> None:
    """Exit when the other end of the pipe is closed, by the pool or by the end of its process."""
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


def _run_job(work: Work[Result], job: Any) -> Result:
    if "shared" not in _worker:
        _worker["shared"] = open_shared(*_worker["address"])
    return work(_worker["shared"], job)


QUEUE_DEPTH = 2  # submitted jobs per worker, so that no worker waits for the next one


class ProcessEngine(AbstractContextManager["ProcessEngine"]):
    """Runs jobs in worker processes that divide the machine's threads among them.

    Results are merged in the order of jobs, each once, however often a job is run.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: WorkerPool | None = None
        self._arrays: SharedArrays | None = None
        self._shared: Any = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and remove what they share."""
        if self._pool is not None:
            self._pool.stop()
        if self._arrays is not None:
            self._arrays.close()
        self._pool, self._arrays, self._shared = None, None, None

    def run(
        self, work: Work[Result], shared: Any, jobs: Iterable[Any], merge: Merge[Result]
    ) -> Result:
        """Merge work(shared, job) over all jobs."""
        if self._pool is None or self._shared is not shared:
            self.close()
            self._arrays, self._shared = SharedArrays(shared), shared
            each = max(1, threads.available_cores() // self.workers)
            self._pool = WorkerPool(self.workers, each, self._arrays)
        tree, queue = MergeTree(merge), deque[Future[Result]]()
        try:
            for job in jobs:
                queue.append(self._pool.submit(_run_job, work, job))
                if len(queue) >= QUEUE_DEPTH * self.workers:
                    tree.add(queue.popleft().result())
            while queue:
                tree.add(queue.popleft().result())
        except BaseException:
            self._pool.stop()
            raise
        return tree.result()


RAY_RETRIES = 3
RAY_QUEUE_DEPTH = 4  # jobs in flight per worker


class RayEngine(AbstractContextManager["RayEngine"]):
    """Runs jobs as tasks of a Ray cluster; Ray repeats a task whose worker died.

    With RAY_ADDRESS set, on that cluster; otherwise on a cluster of `workers` processes here.
    A task's result is one object however often it was started, and is merged once.
    """

    def __init__(self, workers: int | None = None) -> None:
        # By default Ray sends usage statistics to its makers.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("--engine ray needs Ray: pip install 'hushbit[scale]'") from error
        self._ray: Any = ray
        address = os.environ.get("RAY_ADDRESS")
        if address and workers is not None:
            raise InvalidInput(
                "the cluster at RAY_ADDRESS sets the number of workers: leave --workers out"
            )
        self._started_here = not self._ray.is_initialized()
        if self._started_here:
            try:
                self._ray.init(
                    address=address,
                    num_cpus=None if address else workers or threads.available_cores(),
                    include_dashboard=None if address else False,
                    log_to_driver=False,
                    logging_level="ERROR",
                )
            except Exception as error:  # Ray raises bare exceptions of many kinds here
                where = f"at {address} (RAY_ADDRESS)" if address else "on this machine"
                raise InvalidInput(f"no Ray cluster {where}: {error}") from error
        self.workers = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._shared: Any = None
        self._reference: Any = None
        self._call = self._ray.remote(num_cpus=1, max_retries=RAY_RETRIES)(_call_with_one_thread)

    def __exit__(self, *_: object) -> None:
        """Leave the cluster; end one that was started here."""
        self._shared, self._reference = None, None
        if self._started_here and self._ray.is_initialized():
            self._ray.shutdown()

    def run(
        self, work: Work[Result], shared: Any, jobs: Iterable[Any], merge: Merge[Result]
    ) -> Result:
        """Merge work(shared, job) over all jobs; merges are tasks, too."""
        if self._shared is not shared:
            try:
                self._shared, self._reference = shared, self._ray.put(shared)
            except PICKLING_ERRORS as error:
                raise not_picklable(shared) from error
        tree: MergeTree[Any] = MergeTree(lambda left, right: self._call.remote(merge, left, right))
        flight = deque[Any]()
        try:
            for job in jobs:
                if len(flight) >= RAY_QUEUE_DEPTH * self.workers:
                    self._ray.wait([flight.popleft()])
                result_reference = self._call.remote(work, self._reference, job)
                flight.append(result_reference)
                tree.add(result_reference)
            result: Result = self._ray.get(tree.result())
            return result
        except self._ray.exceptions.RayError as error:
            raise self._cause(error) from None

    def _cause(self, error: Any) -> BaseException:
        """The error of the job itself, unwrapped from those of the merges that waited for it."""
        while isinstance(error, self._ray.exceptions.RayTaskError) and error.cause is not None:
            error = error.cause
        if isinstance(error, self._ray.exceptions.RayError):
            return HushbitError(
                f"the Ray cluster could not finish a job after {RAY_RETRIES} more tries: {error}"
            )
        return cast(BaseException, error)


def _call_with_one_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    threads.set_threads(1)
    return function(*arguments)


ENGINES = ("local", "ray")
MIN_JOBS_PER_WORKER = 4  # with fewer jobs, starting a process takes longer than it saves


@contextmanager
def open_engine(name: str, workers: int | None, jobs: int) -> Iterator[Engine]:
    """The engine of that name for about so many jobs per round; it is closed at the end.

    "local" without a number of workers takes one per core if each has enough jobs; with one
    worker the jobs run in this process.
    """
    check_choice("engine", name, ENGINES)
    if workers is not None:
        check_int("workers", workers, 1, 512)
    if name == "ray":
        with RayEngine(workers) as cluster:
            yield cluster
        return
    if workers is None:
        workers = min(threads.available_cores(), jobs // MIN_JOBS_PER_WORKER)
    if workers <= 1:
        yield SerialEngine()
        return
    with ProcessEngine(workers) as processes:
        yield processes
