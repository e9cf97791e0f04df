"""The merge tree, the worker pool and the process engine: same bits, dead workers replaced."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine_jobs
from engine_jobs import SHARED, bits, count, deadly, die, jobs, join, location, look, merge, refuse
from hushbit.engine import MergeTree, SerialEngine
from hushbit.errors import HushbitError, InvalidInput, RefusedBallot
from hushbit.lab.sim.engines import (
    THREAD_VARIABLES,
    ProcessEngine,
    SharedArrays,
    WorkerPool,
    open_engine,
    open_shared,
)


@given(st.integers(1, 70))
def test_the_tree_keeps_the_order_and_is_balanced(leaves: int) -> None:
    tree = MergeTree[tuple[tuple[int, ...], int]](lambda a, b: (a[0] + b[0], max(a[1], b[1]) + 1))
    for leaf in range(leaves):
        tree.add(((leaf,), 0))
        assert len(tree._levels) <= leaves.bit_length()
    order, depth = tree.result()
    assert order == tuple(range(leaves))
    assert depth == (leaves - 1).bit_length()


def test_no_jobs_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no jobs"):
        SerialEngine().run(count, SHARED, [], merge)


@pytest.fixture(scope="module")
def alone() -> tuple[int, bytes, bytes]:
    return bits(SerialEngine().run(count, SHARED, jobs(), merge))


def test_another_shape_of_the_tree_changes_float_sums(alone: tuple[int, bytes, bytes]) -> None:
    one_by_one = [count(SHARED, job) for job in jobs()]
    folded = one_by_one[0]
    for more in one_by_one[1:]:
        folded = merge(folded, more)
    assert bits(folded)[:2] == alone[:2]
    assert bits(folded)[2] != alone[2]


def test_processes_give_the_same_bits_and_survive_a_kill(
    alone: tuple[int, bytes, bytes], tmp_path: Path
) -> None:
    with ProcessEngine(2) as engine:
        assert bits(engine.run(count, SHARED, jobs(), merge)) == alone
        assert bits(engine.run(count, SHARED, deadly(tmp_path / "mark", 4), merge)) == alone
        assert (tmp_path / "mark.0").exists()
        seen = engine.run(look, SHARED, jobs(), join)
        assert os.getpid() not in {process for process, _, _ in seen}
        assert not any(writeable for _, _, writeable in seen)
        with pytest.raises(RefusedBallot, match="another round") as refused:
            engine.run(refuse, SHARED, jobs(), merge)
        assert refused.value.reason == "round"
        assert engine._arrays is not None
        assert engine._arrays.path.exists()
    assert engine._arrays is None


@pytest.mark.slow
def test_a_job_that_always_kills_its_worker_fails(tmp_path: Path) -> None:
    with ProcessEngine(1) as engine, pytest.raises(HushbitError, match="--workers"):
        engine.run(count, SHARED, deadly(tmp_path / "mark", 0, times=99), merge)
    assert len(list(tmp_path.iterdir())) == 4


def test_shared_arrays_are_read_back() -> None:
    content = {"a": np.arange(7), "b": np.zeros((0, 3)), "c": "text", "d": [np.eye(3, order="F")]}
    packed = SharedArrays(content)
    back = open_shared(*pickle.loads(pickle.dumps(packed.address)))
    assert back["c"] == "text"
    assert (back["a"] == content["a"]).all()
    assert back["b"].shape == (0, 3)
    assert (back["d"][0] == np.eye(3)).all()
    assert not back["a"].flags.writeable
    packed.close()
    assert not packed.path.exists()
    assert (back["a"] == np.arange(7)).all()  # mapped pages outlive the file


def test_the_shared_file_disappears_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    packed = SharedArrays({"a": np.arange(7)})
    assert list(tmp_path.iterdir()) == []
    assert (open_shared(*packed.address)["a"] == np.arange(7)).all()
    packed.close()
    monkeypatch.setattr(Path, "exists", lambda _: False)  # a system without /proc
    named = SharedArrays({"a": np.arange(7)})
    assert (open_shared(*named.address)["a"] == np.arange(7)).all()
    assert named.path.is_relative_to(tmp_path)
    named.close()
    assert list(tmp_path.iterdir()) == []


def test_open_engine_chooses_by_name_and_workers() -> None:
    with open_engine("local", None, 1) as few, open_engine("local", 1, 99) as one:
        assert isinstance(few, SerialEngine)
        assert isinstance(one, SerialEngine)
    with open_engine("local", 3, 1) as asked:
        assert isinstance(asked, ProcessEngine)
        assert asked.workers == 3
    for name, workers in (("spark", None), ("local", 0), ("local", True), ("ray", -1)):
        with pytest.raises(InvalidInput), open_engine(name, workers, 1):
            pass  # pragma: no cover


def test_workers_import_the_module_of_jobs() -> None:
    pool = WorkerPool(1, threads_each=1)
    try:
        process, file = pool.submit(location).result()
    finally:
        pool.stop()
    assert process != os.getpid()
    assert Path(file) == Path(engine_jobs.__file__)


def birth_environment() -> set[bytes]:
    """The variables with which the calling process was started."""
    return set(Path("/proc/self/environ").read_bytes().split(b"\0"))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux")
def test_workers_start_with_their_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numerical libraries read these variables when a process starts; later is too late."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    pool = WorkerPool(2, threads_each=1)
    try:
        for found in [pool.submit(birth_environment) for _ in range(4)]:
            assert {f"{name}=1".encode() for name in THREAD_VARIABLES} <= found.result()
    finally:
        pool.stop()
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "OPENBLAS_NUM_THREADS" not in os.environ


def test_a_dead_worker_is_replaced_and_its_job_run_again(tmp_path: Path) -> None:
    pool = WorkerPool(2, threads_each=1)
    try:
        others = [pool.submit(pow, number, 2) for number in range(6)]
        assert pool.submit(die, tmp_path / "mark", 1, "survived").result(60) == "survived"
        assert [one.result(60) for one in others] == [0, 1, 4, 9, 16, 25]
        idle = pool.submit(os.getpid).result(60)
        os.kill(idle, signal.SIGKILL)  # dies between two jobs
        assert pool.submit(pow, 3, 3).result(60) == 27
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result(60)
    finally:
        pool.stop()


def test_a_job_fails_after_four_deaths_and_later_jobs_run(tmp_path: Path) -> None:
    pool = WorkerPool(1, threads_each=1)
    try:
        with pytest.raises(HushbitError, match="died 4 times"):
            pool.submit(die, tmp_path / "mark", 99, None).result(60)
        assert len(list(tmp_path.iterdir())) == 4
        assert pool.submit(pow, 2, 5).result(60) == 32
    finally:
        pool.stop()


def test_stopping_cancels_jobs_at_once_and_the_pool_can_start_again() -> None:
    pool = WorkerPool(1, threads_each=1)
    pid = pool.submit(os.getpid).result(60)
    long, waiting = pool.submit(time.sleep, 600), pool.submit(pow, 2, 2)
    ended = threading.Event()
    waiting.add_done_callback(lambda _: ended.set())
    begun = time.monotonic()
    pool.stop()
    assert time.monotonic() - begun < 30
    assert long.cancelled()
    assert ended.is_set()
    with pytest.raises(CancelledError):
        waiting.result(0)
    assert not is_alive(pid)
    assert pool.submit(pow, 2, 3).result(60) == 8
    pool.stop()


KILLED = """
import os, sys, time
from pathlib import Path
from hushbit.lab.sim.engines import WorkerPool

if __name__ == "__main__":
    pool = WorkerPool(2, threads_each=1)
    pool.submit(time.sleep, 60)
    pool.submit(os.getpid).result()  # both have started
    Path(sys.argv[1]).write_text(" ".join(map(str, pool._executor._processes)))
    os.kill(os.getpid(), 9)
"""


def test_workers_end_with_a_killed_process(tmp_path: Path) -> None:
    script, output = tmp_path / "killed.py", tmp_path / "pids"
    script.write_text(KILLED)
    assert subprocess.run([sys.executable, script, output], check=False).returncode == -9
    pids = [int(word) for word in output.read_text().split()]
    assert len(pids) == 2
    end = time.monotonic() + 20
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < end, "workers are still running"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    # A zombie has ended; its parent has not waited for it.
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")
