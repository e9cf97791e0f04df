"""The engine that needs no other process."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hushbit.engine.tree import MergeTree

Result = TypeVar("Result")


class Alone:
    """One job after the other in this process; kernels use its threads."""

    def run(
        self,
        work: Callable[[Any, Any], Result],
        shared: Any,
        jobs: Iterable[Any],
        merge: Callable[[Result, Result], Result],
    ) -> Result:
        """Merge work(shared, job) over all jobs."""
        tree = MergeTree(merge)
        for job in jobs:
            tree.add(work(shared, job))
        return tree.result()
