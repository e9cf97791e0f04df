"""Unmasked ballots: the kernels equal what one ballot alone decodes to."""

import dataclasses

import numpy as np
import pytest

from hushbit import CPA, NestedCPA, Rotated, RoundKey, SeededCoins, Subset
from hushbit.baselines import MVU, FedAvg, SignRR
from hushbit.errors import InvalidInput
from hushbit.robust.bits import count_ones
from hushbit.robust.pulls import (
    DecodedPulls,
    PackedPulls,
    largest_norm,
    noise_size,
    rounded,
    unmask,
)

KEY = RoundKey(b"k" * 32, 5)
USERS = 40


def ballots_of(mechanism, seed=0):
    updates = np.random.default_rng(seed).normal(0, 0.01, (USERS, mechanism.dim))
    return mechanism.encode_many(updates, KEY.users(np.arange(USERS)), SeededCoins(1))


def decoded(mechanism, ballots):
    inner = mechanism.inner if isinstance(mechanism, Rotated) else mechanism
    ballots = dataclasses.replace(ballots, fingerprint=inner.fingerprint)
    rows = []
    for user in range(USERS):
        tally = inner.tally(KEY, histogram=False)
        tally.add_many(ballots[user : user + 1])
        rows.append(inner.estimate(tally).mean / noise_size(inner))
    return np.array(rows)


MECHANISMS = {
    "two points": lambda dim: CPA(dim, 0.5, 0.02),
    "clipped": lambda dim: CPA(dim, 0.5, 0.02, clip=0.1),
    "nearest": lambda dim: CPA(dim, 0.5, 0.02, rounding="nearest"),
    "uniform words": lambda dim: CPA(dim, 0.5, 0.02, words="uniform"),
    "rotated": lambda dim: Rotated(CPA(dim, 0.5, 0.02)),
    "four points": lambda dim: CPA(dim, 0.5, 0.02, points=4),
    "subtractive": lambda dim: CPA(dim, 0.5, 0.02, rounding="subtractive"),
    "nested": lambda dim: NestedCPA(dim, 0.5, 0.02, stages=(2, 4)),
    "E8": lambda dim: CPA(dim, 0.5, 0.02, lattice="E8", points=16),
    "subset": lambda dim: Subset(CPA(dim, 0.5, 0.02), 30),
}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("dim", [64, 203])
def test_pulls_are_decoded_ballots(name, dim):
    mechanism = MECHANISMS[name](dim)
    ballots = ballots_of(mechanism)
    pulls, rows = unmask(mechanism, ballots, KEY), decoded(mechanism, ballots)
    rng = np.random.default_rng(3)
    direction = rounded(rng.normal(size=dim))
    for share in (0.0, 0.3, 0.8, 1.0):
        chosen = rng.uniform(size=USERS) < share
        assert np.allclose(pulls.sum_of(chosen), rows[chosen].sum(axis=0), atol=1e-4)
    assert np.allclose(pulls.powers(), (rows**2).sum(axis=1), rtol=1e-5)
    assert np.allclose(pulls.scores(direction), rows @ direction, atol=1e-3)


@pytest.mark.parametrize(("users", "dim"), [(40, 203), (64, 64), (65, 130), (200, 1000)])
def test_sums_over_packed_ballots_are_exact_for_rounded_levels(users, dim):
    rng = np.random.default_rng(users)
    bits = rng.integers(0, 2, (users, dim), dtype=np.uint8)
    rows = np.zeros((users, 8 * -(-dim // 64)), dtype=np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    rows[:, : packed.shape[1]] = packed
    pulls, plain = PackedPulls(rows.view(np.uint64), dim, 1.0), 2.0 * bits - 1
    direction = rounded(rng.normal(size=dim))
    for share in (0.0, 0.4, 0.9, 1.0):
        chosen = rng.uniform(size=users) < share
        assert (pulls.sum_of(chosen) == plain[chosen].sum(axis=0)).all()
    assert np.allclose(pulls.scores(direction), plain @ direction)
    counts = np.empty(users, dtype=np.int64)
    count_ones(packed, counts)
    assert (counts == bits.sum(axis=1)).all()


def test_rounding_keeps_the_largest_level_and_zero():
    levels = np.array([-3.5, 0.0, 0.09, 3.5, 1.0])
    assert rounded(levels).tolist() == pytest.approx([-3.5, 0.0, 0.0, 3.5, 1.0])
    assert (rounded(np.zeros(3)) == 0).all()


def test_both_kinds_of_pulls_agree():
    mechanism = CPA(128, 0.5, 0.02)
    ballots = ballots_of(mechanism)
    slow, fast = DecodedPulls(mechanism, ballots, KEY), unmask(mechanism, ballots, KEY)
    assert isinstance(fast, PackedPulls)
    direction = rounded(np.random.default_rng(0).normal(size=128))
    assert np.allclose(slow.scores(direction), fast.scores(direction), atol=1e-5)
    assert slow.reach == fast.reach
    assert slow.sigma == fast.sigma == noise_size(mechanism)


def test_counting_unmasked_ballots_equals_the_tally():
    for dim, users in [(203, 40), (4099, 17), (9000, 33)]:
        mechanism = CPA(dim, 0.5, 0.02)
        updates = np.random.default_rng(0).normal(0, 0.01, (users, dim))
        ballots = mechanism.encode_many(updates, KEY.users(np.arange(users)), SeededCoins(1))
        accepted = np.arange(users) % 3 != 0
        tally = mechanism.tally(KEY)
        tally.add_many([ballots[int(i)] for i in np.flatnonzero(accepted)])
        counter = unmask(mechanism, ballots, KEY).count(accepted)
        assert (counter == tally.counters["stage 0"][0]).all()


def test_the_noise_is_that_of_the_decoder():
    beta = float(CPA(10, 0.5, 0.02).stages[0].response.beta)
    assert noise_size(CPA(10, 0.5, 0.02)) == pytest.approx(0.02 / beta)
    assert noise_size(Subset(CPA(10, 0.5, 0.02), 5)) == pytest.approx(0.02 / beta * 2**0.5)
    assert largest_norm(CPA(16, 0.5, 0.02)) == pytest.approx(0.08)
    assert largest_norm(CPA(16, 0.5, 0.02, clip=0.03)) == 0.03
    assert largest_norm(CPA(16, 0.5, 0.02, clip=3.0)) == pytest.approx(0.08)


def test_bits_without_words_are_read_as_they_are():
    for mechanism in (SignRR(130, 1.0, 0.1), MVU(130, 1.0, 0.1)):
        ballots = ballots_of(mechanism)
        bits = np.unpackbits(ballots.payload, axis=1, bitorder="little")[:, :130]
        pulls = unmask(mechanism, ballots, KEY)
        assert np.allclose(pulls.sum_of(np.ones(USERS, np.bool_)), (2.0 * bits - 1).sum(axis=0))
        assert pulls.reach == pytest.approx(float(mechanism.response.beta) * 130**0.5)


def test_messages_that_are_not_bits_are_refused():
    mechanism = FedAvg(20)
    ballots = ballots_of(mechanism)
    with pytest.raises(InvalidInput, match="bits"):
        unmask(mechanism, ballots, KEY)
