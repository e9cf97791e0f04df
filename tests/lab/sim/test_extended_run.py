"""A finished run continues with more rounds, unless its budget covers a number of rounds."""

import dataclasses
import json

import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.sim.run import RunRecord, run
from hushbit.lab.sim.settings import Settings

SHORT = Settings(users=12, rounds=2, mechanism="cpa", epsilon_per_bit=1.0, server="momentum")
LONG = dataclasses.replace(SHORT, rounds=4)
RUN_BUDGET = {"epsilon": 4.0, "delta": 1e-5, "per": "run", "against": "model"}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_extended_run_equals_a_run_of_all_rounds(tmp_path):
    run(SHORT, tmp_path / "run")
    extended = run(LONG, tmp_path / "run", resume=True)
    whole = run(LONG, tmp_path / "whole")
    params = [RunRecord(tmp_path / name).read_checkpoint().groups for name in ("run", "whole")]
    assert params[0]["model"]["params"].tobytes() == params[1]["model"]["params"].tobytes()
    assert params[0]["settings"]["sha256"].tobytes() == params[1]["settings"]["sha256"].tobytes()
    for name in (
        "rounds",
        "test_accuracy",
        "bytes_up",
        "pure_epsilon_run_server",
        "epsilon_run_model",
    ):
        assert extended[name] == whole[name]
    assert RunRecord(tmp_path / "run").settings().rounds == 4
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 4


def test_the_statement_is_that_of_all_rounds(tmp_path):
    short = run(SHORT, tmp_path / "run")
    extended = run(LONG, tmp_path / "run", resume=True)
    assert extended["pure_epsilon_run_server"] == 2 * short["pure_epsilon_run_server"]


def test_an_interrupted_extension_has_no_summary_and_resumes(tmp_path):
    def stop(setup, made):
        raise KeyboardInterrupt

    run(SHORT, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        run(LONG, tmp_path / "run", resume=True, watch=stop)
    assert not {"summary.json", "metrics.parquet", "model.safetensors"} & set(
        contents(tmp_path / "run")
    )
    settings = RunRecord(tmp_path / "run").settings()
    assert run(settings, tmp_path / "run", resume=True)["rounds"] == 4


@pytest.mark.parametrize("mechanism", ["cpa", "cpa-auto", "gaussian"])
def test_a_run_with_a_budget_per_run_is_not_extended(tmp_path, mechanism):
    settings = Settings(users=40, rounds=1, mechanism=mechanism, **RUN_BUDGET)
    run(settings, tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"covers its 1 rounds.*start a new run with --rounds 2"):
        run(dataclasses.replace(settings, rounds=2), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


def test_a_configuration_with_more_rounds_than_its_run_budget_covers_is_refused(tmp_path):
    run(Settings(users=40, rounds=1, mechanism="cpa", **RUN_BUDGET), tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 1", "rounds = 2"))
    with pytest.raises(InvalidInput, match="made with other settings"):
        run(RunRecord(tmp_path / "run").settings(), tmp_path / "run", resume=True)


def test_fewer_rounds_and_other_settings_are_refused(tmp_path):
    run(SHORT, tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"has 2 rounds.*more, not fewer; got 1"):
        run(dataclasses.replace(SHORT, rounds=1), tmp_path / "run", resume=True)
    with pytest.raises(InvalidInput, match="other settings"):
        run(dataclasses.replace(LONG, seed=1), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


def test_a_run_whose_ballots_are_stored_is_not_extended(tmp_path):
    run(SHORT, tmp_path / "run", ballots=tmp_path / "ballots")
    before = contents(tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"ballots of the run .* start a new run"):
        run(LONG, tmp_path / "run", resume=True, ballots=tmp_path / "ballots")
    assert contents(tmp_path / "run") == before
