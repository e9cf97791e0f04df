"""hushbit tally: stored ballots of a run are counted, damage is reported, writes are atomic."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

RUN = (
    "run",
    "--users",
    60,
    "--rounds",
    2,
    "--mechanism",
    "cpa",
    "--epsilon-per-bit",
    0.5,
    "--seed",
    4,
    "--json",
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hushbit.lab.sim.run import run
    from hushbit.lab.sim.settings import Settings

    folder = tmp_path_factory.mktemp("stored") / "ballots"
    run(Settings(users=60, rounds=2, mechanism="cpa", epsilon_per_bit=0.5, seed=4), ballots=folder)
    return folder


def test_the_count_of_stored_ballots_equals_that_of_the_run(
    hushbit: Any, stored: Path, tmp_path: Path
) -> None:
    answer = hushbit("tally", stored, "--seed", 4, "--out", tmp_path / "t", "--json")
    assert answer.code == 0, answer.err
    report = json.loads(answer.out)
    assert [(row["round"], row["counted"], row["refused"]) for row in report["rounds"]] == [
        (0, 60, {}),
        (1, 60, {}),
    ]
    names = sorted(path.name for path in (tmp_path / "t").iterdir())
    assert names == [
        "report.json",
        "round-0.mean.npy",
        "round-0.tally",
        "round-1.mean.npy",
        "round-1.tally",
    ]
    from hushbit.lab.sim.rounds import initial_state, one_round
    from hushbit.lab.sim.settings import Settings
    from hushbit.lab.sim.setup import build_setup
    from hushbit.store.ballot_files import read_run

    setup = build_setup(Settings(users=60, rounds=2, mechanism="cpa", epsilon_per_bit=0.5, seed=4))
    setup = dataclasses.replace(setup, run=read_run(stored))
    progress = initial_state(setup)
    before = progress.params.copy()
    one_round(setup, progress)
    mean = np.load(tmp_path / "t" / "round-0.mean.npy")
    assert progress.params.tobytes() == (before + mean).astype(np.float32).tobytes()


@pytest.mark.parametrize("decoder", ["median", "trimmed-mean", "shrunken"])
def test_other_decoders(hushbit: Any, stored: Path, tmp_path: Path, decoder: str) -> None:
    answer = hushbit("tally", stored, "--seed", 4, "--out", tmp_path / "t", "--decoder", decoder)
    assert answer.code == 0, answer.err
    assert np.isfinite(np.load(tmp_path / "t" / f"round-1.{decoder}.npy")).all()
    assert "counted" in answer.out


def test_a_ballot_defence(hushbit: Any, stored: Path, tmp_path: Path) -> None:
    words = ("tally", stored, "--seed", 4, "--out", tmp_path / "t", "--defence")
    assert "spectral" in hushbit(*words, "spectral").err
    answer = hushbit(*words, "scores", "--json")
    rows = json.loads(answer.out)["rounds"]
    assert all(row["counted"] + row["refused"]["filtered"] == 60 for row in rows)


def test_damaged_files_stop_the_count_unless_skipped(
    hushbit: Any, stored: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "ballots", tmp_path / "t"
    shutil.copytree(stored, folder)
    (folder / "round=0" / "cut.parquet").write_bytes(b"PAR1 and no more")
    answer = hushbit("tally", folder, "--seed", 4, "--out", out)
    assert answer.code != 0
    assert "cut.parquet" in answer.err.replace("\n", "")
    assert "--skip-damaged" in answer.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ballots"]
    answer = hushbit("tally", folder, "--seed", 4, "--out", out, "--skip-damaged", "--json")
    assert answer.code == 0
    report = json.loads(answer.out)
    assert [row["counted"] for row in report["rounds"]] == [60, 60]
    assert list(report["damaged_files"]) == [str(Path("round=0") / "cut.parquet")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "--secret-file"),
        (("--seed", 4, "--secret-file", "x"), "--secret-file"),
        (("--secret-file", "none"), "cannot be read"),
        (("--seed", 4, "--decoder", "best"), "decoder"),
        (("--seed", 4, "--defence", "best"), "defence"),
        (("--seed", 4, "--engine", "spark"), "engine"),
        (("--seed", 4, "--workers", 0), "workers"),
        (("--seed", 4, "--fingerprint", "00"), "no readable ballots"),
    ],
)
def test_wrong_options(
    hushbit: Any, stored: Path, tmp_path: Path, words: tuple[Any, ...], says: str
) -> None:
    answer = hushbit("tally", stored, "--out", tmp_path / "t", *words)
    assert answer.code != 0
    assert says in answer.err
    assert list(tmp_path.iterdir()) == []


def test_missing_and_existing_folders_are_refused(
    hushbit: Any, stored: Path, tmp_path: Path
) -> None:
    answer = hushbit("tally", tmp_path / "no", "--seed", 4, "--out", tmp_path / "t")
    assert answer.code != 0
    assert "not a folder" in answer.err
    answer = hushbit("tally", stored, "--seed", 4, "--out", tmp_path)
    assert answer.code != 0
    assert "exists already" in answer.err
    answer = hushbit(*RUN, "--ballots", stored)
    assert answer.code != 0
    assert "not an empty folder" in answer.err


def test_a_wrong_seed_is_refused_and_nothing_is_written(
    hushbit: Any, stored: Path, tmp_path: Path
) -> None:
    answer = hushbit("tally", stored, "--seed", 5, "--out", tmp_path / "t")
    assert answer.code == 2
    assert "under another secret or seed" in answer.lines[-1]
    assert list(tmp_path.iterdir()) == []


def test_folders_without_a_run_are_refused(hushbit: Any, stored: Path, tmp_path: Path) -> None:
    shutil.copytree(stored, tmp_path / "b")
    (tmp_path / "b" / "ballots.json").unlink()
    answer = hushbit("tally", tmp_path / "b", "--seed", 4, "--out", tmp_path / "t")
    assert answer.code == 2
    assert "has no ballots.json" in answer.lines[-1]
    assert not (tmp_path / "t").exists()


def test_the_run_of_another_folder_is_refused(hushbit: Any, stored: Path, tmp_path: Path) -> None:
    shutil.copytree(stored, tmp_path / "b")
    path = tmp_path / "b" / "ballots.json"
    path.write_text(json.dumps({"format": 2, "run": "00ff"}))
    answer = hushbit("tally", tmp_path / "b", "--seed", 4, "--out", tmp_path / "t")
    assert answer.code == 2
    assert "for another run" in answer.lines[-1]


def test_exit_code_1_when_no_ballot_is_valid(hushbit: Any, stored: Path, tmp_path: Path) -> None:
    shutil.copytree(stored, tmp_path / "b")
    for path in (tmp_path / "b").rglob("*.parquet"):
        table = pq.read_table(path)
        blank = pa.array([bytes(table.schema.field("ballot").type.byte_width)] * len(table))
        made = table.set_column(1, table.schema.field("ballot"), blank.cast(table.schema[1].type))
        pq.write_table(made.cast(table.schema), path)
    answer = hushbit("tally", tmp_path / "b", "--seed", 4, "--out", tmp_path / "t", "--json")
    assert answer.code == 1
    report = json.loads(answer.out)
    assert [row["counted"] for row in report["rounds"]] == [0, 0]
    assert "round 1: no ballot could be counted" in answer.err
