"""The record of a simulated run: its settings and state, kept by round and read back exactly."""

import dataclasses
import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from hushbit.errors import DamagedFile, InvalidInput
from hushbit.lab.sim.metrics import Distortion
from hushbit.lab.sim.rounds import RoundResult, RunState
from hushbit.lab.sim.run import RunRecord
from hushbit.lab.sim.settings import CONFIG, Settings
from hushbit.store.run_folder import CHECKPOINT, ENVIRONMENT, METRICS
from hushbit.tally.estimate import Estimate

SETTINGS = Settings(mechanism="cpa", epsilon_per_bit=0.5, users=3)
NOTES = {"coins": "SimulationCoins"}

MEAN = np.zeros(3)
ESTIMATE = Estimate(MEAN, MEAN, 3, unbiased=True)


def state(number=0):
    rng = np.random.default_rng(number)
    return RunState(
        number,
        rng.normal(size=5).astype(np.float32),
        {"velocity": rng.normal(size=5)},
        {"momentum": rng.normal(size=(3, 5)).astype(np.float32)},
        {"sum": rng.normal(size=5)},
        {"belief": rng.normal(size=4)},
    )


def made(number, snr=1.5):
    return RoundResult(
        number, 3, 30, 60, 0.0, 2.0, Distortion(snr, 2.0, 3.0, 0.1), MEAN, ESTIMATE, 0.5, 1.0
    )


def begun(folder, rounds=0):
    record = RunRecord(folder)
    with record.locked():
        record.begin(SETTINGS, NOTES)
        for number in range(1, rounds + 1):
            record.save_round(state(number), made(number))
    return record


def same(one, two):
    assert one.round == two.round
    assert one.params.tobytes() == two.params.tobytes()
    for group in ("server", "local", "average", "tuning"):
        left, right = getattr(one, group), getattr(two, group)
        assert {k: v.tobytes() for k, v in left.items()} == {
            k: v.tobytes() for k, v in right.items()
        }


def test_a_new_run_records_settings_and_environment(tmp_path):
    record = begun(tmp_path / "deep" / "run")
    assert record.settings() == SETTINGS.resolved()
    found = json.loads((record.folder / ENVIRONMENT).read_text())
    assert found["coins"] == "SimulationCoins"
    assert {"python", "hushbit", "torch", "numpy"} <= found.keys()
    assert record.rows() == []


def test_the_state_is_read_back_exactly(tmp_path):
    record = begun(tmp_path / "run", rounds=3)
    same(RunRecord(record.folder).resume(SETTINGS, state(), NOTES), state(3))
    assert [row["round"] for row in record.rows()] == [1, 2, 3]


def test_a_folder_with_a_run_is_refused_and_unchanged(tmp_path):
    record = begun(tmp_path / "run", rounds=1)
    before = {path.name: path.read_bytes() for path in record.folder.iterdir()}
    with pytest.raises(InvalidInput, match="--resume"):
        RunRecord(record.folder).begin(SETTINGS, NOTES)
    assert before == {path.name: path.read_bytes() for path in record.folder.iterdir()}


def test_a_run_without_a_checkpoint_starts_afresh(tmp_path):
    record = begun(tmp_path / "run")
    fresh = state()
    assert RunRecord(record.folder).resume(SETTINGS, fresh, NOTES) is fresh


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path):
    (tmp_path / f".{CONFIG}.abc").write_bytes(b"half")
    record = RunRecord(tmp_path)
    with pytest.raises(InvalidInput, match="holds no run"):
        record.settings()
    with pytest.raises(InvalidInput, match="holds no run"):
        record.resume(SETTINGS, state(), NOTES)
    begun(tmp_path)


def test_damaged_checkpoints_are_refused_and_change_no_file(tmp_path):
    record = begun(tmp_path / "run", rounds=2)
    path = record.folder / CHECKPOINT
    good, metrics = path.read_bytes(), (record.folder / METRICS).read_bytes()
    rng = np.random.default_rng(1)
    damaged = [good[:cut] for cut in (0, 1, 100, len(good) // 2, len(good) - 1)]
    damaged += [
        bytes([*good[:at], good[at] ^ 0xFF, *good[at + 1 :]])
        for at in rng.integers(0, len(good), 300)
    ]
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            # Some bytes of an archive carry nothing.
            same(record.resume(SETTINGS, state(), NOTES), state(2))
        except DamagedFile:
            refused += 1
        assert (record.folder / METRICS).read_bytes() == metrics
    assert refused > len(damaged) // 2


def test_checkpoints_of_other_models_and_servers_are_refused(tmp_path):
    record = begun(tmp_path / "run", rounds=1)
    longer, stateless = state(), state()
    longer.params = np.zeros(6, np.float32)
    stateless.server = {}
    for fresh in (longer, stateless):
        with pytest.raises(DamagedFile, match="another"):
            record.resume(SETTINGS, fresh, NOTES)


def test_a_damaged_configuration_is_refused(tmp_path):
    record = begun(tmp_path / "run")
    (record.folder / CONFIG).write_text("users = [")
    with pytest.raises(InvalidInput, match="TOML"):
        record.settings()


def test_finishing_writes_summary_and_parquet(tmp_path):
    record = begun(tmp_path / "run", rounds=1)
    record.save_round(state(2), made(2, snr=math.inf))
    record.finish({"snr_db": math.inf, "rounds": 2})
    assert json.loads((record.folder / "summary.json").read_text()) == {
        "snr_db": "inf",
        "rounds": 2,
    }
    table = pq.read_table(record.folder / "metrics.parquet").to_pylist()
    assert [row["round"] for row in table] == [1, 2]
    assert [row["snr_db"] for row in table] == [1.5, math.inf]


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    record = begun(tmp_path / "run", rounds=1)
    other = dataclasses.replace(SETTINGS, seed=SETTINGS.seed + 1)
    with pytest.raises(InvalidInput, match="other settings"):
        record.resume(other, state(), NOTES)


def test_nan_and_infinity_reach_the_parquet_file(tmp_path):
    record = begun(tmp_path / "run")
    record.save_round(state(1), made(1, snr=float("nan")))
    record.save_round(state(2), made(2, snr=float("inf")))
    record.finish({})
    table = pq.read_table(record.folder / "metrics.parquet").to_pylist()
    assert math.isnan(table[0]["snr_db"])
    assert table[1]["snr_db"] == math.inf
