"""A run with a defence resumes with the state of the defence."""

import dataclasses

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.sim.rounds import RunState
from hushbit.lab.sim.run import STATE_GROUPS, RunRecord, run
from hushbit.lab.sim.settings import Settings
from hushbit.store.run_folder import CHECKPOINT

SETTINGS = Settings(
    users=120,
    rounds=4,
    seed=3,
    mechanism="cpa",
    epsilon_per_bit=1.0,
    rotate=True,
    clip=0.5,
    radius=0.04,
    attack="directed",
    attackers=0.3,
)


class Stopped(BaseException):
    """Ends a run after a round."""


def arrays(folder):
    with np.load(folder / CHECKPOINT) as file:
        return {name: file[name] for name in file.files}


def test_every_group_of_arrays_is_part_of_the_checkpoint():
    plain = {"round", "params"}
    assert {field.name for field in dataclasses.fields(RunState)} - plain == set(STATE_GROUPS)


@pytest.mark.parametrize("stop", [1, 3])
def test_the_state_of_the_defence_is_resumed(tmp_path, stop):
    settings = dataclasses.replace(SETTINGS, defence="scores")

    def stop_there(setup, made):
        if made.number == stop:
            raise Stopped

    run(settings, tmp_path / "whole")
    with pytest.raises(Stopped):
        run(settings, tmp_path / "resumed", watch=stop_there)
    stored = arrays(tmp_path / "resumed")
    state = [array for name, array in stored.items() if name.startswith("defence")]
    assert state
    assert any(array.any() for array in state)
    run(RunRecord(tmp_path / "resumed").settings(), tmp_path / "resumed", resume=True)
    whole, resumed = arrays(tmp_path / "whole"), arrays(tmp_path / "resumed")
    assert whole.keys() == resumed.keys()
    for name in whole:
        assert np.array_equal(whole[name], resumed[name]), name


def test_a_run_with_a_defence_that_is_gone_is_refused(tmp_path):
    settings = dataclasses.replace(SETTINGS, rounds=1, defence="scores")
    run(settings, tmp_path / "run")
    (path,) = (one for one in (tmp_path / "run").iterdir() if '"scores"' in text_of(one))
    path.write_text(text_of(path).replace('"scores"', '"spectral"'))
    with pytest.raises(InvalidInput, match="spectral"):
        RunRecord(tmp_path / "run").settings()


def text_of(path):
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
