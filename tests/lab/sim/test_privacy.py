"""Who is honest in a simulated round, and which releases are no sums of votes."""

import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.attacks import CRAFTED
from hushbit.lab.sim.privacy import honest_in_round, not_a_sum, taking_part
from hushbit.lab.sim.settings import Settings


@pytest.mark.parametrize(
    ("options", "honest"),
    [
        ({}, 100),
        ({"honest": 40.0}, 40),
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
        {"honest": 101.0},
        {"honest": 0.001},
        {"attack": "flip", "attackers": 0.2, "honest": 81.0},
        {"participation": 0.2, "attack": "flip", "attackers": 0.2},
    ],
)
def test_honest_voters_who_cannot_exist_are_refused(options):
    with pytest.raises(InvalidInput, match="--honest"):
        honest_in_round(Settings(users=100, **options))


def test_users_that_take_part():
    assert taking_part(Settings(users=100, participation=0.25)) == 25
    assert taking_part(Settings(users=3, participation=0.01)) == 1


def test_releases_that_are_no_sums_have_a_reason():
    assert not_a_sum(Settings()) == ""
    assert not_a_sum(Settings(attack="flip", attackers=0.1)) == ""
    assert "stored" in not_a_sum(Settings(), ballots_stored=True)
    assert "median" in not_a_sum(Settings(defence="median"))
    for attack in CRAFTED:
        assert attack in not_a_sum(Settings(attack=attack, attackers=0.1))
