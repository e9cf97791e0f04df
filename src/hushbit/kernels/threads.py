"""Splitting kernels over threads; results never depend on how many there are."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

from hushbit.checks import whole

_setting = {"threads": 0}
_pools: dict[int, ThreadPoolExecutor] = {}


def _forget() -> None:
    # A forked child has none of its parent's threads, so it must not wait for them.
    _pools.clear()


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
    pool = _pools.get(workers)
    if pool is None:
        pool = _pools.setdefault(workers, ThreadPoolExecutor(workers - 1, "hushbit"))
    shares = list(pairwise(parts * share // workers for share in range(workers + 1)))
    jobs = [pool.submit(run, low, high) for low, high in shares[1:]]
    # The caller takes a share itself: waking one thread less is worth it for small jobs.
    try:
        run(*shares[0])
    finally:
        # Nobody may write into the arrays any more when the caller goes on, even after an error.
        wait(jobs)
    for job in jobs:
        job.result()
