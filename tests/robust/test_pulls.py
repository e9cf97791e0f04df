"""Unmasked ballots: the kernels equal what one ballot alone decodes to."""

import dataclasses

import numpy as np
import pytest

from hushbit import CPA, NestedCPA, Rotated, RoundKey, SeededCoins, Subset
from hushbit.baselines import MVU, FedAvg, SignRR
from hushbit.errors import InvalidInput
from hushbit.robust.bits import unfair
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


def looked(rows, above, below, way):
    """The look by its definition: sums of rows, the own part left out, lengths of one."""
    total, apart = rows[above | below].sum(axis=0), rows[above].sum(0) - rows[below].sum(0)
    power, sides = (rows**2).sum(axis=1), 1.0 * above - below
    scores = rows @ np.stack([total, apart, way]).T
    scores -= power[:, None] * np.stack([above | below, sides, 0 * sides], axis=1)
    return (scores / np.linalg.norm([total, apart, way], axis=1)).T


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("dim", [64, 203])
def test_pulls_are_decoded_ballots(name, dim):
    mechanism = MECHANISMS[name](dim)
    ballots = ballots_of(mechanism)
    rng = np.random.default_rng(3)
    above, below = rng.uniform(size=(2, USERS)) < 0.4
    below &= ~above
    pulls, rows = unmask(mechanism, ballots, KEY, (above, below)), decoded(mechanism, ballots)
    way = rounded(rng.normal(size=dim))
    found, exact = pulls.look(above, below, way), looked(rows, above, below, way)
    assert np.allclose(found[2], exact[2], atol=1e-3)  # the way is rounded already
    if isinstance(pulls, DecodedPulls):
        assert np.allclose(found, exact, atol=1e-3)
    else:
        sums = np.stack([pulls.count(above), pulls.count(below)])
        assert (sums == -np.rint([rows[above].sum(0), rows[below].sum(0)])).all()
    assert (pulls.look(above, below, None)[2] == 0).all()


@pytest.mark.parametrize(("users", "dim"), [(40, 203), (64, 64), (65, 130), (200, 1000)])
def test_sums_over_packed_ballots_are_exact_whatever_was_counted_before(users, dim):
    rng = np.random.default_rng(users)
    bits = rng.integers(0, 2, (users, dim), dtype=np.uint8)
    rows = np.zeros((users, 8 * -(-dim // 64)), dtype=np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    rows[:, : packed.shape[1]] = packed
    plain, part = 2 * bits.astype(np.int64) - 1, rng.uniform(size=users) < 0.5
    whole = PackedPulls.of_rows(rows.view(np.uint64), dim, 1.0)
    parts = [(some, -plain[some].sum(axis=0)) for some in (part, ~part)]
    for pulls in (whole, PackedPulls.of_rows(rows.view(np.uint64), dim, 1.0, 0.2, parts)):
        for share in (0.0, 0.1, 0.4, 0.9, 1.0):
            chosen = rng.uniform(size=users) < share
            assert (pulls.count(chosen) == -plain[chosen].sum(axis=0)).all()
        assert (pulls.count(part) == -plain[part].sum(axis=0)).all()
    ones = bits.sum(axis=1)
    assert (unfair(packed, packed.shape[1], dim / 2, 5.0) == (np.abs(ones - dim / 2) > 5)).all()


def test_rounding_keeps_what_is_large():
    levels = np.array([-3.5, 0.0, 0.09, 3.5, 1.0, 2.0])
    assert rounded(levels).tolist() == [-1.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    assert (rounded(np.zeros(3)) == 0).all()
    drawn = np.random.default_rng(0).normal(size=100_000)
    made = rounded(drawn)
    assert float(made @ drawn / np.linalg.norm(made) / np.linalg.norm(drawn)) > 0.89


def test_both_kinds_of_pulls_agree():
    mechanism = CPA(128, 0.5, 0.02)
    ballots = ballots_of(mechanism)
    slow, fast = DecodedPulls(mechanism, ballots, KEY), unmask(mechanism, ballots, KEY)
    assert isinstance(fast, PackedPulls)
    way, half = rounded(np.random.default_rng(0).normal(size=128)), np.arange(USERS) % 2 == 0
    assert np.allclose(slow.look(half, ~half, way)[2], fast.look(half, ~half, way)[2], atol=1e-5)
    assert slow.reach == fast.reach
    assert slow.sigma == noise_size(mechanism)
    assert slow.edge == fast.edge == mechanism.radius / slow.sigma


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
        assert (
            pulls.count(np.ones(USERS, np.bool_)) == (1 - 2 * bits.astype(int)).sum(axis=0)
        ).all()
        assert pulls.reach == pytest.approx(float(mechanism.response.beta) * 130**0.5)


def test_messages_that_are_not_bits_are_refused():
    mechanism = FedAvg(20)
    ballots = ballots_of(mechanism)
    with pytest.raises(InvalidInput, match="bits"):
        unmask(mechanism, ballots, KEY)
