"""How the jobs of a round are run: the engine protocol, the merge tree, the serial engine.

An engine maps jobs to results and merges them in a tree whose shape depends on the number of jobs
alone, so that even sums of floats have the same bits for every engine and number of workers.
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from hushbit.errors import InvalidInput

Result = TypeVar("Result")


class Engine(Protocol):
    """Runs jobs. `work` and `merge` are functions of a module, so that they can be pickled."""

    def run(
        self,
        work: Callable[[Any, Any], Result],
        shared: Any,
        jobs: Iterable[Any],
        merge: Callable[[Result, Result], Result],
    ) -> Result:
        """Merge work(shared, job) over all jobs; each job's result is merged exactly once."""
        ...


class MergeTree(Generic[Result]):
    """Merges results in the order in which they are added, as leaves of a balanced binary tree.

    It holds at most one result per level: log2 of the number of jobs.

    >>> tree = MergeTree(lambda left, right: f"({left}{right})")
    >>> for leaf in "abcde":
    ...     tree.add(leaf)
    >>> tree.result()
    '(((ab)(cd))e)'
    """

    def __init__(self, merge: Callable[[Result, Result], Result]) -> None:
        self._merge = merge
        self._levels: list[tuple[int, Result]] = []

    def add(self, result: Result) -> None:
        """Add the next leaf."""
        level = 0
        while self._levels and self._levels[-1][0] == level:
            result = self._merge(self._levels.pop()[1], result)
            level += 1
        self._levels.append((level, result))

    def result(self) -> Result:
        """Merge what is left and return the total."""
        if not self._levels:
            raise InvalidInput("there are no jobs to run; give at least one")
        _, total = self._levels.pop()
        while self._levels:
            total = self._merge(self._levels.pop()[1], total)
        return total


class SerialEngine:
    """Runs one job after the other in this process; kernels use its threads."""

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
