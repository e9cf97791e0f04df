"""Freed memory goes back to the system.

torch asks for aligned blocks, and glibc before 2.39 often finds no use for them once they are
freed: training of large models would grow by some megabytes a round for as long as it runs.
"""

import ctypes
import resource
import sys
from collections.abc import Callable
from functools import cache

WORTH_IT = 64 << 20
"""Bytes of updates in a job from which on a process may grow by much."""

GROWN = 256 << 20
"""Bytes that a process may grow before it gives back: pages that are used again cost time."""

_after = {"giving back": 0}


def give_back(used: int) -> None:
    """Return free pages to the system after a job that used so many bytes, if it has grown."""
    trim = _trim()
    if trim is None or used < WORTH_IT:
        return
    if resident() > _after["giving back"] + GROWN:
        trim(0)
        _after["giving back"] = resident()


def resident() -> int:
    """Bytes of this process that lie in memory; Linux only."""
    with open("/proc/self/statm", encoding="ascii") as told:
        return int(told.read().split()[1]) * resource.getpagesize()


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None on other systems."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
