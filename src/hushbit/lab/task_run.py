"""`run`: train a task with one mechanism, from Python.

result = run(task, "cpa-auto", budget=Budget(4, 1e-5, per="run", against="model"), rounds=60)
result.metrics, result.statement, result.state_dict()
"""

import difflib
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hushbit.budget import Budget, check_budget
from hushbit.errors import HushbitError, InvalidInput
from hushbit.lab.callbacks import Callback
from hushbit.lab.sim.engines import open_engine
from hushbit.lab.sim.rounds import BATCH_USERS
from hushbit.lab.sim.run import RunSummary
from hushbit.lab.sim.run import run as run_settings
from hushbit.lab.sim.settings import BUDGET_OPTIONS, FIELDS, Settings, check_rotation
from hushbit.lab.sim.setup import settings_of_task
from hushbit.lab.sim.task import Task


def run(
    task: Task,
    mechanism: str = "cpa-auto",
    *,
    budget: Budget | None = None,
    rounds: int = 30,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    engine: str = "local",
    workers: int | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> RunSummary:
    """Train the task; returns its figures, privacy statement and weights.

    `mechanism` and further options are those of `hushbit run`, with underscores: `rate`, `steps`,
    `batch_size`, `participation`, `clip` and so on. `out` is a new folder for metrics and
    checkpoints; with `resume=True` the run in it continues. Each of `callbacks` is a
    `hushbit.lab.Callback`.
    """
    listed = isinstance(callbacks, Sequence)
    if not (listed and all(isinstance(one, Callback) for one in callbacks)):
        raise InvalidInput("callbacks must be a list of objects of type hushbit.lab.Callback")
    if resume and out is None:
        raise InvalidInput("resume=True needs out: the folder of the run to continue")
    with parameter_names(), ExitStack() as stack:
        settings = settings_of(task, mechanism, budget, rounds=rounds, seed=seed, **options)
        jobs = math.ceil(task.users * settings.participation / BATCH_USERS)
        return run_settings(
            settings,
            out,
            resume=resume,
            engine=stack.enter_context(open_engine(engine, workers, jobs)),
            task=task,
            callbacks=callbacks,
        )


EXAMPLES = {
    "--epsilon 4 --delta 1e-5 --per run --against model": (
        'budget=Budget(4, 1e-5, per="run", against="model")'
    ),
    "--no-rotate": "rotate=False",
    "--resume": "resume=True",
    "hushbit run --help": "hushbit run --help",
}
OPTION = re.compile("|".join([*map(re.escape, EXAMPLES), r"--([a-z]+(?:-[a-z]+)*)( (?=\d))?"]))


@contextmanager
def parameter_names() -> Iterator[None]:
    """Name parameters in errors instead of options of the command line, which share messages."""
    try:
        yield
    except HushbitError as error:
        error.args = (OPTION.sub(_parameter, str(error)), *error.args[1:])
        raise


def _parameter(found: re.Match[str]) -> str:
    if found[0] in EXAMPLES:
        return EXAMPLES[found[0]]
    return found[1].replace("-", "_") + ("=" if found[2] else "")


def settings_of(task: Task, mechanism: str, budget: Budget | None, **options: Any) -> Settings:
    """The settings of a run of a task; unknown options are refused."""
    if not isinstance(task, Task):
        raise InvalidInput(f"run takes a hushbit.lab.Task; got {type(task).__name__}")
    for name in options:
        if name not in FIELDS:
            close = difflib.get_close_matches(name, FIELDS, 1)
            hint = f"; did you mean {close[0]}?" if close else "; see hushbit run --help"
            raise InvalidInput(f"unknown option {name}{hint}")
        if budget is not None and name in (*BUDGET_OPTIONS, "accountant"):
            raise InvalidInput(f"{name} is a part of the budget: set it there")
    check_rotation(mechanism, options.get("rotate"))
    spent = {}
    if budget is not None:
        check_budget(budget)
        spent = {name: getattr(budget, name) for name in BUDGET_OPTIONS}
        if budget.accountant != "renyi":
            spent["accountant"] = budget.accountant
    return settings_of_task(Settings(task=task.name, mechanism=mechanism, **spent, **options), task)
