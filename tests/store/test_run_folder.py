"""The run folder: locked, created completely, extended by rounds, resumed from its checkpoint."""

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushbit.errors import DamagedFile, InvalidInput
from hushbit.store.run_folder import (
    CHECKPOINT,
    ENVIRONMENT,
    LOCK,
    METRICS,
    SUMMARY,
    RunFolder,
    software_versions,
)

CONFIG = "config.txt"
VERSIONS = {"python": "3"}


def groups(number: int) -> dict[str, dict[str, Any]]:
    return {"model": {"w": np.arange(3) + number}, "optimizer": {"m t": np.eye(2)}, "empty": {}}


def created(folder: Path, rounds: int = 0) -> RunFolder:
    run = RunFolder(folder, CONFIG)
    run.folder.mkdir(parents=True)
    run.create("settings", VERSIONS)
    for number in range(1, rounds + 1):
        run.save({"round": number, "mse": 0.5}, groups(number))
    return run


def fill_disk(monkeypatch: pytest.MonkeyPatch, allowed: int = 0) -> None:
    """Let so many files be put in place, then let every other fail."""
    replace, calls = os.replace, []

    def limited(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) > allowed:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", limited)


def test_rounds_and_arrays_are_read_back(tmp_path: Path) -> None:
    run = created(tmp_path / "run", rounds=2)
    assert run.rows() == [{"round": 1, "mse": 0.5}, {"round": 2, "mse": 0.5}]
    assert run.config.read_text() == "settings"
    assert run.read_json(ENVIRONMENT) == VERSIONS
    kept = run.read_checkpoint()
    assert kept is not None
    assert kept.round == 2
    assert set(kept.groups) == {"model", "optimizer"}
    assert kept.groups["model"]["w"].tolist() == [2, 3, 4]
    assert kept.groups["optimizer"]["m t"].tolist() == np.eye(2).tolist()


def test_infinite_numbers_are_stored_as_text(tmp_path: Path) -> None:
    run = created(tmp_path / "run")
    run.save({"round": 1, "snr": math.inf, "loss": math.nan}, groups(1))
    run.finish({"snr": -math.inf})
    assert run.rows() == [{"round": 1, "snr": "inf", "loss": "nan"}]
    assert json.loads((run.folder / SUMMARY).read_text()) == {"snr": "-inf"}


def test_missing_packages_have_no_version() -> None:
    found = software_versions(("numpy", "no-such-package"))
    assert found["numpy"] == np.__version__
    assert found["no-such-package"] == "not installed"


def test_a_folder_with_a_run_or_other_files_is_not_empty(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--resume"):
        created(tmp_path / "run").check_empty()
    (tmp_path / "other").mkdir()
    RunFolder(tmp_path / "other", CONFIG).check_empty()
    (tmp_path / "other" / f".{CONFIG}.abc").write_text("left by a killed process")
    RunFolder(tmp_path / "other", CONFIG).check_empty()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(InvalidInput, match="not empty"):
        RunFolder(tmp_path / "other", CONFIG).check_empty()


@pytest.mark.parametrize("inner", ["file", "file/run"])
def test_a_file_cannot_be_a_run_folder(tmp_path: Path, inner: str) -> None:
    (tmp_path / "file").write_text("")
    run = RunFolder(tmp_path / inner, CONFIG)
    with pytest.raises(InvalidInput, match="cannot be a run folder"), run.locked():
        pass  # pragma: no cover
    assert (tmp_path / "file").read_text() == ""


def test_a_folder_that_stays_empty_is_removed(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "deep" / "run", CONFIG).locked():
        assert (tmp_path / "deep" / "run" / LOCK).exists()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "own").mkdir()
    with RunFolder(tmp_path / "own", CONFIG).locked():
        pass
    assert list((tmp_path / "own").iterdir()) == []


def test_a_locked_folder_is_refused_until_it_is_released(tmp_path: Path) -> None:
    one, two = (RunFolder(tmp_path / "run", CONFIG) for _ in range(2))
    with one.locked():
        one.create("settings", VERSIONS)
        with pytest.raises(InvalidInput, match="another process"), two.locked():
            pass  # pragma: no cover
        assert (tmp_path / "run" / LOCK).exists()
    with two.locked():
        assert two.holds_run


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_a_full_disk_leaves_no_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    fill_disk(monkeypatch, allowed)
    run = RunFolder(tmp_path / "run", CONFIG)
    with run.locked(), pytest.raises(DamagedFile, match="No space left"):
        run.create("settings", VERSIONS)
    assert list(tmp_path.iterdir()) == []


def test_a_round_counts_once_its_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = created(tmp_path / "run", rounds=2)
    with monkeypatch.context() as patch:
        fill_disk(patch)
        with pytest.raises(DamagedFile, match="No space left"):
            run.save({"round": 3}, groups(3))
    assert len(run.rows()) == 3
    kept = run.read_checkpoint()
    assert kept is not None
    run.rewind(kept.round, VERSIONS)
    assert [row["round"] for row in run.rows()] == [1, 2]


@pytest.mark.parametrize("rest", [b'{"round": 3, "mse": 0.\xff', b"{", b"[" * 100_000])
def test_a_last_line_cut_short_is_left_out(tmp_path: Path, rest: bytes) -> None:
    run = created(tmp_path / "run", rounds=2)
    with (run.folder / METRICS).open("ab") as file:
        file.write(rest)
    (run.folder / f".{CHECKPOINT}.abc").write_bytes(b"half")
    (run.folder / f".{METRICS}.abc").write_bytes(b"half")
    assert [row["round"] for row in run.rows()] == [1, 2]
    run.rewind(2, VERSIONS)
    assert len((run.folder / METRICS).read_bytes().splitlines()) == 2
    assert not list(run.folder.glob(".*"))


@pytest.mark.parametrize(
    "text",
    [
        '{"round": 1}\nx\n{"round": 3}\n',
        '{"round": 1}\n{"round": 3}\n',
        '{"round": 1}\n{"round": 1}\n',
        '{"round": "1"}\n{"round": 2}\n',
        '{"round": true}\n',
        '{"mse": 1}\n',
        "[1]\n",
    ],
)
def test_lines_that_are_not_the_rounds_in_order_are_refused(tmp_path: Path, text: str) -> None:
    run = created(tmp_path / "run", rounds=3)
    (run.folder / METRICS).write_text(text)
    for read in (run.rows, run.read_checkpoint):
        with pytest.raises(DamagedFile, match="is not the row of round"):
            read()
    assert (run.folder / METRICS).read_text() == text


def test_metrics_with_fewer_rounds_than_the_checkpoint_are_refused(tmp_path: Path) -> None:
    run = created(tmp_path / "run", rounds=2)
    (run.folder / METRICS).write_text('{"round": 1}\n')
    with pytest.raises(DamagedFile, match="1 rows"):
        run.read_checkpoint()
    (run.folder / METRICS).unlink()
    with pytest.raises(DamagedFile, match="cannot be read"):
        run.read_checkpoint()


@pytest.mark.parametrize(("rounds", "finished"), [(2, False), (1, True)])
def test_a_missing_checkpoint_of_complete_rounds_is_refused(
    tmp_path: Path, rounds: int, finished: bool
) -> None:
    run = created(tmp_path / "run", rounds=rounds)
    if finished:
        run.finish({})
    (run.folder / CHECKPOINT).unlink()
    with pytest.raises(DamagedFile, match=r"no checkpoint\.npz"):
        run.read_checkpoint()


@pytest.mark.parametrize("kept", [(CONFIG,), (CONFIG, ENVIRONMENT), (CONFIG, METRICS)])
def test_a_kill_before_the_first_checkpoint_restarts_the_run(
    tmp_path: Path, kept: tuple[str, ...]
) -> None:
    run = created(tmp_path / "run", rounds=1)
    for path in run.folder.iterdir():
        if path.name not in kept:
            path.unlink()
    assert run.read_checkpoint() is None
    run.rewind(0, VERSIONS)
    assert run.rows() == []
    assert run.read_json(ENVIRONMENT) == VERSIONS


@pytest.mark.parametrize(
    "arrays", [{}, {"round": "many"}, {"round": 9}, {"round": 0}, {"round": np.arange(2)}]
)
def test_a_checkpoint_without_a_round_of_the_run_is_refused(tmp_path: Path, arrays: Any) -> None:
    run = created(tmp_path / "run", rounds=2)
    np.savez(run.folder / CHECKPOINT, **arrays)
    with pytest.raises(DamagedFile):
        run.read_checkpoint()


@pytest.mark.parametrize("text", ["", "[]", "1", "[" * 100_000])
def test_a_file_without_an_object_is_refused(tmp_path: Path, text: str) -> None:
    run = created(tmp_path / "run")
    (run.folder / ENVIRONMENT).write_text(text)
    with pytest.raises(DamagedFile, match=r"environment\.json"):
        run.read_json(ENVIRONMENT)


def test_the_module_needs_neither_torch_nor_flower_nor_pyarrow() -> None:
    code = (
        "import sys, hushbit.store.run_folder; "
        "assert not {'torch', 'flwr', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
