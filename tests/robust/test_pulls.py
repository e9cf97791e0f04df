"""Unmasked ballots: the kernels equal what one ballot alone decodes to."""

import dataclasses

import numpy as np
import pytest

from hushbit import CPA, NestedCPA, Rotated, RoundKey, SeededCoins, Subset
from hushbit.baselines import MVU, FedAvg, SignRR
from hushbit.errors import InvalidInput
from hushbit.robust.pulls import (
    DecodedPulls,
    PackedPulls,
    largest_norm,
    noise_size,
    sketch_signs,
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
    weights, direction = rng.normal(size=USERS), rng.normal(size=dim)
    assert np.allclose(pulls.combine(weights), weights @ rows, atol=1e-4)
    assert np.allclose(pulls.powers(), (rows**2).sum(axis=1), rtol=1e-5)
    coarse = np.abs(direction).max() / 127 / 2  # the packed kind rounds the direction to 7 bits
    assert (
        np.abs(pulls.scores(direction) - rows @ direction).max()
        <= coarse * np.abs(rows).sum(axis=1).max() + 1e-4
    )


def test_sketches_are_signed_sums_over_runs():
    mechanism = CPA(203, 0.5, 0.02)
    ballots = ballots_of(mechanism)
    signs = sketch_signs(KEY, 203)
    rows = decoded(mechanism, ballots) * (2.0 * signs - 1)
    for size, run in [(64, 8), (16, 16), (8, 32), (4, 64), (2, 128), (1, 256)]:
        edges = np.arange(0, 203, run)
        lengths = np.minimum(edges + run, 203) - edges
        wanted = np.add.reduceat(rows, edges, axis=1) / np.sqrt(lengths)
        found = unmask(mechanism, ballots, KEY).sketch(signs, size)
        assert found.shape[1] == edges.size
        assert np.allclose(found, wanted, atol=1e-5)


def test_both_kinds_of_pulls_have_the_same_signs():
    mechanism = CPA(128, 0.5, 0.02)
    ballots = ballots_of(mechanism)
    signs = sketch_signs(KEY, 128)
    slow = DecodedPulls(mechanism, ballots, KEY)
    fast = unmask(mechanism, ballots, KEY)
    assert isinstance(fast, PackedPulls)
    assert np.allclose(slow.sketch(signs, 16), fast.sketch(signs, 16), atol=1e-5)
    assert slow.reach == fast.reach


def test_counting_unmasked_ballots_equals_the_tally():
    for dim, users in [(203, 40), (4099, 17), (9000, 33)]:
        mechanism = CPA(dim, 0.5, 0.02)
        updates = np.random.default_rng(0).normal(0, 0.01, (users, dim))
        ballots = mechanism.encode_many(updates, KEY.users(np.arange(users)), SeededCoins(1))
        accepted = np.arange(users) % 3 != 0
        tally = mechanism.tally(KEY)
        tally.add_many([ballots[int(i)] for i in np.flatnonzero(accepted)])
        counter = np.zeros(dim, dtype=np.int64)
        unmask(mechanism, ballots, KEY).count(accepted, counter)
        assert (counter == tally.counters["stage 0"][0]).all()


def test_signs_come_from_the_servers_secret_and_round():
    signs = sketch_signs(KEY, 4000)
    assert abs(int(signs.sum()) - 2000) < 5 * 32  # five standard deviations
    assert (signs != sketch_signs(RoundKey(b"k" * 32, 6), 4000)).any()
    assert (signs != sketch_signs(RoundKey(b"j" * 32, 5), 4000)).any()


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
        assert np.allclose(pulls.combine(np.ones(USERS)), (2.0 * bits - 1).sum(axis=0))
        assert pulls.reach == pytest.approx(float(mechanism.response.beta) * 130**0.5)


def test_messages_that_are_not_bits_are_refused():
    mechanism = FedAvg(20)
    ballots = ballots_of(mechanism)
    with pytest.raises(InvalidInput, match="bits"):
        unmask(mechanism, ballots, KEY)
