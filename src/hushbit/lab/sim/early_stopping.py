"""Early stopping: end a run whose test result no longer improves.

The test set is public, and the models are covered by the guarantee of the run, so the decision
costs no privacy. Statements still count all rounds of the settings: a bound for the rounds that
were run would depend on a number that the models decided.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def has_stopped(rows: Sequence[Mapping[str, Any]], patience: int | None) -> bool:
    """Whether the last round was evaluated and the best one is `patience` rounds or more before it.

    The result is the accuracy where the task has one, else the loss. `None` never stops.
    """
    tested = [row for row in rows if row.get("test_loss") is not None]
    if patience is None or not tested or tested[-1] is not rows[-1]:
        return False
    best = max(tested, key=_result)  # the first of equal ones
    return int(rows[-1]["round"]) - int(best["round"]) >= patience


def _result(row: Mapping[str, Any]) -> float:
    accuracy = row.get("test_accuracy")
    return -float(row["test_loss"]) if accuracy is None else float(accuracy)
