"""Who is honest in a simulated round, which releases are no sums, and what a run states."""

import math

import pytest

import hushbit as hb
from hushbit.errors import InvalidInput
from hushbit.lab.attacks import CRAFTED
from hushbit.lab.sim.privacy import (
    honest_in_round,
    no_model_guarantee,
    statement_of,
    users_in_round,
)
from hushbit.lab.sim.settings import Settings


@pytest.mark.parametrize(
    ("options", "honest"),
    [
        ({}, 100),
        ({"honest": 40}, 40),
        ({"honest": 1}, 1),
        ({"honest": 0.9}, 90),
        ({"honest": 1.0}, 100),
        ({"honest": 0.29}, 29),
        ({"attack": "flip", "attackers": 0.2}, 80),
        ({"attack": "flip", "attackers": 0.2, "honest": 0.5}, 50),
        ({"participation": 0.5}, 50),
        ({"participation": 0.5, "honest": 0.5}, 25),
        ({"participation": 0.5, "attack": "flip", "attackers": 0.2}, 30),
    ],
)
def test_honest_voters_are_those_in_a_round_less_all_attackers(options, honest):
    assert honest_in_round(Settings(users=100, **options)) == honest


@pytest.mark.parametrize(
    "options",
    [
        {"honest": 101},
        {"honest": 0.001},
        {"attack": "flip", "attackers": 0.2, "honest": 81},
        {"participation": 0.2, "attack": "flip", "attackers": 0.2, "honest": 1.0},
    ],
)
def test_honest_voters_who_cannot_exist_are_refused(options):
    with pytest.raises(InvalidInput, match="--honest"):
        honest_in_round(Settings(users=100, **options))


def test_users_that_take_part():
    assert users_in_round(Settings(users=100, participation=0.25)) == 25
    assert users_in_round(Settings(users=3, participation=0.01)) == 1


def test_releases_that_are_no_sums_have_a_reason():
    assert no_model_guarantee(Settings()) == ""
    assert no_model_guarantee(Settings(attack="flip", attackers=0.1)) == ""
    assert "stored" in no_model_guarantee(Settings(), ballots_stored=True)
    assert "median" in no_model_guarantee(Settings(defence="median"))
    outvoted = Settings(participation=0.2, attack="flip", attackers=0.2)
    assert "all users of a round" in no_model_guarantee(outvoted)
    for attack in CRAFTED:
        assert attack in no_model_guarantee(Settings(attack=attack, attackers=0.1))


def test_the_statement_is_that_of_the_simulated_deployment():
    guarantee = hb.CPA(650, 0.5, 0.05, clip=0.5).guarantee
    options = {"users": 60, "attack": "flip", "attackers": 0.5, "delta": 1e-6}
    found = statement_of(Settings(**options), guarantee, 7)
    assert found.simulated
    assert (found.honest, found.delta, found.rounds, found.budget) == (30, 1e-6, 7, None)
    assert found.epsilon_run_model == guarantee.of_tally(30, 7, delta=1e-6).epsilon
    stored = statement_of(Settings(**options), guarantee, 7, ballots_stored=True)
    assert stored.epsilon_run_model == math.inf
    assert "stored" in stored.reason


@pytest.mark.parametrize("name", ["fedavg", "vanilla"])
def test_the_reference_without_privacy_takes_no_budget(name):
    budget = {"epsilon": 4.0, "delta": 1e-5, "per": "run", "against": "model"}
    with pytest.raises(InvalidInput, match="fedavg has no privacy and cannot spend a budget"):
        Settings(mechanism=name, **budget)
