"""Jobs for other processes, for tests of engines."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np

import hushbit as hb
from hushbit.errors import RefusedBallot
from hushbit.wire.coins import SimulationCoins

SHARED = {
    "mechanism": hb.CPA(40, 0.5, 1.0),
    "key": hb.RoundKey(bytes(range(32)), 2),
    "updates": np.random.default_rng(5).uniform(-1, 1, (600, 40)).astype(np.float32),
}


def jobs(size: int = 60) -> list[Any]:
    """Spans of users; nobody dies."""
    return [(np.arange(begin, begin + size), None) for begin in range(0, 600, size)]


def deadly(mark: Path, job: int, times: int = 1) -> list[Any]:
    """The same, but the process that takes one of the jobs dies, so many times."""
    made = jobs()
    made[job] = (made[job][0], (str(mark), times))
    return made


def location() -> tuple[int, str]:
    """The process that runs this, and the file from which it has imported this module."""
    return os.getpid(), __file__


def count(shared: Any, job: Any) -> tuple[Any, Any]:
    """A tally of a span, and a sum of floats that depends on the order of adding."""
    users, death = job
    if death is not None:
        _die(Path(death[0]), death[1])
    updates = shared["updates"][users]
    tally = shared["mechanism"].tally(shared["key"], False)
    keys = shared["key"].users(users)
    tally.add_many(shared["mechanism"].encode_many(updates, keys, SimulationCoins(1)))
    return tally, np.cumsum(updates, axis=0)[-1]


def merge(left: Any, right: Any) -> tuple[Any, Any]:
    """Both together."""
    tally = left[0].empty_like()
    tally.merge(left[0])
    tally.merge(right[0])
    return tally, left[1] + right[1]


def bits(result: Any) -> tuple[int, bytes, bytes]:
    """All that must not differ."""
    tally, total = result
    counters = b"".join(tally.counters[name].tobytes() for name in sorted(tally.counters))
    return tally.count, counters, total.tobytes()


def refuse(shared: Any, job: Any) -> Any:
    """A job that always fails as a ballot does."""
    raise RefusedBallot("round", "of another round")


def look(shared: Any, job: Any) -> list[Any]:
    """What a worker sees: its process, its threads, whether shared arrays can be changed."""
    from hushbit.kernels.threads import get_threads

    return [(os.getpid(), get_threads(), shared["updates"].flags.writeable)]


def join(left: list[Any], right: list[Any]) -> list[Any]:
    """Both lists."""
    return left + right


def die(mark: Path, times: int, result: Any) -> Any:
    """Kill the own process the first `times` times, then return the result."""
    _die(mark, times)
    return result


def die_in_first_cell(settings: Any, folder: Path, data: str | None) -> int:
    """In place of `compute` of a cell: the first worker with seed 1 dies; returns the seed."""
    if settings.seed == 1:
        _die(folder / "died", 1)
    return int(settings.seed)


def _die(mark: Path, times: int) -> None:
    done = len(list(mark.parent.glob(f"{mark.name}.*")))
    if done < times:
        (mark.parent / f"{mark.name}.{done}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
