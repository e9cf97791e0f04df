"""Every attack, sent as ballots among honest ones, shifts the decoded mean as predicted."""

import numpy as np
import pytest

from hushbit.cpa import CPA
from hushbit.lab.attacks.ballots import attack_ballots, craft_ballots
from hushbit.lab.attacks.updates import alie_z
from hushbit.lab.sim.run import run
from hushbit.lab.sim.settings import Settings
from hushbit.wire.coins import SimulationCoins
from hushbit.wire.keys import RoundKey
from hushbit.wrappers import Rotated

KEY = RoundKey(b"h" * 32, 1)
DIM, USERS, SHARE, CLIP = 400, 2000, 0.3, 1.0
ATTACKERS = np.arange(USERS) < SHARE * USERS
RNG = np.random.default_rng(5)
MEAN = RNG.normal(size=DIM)
MEAN *= 0.4 / np.linalg.norm(MEAN)
UPDATES = (MEAN + RNG.normal(0, 0.02, (USERS, DIM))).astype(np.float32)
# A radius at which nothing is clipped: points clip an attack as they clip an honest extreme.
MECHANISM = Rotated(CPA(DIM, 8.0, 0.5, clip=CLIP))
NOISE = 0.5 / np.sqrt(USERS)  # of an entry of the mean, at most


def decoded(attack):
    """The mean of a round in which 30 % attack."""
    options = {"attack": attack, "attackers": SHARE} if attack != "none" else {}
    settings = Settings(epsilon_per_bit=8.0, **options)
    keys = KEY.users(np.arange(USERS))
    ballots = MECHANISM.encode_many(UPDATES, keys, SimulationCoins(0))
    if attack in ("ones", "flip"):
        ballots = attack_ballots(MECHANISM, ballots, attack, ATTACKERS, 0)
    ballots = craft_ballots(settings, MECHANISM, ballots, UPDATES, ATTACKERS, KEY)
    tally = MECHANISM.tally(KEY, histogram=False)
    tally.add_many(ballots)
    return MECHANISM.estimate(tally).mean


def along_mean(attack):
    """The length of the decoded mean along the honest mean."""
    return float(decoded(attack) @ MEAN / np.linalg.norm(MEAN))


HONEST = (1 - SHARE) * 0.4
PREDICTED = {
    "none": 0.4,
    "ones": HONEST,  # only their signal is lost
    "flip": HONEST,
    "inner-product": (1 - 2 * SHARE) * 0.4,
    "directed-stealth": HONEST - 2 * SHARE * CLIP,
    "sybils": HONEST - 2 * SHARE * CLIP / np.sqrt(2),
}


@pytest.mark.parametrize("attack", PREDICTED)
def test_the_length_of_the_mean_is_as_predicted(attack):
    assert along_mean(attack) == pytest.approx(PREDICTED[attack], abs=5 * NOISE)


def test_little_shifts_every_entry_by_z_spreads():
    spread = UPDATES[~ATTACKERS].std(axis=0).mean()
    moved = decoded("none") - decoded("little")
    expected = SHARE * alie_z(USERS, int(ATTACKERS.sum())) * spread
    assert moved.mean() == pytest.approx(expected, abs=5 * NOISE / np.sqrt(DIM) * 2)


def test_scaled_updates_shift_every_entry_by_the_radius():
    """Twenty times an update is outside the points: each entry is clipped to the radius."""
    mechanism, wide = CPA(DIM, 8.0, 0.01), UPDATES * 50
    settings = Settings(epsilon_per_bit=8.0, attack="scaled", attackers=SHARE)
    keys = KEY.users(np.arange(USERS))
    ballots = mechanism.encode_many(wide, keys, SimulationCoins(0))
    ballots = craft_ballots(settings, mechanism, ballots, wide, ATTACKERS, KEY)
    tally = mechanism.tally(KEY, histogram=False)
    tally.add_many(ballots)
    clipped = np.where(ATTACKERS[:, None], -1.0, 1.0) * np.clip(wide, -0.01, 0.01)
    found = mechanism.estimate(tally).mean
    assert np.abs(found - clipped.mean(axis=0)).max() < 6 * 0.01 / np.sqrt(USERS)


@pytest.mark.parametrize(("attack", "lost"), [("label-flip", 0.15), ("directed", 0.5)])
def test_attacks_without_defence_reduce_accuracy(attack, lost):
    base = {
        "mechanism": "cpa-auto",
        "epsilon_per_bit": 4.0,
        "users": 200,
        "rounds": 20,
        "evaluate_every": 20,
    }
    clean = run(Settings(**base))["test_accuracy"]
    attacked = run(Settings(**base, attack=attack, attackers=0.45))["test_accuracy"]
    assert attacked < clean - lost


def test_a_backdoor_works_without_defence():
    options = {
        "mechanism": "cpa-auto",
        "epsilon_per_bit": 4.0,
        "users": 200,
        "rounds": 40,
        "evaluate_every": 40,
        "attack": "backdoor",
        "attackers": 0.3,
    }
    assert run(Settings(**options))["backdoor_rate"] > 0.5
