"""Engines by name."""

from collections.abc import Iterator
from contextlib import contextmanager

from hushbit.checks import choice, whole
from hushbit.engine.alone import Alone
from hushbit.engine.cluster import Ray
from hushbit.engine.local import Local
from hushbit.engine.tree import Engine
from hushbit.kernels import threads

ENGINES = ("local", "ray")
WORTH_A_WORKER = 4  # jobs below which starting a process takes longer than it saves


@contextmanager
def chosen_engine(name: str, workers: int | None, jobs: int) -> Iterator[Engine]:
    """The engine of that name for about so many jobs a time, closed at the end.

    With "local" and no number of workers, as many as cores if there is enough to do for each;
    one worker is this process.
    """
    choice("engine", name, ENGINES)
    if workers is not None:
        whole("workers", workers, 1, 512)
    if name == "ray":
        with Ray(workers) as cluster:
            yield cluster
        return
    if workers is None:
        workers = min(threads.available(), jobs // WORTH_A_WORKER)
    if workers <= 1:
        yield Alone()
        return
    with Local(workers) as processes:
        yield processes
