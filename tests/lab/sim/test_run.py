"""Whole runs: every mechanism; resumed after any round, and after a kill at any write."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from hushbit.cpa import CPA
from hushbit.errors import HushbitError
from hushbit.lab.sim.run import RunRecord, run
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import ACCEPTED_OPTIONS
from hushbit.store.run_folder import CHECKPOINT, METRICS

KEYS = {
    "test_accuracy",
    "snr_db",
    "bytes_up",
    "bytes_down",
    "epsilon_bit",
    "pure_epsilon_message_server",
    "pure_epsilon_run_server",
    "rounds",
    "users",
    "seconds",
}
BASE = {"users": 12, "rounds": 4, "seed": 3, "evaluate_every": 2}
STATEFUL = Settings(
    **BASE,
    mechanism="cpa",
    epsilon_per_bit=1.0,
    momentum=0.5,
    keep_momentum=True,
    server="adam",
    server_rate=0.01,
    average_weights=True,
    participation=0.7,
    steps=2,
    batch_size=2,
    attack="flip",
    attackers=0.2,
)


class Killed(BaseException):
    """Interrupts a run as a kill does."""


def weights(folder):
    with np.load(folder / CHECKPOINT) as file:
        return {name: file[name].tobytes() for name in file.files}


def rows(folder):
    found = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in found]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference") / "run"
    run(STATEFUL, folder)
    return folder


def check_same(folder, reference):
    assert weights(folder) == weights(reference)
    assert rows(folder) == rows(reference)
    ends = [json.loads((f / "summary.json").read_text()) for f in (folder, reference)]
    assert {k: v for k, v in ends[0].items() if k != "seconds"} == {
        k: v for k, v in ends[1].items() if k != "seconds"
    }


def mechanism_settings(name, **more):
    private = {"epsilon_per_bit": 1.0} if "epsilon_per_bit" in ACCEPTED_OPTIONS[name] else {}
    needed = {
        "signsgd": {"sign_step": 0.01},
        "gaussian": {"noise_multiplier": 1.0, "clip": 0.5},
    }.get(name, {})
    return Settings(mechanism=name, users=15, rounds=2, **private, **needed, **more)


def test_the_seed_reproduces_the_noise_of_the_server():
    """The noise of a simulation comes from its seed and changes with the seed."""
    errors = []
    for seed in (1, 1, 2):
        result = run(mechanism_settings("gaussian", seed=seed))
        errors.append([row["mse"] for row in result["history"]])
    assert errors[0] == errors[1] != errors[2]
    assert errors[0][0] != errors[0][1]


@pytest.mark.parametrize("name", ACCEPTED_OPTIONS)
def test_every_mechanism_runs_and_returns_its_figures(name, tmp_path):
    result = run(mechanism_settings(name), tmp_path / "run")
    assert result.keys() >= KEYS
    assert (result["rounds"], result["users"]) == (2, 15)
    assert result["bytes_up"] == sum(row["bytes_up"] for row in result["history"]) > 0
    assert 0 <= result["test_accuracy"] <= 1
    expected = np.inf if name in ("fedavg", "gaussian", "cpa-no-rr") else 1.0
    assert result["epsilon_bit"] == expected
    assert result["pure_epsilon_message_server"] >= result["epsilon_bit"]
    assert result["pure_epsilon_run_server"] >= result["pure_epsilon_message_server"]
    assert rows(tmp_path / "run")[-1]["round"] == 2


@pytest.mark.parametrize("attack", ["ones", "flip"])
@pytest.mark.parametrize("name", ACCEPTED_OPTIONS)
def test_every_mechanism_can_be_attacked(name, attack):
    for more in [{}, {"rotate": True}] if "rotate" in ACCEPTED_OPTIONS[name] else [{}]:
        plain = run(mechanism_settings(name, **more))
        hit = run(mechanism_settings(name, attack=attack, attackers=0.4, **more))
        assert hit["history"][0]["mse"] != plain["history"][0]["mse"]
        assert hit["bytes_up"] == plain["bytes_up"]


def test_a_run_resumes_from_any_round(tmp_path, reference):
    for stop in range(1, STATEFUL.rounds + 1):
        folder = tmp_path / f"stopped after {stop}"

        def stop_there(setup, made, stop=stop):
            if made.number == stop:
                raise Killed

        with pytest.raises(Killed):
            run(STATEFUL, folder, watch=stop_there)
        assert [row["round"] for row in rows(folder)] == list(range(1, stop + 1))
        result = run(RunRecord(folder).settings(), folder, resume=True)
        assert len(result["history"]) == STATEFUL.rounds
        check_same(folder, reference)


def test_resuming_a_finished_run_changes_nothing(tmp_path, reference):
    before = weights(reference)
    run(STATEFUL, reference, resume=True)
    assert weights(reference) == before


def test_a_kill_at_any_write_resumes_to_the_same_weights(tmp_path, monkeypatch):
    """The run is killed once at every fsync and at every rename."""
    settings = dataclasses.replace(STATEFUL, rounds=2)
    whole = tmp_path / "whole"
    calls = _run_until(10**9, settings, whole, monkeypatch)
    assert calls > 20
    for last in range(calls):
        folder = tmp_path / f"killed at {last}"
        with pytest.raises(Killed):
            _run_until(last, settings, folder, monkeypatch)
        begun = (folder / "config.toml").exists()
        run(RunRecord(folder).settings() if begun else settings, folder, resume=begun)
        check_same(folder, whole)


def _writes(monkeypatch, allowed):
    """Allow so many writes, then interrupt as a kill does: nothing is cleaned up."""
    count = [0]

    def limited(call):
        def wrapped(*arguments):
            count[0] += 1
            if count[0] > allowed:
                monkeypatch.setattr("pathlib.Path.unlink", lambda *_, **__: None)
                raise Killed
            return call(*arguments)

        return wrapped

    monkeypatch.setattr(os, "fsync", limited(os.fsync))
    monkeypatch.setattr(os, "replace", limited(os.replace))
    return count


def _run_until(allowed, settings, folder, monkeypatch):
    with monkeypatch.context() as patch:
        count = _writes(patch, allowed)
        run(settings, folder)
    return count[0]


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_resumes_to_the_same_weights(tmp_path, kills):
    settings = Settings(
        users=20, rounds=40 * kills, mechanism="cpa", epsilon_per_bit=1.0, seed=5, evaluate_every=9
    )
    run(settings, tmp_path / "whole")
    folder, rng = tmp_path / "killed", random.Random(11)
    (tmp_path / "config.toml").write_text(settings.to_toml())
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for kill in range(kills):
        more = ["--resume"] if kill else ["--config", str(tmp_path / "config.toml")]
        command = [sys.executable, "-m", "hushbit", "run", "--out", str(folder), *more]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as job:
            _wait_for_lines(job, folder / METRICS, 35 * kill + rng.randrange(1, 30))
            time.sleep(rng.random() * 0.02)
            job.send_signal(signal.SIGKILL)
    assert not (folder / "summary.json").exists()
    run(RunRecord(folder).settings(), folder, resume=True)
    assert weights(folder) == weights(tmp_path / "whole")
    assert rows(folder) == rows(tmp_path / "whole")
    assert not list(folder.glob(".*"))


def _wait_for_lines(job, path, lines):
    while job.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.002)
    pytest.fail(f"the run ended by itself with {job.returncode}")


def test_a_run_that_fails_in_its_first_round_leaves_nothing(tmp_path):
    settings = Settings(mechanism="fedavg", users=5, rounds=3, rate=1e38, steps=3)
    with pytest.raises(HushbitError):
        run(settings, tmp_path / "deep" / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_later_can_be_resumed(tmp_path, reference, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    def fill_disk(setup, made):
        if made.number == 2:
            monkeypatch.setattr(os, "replace", full)

    with pytest.raises(HushbitError, match="No space left"):
        run(STATEFUL, tmp_path / "run", watch=fill_disk)
    monkeypatch.undo()
    run(STATEFUL, tmp_path / "run", resume=True)
    check_same(tmp_path / "run", reference)


def test_a_run_needs_no_folder():
    result = run(Settings(mechanism="fedavg", users=5, rounds=1))
    assert result["rounds"] == len(result["history"]) == 1


def test_a_given_mechanism_replaces_the_one_of_the_settings(tmp_path):
    settings = Settings(mechanism="fedavg", users=5, rounds=2)
    mechanism = CPA(650, 1.0, 0.05)
    result = run(settings, tmp_path / "run", mechanism=mechanism)
    assert result["epsilon_bit"] == 1.0
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["fingerprint"] == mechanism.fingerprint.hex()
    again = run(settings, tmp_path / "run", resume=True, mechanism=mechanism)
    assert [row["mse"] for row in again["history"]] == [row["mse"] for row in result["history"]]
    whole = run(dataclasses.replace(settings, mechanism="cpa", epsilon_per_bit=1.0, radius=0.05))
    assert whole["history"][1]["mse"] == result["history"][1]["mse"]


def test_a_broken_line_in_the_middle_of_the_metrics_is_refused(tmp_path):
    settings = Settings(mechanism="fedavg", users=5, rounds=3)
    run(settings, tmp_path / "run")
    path = tmp_path / "run" / METRICS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:20] + "\n" + lines[2])
    with pytest.raises(HushbitError, match="line 2"):
        run(settings, tmp_path / "run", resume=True)


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_is_running(tmp_path):
    settings = Settings(mechanism="fedavg", users=5, rounds=1)
    seen = []

    def resume_meanwhile(setup, made):
        with pytest.raises(HushbitError, match="another process"):
            run(settings, tmp_path / "run", resume=True)
        seen.append(made.number)

    run(settings, tmp_path / "run", watch=resume_meanwhile)
    assert seen == [1]


def test_a_run_stores_ballots_in_all_rounds_or_in_none(tmp_path):
    settings = Settings(**BASE, mechanism="nested", epsilon_per_bit=1.0)
    run(settings, tmp_path / "plain")
    run(settings, tmp_path / "stored", ballots=tmp_path / "ballots")
    for folder, ballots, said in (
        ("plain", tmp_path / "others", "began without --ballots"),
        ("stored", None, "began with --ballots"),
    ):
        with pytest.raises(HushbitError, match=said):
            run(settings, tmp_path / folder, resume=True, ballots=ballots)
    run(settings, tmp_path / "stored", resume=True, ballots=tmp_path / "ballots")
    assert weights(tmp_path / "plain") != weights(tmp_path / "stored")
