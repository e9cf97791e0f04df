"""The search for the settings of a scheme: uphill on a ladder until both neighbours are worse.

Every tuned number lies on the ladder 1, 2, 5, 10, ... A search ends where no neighbour in any
number has a higher score, so its optimum is never at an edge, for every scheme by the same rule.
"""

from collections.abc import Callable, Sequence
from typing import Any

Point = tuple[int, ...]
MAX_MOVES = 12


def ladder(step: int) -> float:
    """The number on a step of the ladder; step 0 is 1.

    >>> [ladder(step) for step in range(-4, 3)]
    [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]
    """
    return float(f"{(1, 2, 5)[step % 3]}e{step // 3}")


def climb(
    score: Callable[[list[Point]], Sequence[Any]],
    starts: Sequence[Point],
    moves: int = MAX_MOVES,
) -> Point:
    """The best point that is reached from the best start, one step in one number at a time.

    `score` gives the scores of several points; each point is scored once. Ties stay where they are.
    """
    known: dict[Point, Any] = {}

    def best(points: Sequence[Point]) -> Point:
        new = [point for point in dict.fromkeys(points) if point not in known]
        known.update(zip(new, score(new), strict=True))
        return max(points, key=lambda point: known[point])

    here = best(starts)
    for _ in range(moves):
        around = [
            (*here[:number], here[number] + change, *here[number + 1 :])
            for number in range(len(here))
            for change in (-1, 1)
        ]
        there = best([here, *around])
        if there == here:
            break
        here = there
    return here
