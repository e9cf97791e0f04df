"""A run stops when its test result no longer improves; statements count all rounds."""

import dataclasses

import pytest

from hushbit.lab.sim.early_stopping import has_stopped
from hushbit.lab.sim.run import RunRecord, run
from hushbit.lab.sim.settings import Settings


def rows(*accuracies):
    """One row per accuracy; None stands for a round that was not evaluated."""
    return [
        {"round": number, "test_accuracy": one, "test_loss": None if one is None else 1.0}
        for number, one in enumerate(accuracies, 1)
    ]


@pytest.mark.parametrize(
    ("accuracies", "patience", "stopped"),
    [
        ((), 1, False),
        ((0.5,), 1, False),
        ((0.5, 0.6), 1, False),
        ((0.5, 0.5), 1, True),  # equal is not higher
        ((0.6, 0.5), 2, False),
        ((0.6, 0.5, 0.55), 2, True),
        ((0.6, 0.5, 0.7), 2, False),
        ((0.6, None, None), 2, False),  # the last round was not evaluated
        ((None, 0.6, None, 0.5), 2, True),
        ((0.6, 0.5, 0.4, 0.3), None, False),
    ],
)
def test_the_best_round_decides(accuracies, patience, stopped):
    assert has_stopped(rows(*accuracies), patience) is stopped


@pytest.mark.parametrize(("losses", "stopped"), [((2.0, 1.0), False), ((1.0, 2.0), True)])
def test_without_an_accuracy_the_loss_decides(losses, stopped):
    made = [{"round": n, "test_accuracy": None, "test_loss": x} for n, x in enumerate(losses, 1)]
    assert has_stopped(made, 1) is stopped


# With this step the model hardly moves, so its accuracy does not rise.
SETTINGS = Settings(users=12, rounds=9, mechanism="cpa", epsilon_per_bit=1.0, server_rate=1e-9)


def test_a_stopped_run_states_the_privacy_of_all_rounds_and_stays_stopped(tmp_path):
    settings = dataclasses.replace(SETTINGS, patience=2)
    stopped = run(settings, tmp_path / "run")
    assert stopped["rounds"] == len(stopped["history"]) == 3
    assert stopped["pure_epsilon_run_server"] == 9 * stopped["pure_epsilon_message_server"]
    assert stopped.statement.rounds == 9
    again = run(RunRecord(tmp_path / "run").settings(), tmp_path / "run", resume=True)
    assert again["rounds"] == 3


def test_without_patience_all_rounds_are_run():
    assert run(dataclasses.replace(SETTINGS, rounds=3))["rounds"] == 3
