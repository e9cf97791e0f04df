"""The filter keeps honest users of any data and removes coalitions in one round."""

import dataclasses
import math

import numpy as np
import pytest

from hushbit.cpa import CPA, NestedCPA
from hushbit.defence.filter import filtered_tally
from hushbit.defence.rules import SCORE_VARIANCE, FilterRule
from hushbit.errors import HushbitError, InvalidInput, RefusedBallot
from hushbit.lab.attacks.ballots import attack_ballots
from hushbit.lab.attacks.updates import AttackerView, craft_updates
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey
from hushbit.wrappers import NormVote, Rotated, Subset

KEY = RoundKey(b"f" * 32, 2)
DIM, USERS, CLIP = 2000, 400, 1.0
RADIUS = 2 * CLIP / math.sqrt(DIM)
MECHANISM = CPA(DIM, 0.5, RADIUS, clip=CLIP)


def filter_ballots(mechanism, ballots, key):
    """The result of the filter on the ballots of one round."""
    return filtered_tally(mechanism, ballots, key)[1]


def honest_updates(kind, seed=0, users=USERS, dim=DIM):
    """Updates of norm 1: unstructured, all equal, of ten kinds, or with a common mean."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(users, dim))
    if kind == "equal":
        noise = np.broadcast_to(noise[0], noise.shape)
    if kind == "classes":
        noise = noise[rng.integers(0, 10, users)] + 0.3 * noise
    if kind == "common mean":
        noise = noise + 0.5 * rng.normal(size=dim)
    return (noise / np.linalg.norm(noise, axis=1, keepdims=True)).astype(np.float32)


def encode(mechanism, updates, attack=None, attackers=0.0, seed=1):
    count = round(attackers * len(updates))
    keys = KEY.users(np.arange(len(updates)))
    ballots = mechanism.encode_many(updates, keys, SeededCoins(seed))
    if not count:
        return ballots
    rest = updates[count:]
    view = AttackerView(
        rest.mean(axis=0, dtype=np.float64), rest.std(axis=0, dtype=np.float64), len(updates), count
    )
    crafted = craft_updates(attack, updates[:count], view, mechanism, 0)
    encoder = mechanism if attack == "adaptive" else mechanism.with_clip(None)
    sent = encoder.encode_many(crafted, keys[:count], SeededCoins(seed + 1))
    attack_payload = sent.payload
    if attack == "directed":
        attack_payload = mechanism.votes.payload_towards(-view.mean, sent, keys[:count])
    payload = ballots.payload.copy()
    payload[:count] = attack_payload
    return dataclasses.replace(ballots, payload=payload)


@pytest.mark.parametrize("kind", ["unstructured", "equal", "classes", "common mean"])
def test_honest_users_stay(kind):
    for seed in range(3):
        result = filter_ballots(MECHANISM, encode(MECHANISM, honest_updates(kind, seed)), KEY)
        assert result.removed == 0


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
def test_users_of_ten_kinds_stay_at_any_epsilon(epsilon):
    sharp = CPA(DIM, epsilon, RADIUS, clip=CLIP)
    for seed in range(2):
        updates = honest_updates("classes", seed)
        assert filter_ballots(sharp, encode(sharp, updates, seed=seed), KEY).removed == 0


@pytest.mark.parametrize("kind", ["common mean", "classes"])
@pytest.mark.parametrize("attack", ["directed", "directed-stealth"])
@pytest.mark.parametrize("share", [0.3, 0.45])
def test_attackers_above_the_maximum_score_are_removed_and_nobody_else(kind, attack, share):
    result = filter_ballots(MECHANISM, encode(MECHANISM, honest_updates(kind), attack, share), KEY)
    count = round(share * USERS)
    assert (~result.accepted[:count]).mean() > 0.97
    assert (~result.accepted[count:]).mean() <= 0.01


@pytest.mark.parametrize(
    "mechanism",
    [
        Rotated(CPA(600, 0.5, 0.08, clip=1.0)),
        CPA(600, 1.0, 0.08, points=4, clip=1.0),
        NestedCPA(600, 0.5, 0.08, stages=(2, 2), clip=1.0),
        CPA(1600, 1.0, 0.15, lattice="E8", points=16, clip=1.0),
        Subset(CPA(600, 2.0, 0.08, clip=1.0), 300),
        NormVote(Rotated(CPA(600, 0.5, 0.08, clip=1.0)), 1.0, 0.5),
        NormVote(CPA(603, 0.5, 0.08), 1.0, 0.5),
    ],
)
def test_the_filter_works_with_every_mechanism_of_votes(mechanism):
    # A split takes some fifty attackers; of E8 two thirds are removed for biased bits before.
    users = 480 if mechanism.payload_bits == 200 else 120
    count = 2 * users // 5
    updates = honest_updates("common mean", users=users, dim=mechanism.dim)
    assert filter_ballots(mechanism, encode(mechanism, updates), KEY).removed == 0
    attacked = encode(mechanism, updates, "directed", 0.4)
    tally, result = filtered_tally(mechanism, attacked, KEY)
    assert (~result.accepted[:count]).mean() > 0.95
    assert result.accepted[count:].mean() > 0.98
    plain = mechanism.tally(KEY, histogram=False)
    plain.add_many([attacked[int(i)] for i in np.flatnonzero(result.accepted)])
    assert tally.count == users - result.removed
    assert all((tally.counters[n] == plain.counters[n]).all() for n in plain.counters)


def test_the_tally_without_attackers_is_the_plain_one():
    ballots = encode(MECHANISM, honest_updates("classes"))
    tally, _ = filtered_tally(MECHANISM, ballots, KEY)
    plain = MECHANISM.tally(KEY, histogram=False)
    plain.add_many(ballots)
    assert (MECHANISM.estimate(tally).mean == MECHANISM.estimate(plain).mean).all()
    assert (tally.voters.users() == plain.voters.users()).all()


def test_invalid_ballots_are_refused_as_by_a_tally():
    ballots = encode(MECHANISM, honest_updates("equal", users=30))
    twice = dataclasses.replace(ballots, users=np.zeros(30, dtype=np.uint64))
    other = dataclasses.replace(ballots, fingerprint=bytes(8))
    for wrong in (twice, other, dataclasses.replace(ballots, round=9)):
        with pytest.raises(RefusedBallot):
            filtered_tally(MECHANISM, wrong, KEY)


def test_the_maximum_score_applies_to_the_drift_direction():
    """3 % of the users push against the drift direction alone: too few for the rules of groups."""
    drift_direction = np.zeros(DIM)
    drift_direction[: DIM // 2] = 1.0
    ballots = encode(MECHANISM, honest_updates("common mean"))
    few = np.arange(USERS) < 12
    sent = MECHANISM.votes.payload_towards(-drift_direction, ballots[:12], KEY.users(np.arange(12)))
    noise = np.unpackbits(ballots.payload[:12], axis=1, bitorder="little")
    noise[:, : DIM // 2] = np.unpackbits(sent, axis=1, bitorder="little")[:, : DIM // 2]
    payload = ballots.payload.copy()
    payload[:12] = np.packbits(noise, axis=1, bitorder="little")
    attacked = dataclasses.replace(ballots, payload=payload)
    history = filtered_tally(MECHANISM, ballots, KEY, drift_direction=drift_direction)[1].history
    for earlier in (None, history):  # apply_rules, and apply_rules_fast
        _, result = filtered_tally(
            MECHANISM, attacked, KEY, history=earlier, drift_direction=drift_direction
        )
        assert (~result.accepted == few).all()
        _, result = filtered_tally(
            MECHANISM, ballots, KEY, history=earlier, drift_direction=drift_direction
        )
        assert result.removed == 0


def test_a_majority_is_never_removed():
    result = filter_ballots(
        MECHANISM, encode(MECHANISM, honest_updates("common mean"), "directed", 0.8), KEY
    )
    assert result.accepted.sum() * 2 >= USERS


def test_few_users_are_not_filtered():
    ballots = encode(MECHANISM, honest_updates("equal", users=10), "directed", 0.4)
    assert filter_ballots(MECHANISM, ballots, KEY).removed == 0


def test_the_slack_follows_from_the_rate():
    rule = FilterRule(rate=0.01, max_iterations=5)
    z = rule.slack(1000)
    assert 2 * 1000 * 10 * math.exp(-(z**2) / 2 / SCORE_VARIANCE) == pytest.approx(0.01)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0.0},
        {"rate": "x"},
        {"natural_share": 1.5},
        {"natural_share": math.nan},
        {"max_iterations": 0},
        {"max_iterations": True},
        {"decay": 1.0},
        {"tail_share": 0.0},
    ],
)
def test_wrong_rules_are_refused(wrong):
    with pytest.raises(InvalidInput):
        FilterRule(**wrong)
    assert issubclass(InvalidInput, HushbitError)


def test_biased_bits_are_removed():
    ballots = encode(MECHANISM, honest_updates("classes"))
    biased = attack_ballots(MECHANISM, ballots, "ones", np.arange(USERS) < 120, 0)
    result = filter_ballots(MECHANISM, biased, KEY)
    assert result.biased == result.removed == 120
    assert not result.accepted[:120].any()
