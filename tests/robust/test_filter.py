"""The filter: honest users stay whatever their data, colluders go; thresholds from theory."""

import dataclasses
import math
from statistics import NormalDist

import numpy as np
import pytest

from hushbit import CPA, NestedCPA, Rotated, RoundKey, SeededCoins, Subset
from hushbit.errors import HushbitError, InvalidInput, RefusedBallot
from hushbit.fl.attacks import cast_attacked
from hushbit.robust.attacks import View, against_clip, craft, directed_bits
from hushbit.robust.filter import filter_ballots
from hushbit.robust.filtered import filtered_estimate, filtered_tally
from hushbit.robust.pulls import noise_size
from hushbit.robust.rules import SCORE_VARIANCE, Rule, split

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
    CPA(600, 1.0, 0.25, lattice="E8", points=16, clip=1.0),
    Subset(CPA(600, 2.0, 0.08, clip=1.0), 300),
])  # fmt: skip
def test_every_mechanism_of_bits_is_served(mechanism):
    updates = honest_updates("common mean", users=120, dim=600)
    assert filter_ballots(mechanism, cast(mechanism, updates), KEY).removed == 0
    attacked = cast(mechanism, updates, "directed", 0.3)
    tally, verdict = filtered_tally(mechanism, attacked, KEY)
    assert (~verdict.accepted[:36]).mean() > 0.95
    assert verdict.accepted[36:].mean() > 0.98
    plain = mechanism.tally(KEY, histogram=False)
    plain.add_many([attacked[int(i)] for i in np.flatnonzero(verdict.accepted)])
    assert tally.count == 120 - verdict.removed
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


def test_split_cuts_between_the_groups():
    values = np.concatenate([np.full(70, 1.0), np.full(30, -9.0)])
    assert split(values) == -4.0


@pytest.mark.parametrize("wrong", [
    {"rate": 0.0}, {"rate": "x"}, {"share": 1.5}, {"explained": math.nan}, {"looks": 0},
    {"looks": True}, {"memory": 1.0}, {"tail": 0.0},
])  # fmt: skip
def test_wrong_rules_are_refused(wrong):
    with pytest.raises(InvalidInput):
        Rule(**wrong)
    assert issubclass(InvalidInput, HushbitError)


@pytest.mark.parametrize("share", [0.2, 0.3])
def test_whoever_stays_moves_the_estimate_no_further_than_the_median(share):
    """Honest users spread by 3 noises; colluders at 8, where no rule tells them from the rest."""
    rng, users, dim = np.random.default_rng(5), 1000, 2000
    mechanism = CPA(dim, 1.0, RADIUS, clip=CLIP)
    sigma = noise_size(mechanism)
    axis = rng.normal(size=dim)
    axis /= np.linalg.norm(axis)
    place = np.clip(rng.normal(0.0, 3.0, users), -10, 10)
    place[: round(share * users)] = -8.0
    updates = (np.outer(place, axis) * sigma).astype(np.float32)
    ballots = mechanism.encode_many(updates, KEY.users(np.arange(users)), SeededCoins(1))
    tally, verdict = filtered_tally(mechanism, ballots, KEY)
    plain = mechanism.tally(KEY, histogram=False)
    plain.add_many(ballots)
    honest = place[round(share * users) :]
    without = float(mechanism.estimate(plain).mean @ axis) / sigma
    found = filtered_estimate(mechanism, tally, verdict)
    moved = abs(float(found.mean @ axis) / sigma - honest.mean())
    # Honest scores have a spread of sqrt(9 + 1..2) noises; the quantile of the median's bound,
    # and five standard errors of a median of 1000.
    bound = NormalDist().inv_cdf(0.5 / (1 - share)) * math.sqrt(11)
    assert moved < bound + 5 * 1.25 * math.sqrt(11 / users)
    assert verdict.removed < 0.02 * users
    assert moved < 0.85 * abs(without - honest.mean())
    assert not found.unbiased


def test_without_structure_the_estimate_is_the_plain_one():
    ballots = cast(MECHANISM, honest_updates("unstructured"))
    tally, verdict = filtered_tally(MECHANISM, ballots, KEY)
    assert verdict.shift is None
    found = filtered_estimate(MECHANISM, tally, verdict)
    assert (found.mean == MECHANISM.estimate(tally).mean).all()
    assert found.unbiased


def test_the_median_is_turned_back_with_the_mean():
    updates = honest_updates("classes")
    sharp = CPA(DIM, 2.0, RADIUS, clip=CLIP)
    for mechanism in (sharp, Rotated(sharp)):
        tally, verdict = filtered_tally(mechanism, cast(mechanism, updates), KEY)
        assert verdict.removed == 0
        assert verdict.shift is not None
        moved = filtered_estimate(mechanism, tally, verdict).mean - mechanism.estimate(tally).mean
        length = noise_size(sharp) * float(np.linalg.norm(verdict.shift))
        assert float(np.linalg.norm(moved)) == pytest.approx(length)


def test_bits_that_are_no_coins_are_removed():
    ballots = cast(MECHANISM, honest_updates("classes"))
    loaded = cast_attacked(MECHANISM, ballots, "ones", np.arange(USERS) < 120, 0)
    verdict = filter_ballots(MECHANISM, loaded, KEY)
    assert verdict.coins == verdict.removed == 120
    assert not verdict.accepted[:120].any()
