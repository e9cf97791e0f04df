"""The merge tree, and processes on this machine: the same bits, dead workers replaced."""

import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine_jobs
from engine_jobs import SHARED, bits, count, deadly, jobs, join, look, merge, refuse
from hushbit.engine import Alone, Local, MergeTree, chosen_engine
from hushbit.engine.parcel import Parcel, open_parcel
from hushbit.errors import HushbitError, InvalidInput, RefusedBallot


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
        Alone().run(count, SHARED, [], merge)


@pytest.fixture(scope="module")
def alone() -> tuple[int, bytes, bytes]:
    return bits(Alone().run(count, SHARED, jobs(), merge))


def test_the_shape_of_the_tree_matters_so_it_is_fixed(alone: tuple[int, bytes, bytes]) -> None:
    one_by_one = [count(SHARED, job) for job in jobs()]
    folded = one_by_one[0]
    for more in one_by_one[1:]:
        folded = merge(folded, more)
    assert bits(folded)[:2] == alone[:2]
    assert bits(folded)[2] != alone[2]


def test_processes_give_the_same_bits_and_survive_a_kill(
    alone: tuple[int, bytes, bytes], tmp_path: Path
) -> None:
    with Local(2) as engine:
        assert bits(engine.run(count, SHARED, jobs(), merge)) == alone
        assert bits(engine.run(count, SHARED, deadly(tmp_path / "mark", 4), merge)) == alone
        assert (tmp_path / "mark.0").exists()
        seen = engine.run(look, SHARED, jobs(), join)
        assert os.getpid() not in {process for process, _, _ in seen}
        assert not any(writeable for _, _, writeable in seen)
        with pytest.raises(RefusedBallot, match="another round") as refused:
            engine.run(refuse, SHARED, jobs(), merge)
        assert refused.value.reason == "round"
        assert engine._parcel is not None
        assert engine._parcel.path.exists()
    assert engine._parcel is None


@pytest.mark.slow
def test_a_job_that_always_kills_is_an_error_that_says_so(tmp_path: Path) -> None:
    with Local(1) as engine, pytest.raises(HushbitError, match="--workers"):
        engine.run(count, SHARED, deadly(tmp_path / "mark", 0, times=99), merge)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_parcel_gives_back_what_went_in() -> None:
    content = {"a": np.arange(7), "b": np.zeros((0, 3)), "c": "text", "d": [np.eye(3, order="F")]}
    parcel = Parcel(content)
    back = open_parcel(*pickle.loads(pickle.dumps(parcel.address)))
    assert back["c"] == "text"
    assert (back["a"] == content["a"]).all()
    assert back["b"].shape == (0, 3)
    assert (back["d"][0] == np.eye(3)).all()
    assert not back["a"].flags.writeable
    parcel.close()
    assert not parcel.path.exists()
    assert (back["a"] == np.arange(7)).all()  # mapped pages outlive the file


def test_a_parcel_has_no_file_that_could_outlive_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    parcel = Parcel({"a": np.arange(7)})
    assert list(tmp_path.iterdir()) == []
    assert (open_parcel(*parcel.address)["a"] == np.arange(7)).all()
    parcel.close()
    monkeypatch.setattr(Path, "exists", lambda _: False)  # a system without /proc
    named = Parcel({"a": np.arange(7)})
    assert (open_parcel(*named.address)["a"] == np.arange(7)).all()
    assert named.path.is_relative_to(tmp_path)
    named.close()
    assert list(tmp_path.iterdir()) == []


def test_which_engine_is_chosen() -> None:
    with chosen_engine("local", None, 1) as few, chosen_engine("local", 1, 99) as one:
        assert isinstance(few, Alone)
        assert isinstance(one, Alone)
    with chosen_engine("local", 3, 1) as asked:
        assert isinstance(asked, Local)
        assert asked.workers == 3
    for name, workers in (("spark", None), ("local", 0), ("local", True), ("ray", -1)):
        with pytest.raises(InvalidInput), chosen_engine(name, workers, 1):
            pass  # pragma: no cover


def test_jobs_module_is_the_one_that_workers_import() -> None:
    assert Path(engine_jobs.__file__).name == "engine_jobs.py"
