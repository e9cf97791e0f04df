"""Crafted updates and directed ballots shift the mean as theory predicts."""

import dataclasses
import math
from statistics import NormalDist

import numpy as np
import pytest

from hushbit.baselines.fedavg import FedAvg
from hushbit.baselines.mvu import MVU
from hushbit.baselines.signsgd import SignRR
from hushbit.cpa import CPA, NestedCPA
from hushbit.encoding.words import all_words
from hushbit.errors import InvalidInput
from hushbit.lab.attacks import CRAFTED
from hushbit.lab.attacks.adaptive import (
    DECAY,
    LIMIT_SIGMAS,
    NATURAL_SHARE,
    SPLIT_RATE,
    TOLERATED_SHARE,
    allowed_score,
    is_split,
    is_unimodal,
    lagging_share,
    largest_hidden_shift,
)
from hushbit.lab.attacks.updates import alie_z, craft_updates, honest_norm
from hushbit.lab.attacks.view import AttackerView
from hushbit.mechanism import HonestMean
from hushbit.wire.coins import SeededCoins
from hushbit.wrappers import NormVote, Rotated, Subset
from lab.attacks.directed_ballots import (
    DIM,
    KEY,
    MEAN,
    UPDATES,
    USERS,
    directed_ballots,
    mean_of,
)

VIEW = AttackerView(
    UPDATES.mean(axis=0, dtype=np.float64), UPDATES.std(axis=0, dtype=np.float64), 500, 50
)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, math.inf])
def test_directed_attackers_shift_every_entry_by_radius_over_beta(epsilon):
    mechanism = CPA(DIM, epsilon, 0.02)
    shifted = mean_of(mechanism, directed_ballots(mechanism, -MEAN))
    beta = float(mechanism.stage_encoders[0].response.beta)
    assert np.allclose(shifted, -np.sign(MEAN) * 0.02 / beta, rtol=1e-12)


@pytest.mark.parametrize("points", [4, 8])
def test_directed_attackers_shift_by_the_mean_absolute_word(points):
    mechanism = CPA(DIM, 0.5, 0.02, points=points)
    stage = mechanism.stage_encoders[0]
    decoded = all_words("hadamard", points) @ stage.points.positions[:, 0]
    gain = 1 / float(stage.response.beta * (1 - stage.rho))
    shifted = mean_of(mechanism, directed_ballots(mechanism, -MEAN))
    predicted = gain * float(np.abs(decoded).mean())
    # 15 000 words; five standard errors of their mean.
    error = 5 * gain * float(np.abs(decoded).std()) / math.sqrt(USERS * DIM)
    assert abs(float((shifted * -np.sign(MEAN)).mean()) - predicted) < error


@pytest.mark.parametrize(
    "mechanism",
    [
        CPA(DIM, 0.5, 0.02),
        Rotated(CPA(DIM, 0.5, 0.02)),
        NestedCPA(DIM, 0.5, 0.02, stages=(2, 4)),
        CPA(DIM, 0.5, 0.03, lattice="E8", points=16),
        CPA(DIM, 0.5, 0.02, points=3, words="uniform"),
        Subset(CPA(DIM, 0.5, 0.02), 100),
        SignRR(DIM, 0.5, 0.01),
        MVU(DIM, 0.5, 0.02),
    ],
)
def test_no_other_bits_shift_further(mechanism):
    ballots = directed_ballots(mechanism, -MEAN)
    best = float(mean_of(mechanism, ballots) @ -MEAN)
    assert best > 0
    rng = np.random.default_rng(1)
    for _ in range(5):
        other = mechanism.encode_many(
            rng.normal(0, 0.02, (USERS, DIM)) - MEAN, KEY.users(np.arange(USERS)), SeededCoins(2)
        )
        assert float(mean_of(mechanism, other) @ -MEAN) < best


def test_a_fifth_of_directed_attackers_reverse_the_mean():
    mechanism = CPA(DIM, 0.5, 0.03)
    ballots = directed_ballots(mechanism, -MEAN, users=100)
    rng = np.random.default_rng(2)
    honest = (MEAN + rng.normal(0, 0.01, (400, DIM))).astype(np.float32)
    sent = mechanism.encode_many(honest, KEY.users(np.arange(100, 500)), SeededCoins(1))
    tally = mechanism.tally(KEY, histogram=False)
    tally.add_many(ballots)
    tally.add_many(sent)
    found = mechanism.estimate(tally).mean
    truth = honest.mean(axis=0)
    cosine = found @ truth / np.linalg.norm(found) / np.linalg.norm(truth)
    assert cosine < -0.6


def test_constant_bits_have_mean_zero_over_balanced_words():
    for points in (2, 4, 8):
        assert (all_words("hadamard", points).sum(axis=0) == 0).all()


def test_crafted_updates_follow_their_definitions():
    mechanism = CPA(DIM, 0.5, 0.02, clip=0.2)
    own = UPDATES[:8]
    crafted = {name: craft_updates(name, own, VIEW, mechanism, 3) for name in CRAFTED}
    unit = VIEW.mean / np.linalg.norm(VIEW.mean)
    assert np.allclose(crafted["scaled"], -20 * own)
    assert np.allclose(crafted["inner-product"], -VIEW.mean, atol=1e-7)
    assert np.allclose(crafted["directed-stealth"] @ unit, -0.4, rtol=1e-5)
    assert np.allclose(crafted["little"], VIEW.mean - alie_z(500, 50) * VIEW.spread, atol=1e-6)
    lengths = np.linalg.norm(crafted["adaptive"], axis=1)
    assert (lengths <= 0.2 * (1 + 1e-6)).all()  # within the clip
    assert np.allclose(crafted["adaptive"] @ unit, -lengths, rtol=1e-4, atol=1e-6)
    sybils = crafted["sybils"]
    assert np.allclose(sybils[0], sybils[4])
    assert not np.allclose(sybils[0], sybils[1])
    assert np.allclose(np.linalg.norm(sybils, axis=1), 0.4, rtol=1e-5)
    assert ((sybils @ unit) < 0).all()
    assert np.allclose(crafted["mirror"] @ unit, -own @ unit, atol=1e-6)
    beside = np.eye(DIM) - np.outer(unit, unit)
    assert np.allclose(crafted["mirror"] @ beside, own @ beside, atol=1e-6)
    assert np.allclose(450 * VIEW.mean + 50 * crafted["cancel"], 0, atol=1e-5)
    assert np.allclose(crafted["decoys"][0::2] @ unit, -0.4, rtol=1e-5)
    sigma = mechanism.votes.scale.noise
    assert np.allclose(crafted["decoys"][1::2] @ unit, -4.5 * sigma, rtol=1e-5)
    assert np.allclose(crafted["two-coalitions"][0::2] @ unit, -0.4, rtol=1e-5)
    assert np.allclose(crafted["two-coalitions"][1::2] @ unit, 0, atol=1e-6)
    assert np.allclose(crafted["fresh-identities"] @ unit, -0.2, rtol=1e-5)


def test_attacks_that_change_over_rounds():
    mechanism, own = CPA(DIM, 0.5, 0.02, clip=0.2), UPDATES[:8]
    unit = VIEW.mean / np.linalg.norm(VIEW.mean)
    views = [dataclasses.replace(VIEW, round=number) for number in (14, 15)]
    asleep, awake = (craft_updates("sleepers", own, view, mechanism, 3) for view in views)
    assert (asleep == own).all()
    assert np.allclose(awake @ unit, -0.4, rtol=1e-5)
    rows = [craft_updates("rotating", own, view, mechanism, 3) for view in views]
    assert not np.allclose(*rows)
    for row in rows:
        assert np.allclose(np.linalg.norm(row, axis=1), 0.4, rtol=1e-5)
        assert np.allclose(row @ unit, -0.4 / math.sqrt(2), rtol=1e-5)


def test_inner_product_shortens_the_mean_by_twice_the_share():
    crafted = craft_updates("inner-product", UPDATES[:10], VIEW, CPA(DIM, 0.5, 0.02), 0)
    everyone = np.concatenate([np.tile(VIEW.mean, (30, 1)), crafted])
    assert np.allclose(everyone.mean(axis=0), (1 - 2 * 0.25) * VIEW.mean, atol=1e-8)


def test_the_encoder_without_clip_differs_in_the_clip_alone():
    for mechanism in (
        CPA(DIM, 0.5, 0.02, clip=0.1),
        Rotated(CPA(DIM, 0.5, 0.02, clip=0.1)),
        Subset(CPA(DIM, 0.5, 0.02, clip=0.1), 40),
        NormVote(Rotated(CPA(DIM, 0.5, 0.02, clip=0.1)), 1e9, 0.5),
    ):
        free = mechanism.with_clip(None)
        short, long = 0.001 * UPDATES, 50 * UPDATES
        keys = KEY.users(np.arange(USERS))
        same = [m.encode_many(short, keys, SeededCoins(4)).payload for m in (mechanism, free)]
        other = [m.encode_many(long, keys, SeededCoins(4)).payload for m in (mechanism, free)]
        assert (same[0] == same[1]).all()
        assert (other[0] != other[1]).any()
        assert free.payload_bits == mechanism.payload_bits


def test_the_honest_norm_is_the_clip_or_the_norm_of_honest_updates():
    expected = math.sqrt(float(VIEW.mean @ VIEW.mean + VIEW.spread @ VIEW.spread))
    assert honest_norm(SignRR(DIM, 0.5, 0.1), VIEW) == pytest.approx(expected)
    assert honest_norm(CPA(DIM, 0.5, 0.02, clip=0.2), VIEW) == 0.2


def test_unknown_attacks_are_refused():
    with pytest.raises(InvalidInput):
        craft_updates("nice", UPDATES, VIEW, CPA(DIM, 0.5, 0.02), 0)


def test_the_adaptive_shift_stays_within_the_limits_of_the_assumed_defence():
    allowed = allowed_score(0.2)
    decayed = DECAY ** np.arange(2000)
    depth = allowed * decayed.sum() / math.sqrt((decayed**2).sum())
    # Noise moves as many of the coalition below the limit as are tolerated.
    assert NormalDist().cdf(depth - LIMIT_SIGMAS) * 0.2 == pytest.approx(TOLERATED_SHARE, rel=1e-3)
    for length, honest_spread in ((4.0, 0.0), (1.0, 2.0), (0.2, 3.0)):
        shift = largest_hidden_shift(length, honest_spread, 0.2, 1000, 7850)
        assert is_unimodal(length + shift, honest_spread, 0.2, 1000)
        left = 0.8 * length - 0.2 * shift
        assert -shift * left / math.sqrt(left**2 + 7.85) >= -allowed - 1e-9
    assert largest_hidden_shift(9.0, 0.0, 0.2, 1000, 7850) == 0.0  # bimodal without a shift


def test_two_groups_are_unimodal_up_to_two_standard_deviations():
    for honest_spread in (0.0, 4.0):
        spread = math.hypot(1, honest_spread)
        # The sum of two Gaussians at this distance is unimodal.
        assert is_unimodal(2 * spread, honest_spread, 0.2, 1000)
        assert not is_unimodal(max(8.0, 5 * spread), honest_spread, 0.2, 1000)


def defined_split(scores):
    """`is_split` window by window."""
    users, low, natural_size = len(scores), scores.min(), int(NATURAL_SHARE * len(scores))
    bins = int(scores.max() - low) + 1
    found = False
    for width in (4, 8, 16):

        def count(first, width=width):
            return int(((scores - low >= first) & (scores - low < first + width)).sum())

        for b in range(width, bins - 2 * width + 1):
            inside, side = count(b), max(map(count, range(b - width + 1)))
            side = min(side, max(map(count, range(b + width, bins - width + 1))))
            below = int((scores - low < b + width // 2).sum())
            gap = math.sqrt(2 * math.log(3 * bins**2 / SPLIT_RATE) * max(side + inside, 1))
            found |= side - inside > gap and min(below, users - below) > natural_size
    return found


def test_splits_follow_their_definition():
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        users = int(rng.integers(100, 400))
        moved = rng.uniform(0, 20) * (np.arange(users) < rng.uniform(0.1, 0.5) * users)
        scores = rng.normal(size=users) * rng.uniform(0.5, 2.5) - moved
        found.append(is_split(scores))
        assert found[-1] == defined_split(scores), seed
    assert 15 < sum(found) < 45


def test_more_users_lag_behind_where_entries_are_larger():
    assert lagging_share(0.1) == lagging_share(math.tanh(0.25)) == NATURAL_SHARE
    assert lagging_share(2 * math.tanh(0.25)) == pytest.approx(NATURAL_SHARE * 2**0.6)


def test_the_adaptive_attack_on_the_drift_direction_is_the_allowed_score():
    mechanism = CPA(DIM, 0.5, 0.02, clip=0.2)
    drift_direction = np.zeros(DIM)
    drift_direction[0] = 3.0
    view = dataclasses.replace(
        VIEW, honest_mean=HonestMean(VIEW.mean, 0.0), drift_direction=drift_direction
    )
    crafted = craft_updates("adaptive", UPDATES[:5], view, mechanism, 0)
    sigma = mechanism.votes.scale.noise
    allowed = allowed_score(VIEW.attackers / VIEW.users, NATURAL_SHARE)
    assert np.allclose(crafted[:, 0], -allowed * sigma, rtol=1e-5)
    assert (crafted[:, 1:] @ VIEW.mean[1:] < 0).all()
    wide = dataclasses.replace(view, honest_mean=HonestMean(VIEW.mean, 3 * sigma))
    along = craft_updates("adaptive", UPDATES, wide, mechanism, 0)[:, 1:] @ VIEW.mean[1:]
    spread = float(along.std() / np.linalg.norm(VIEW.mean[1:]) / sigma)
    assert spread == pytest.approx(3.0, rel=0.2)  # the honest spread


def test_the_expected_mean_is_that_of_ballots_which_the_points_clip():
    rng = np.random.default_rng(2)
    updates = rng.normal(0.01, 0.03, (600, 64)).astype(np.float32)
    for mechanism in (CPA(64, math.inf, 0.02), Rotated(CPA(64, math.inf, 0.02, clip=0.2))):
        expected = mechanism.votes.expected_mean(updates, KEY)
        ballots = mechanism.encode_many(updates, KEY.users(np.arange(600)), SeededCoins(1))
        tally = mechanism.tally(KEY)
        tally.add_many(ballots)
        error = mechanism.estimate(tally).mean - expected.mean
        assert np.abs(error).max() < 5 * 0.02 / math.sqrt(600)  # a bit's noise is below the radius
        assert 0 < expected.honest_spread < 0.02 * 8
    assert FedAvg(64).votes is None
