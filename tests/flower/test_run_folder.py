"""The run folder after kills, and after somebody took or changed a file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hushbit.flower.folder as folder_module
from flower.parts import LocalGrid, federation
from flower.test_strategy import OPEN, add, run, strategy
from hushbit.errors import DamagedFile


def rounds(place: Path) -> list[int]:
    return [
        json.loads(line)["round"] for line in (place / "metrics.jsonl").read_text().splitlines()
    ]


def go(tmp_path: Path, count: int) -> Any:
    grid = LocalGrid(federation(tmp_path, [add(0.25)], **OPEN))
    return run(grid, strategy(folder=tmp_path / "run"), rounds=count)


def kill_before_the_first_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    def dies(target: Path, write: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "write_whole", dies)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path, 3)


@pytest.mark.parametrize("lost", [0, 1, 20, None])
def test_a_kill_before_the_first_checkpoint_leaves_no_row(
    tmp_path: Path, monkeypatch: Any, lost: int | None
) -> None:
    kill_before_the_first_checkpoint(tmp_path, monkeypatch)
    place = tmp_path / "run" / "metrics.jsonl"
    if lost is None:  # killed before the file was made
        place.unlink()
        (tmp_path / "run" / "environment.json").unlink()
    else:
        assert rounds(tmp_path / "run") == [1]
        place.write_text(place.read_text()[: -lost or None])
    go(tmp_path, 3)
    assert rounds(tmp_path / "run") == [1, 2, 3]
    assert (tmp_path / "run" / "environment.json").exists()


def test_a_second_kill_cuts_the_row_of_a_later_round(tmp_path: Path) -> None:
    go(tmp_path, 2)
    place = tmp_path / "run" / "metrics.jsonl"
    place.write_text(place.read_text() + '{"round": 3, "asked"')
    go(tmp_path, 4)
    assert rounds(tmp_path / "run") == [1, 2, 3, 4]


@pytest.mark.parametrize("done", [1, 2])
def test_a_checkpoint_that_was_taken_away_is_missed(tmp_path: Path, done: int) -> None:
    go(tmp_path, done)
    (tmp_path / "run" / "checkpoint.npz").unlink()
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(DamagedFile, match=r"checkpoint\.npz"):
        go(tmp_path, 3)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "text",
    ["[1]\n", "", '{"round": 1}\n', '{"round": 1}\n{"round": 1}\n',
     '{"round": 1}\nx\n{"round": 3}\n', '{"round": "1"}\n{"round": 2}\n'],
)  # fmt: skip
def test_metrics_that_are_not_of_the_run_are_refused(tmp_path: Path, text: str) -> None:
    go(tmp_path, 2)
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    with pytest.raises(DamagedFile):
        go(tmp_path, 3)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == text


@pytest.mark.parametrize(
    "arrays",
    [
        {"round": 1}, {}, {"round": "many"}, {"round": 9}, {"round": -1},
        {"round": 1, "model w": np.zeros((4, 9), np.float32)},
        {"round": 1, "model w": np.zeros((4, 8), np.float32), "model b": np.zeros(4, np.float32)},
        {"round": 1, "model w": np.zeros((4, 9), np.float32), "model b": np.zeros(4, np.float32),
         "optimizer m_t": np.zeros(3)},
    ],
)  # fmt: skip
def test_a_checkpoint_without_the_model_is_refused(tmp_path: Path, arrays: Any) -> None:
    go(tmp_path, 1)
    np.savez(tmp_path / "run" / "checkpoint.npz", **arrays)
    with pytest.raises(DamagedFile):
        go(tmp_path, 2)
