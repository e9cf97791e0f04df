"""The filter: honest users stay whatever their data, colluders go; thresholds from theory."""

import dataclasses
import math

import numpy as np
import pytest

from hushbit import CPA, NestedCPA, Rotated, RoundKey, SeededCoins, Subset
from hushbit.errors import HushbitError, InvalidInput, RefusedBallot
from hushbit.fl.attacks import cast_attacked
from hushbit.robust.attacks import craft
from hushbit.robust.filter import filter_ballots
from hushbit.robust.filtered import filtered_tally
from hushbit.robust.forged import against_clip, directed_bits
from hushbit.robust.rules import SCORE_VARIANCE, Rule
from hushbit.robust.view import View
from hushbit.tuning.norm_vote import NormVote

KEY = RoundKey(b"f" * 32, 2)
DIM, USERS, CLIP = 2000, 400, 1.0
RADIUS = 2 * CLIP / math.sqrt(DIM)
MECHANISM = CPA(DIM, 0.5, RADIUS, clip=CLIP)


def honest_updates(kind, seed=0, users=USERS, dim=DIM):
    """Updates of norm 1: unstructured, all alike, or each of one of ten kinds."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(users, dim))
    if kind == "alike":
        noise = np.broadcast_to(noise[0], noise.shape)
    if kind == "classes":
        noise = noise[rng.integers(0, 10, users)] + 0.3 * noise
    if kind == "common mean":
        noise = noise + 0.5 * rng.normal(size=dim)
    return (noise / np.linalg.norm(noise, axis=1, keepdims=True)).astype(np.float32)


def cast(mechanism, updates, attack=None, attackers=0.0, seed=1):
    count = round(attackers * len(updates))
    keys = KEY.users(np.arange(len(updates)))
    ballots = mechanism.encode_many(updates, keys, SeededCoins(seed))
    if not count:
        return ballots
    rest = updates[count:]
    view = View(
        rest.mean(axis=0, dtype=np.float64), rest.std(axis=0, dtype=np.float64), len(updates), count
    )
    made = craft(attack, updates[:count], view, mechanism, 0)
    encoder = mechanism if attack == "adaptive" else against_clip(mechanism)
    sent = encoder.encode_many(made, keys[:count], SeededCoins(seed + 1))
    part = sent.payload
    if attack == "directed":
        part = directed_bits(mechanism, sent, keys[:count], -view.mean)
    payload = ballots.payload.copy()
    payload[:count] = part
    return dataclasses.replace(ballots, payload=payload)


@pytest.mark.parametrize("kind", ["unstructured", "alike", "classes", "common mean"])
def test_honest_users_stay(kind):
    for seed in range(3):
        verdict = filter_ballots(MECHANISM, cast(MECHANISM, honest_updates(kind, seed)), KEY)
        assert verdict.removed == 0


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
def test_users_of_ten_kinds_stay_however_clearly_they_differ(epsilon):
    sharp = CPA(DIM, epsilon, RADIUS, clip=CLIP)
    for seed in range(2):
        updates = honest_updates("classes", seed)
        assert filter_ballots(sharp, cast(sharp, updates, seed=seed), KEY).removed == 0


@pytest.mark.parametrize("kind", ["common mean", "classes"])
@pytest.mark.parametrize("attack", ["directed", "directed-stealth"])
@pytest.mark.parametrize("share", [0.3, 0.45])
def test_colluders_beyond_the_reach_go_and_nobody_else(kind, attack, share):
    verdict = filter_ballots(MECHANISM, cast(MECHANISM, honest_updates(kind), attack, share), KEY)
    count = round(share * USERS)
    assert (~verdict.accepted[:count]).mean() > 0.97
    assert (~verdict.accepted[count:]).mean() <= 0.01


@pytest.mark.parametrize("mechanism", [
    Rotated(CPA(600, 0.5, 0.08, clip=1.0)),
    CPA(600, 1.0, 0.08, points=4, clip=1.0),
    NestedCPA(600, 0.5, 0.08, stages=(2, 2), clip=1.0),
    CPA(1600, 1.0, 0.15, lattice="E8", points=16, clip=1.0),
    Subset(CPA(600, 2.0, 0.08, clip=1.0), 300),
    NormVote(Rotated(CPA(600, 0.5, 0.08, clip=1.0)), 1.0, 0.5),
    NormVote(CPA(603, 0.5, 0.08), 1.0, 0.5),
])  # fmt: skip
def test_every_mechanism_of_bits_is_served(mechanism):
    # A valley takes some fifty attackers; of E8 two thirds go as loaded coins before.
    users = 480 if mechanism.payload_bits == 200 else 120
    count = 2 * users // 5
    updates = honest_updates("common mean", users=users, dim=mechanism.dim)
    assert filter_ballots(mechanism, cast(mechanism, updates), KEY).removed == 0
    attacked = cast(mechanism, updates, "directed", 0.4)
    tally, verdict = filtered_tally(mechanism, attacked, KEY)
    assert (~verdict.accepted[:count]).mean() > 0.95
    assert verdict.accepted[count:].mean() > 0.98
    plain = mechanism.tally(KEY, histogram=False)
    plain.add_many([attacked[int(i)] for i in np.flatnonzero(verdict.accepted)])
    assert tally.count == users - verdict.removed
    assert all((tally.counters[n] == plain.counters[n]).all() for n in plain.counters)


def test_the_tally_without_attack_is_the_plain_one():
    ballots = cast(MECHANISM, honest_updates("classes"))
    tally, _ = filtered_tally(MECHANISM, ballots, KEY)
    plain = MECHANISM.tally(KEY, histogram=False)
    plain.add_many(ballots)
    assert (MECHANISM.estimate(tally).mean == MECHANISM.estimate(plain).mean).all()
    assert (tally.roll.users() == plain.roll.users()).all()


def test_illegal_ballots_are_refused_as_by_a_tally():
    ballots = cast(MECHANISM, honest_updates("alike", users=30))
    twice = dataclasses.replace(ballots, users=np.zeros(30, dtype=np.uint64))
    other = dataclasses.replace(ballots, fingerprint=bytes(8))
    for wrong in (twice, other, dataclasses.replace(ballots, round=9)):
        with pytest.raises(RefusedBallot):
            filtered_tally(MECHANISM, wrong, KEY)


def test_nobody_scores_beyond_the_reach_on_the_way_of_the_model():
    """Three in a hundred who are against nothing but the way: too few for any rule of groups."""
    way = np.zeros(DIM)
    way[: DIM // 2] = 1.0
    ballots = cast(MECHANISM, honest_updates("common mean"))
    few = np.arange(USERS) < 12
    sent = directed_bits(MECHANISM, ballots[:12], KEY.users(np.arange(12)), -way)
    noise = np.unpackbits(ballots.payload[:12], axis=1, bitorder="little")
    noise[:, : DIM // 2] = np.unpackbits(sent, axis=1, bitorder="little")[:, : DIM // 2]
    payload = ballots.payload.copy()
    payload[:12] = np.packbits(noise, axis=1, bitorder="little")
    attacked = dataclasses.replace(ballots, payload=payload)
    memory = filtered_tally(MECHANISM, ballots, KEY, way=way)[1].memory
    for earlier in (None, memory):  # rule by rule, and compiled
        _, verdict = filtered_tally(MECHANISM, attacked, KEY, memory=earlier, way=way)
        assert (~verdict.accepted == few).all()
        _, verdict = filtered_tally(MECHANISM, ballots, KEY, memory=earlier, way=way)
        assert verdict.removed == 0


def test_a_majority_is_never_removed():
    verdict = filter_ballots(
        MECHANISM, cast(MECHANISM, honest_updates("common mean"), "directed", 0.8), KEY
    )
    assert verdict.accepted.sum() * 2 >= USERS


def test_few_users_are_left_alone():
    ballots = cast(MECHANISM, honest_updates("alike", users=10), "directed", 0.4)
    assert filter_ballots(MECHANISM, ballots, KEY).removed == 0


def test_the_slack_is_hoeffdings():
    rule = Rule(rate=0.01, looks=5)
    z = rule.slack(1000)
    assert 2 * 1000 * 10 * math.exp(-(z**2) / 2 / SCORE_VARIANCE) == pytest.approx(0.01)


@pytest.mark.parametrize("wrong", [
    {"rate": 0.0}, {"rate": "x"}, {"share": 1.5}, {"share": math.nan}, {"looks": 0},
    {"looks": True}, {"memory": 1.0}, {"tail": 0.0},
])  # fmt: skip
def test_wrong_rules_are_refused(wrong):
    with pytest.raises(InvalidInput):
        Rule(**wrong)
    assert issubclass(InvalidInput, HushbitError)


def test_bits_that_are_no_coins_are_removed():
    ballots = cast(MECHANISM, honest_updates("classes"))
    loaded = cast_attacked(MECHANISM, ballots, "ones", np.arange(USERS) < 120, 0)
    verdict = filter_ballots(MECHANISM, loaded, KEY)
    assert verdict.coins == verdict.removed == 120
    assert not verdict.accepted[:120].any()
