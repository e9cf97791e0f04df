"""Forged votes on the norm: 30 % of the users answer as suits them and keep the rest honest."""

import pytest

from hushbit.lab.sim.run import run
from hushbit.lab.sim.settings import Settings

OPTIONS = {"mechanism": "cpa-auto", "epsilon_per_bit": 0.5, "users": 280, "rounds": 40, "seed": 5}


@pytest.fixture(scope="module")
def clean():
    return run(Settings(**OPTIONS))["test_accuracy"]


@pytest.mark.parametrize("attack", ["norm-high", "norm-low"])
def test_forged_votes_cost_little_accuracy(clean, attack):
    """One answer of epsilon 0.5 instead of a majority costs more than half of the accuracy."""
    attacked = run(Settings(**OPTIONS, attack=attack, attackers=0.3))["test_accuracy"]
    assert clean > 0.6
    assert attacked > clean - 0.03
