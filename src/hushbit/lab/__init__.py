"""The lab: tasks, simulations, experiments, figures and reports."""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hushbit.lab.callbacks import Callback
    from hushbit.lab.sim.task import Task
    from hushbit.lab.study import Study
    from hushbit.lab.task_run import run

# Otherwise threads of torch spin while they wait for each other. On cores that other processes keep
# busy, training then takes six times as long. torch reads the variable when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = ["Callback", "Study", "Task", "run"]

_PLACES = {
    "Callback": "hushbit.lab.callbacks",
    "Study": "hushbit.lab.study",
    "Task": "hushbit.lab.sim.task",
    "run": "hushbit.lab.task_run",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use: they need torch, which most commands do without."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
