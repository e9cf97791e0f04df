"""Workers that experiments share: longest cells first, each once, and an end for those who wait."""

import dataclasses
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest

from hushbit.errors import InvalidInput
from hushbit.fl.settings import Settings
from hushbit.lab import bench as work
from hushbit.lab.bench import AHEAD, Bench, cost
from hushbit.lab.cells import Outcome, keep_cell, run_cells
from hushbit.lab.experiments import EXPERIMENTS, Lab
from hushbit.lab.experiments.base import Experiment, Findings
from hushbit.lab.plan import planned
from hushbit.lab.reproduce import reproduce_together
from hushbit.lab.results import Axes, Metric

SMALL = Settings(users=8, rounds=2, validation=100, mechanism="cpa", epsilon_per_bit=1.0)
OUTCOME = Outcome(50.0, 49.0, 1.0, 0.5, 2.0, 0.01, ((1, 48.0, 47.0),), ("a", "b", "c"), 0.1)
HERE = Path("cells")


class Pool:
    """Holds jobs until a test ends them."""

    def __init__(self, *_: object, **__: object) -> None:
        self.jobs: list[tuple[Settings, Future]] = []

    def submit(self, function, *arguments) -> Future:
        job: Future = Future()
        if function is work.compute:
            self.jobs.append((arguments[0], job))
        return job

    def shutdown(self, **_: object) -> None:
        for _, job in self.jobs:
            job.cancel()


@pytest.fixture
def pool(monkeypatch) -> Pool:
    made = Pool()
    monkeypatch.setattr(work, "ProcessPoolExecutor", lambda *_, **__: made)
    return made


def sized(*users: int) -> list[Settings]:
    return [dataclasses.replace(SMALL, users=count) for count in users]


def test_the_longest_waiting_cell_comes_next(pool):
    bench = Bench(1)
    made = [bench.ask(settings, HERE) for settings in sized(3, 5, 2, 9, 4)]
    assert [settings.users for settings, _ in pool.jobs] == [3, 5]
    assert len(pool.jobs) == 1 + AHEAD
    for number in range(5):
        pool.jobs[number][1].set_result(OUTCOME)
    assert [settings.users for settings, _ in pool.jobs] == [3, 5, 9, 4, 2]
    assert [one.result(0) for one in made] == [OUTCOME] * 5


def test_a_cell_is_computed_once_however_many_ask(pool):
    heard = []
    bench = Bench(3, done=heard.append)
    first, again = (bench.ask(SMALL, HERE) for _ in range(2))
    other = bench.ask(SMALL, Path("elsewhere"))
    assert first is again
    assert other is not first
    assert len(pool.jobs) == 2
    pool.jobs[0][1].set_result(OUTCOME)
    assert first.result(0) == OUTCOME
    assert heard == [SMALL]


def test_a_failure_reaches_those_who_wait(pool):
    bench = Bench(1)
    made = bench.ask(SMALL, HERE)
    pool.jobs[0][1].set_exception(InvalidInput("no data"))
    with pytest.raises(InvalidInput, match="no data"):
        made.result(0)
    assert bench.ask(sized(3)[0], HERE).running() is False
    assert len(pool.jobs) == 2


def test_closing_ends_all_waiting(pool, tmp_path):
    bench = Bench(1)
    seen = []

    def wait() -> None:
        try:
            run_cells(sized(1, 2, 3, 4), tmp_path, workers=2, bench=bench)
        except CancelledError as failure:
            seen.append(failure)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    for _ in range(200):
        if len(pool.jobs) == 1 + AHEAD:
            break
        waiting.join(0.05)
    bench.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert len(seen) == 1
    assert bench.ask(SMALL, HERE).cancelled()


def test_cost_follows_model_and_size():
    model = dataclasses.replace(SMALL, model="mlp")
    assert cost(SMALL) < cost(model) < cost(dataclasses.replace(model, users=1000))
    published = dataclasses.replace(SMALL, preset="authors")
    assert cost(published) < cost(SMALL)


def test_a_plan_names_every_cell_once_and_no_kept_one(tmp_path):
    chosen = [EXPERIMENTS[name] for name in ("architectures", "convergence", "theorem2")]
    lab = Lab(tmp_path, (1, 2, 3))
    both = planned([(one, lab) for one in chosen])
    alone = planned([(chosen[0], lab)])
    assert len(both) == len(alone) > 50
    (tmp_path / "cells").mkdir()
    keep_cell(tmp_path / "cells", alone[0], OUTCOME)
    fewer = planned([(chosen[0], lab)])
    assert alone[0] not in fewer
    assert len(fewer) == len(alone) - 1


def _experiment(name: str, find) -> Experiment:
    return Experiment(name, name, "nowhere", "none", "mnist", find)


def test_experiments_run_side_by_side_and_the_first_error_is_told(tmp_path):
    axes = Axes("table", None, "", False, (Metric("accuracy", "accuracy"),))
    met = threading.Barrier(2, timeout=20)

    def meets(lab: Lab) -> Findings:
        met.wait()
        return Findings(axes, ())

    lab = Lab(tmp_path, (1,))
    jobs = [(_experiment(name, meets), lab, name) for name in ("one", "two")]
    assert {made.name for made in reproduce_together(jobs)} == {"one", "two"}

    def fails(lab: Lab) -> Findings:
        raise InvalidInput("no such data")

    with pytest.raises(InvalidInput, match="no such data"):
        list(reproduce_together([(_experiment("bad", fails), lab, "bad")]))


def _is_born_with(pid: int, settings: set[bytes]) -> bool:
    """Whether a process started with them; Linux shows none while its program is being loaded."""
    end = time.monotonic() + 10
    while not (found := settings <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))):
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads what Linux tells")
def test_every_worker_is_born_with_one_thread():
    """Libraries read these settings when a process starts; later is too late."""
    bench = Bench(2)
    try:
        pids = list(bench._started()._processes)
        assert len(pids) == 2
        for pid in pids:
            assert _is_born_with(pid, {b"OMP_NUM_THREADS=1", b"HUSHBIT_THREADS=1"})
    finally:
        bench.close()


KILLED = """
import os, sys, time
from pathlib import Path
from hushbit.lab.bench import Bench

if __name__ == "__main__":
    bench = Bench(2)
    pool = bench._started()
    pool.submit(time.sleep, 60)
    pool.submit(os.getpid).result()  # both are up
    Path(sys.argv[1]).write_text(" ".join(map(str, pool._processes)))
    os.kill(os.getpid(), 9)
"""


def test_workers_end_with_a_killed_command(tmp_path):
    script, told = tmp_path / "killed.py", tmp_path / "pids"
    script.write_text(KILLED)
    assert subprocess.run([sys.executable, script, told], check=False).returncode == -9
    pids = [int(word) for word in told.read_text().split()]
    assert len(pids) == 2
    end = time.monotonic() + 20
    while any(_is_alive(pid) for pid in pids):
        assert time.monotonic() < end, "workers live on"
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    # Dead, but not waited for by whoever is everybody's parent here.
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")
