"""Ray: the same jobs on a cluster, started here for the occasion or one that already runs."""

import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from hushbit.checks import whole
from hushbit.engine.tree import MergeTree
from hushbit.errors import HushbitError, InvalidInput, MissingExtra
from hushbit.kernels import threads

Result = TypeVar("Result")
RETRIES = 3
AHEAD = 4  # jobs in flight for each worker


class Ray:
    """Tasks on a Ray cluster; Ray starts a task again whose worker died.

    With RAY_ADDRESS set, on that cluster; otherwise on a cluster of `workers` processes here.
    A task's result is one object however often it was begun, and enters the merge tree once.
    """

    def __init__(self, workers: int | None = None) -> None:
        self._ray = ray = _import_ray()
        address = os.environ.get("RAY_ADDRESS")
        if address and workers is not None:
            raise InvalidInput("the cluster at RAY_ADDRESS has its own workers: drop --workers")
        if workers is not None:
            whole("workers", workers, 1, 512)
        self._began = not ray.is_initialized()
        if self._began:
            try:
                ray.init(
                    address=address,
                    num_cpus=None if address else workers or threads.available(),
                    include_dashboard=None if address else False,
                    log_to_driver=False,
                    logging_level="ERROR",
                )
            except Exception as error:  # Ray raises bare exceptions of many kinds here
                where = f"at {address} (RAY_ADDRESS)" if address else "on this machine"
                raise InvalidInput(f"no Ray cluster {where}: {error}") from error
        self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._shared: Any = None
        self._parcel: Any = None
        task = ray.remote(num_cpus=1, max_retries=RETRIES)
        self._work, self._merge = task(_do), task(_join)

    def __enter__(self) -> "Ray":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._shared, self._parcel = None, None
        if self._began and self._ray.is_initialized():
            self._ray.shutdown()

    def run(
        self,
        work: Callable[[Any, Any], Result],
        shared: Any,
        jobs: Iterable[Any],
        merge: Callable[[Result, Result], Result],
    ) -> Result:
        """Merge work(shared, job) over all jobs, merges being tasks too."""
        if self._shared is not shared:
            self._shared, self._parcel = shared, self._ray.put(shared)
        tree: MergeTree[Any] = MergeTree(lambda left, right: self._merge.remote(merge, left, right))
        flight = deque[Any]()
        try:
            for job in jobs:
                if len(flight) >= AHEAD * self.workers:
                    self._ray.wait([flight.popleft()])
                reference = self._work.remote(work, self._parcel, job)
                flight.append(reference)
                tree.add(reference)
            result: Result = self._ray.get(tree.result())
            return result
        except self._ray.exceptions.RayError as error:
            raise self._plain(error) from None

    def _plain(self, error: Any) -> BaseException:
        """What went wrong in a job, out of the wrappings of the merges that waited for it."""
        while isinstance(error, self._ray.exceptions.RayTaskError) and error.cause is not None:
            error = error.cause
        if isinstance(error, self._ray.exceptions.RayError):
            return HushbitError(
                f"the Ray cluster could not finish a job after {RETRIES} more tries: {error}"
            )
        return cast(BaseException, error)


def _import_ray() -> Any:
    # Ray would otherwise send usage figures to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("--engine ray needs Ray: pip install 'hushbit[scale]'") from error
    return ray


def _do(work: Callable[[Any, Any], Result], shared: Any, job: Any) -> Result:
    threads.set_threads(1)
    return work(shared, job)


def _join(merge: Callable[[Result, Result], Result], left: Result, right: Result) -> Result:
    return merge(left, right)
