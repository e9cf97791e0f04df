"""The pool of cells: most expensive cell first, each computed once, closing ends all waiting."""

import dataclasses
import threading
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest

import engine_jobs
from hushbit.errors import InvalidInput
from hushbit.lab.experiments import cells as work
from hushbit.lab.experiments.cells import (
    QUEUE_DEPTH,
    CellPool,
    Outcome,
    cell_cost,
    keep_cell,
    run_cells,
)
from hushbit.lab.experiments.experiment import Experiment, ExperimentRunner, Findings
from hushbit.lab.experiments.reproduce import EXPERIMENTS, planned_cells, reproduce_together
from hushbit.lab.experiments.results import Axes, Metric
from hushbit.lab.sim.settings import Settings

SMALL = Settings(users=8, rounds=2, validation=100, mechanism="cpa", epsilon_per_bit=1.0)
OUTCOME = Outcome(50.0, 49.0, 1.0, 0.5, 2.0, 0.01, ((1, 48.0, 47.0),), ("a", "b", "c"), 0.1)
HERE = Path("cells")


class Pool:
    """Stands for a worker pool; a test sets the results of its jobs."""

    def __init__(self, *_: object, **__: object) -> None:
        self.jobs: list[tuple[Settings, Future]] = []

    def submit(self, function, *arguments) -> Future:
        job: Future = Future()
        assert function is work.compute
        self.jobs.append((arguments[0], job))
        return job

    def stop(self) -> None:
        for _, job in self.jobs:
            job.cancel()


@pytest.fixture
def pool(monkeypatch) -> Pool:
    made = Pool()
    monkeypatch.setattr(work, "WorkerPool", lambda *_, **__: made)
    return made


def sized(*users: int) -> list[Settings]:
    return [dataclasses.replace(SMALL, users=count) for count in users]


def test_the_most_expensive_waiting_cell_is_next(pool):
    cells = CellPool(1)
    made = [cells.submit(settings, HERE) for settings in sized(3, 5, 2, 9, 4)]
    assert [settings.users for settings, _ in pool.jobs] == [3, 5]
    assert len(pool.jobs) == 1 + QUEUE_DEPTH
    for number in range(5):
        pool.jobs[number][1].set_result(OUTCOME)
    assert [settings.users for settings, _ in pool.jobs] == [3, 5, 9, 4, 2]
    assert [one.result(0) for one in made] == [OUTCOME] * 5


def test_a_cell_is_computed_once_however_often_it_is_submitted(pool):
    finished = []
    cells = CellPool(3, on_done=finished.append)
    first, again = (cells.submit(SMALL, HERE) for _ in range(2))
    other = cells.submit(SMALL, Path("elsewhere"))
    assert first is again
    assert other is not first
    assert len(pool.jobs) == 2
    pool.jobs[0][1].set_result(OUTCOME)
    assert first.result(0) == OUTCOME
    assert finished == [SMALL]


def test_a_failure_reaches_those_who_wait(pool):
    cells = CellPool(1)
    made = cells.submit(SMALL, HERE)
    pool.jobs[0][1].set_exception(InvalidInput("no data"))
    with pytest.raises(InvalidInput, match="no data"):
        made.result(0)
    assert cells.submit(sized(3)[0], HERE).running() is False
    assert len(pool.jobs) == 2


def test_closing_cancels_waiting_cells(pool, tmp_path):
    cells = CellPool(1)
    seen = []

    def wait() -> None:
        try:
            run_cells(sized(1, 2, 3, 4), tmp_path, workers=2, pool=cells)
        except CancelledError as failure:
            seen.append(failure)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    for _ in range(200):
        if len(pool.jobs) == 1 + QUEUE_DEPTH:
            break
        waiting.join(0.05)
    cells.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert len(seen) == 1
    assert cells.submit(SMALL, HERE).cancelled()


def test_cost_follows_model_and_size():
    model = dataclasses.replace(SMALL, model="mlp")
    assert cell_cost(SMALL) < cell_cost(model) < cell_cost(dataclasses.replace(model, users=1000))
    published = dataclasses.replace(SMALL, preset="authors")
    assert cell_cost(published) < cell_cost(SMALL)


def test_a_plan_names_every_cell_once_and_no_kept_one(tmp_path):
    chosen = [EXPERIMENTS[name] for name in ("architectures", "convergence", "theorem2")]
    lab = ExperimentRunner(tmp_path, (1, 2, 3))
    both = planned_cells([(one, lab) for one in chosen])
    alone = planned_cells([(chosen[0], lab)])
    assert len(both) == len(alone) > 50
    (tmp_path / "cells").mkdir()
    kept = next(one for one in alone if one.seed == 1)  # a tuning cell may change the search
    keep_cell(tmp_path / "cells", kept, OUTCOME)
    fewer = planned_cells([(chosen[0], lab)])
    assert kept not in fewer
    assert len(fewer) == len(alone) - 1


def _experiment(name: str, find) -> Experiment:
    return Experiment(name, find, name, "nowhere", "none", "mnist")


def test_experiments_run_side_by_side_and_the_first_error_is_told(tmp_path):
    axes = Axes("table", None, "", False, (Metric("accuracy", "accuracy"),))
    met = threading.Barrier(2, timeout=20)

    def meets(lab: ExperimentRunner) -> Findings:
        met.wait()
        return Findings(axes, ())

    lab = ExperimentRunner(tmp_path, (1,))
    jobs = [(_experiment(name, meets), lab, name) for name in ("one", "two")]
    assert {made.name for made in reproduce_together(jobs)} == {"one", "two"}

    def fails(lab: ExperimentRunner) -> Findings:
        raise InvalidInput("no such data")

    with pytest.raises(InvalidInput, match="no such data"):
        list(reproduce_together([(_experiment("bad", fails), lab, "bad")]))


def test_cells_of_a_dead_worker_are_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "compute", engine_jobs.die_in_first_cell)
    wanted = [dataclasses.replace(SMALL, seed=seed) for seed in (1, 2, 3)]
    assert run_cells(wanted, tmp_path, workers=2) == [1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 1
