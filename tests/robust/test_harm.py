"""Every attack, sent as ballots among honest ones, moves the decoded mean as far as predicted."""

import numpy as np
import pytest

from hushbit import CPA, Rotated, RoundKey
from hushbit.coins import SimulationCoins
from hushbit.fl.attacks import cast_attacked
from hushbit.fl.settings import Settings
from hushbit.lab.runs import run
from hushbit.robust.attacks import little_z
from hushbit.robust.round import attacked_ballots

KEY = RoundKey(b"h" * 32, 1)
DIM, USERS, SHARE, CLIP = 400, 2000, 0.3, 1.0
ATTACKERS = np.arange(USERS) < SHARE * USERS
RNG = np.random.default_rng(5)
MEAN = RNG.normal(size=DIM)
MEAN *= 0.4 / np.linalg.norm(MEAN)
UPDATES = (MEAN + RNG.normal(0, 0.02, (USERS, DIM))).astype(np.float32)
# So wide that nothing is cut: what points cut of an attack they cut of an honest extreme as well.
MECHANISM = Rotated(CPA(DIM, 8.0, 0.5, clip=CLIP))
NOISE = 0.5 / np.sqrt(USERS)  # of an entry of the mean, at most


def decoded(attack):
    """The mean of a round in which 30 % attack."""
    options = {"attack": attack, "attackers": SHARE} if attack != "none" else {}
    settings = Settings(epsilon_per_bit=8.0, **options)
    keys = KEY.users(np.arange(USERS))
    ballots = MECHANISM.encode_many(UPDATES, keys, SimulationCoins(0))
    if attack in ("ones", "flip"):
        ballots = cast_attacked(MECHANISM, ballots, attack, ATTACKERS, 0)
    ballots = attacked_ballots(settings, MECHANISM, ballots, UPDATES, ATTACKERS, KEY)
    tally = MECHANISM.tally(KEY, histogram=False)
    tally.add_many(ballots)
    return MECHANISM.estimate(tally).mean


def along_mean(attack):
    """How long the decoded mean is along the honest one."""
    return float(decoded(attack) @ MEAN / np.linalg.norm(MEAN))


HONEST = (1 - SHARE) * 0.4
PREDICTED = {
    "none": 0.4,
    "ones": HONEST,  # nothing but their signal is lost
    "flip": HONEST,
    "inner-product": (1 - 2 * SHARE) * 0.4,
    "directed-stealth": HONEST - 2 * SHARE * CLIP,
    "sybils": HONEST - 2 * SHARE * CLIP / np.sqrt(2),
}


@pytest.mark.parametrize("attack", PREDICTED)
def test_the_mean_loses_along_itself_what_is_predicted(attack):
    assert along_mean(attack) == pytest.approx(PREDICTED[attack], abs=5 * NOISE)


def test_a_little_is_enough_moves_every_entry_by_its_spread():
    spread = UPDATES[~ATTACKERS].std(axis=0).mean()
    moved = decoded("none") - decoded("little")
    expected = SHARE * little_z(USERS, int(ATTACKERS.sum())) * spread
    assert moved.mean() == pytest.approx(expected, abs=5 * NOISE / np.sqrt(DIM) * 2)


def test_scaled_updates_lie_where_points_end_against_the_mean():
    """Twenty times an update is beyond every point: each entry pulls by the radius."""
    mechanism, wide = CPA(DIM, 8.0, 0.01), UPDATES * 50
    settings = Settings(epsilon_per_bit=8.0, attack="scaled", attackers=SHARE)
    keys = KEY.users(np.arange(USERS))
    ballots = mechanism.encode_many(wide, keys, SimulationCoins(0))
    ballots = attacked_ballots(settings, mechanism, ballots, wide, ATTACKERS, KEY)
    tally = mechanism.tally(KEY, histogram=False)
    tally.add_many(ballots)
    cut = np.where(ATTACKERS[:, None], -1.0, 1.0) * np.clip(wide, -0.01, 0.01)
    found = mechanism.estimate(tally).mean
    assert np.abs(found - cut.mean(axis=0)).max() < 6 * 0.01 / np.sqrt(USERS)


@pytest.mark.parametrize(("attack", "lost"), [("label-flip", 0.15), ("directed", 0.5)])
def test_without_defence_training_suffers(attack, lost):
    base = {"mechanism": "cpa-auto", "epsilon_per_bit": 4.0, "users": 200, "rounds": 20,
            "evaluate_every": 20}  # fmt: skip
    clean = run(Settings(**base))["test_accuracy"]
    attacked = run(Settings(**base, attack=attack, attackers=0.45))["test_accuracy"]
    assert attacked < clean - lost


def test_a_backdoor_works_where_nobody_defends():
    options = {"mechanism": "cpa-auto", "epsilon_per_bit": 4.0, "users": 200, "rounds": 40,
               "evaluate_every": 40, "attack": "backdoor", "attackers": 0.3}  # fmt: skip
    assert run(Settings(**options))["backdoor_rate"] > 0.5
