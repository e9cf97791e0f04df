"""The lab: tasks, simulations, experiments, figures and reports."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hushbit.lab.sim.task import Task

__all__ = ["Task"]


def __getattr__(name: str) -> Any:
    """Import public names on first use: they need torch, which most commands do without."""
    if name == "Task":
        from hushbit.lab.sim.task import Task

        return Task
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
