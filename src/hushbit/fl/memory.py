"""Freed memory goes back to the system.

torch asks for aligned blocks, and glibc before 2.39 often finds no use for them once they are
freed: training of large models would grow by some megabytes a round for as long as it runs.
"""

import ctypes
import sys
from collections.abc import Callable
from functools import cache

WORTH_IT = 64 << 20
"""Bytes of updates in a job from which on giving back takes no noticeable time."""


def give_back(used: int) -> None:
    """Return free pages to the system after a job that used so many bytes, if it can be asked."""
    trim = _trim()
    if trim is not None and used >= WORTH_IT:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None on other systems."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
