"""The run directory: begun whole, kept round by round, resumed from exactly what was kept."""

import dataclasses
import errno
import json
import math
import os

import numpy as np
import pyarrow.parquet as pq
import pytest

from hushbit.decode import Estimate
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.fl.metrics import Distortion
from hushbit.fl.rounds import Progress, Round
from hushbit.fl.settings import Settings
from hushbit.lab.record import CHECKPOINT, CONFIG, ENVIRONMENT, METRICS, Record

SETTINGS = Settings(mechanism="cpa", epsilon_per_bit=0.5, users=3)
NOTES = {"coins": "SimulationCoins"}

MEAN = np.zeros(3)
ESTIMATE = Estimate(MEAN, MEAN, 3, unbiased=True)


def progress(number=0):
    rng = np.random.default_rng(number)
    return Progress(
        number, rng.normal(size=5).astype(np.float32), {"velocity": rng.normal(size=5)},
        {"momentum": rng.normal(size=(3, 5)).astype(np.float32)}, {"sum": rng.normal(size=5)},
        {"belief": rng.normal(size=4)},
    )  # fmt: skip


def made(number, snr=1.5):
    return Round(
        number, 3, 30, 60, 0.0, 2.0, Distortion(snr, 2.0, 3.0, 0.1), MEAN, ESTIMATE, 0.5, 1.0
    )


def begun(folder, rounds=0):
    record = Record(folder)
    record.begin(SETTINGS, NOTES)
    for number in range(1, rounds + 1):
        record.save(progress(number), made(number))
    record.release()
    return record


def same(one, two):
    assert one.round == two.round
    assert one.params.tobytes() == two.params.tobytes()
    for group in ("server", "local", "average", "tuning"):
        left, right = getattr(one, group), getattr(two, group)
        assert {k: v.tobytes() for k, v in left.items()} == {
            k: v.tobytes() for k, v in right.items()
        }


def test_a_new_run_says_what_it_is(tmp_path):
    record = begun(tmp_path / "deep" / "run")
    assert record.settings() == SETTINGS.resolved()
    told = json.loads((record.folder / ENVIRONMENT).read_text())
    assert told["coins"] == "SimulationCoins"
    assert {"python", "hushbit", "torch", "numpy"} <= told.keys()
    assert record.rows() == []


def test_rounds_come_back_to_the_bit(tmp_path):
    record = begun(tmp_path / "run", rounds=3)
    same(Record(record.folder).resume(SETTINGS, progress(), NOTES), progress(3))
    assert [row["round"] for row in record.rows()] == [1, 2, 3]


def test_a_folder_with_a_run_or_anything_else_is_refused_unchanged(tmp_path):
    record = begun(tmp_path / "run", rounds=1)
    before = {path.name: path.read_bytes() for path in record.folder.iterdir()}
    with pytest.raises(InvalidInput, match="--resume"):
        Record(record.folder).begin(SETTINGS, NOTES)
    assert before == {path.name: path.read_bytes() for path in record.folder.iterdir()}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(InvalidInput, match="not empty"):
        Record(tmp_path / "other").begin(SETTINGS, NOTES)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be a run folder"):
        Record(tmp_path / "file").begin(SETTINGS, NOTES)
    with pytest.raises(InvalidInput, match="cannot be a run folder"):
        Record(tmp_path / "file" / "run").begin(SETTINGS, NOTES)


def test_a_full_disk_at_the_start_leaves_nothing(tmp_path, monkeypatch):
    replace, calls = os.replace, []

    for failing in range(3):

        def limited(source, target, failing=failing):
            calls.append(target)
            if len(calls) > failing:
                raise OSError(errno.ENOSPC, "No space left on device")
            replace(source, target)

        calls.clear()
        monkeypatch.setattr(os, "replace", limited)
        with pytest.raises(DamagedFile, match="No space left"):
            Record(tmp_path / "deep" / "run").begin(SETTINGS, NOTES)
        assert list(tmp_path.iterdir()) == []


def test_a_folder_of_the_user_is_emptied_but_kept(tmp_path, monkeypatch):
    record = begun(tmp_path)
    record.withdraw()
    assert list(tmp_path.iterdir()) == []


def test_only_rounds_with_a_checkpoint_count(tmp_path, monkeypatch):
    record = begun(tmp_path / "run", rounds=2)

    def broken(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", broken)
        with pytest.raises(DamagedFile, match="No space left"):
            record.save(progress(3), made(3))
    assert [row["round"] for row in record.rows()] == [1, 2, 3]
    same(record.resume(SETTINGS, progress(), NOTES), progress(2))
    assert [row["round"] for row in record.rows()] == [1, 2]
    record.save(progress(3), made(3))
    assert [row["round"] for row in record.rows()] == [1, 2, 3]


def test_lines_cut_by_a_kill_and_scratch_files_are_dropped(tmp_path):
    record = begun(tmp_path / "run", rounds=2)
    with (record.folder / METRICS).open("ab") as file:
        file.write(b'{"round": 3, "mse": 0.\xff')
    (record.folder / f".{CHECKPOINT}.abc").write_bytes(b"half")
    same(record.resume(SETTINGS, progress(), NOTES), progress(2))
    assert [json.loads(line)["round"] for line in (record.folder / METRICS).open()] == [1, 2]
    assert [path.name for path in record.folder.glob(".*")] == [".lock"]


@pytest.mark.parametrize("kept", [(CONFIG,), (CONFIG, ENVIRONMENT), (CONFIG, METRICS)])
def test_a_kill_before_the_first_checkpoint_starts_afresh(tmp_path, kept):
    record = begun(tmp_path / "run")
    for path in record.folder.iterdir():
        if path.name not in kept:
            path.unlink()
    fresh = progress()
    assert Record(record.folder).resume(SETTINGS, fresh, NOTES) is fresh
    assert record.rows() == []
    assert (record.folder / ENVIRONMENT).exists()


def test_a_kill_before_the_configuration_leaves_a_folder_that_can_be_used(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / f".{CONFIG}.abc").write_bytes(b"half")
    with pytest.raises(InvalidInput, match="holds no run"):
        Record(folder).settings()
    begun(folder)


def test_damaged_checkpoints_are_refused_and_nothing_is_touched(tmp_path):
    record = begun(tmp_path / "run", rounds=2)
    path = record.folder / CHECKPOINT
    good, metrics = path.read_bytes(), (record.folder / METRICS).read_bytes()
    rng = np.random.default_rng(1)
    damaged = [good[:cut] for cut in (0, 1, 100, len(good) // 2, len(good) - 1)]
    damaged += [bytes([*good[:at], good[at] ^ 0xFF, *good[at + 1 :]])
                for at in rng.integers(0, len(good), 300)]  # fmt: skip
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            # Some bytes of an archive carry nothing.
            same(record.resume(SETTINGS, progress(), NOTES), progress(2))
        except DamagedFile:
            refused += 1
        assert (record.folder / METRICS).read_bytes() == metrics
    assert refused > len(damaged) // 2


def test_checkpoints_of_other_models_and_servers_are_refused(tmp_path):
    record = begun(tmp_path / "run", rounds=1)
    longer, stateless = progress(), progress()
    longer.params = np.zeros(6, np.float32)
    stateless.server = {}
    for fresh in (longer, stateless):
        with pytest.raises(DamagedFile, match="another"):
            record.resume(SETTINGS, fresh, NOTES)


def test_metrics_that_lack_a_round_are_refused(tmp_path):
    record = begun(tmp_path / "run", rounds=3)
    lines = (record.folder / METRICS).read_text().splitlines(keepends=True)
    (record.folder / METRICS).write_text(lines[0] + lines[2])
    with pytest.raises(DamagedFile, match="lacks rounds"):
        record.resume(SETTINGS, progress(), NOTES)
    (record.folder / METRICS).unlink()
    with pytest.raises(DamagedFile, match="cannot be read"):
        record.resume(SETTINGS, progress(), NOTES)


def test_a_damaged_configuration_is_refused(tmp_path):
    record = begun(tmp_path / "run")
    (record.folder / CONFIG).write_text("users = [")
    with pytest.raises(InvalidInput, match="TOML"):
        record.settings()


def test_the_end_of_a_run(tmp_path):
    record = begun(tmp_path / "run", rounds=1)
    record.save(progress(2), made(2, snr=math.inf))
    record.finish({"snr_db": math.inf, "rounds": 2})
    assert json.loads((record.folder / "summary.json").read_text()) == {
        "snr_db": "inf", "rounds": 2,
    }  # fmt: skip
    table = pq.read_table(record.folder / "metrics.parquet").to_pylist()
    assert [row["round"] for row in table] == [1, 2]
    assert [row["snr_db"] for row in table] == [1.5, math.inf]


def test_two_processes_do_not_share_a_folder(tmp_path):
    record = Record(tmp_path / "run")
    record.begin(SETTINGS, NOTES)
    record.save(progress(1), made(1))
    with pytest.raises(InvalidInput, match="another process"):
        Record(record.folder).resume(SETTINGS, progress(), NOTES)
    record.release()
    same(Record(record.folder).resume(SETTINGS, progress(), NOTES), progress(1))


def test_a_checkpoint_is_not_gone_on_with_under_other_settings(tmp_path):
    record = begun(tmp_path / "run", rounds=1)
    other = dataclasses.replace(SETTINGS, seed=SETTINGS.seed + 1)
    with pytest.raises(InvalidInput, match="other settings"):
        record.resume(other, progress(), NOTES)


def test_figures_that_are_no_numbers_reach_the_parquet_file(tmp_path):
    record = begun(tmp_path / "run")
    record.save(progress(1), made(1, snr=float("nan")))
    record.save(progress(2), made(2, snr=float("inf")))
    record.finish({})
    table = pq.read_table(record.folder / "metrics.parquet").to_pylist()
    assert math.isnan(table[0]["snr_db"])
    assert table[1]["snr_db"] == math.inf
