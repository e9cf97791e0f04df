"""What every engine does: map jobs, merge their results in a tree of fixed shape."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from hushbit.errors import InvalidInput

Result = TypeVar("Result")


class Engine(Protocol):
    """Runs jobs somewhere. `work` and `merge` are functions of a module, so that they travel."""

    def run(
        self,
        work: Callable[[Any, Any], Result],
        shared: Any,
        jobs: Iterable[Any],
        merge: Callable[[Result, Result], Result],
    ) -> Result:
        """Merge work(shared, job) over all jobs; each job's result enters exactly once."""
        ...


class MergeTree(Generic[Result]):
    """Merges results as they come, in order, like the leaves of a balanced binary tree.

    It holds one result a level: log2 of the number of jobs.

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
        """The next leaf."""
        level = 0
        while self._levels and self._levels[-1][0] == level:
            result = self._merge(self._levels.pop()[1], result)
            level += 1
        self._levels.append((level, result))

    def result(self) -> Result:
        """All leaves merged."""
        if not self._levels:
            raise InvalidInput("there are no jobs: an engine needs at least one")
        _, total = self._levels.pop()
        while self._levels:
            total = self._merge(self._levels.pop()[1], total)
        return total
