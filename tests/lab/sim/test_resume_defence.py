"""A run with a defence resumes with the history of the defence."""

import dataclasses

import numpy as np
import pytest

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


@pytest.mark.parametrize("defence", ["scores", "spectral"])
@pytest.mark.parametrize("stop", [1, 3])
def test_the_history_of_the_defence_is_resumed(tmp_path, stop, defence):
    settings = dataclasses.replace(SETTINGS, defence=defence)

    def stop_there(setup, made):
        if made.number == stop:
            raise Stopped

    run(settings, tmp_path / "whole")
    with pytest.raises(Stopped):
        run(settings, tmp_path / "resumed", watch=stop_there)
    stored = arrays(tmp_path / "resumed")
    history = [array for name, array in stored.items() if name.startswith("defence")]
    assert history
    assert any(array.any() for array in history)
    run(RunRecord(tmp_path / "resumed").settings(), tmp_path / "resumed", resume=True)
    whole, resumed = arrays(tmp_path / "whole"), arrays(tmp_path / "resumed")
    assert whole.keys() == resumed.keys()
    for name in whole:
        assert np.array_equal(whole[name], resumed[name]), name
