"""Attacks on ballots: valid ballots of exactly the chosen users, independent of chunks."""

import numpy as np
import pytest

from hushbit.cpa import CPA, NestedCPA, StagedCPA
from hushbit.lab.attacks.ballots import (
    attack_ballots,
    attack_bits,
    attack_updates,
    choose_attackers,
    random_payload,
)
from hushbit.lab.sim.image_task import task_without_data
from hushbit.lab.sim.models import build_model
from hushbit.lab.sim.optimizers import ConstantRate
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import ACCEPTED_OPTIONS, build_mechanism
from hushbit.lab.sim.training import LocalSettings
from hushbit.tuning.auto import AutoCPA
from hushbit.wire.coins import SimulationCoins
from hushbit.wire.keys import RoundKey
from hushbit.wrappers import NormVote, Rotated, Subset

MODEL = build_model("linear", (1, 3, 3), 7)
LOCAL = LocalSettings(ConstantRate(0.1))
DIM = MODEL.dim
TASK = task_without_data(MODEL)
KEY = RoundKey(bytes(32), 4)
USERS = np.arange(6)
ATTACKERS = np.array([False, True, False, True, True, False])


def mechanisms():
    for name, takes in ACCEPTED_OPTIONS.items():
        private = {"epsilon_per_bit": 1.0} if "epsilon_per_bit" in takes else {}
        gaussian = {"noise_multiplier": 1.0, "clip": 1.0}
        step = {"signsgd": {"sign_step": 0.1}, "gaussian": gaussian}.get(name, {})
        for rotate in (False, True) if "rotate" in takes else (False,):
            settings = Settings(mechanism=name, rotate=rotate, **private, **step)
            yield f"{name}{' rotated' if rotate else ''}", build_mechanism(settings, TASK, LOCAL)
    yield "nested 2,4,2", NestedCPA(DIM, 1.0, 0.1, stages=(2, 4, 2))
    yield "E8", CPA(DIM, 1.0, 0.1, lattice="E8", points=16)
    yield "subset", Subset(CPA(DIM, 1.0, 0.1), 5)
    yield "rotated subset", Rotated(Subset(CPA(DIM, 1.0, 0.1), 5))


CASES = dict(mechanisms())


def encode(mechanism, seed=1):
    updates = np.random.default_rng(0).normal(0, 0.02, (len(USERS), DIM)).astype(np.float32)
    return mechanism.encode_many(updates, KEY.users(USERS), SimulationCoins(seed))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("attack", ["ones", "flip"])
def test_attacked_ballots_are_valid_and_only_those_of_attackers_change(name, attack):
    mechanism = CASES[name]
    honest = encode(mechanism)
    attacked = attack_ballots(mechanism, honest, attack, ATTACKERS, seed=3)
    mechanism.tally(KEY, histogram=False).add_many(attacked)  # refuses invalid padding
    assert (attacked.payload[~ATTACKERS] == honest.payload[~ATTACKERS]).all()
    mask = None if mechanism.votes is None else mechanism.votes.mask()
    if mask is None:
        assert (attacked.payload == honest.payload).all()
    else:
        assert mask.shape == honest.payload.shape[1:]
        assert int(np.unpackbits(mask).sum()) == vote_count(mechanism)
        assert (attacked.payload[ATTACKERS] != honest.payload[ATTACKERS]).any(axis=1).all()


def vote_count(mechanism):
    if isinstance(mechanism, AutoCPA):
        mechanism = mechanism.inner
    if isinstance(mechanism, NormVote):
        return vote_count(mechanism.inner) + 1
    while isinstance(mechanism, Rotated):
        mechanism = mechanism.inner
    if isinstance(mechanism, Subset):
        return mechanism.report
    if isinstance(mechanism, StagedCPA):
        return mechanism.blocks * len(mechanism.stage_encoders)
    return mechanism.dim


def test_mechanisms_of_votes_are_attacked_in_their_payload():
    with_votes = {name for name, mechanism in CASES.items() if mechanism.votes is not None}
    assert {
        "cpa",
        "cpa rotated",
        "nested",
        "nested rotated",
        "nested 2,4,2",
        "E8",
        "subset",
        "rotated subset",
        "signsgd",
        "mvu",
    } <= with_votes
    assert not {"fedavg", "laplace", "jopeq"} & with_votes


def test_ones_are_ones_and_flips_are_fair():
    mechanism = CPA(4003, 1.0, 0.1)
    mask = mechanism.votes.mask()
    payload = np.zeros((64, mask.size), dtype=np.uint8)
    noise = random_payload(7, 0, np.arange(64), mask.size)
    ones = attack_bits("ones", payload, noise, mask)
    assert int(np.unpackbits(ones[0]).sum()) == 4003
    flipped = np.unpackbits(attack_bits("flip", payload, noise, mask), axis=1, bitorder="little")
    assert flipped[:, 4003:].sum() == 0
    # 256 192 fair bits: five standard deviations (of 253) either side of one half.
    assert abs(int(flipped.sum()) - 64 * 4003 / 2) < 5 * 253


def test_random_flips_depend_on_seed_round_and_user_alone():
    users = np.array([2, 9, 40])
    together = random_payload(1, 5, users, 33)
    separate = np.concatenate([random_payload(1, 5, users[i : i + 1], 33) for i in range(3)])
    assert (together == separate).all()
    assert (together[0] != together[1]).any()
    assert (together != random_payload(2, 5, users, 33)).any()
    assert (together != random_payload(1, 6, users, 33)).any()


def test_ones_and_flips_of_updates():
    updates = np.array([[1.0, -3.0, 2.0], [0.5, 0.0, -0.25]], dtype=np.float32)
    noise = np.array([[0b01000000], [0b10100000]], dtype=np.uint8)
    ones = attack_updates("ones", updates, noise)
    assert ones.tolist() == [[3.0] * 3, [0.5] * 3]
    flipped = attack_updates("flip", updates, noise)
    assert flipped.tolist() == [[1.0, 3.0, 2.0], [-0.5, 0.0, 0.25]]
    assert flipped.dtype == np.float32


@pytest.mark.parametrize(("users", "share", "count"), [(10, 0.2, 2), (1000, 0.3, 300), (3, 0, 0)])
def test_exactly_the_share_attacks(users, share, count):
    marked = choose_attackers(users, share, seed=5)
    assert (marked.size, marked.sum()) == (users, count)
    assert (marked == choose_attackers(users, share, seed=5)).all()
