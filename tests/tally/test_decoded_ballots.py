"""Decoded ballots: the kernels equal the decoding of single ballots."""

import dataclasses

import numpy as np
import pytest

from hushbit.baselines.fedavg import FedAvg
from hushbit.baselines.mvu import MVU
from hushbit.baselines.signsgd import SignRR
from hushbit.cpa import CPA, NestedCPA
from hushbit.defence.defence import Defence
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.kernels.scores import ZERO_WITHIN, biased_rows, to_tiles
from hushbit.tally import decoded_ballots as module
from hushbit.tally.decoded_ballots import DecodedBallots, PackedBallots
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey
from hushbit.wrappers import NormVote, Rotated, Subset

KEY = RoundKey(b"k" * 32, 5)
USERS = 40


def each_decoded(mechanism, ballots):
    """Every ballot decoded by a tally of its own."""

    def decode(user):
        tally = mechanism.tally(KEY, histogram=False)
        tally.add_many(ballots[user : user + 1])
        return mechanism.estimate(tally).mean / scale.noise

    scale = mechanism.votes.scale
    return DecodedBallots(decode, len(ballots), mechanism.dim, scale.max_score)


def rounded(direction):
    """A direction rounded to -1, 0 and 1, as in scores over packed ballots."""
    large = np.abs(direction) > ZERO_WITHIN * np.sqrt((direction**2).mean())
    return np.asarray(np.sign(direction) * large)


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
        rows.append(inner.estimate(tally).mean / inner.votes.scale.noise)
    return np.array(rows)


MECHANISMS = {
    "two points": lambda dim: CPA(dim, 0.5, 0.02),
    "clipped": lambda dim: CPA(dim, 0.5, 0.02, clip=0.1),
    "nearest": lambda dim: CPA(dim, 0.5, 0.02, rounding="nearest"),
    "uniform words": lambda dim: CPA(dim, 0.5, 0.02, words="uniform"),
    "rotated": lambda dim: Rotated(CPA(dim, 0.5, 0.02)),
    "three points": lambda dim: CPA(dim, 0.5, 0.02, points=3),
    "four points": lambda dim: CPA(dim, 0.5, 0.02, points=4),
    "subtractive": lambda dim: CPA(dim, 0.5, 0.02, rounding="subtractive"),
    "nested": lambda dim: NestedCPA(dim, 0.5, 0.02, stages=(2, 4)),
    "E8": lambda dim: CPA(dim, 0.5, 0.02, lattice="E8", points=16),
    "subset": lambda dim: Subset(CPA(dim, 0.5, 0.02), 30),
    "subset of pairs": lambda dim: Subset(CPA(dim, 0.5, 0.02, lattice="A2", points=7), 15),
}


def defined_scores(rows, above, below, drift):
    """Scores by definition: sums of rows without the user itself, directions of length one."""
    total, difference = rows[above | below].sum(axis=0), rows[above].sum(0) - rows[below].sum(0)
    power, sides = (rows**2).sum(axis=1), 1.0 * above - below
    scores = rows @ np.stack([total, difference, drift]).T
    scores -= power[:, None] * np.stack([above | below, sides, 0 * sides], axis=1)
    return (scores / np.linalg.norm([total, difference, drift], axis=1)).T


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("dim", [64, 203])
def test_decode_each_equals_single_tallies(name, dim):
    mechanism = MECHANISMS[name](dim)
    ballots = ballots_of(mechanism)
    rng = np.random.default_rng(3)
    above, below = rng.uniform(size=(2, USERS)) < 0.4
    below &= ~above
    decoded_ballots, rows = (
        mechanism.votes.decode_each(ballots, KEY, (above, below)),
        decoded(mechanism, ballots),
    )
    drift = rounded(rng.normal(size=dim))
    found, exact = (
        decoded_ballots.score(above, below, drift),
        defined_scores(rows, above, below, drift),
    )
    assert np.allclose(found[2], exact[2], atol=1e-3)  # this direction is rounded already
    if isinstance(decoded_ballots, DecodedBallots):
        assert np.allclose(found, exact, atol=1e-3)
    else:
        sums = np.stack([decoded_ballots.count(above), decoded_ballots.count(below)])
        assert (sums == -np.rint([rows[above].sum(0), rows[below].sum(0)])).all()
    assert found.shape == (3, USERS)
    assert (decoded_ballots.score(above, below, None)[2] == 0).all()


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 63, 64, 65])
def test_signs_of_payloads_of_every_size_are_counted(size):
    """Payloads without words: a bit of 1 is y = 1; counters hold minus the sum of y."""
    payload = np.random.default_rng(size).integers(0, 256, (USERS, size), dtype=np.uint8)
    dim = 8 * size - 3
    bits = np.unpackbits(payload, axis=1, bitorder="little")[:, :dim].astype(np.int64)
    packed = PackedBallots.of_payload(payload, dim, 1.5)
    assert (packed.users, packed.dim, packed.max_score) == (USERS, dim, 1.5)
    for chosen in (np.ones(USERS, bool), np.arange(USERS) % 3 == 0, np.zeros(USERS, bool)):
        assert (packed.count(chosen) == (1 - 2 * bits[chosen]).sum(axis=0)).all()


@pytest.mark.parametrize("name", MECHANISMS)
def test_ballots_of_another_width_are_not_decoded(name):
    wide, narrow = MECHANISMS[name](203), CPA(8, 0.5, 0.02)
    with pytest.raises(RefusedBallot, match="bits"):
        wide.votes.decode_each(ballots_of(narrow), KEY)


@pytest.mark.parametrize("name", MECHANISMS)
def test_no_bit_of_a_payload_towards_a_target_could_be_better(name):
    """The estimate is linear in the bits, so each of them must add to <target, estimate>."""
    mechanism, users = MECHANISMS[name](40), 3
    target = np.random.default_rng(5).normal(size=40)
    ballots = ballots_of(mechanism)[:users]
    payload = mechanism.votes.payload_towards(target, ballots, KEY.users(np.arange(users)))
    assert payload.shape == ballots.payload.shape

    def along(bits):
        tally = mechanism.tally(KEY)
        tally.add_many(
            dataclasses.replace(ballots, payload=np.packbits(bits, axis=1, bitorder="little"))
        )
        return float(mechanism.estimate(tally).mean @ target)

    bits = np.unpackbits(payload, axis=1, bitorder="little")
    best, votes = along(bits), np.unpackbits(mechanism.votes.mask(), bitorder="little")
    assert not (bits & ~votes & 1).any()
    for user in range(users):
        for place in np.flatnonzero(votes)[:20]:
            bits[user, place] ^= 1
            assert along(bits) <= best + 1e-12
            bits[user, place] ^= 1


def test_scores_do_not_depend_on_chunks_and_cache(monkeypatch):
    mechanism = MECHANISMS["four points"](64)
    ballots, above = ballots_of(mechanism), np.arange(USERS) < 15
    whole = mechanism.votes.decode_each(ballots, KEY).score(above, ~above, None)
    monkeypatch.setattr(module, "ROW_CHUNK", 7)
    for cached in (USERS * 64, USERS * 64 - 1):
        monkeypatch.setattr(module, "MAX_CACHED_ENTRIES", cached)
        found = mechanism.votes.decode_each(ballots, KEY).score(above, ~above, None)
        assert np.allclose(found, whole, rtol=1e-5)


@pytest.mark.parametrize(("users", "dim"), [(40, 203), (64, 64), (65, 130), (200, 1000)])
def test_sums_over_packed_ballots_are_exact(users, dim):
    rng = np.random.default_rng(users)
    bits = rng.integers(0, 2, (users, dim), dtype=np.uint8)
    payload = np.packbits(bits, axis=1, bitorder="little")
    plain, part = 2 * bits.astype(np.int64) - 1, rng.uniform(size=users) < 0.5
    parts = [(some, -plain[some].sum(axis=0)) for some in (part, ~part)]
    for decoded_ballots in (
        PackedBallots.of_payload(payload, dim, 1.0),
        PackedBallots(*to_tiles(payload), users, dim, 1.0, parts),
    ):
        for share in (0.0, 0.1, 0.4, 0.9, 1.0):
            chosen = rng.uniform(size=users) < share
            assert (decoded_ballots.count(chosen) == -plain[chosen].sum(axis=0)).all()
        assert (decoded_ballots.count(part) == -plain[part].sum(axis=0)).all()


@pytest.mark.parametrize("width", [0, 1, 9, 16, 99])
def test_rows_with_too_many_or_too_few_ones_are_found(width):
    payload = np.random.default_rng(width).integers(0, 256, (99, 16), dtype=np.uint8)
    ones = np.unpackbits(payload[:, :width], axis=1).sum(axis=1, dtype=np.int64)
    expected = 4 * min(width, 16)
    for limit in (0.0, 1.0, 5.5):
        found = biased_rows(payload, width, expected, limit)
        assert (found == (np.abs(ones - expected) > limit)).all()


@pytest.mark.parametrize("size", [1e-3, 1.0, 50.0])
def test_scores_do_not_depend_on_the_length_of_a_direction(size):
    rows = np.array([[1.0, 2.0, 0.5], [0.5, -1.0, 1.0], [-1.0, 0.25, 2.0]])
    ballots = DecodedBallots(lambda user: rows[user], 3, 3, 0.5)
    above, below = np.array([True, False, False]), np.array([False, True, False])
    drift = np.array([3.0, -1.0, 2.0])
    found = ballots.score(above, below, size * drift)
    assert found == pytest.approx(defined_scores(rows, above, below, drift), rel=1e-6)


def test_a_user_alone_in_a_direction_has_no_score_along_it():
    """Two equal and opposite users: their sum is zero, and so is each without itself, but one."""
    rows = np.array([[3.0, 4.0], [-3.0, -4.0]])
    ballots = DecodedBallots(lambda user: rows[user], 2, 2, 1.0)
    above, below = np.array([True, False]), np.array([False, True])
    found = ballots.score(above, below, None)
    # Along a sum of length zero scores are not divided: y · (0 - y) = -25.
    assert found[0].tolist() == [-25.0, -25.0]
    # Along the difference 2 y of length 10: y · (2 y - y) / 10.
    assert found[1].tolist() == [2.5, -2.5]
    assert found[2].tolist() == [0.0, 0.0]


def test_rounded_directions_keep_large_entries():
    levels = np.array([-3.5, 0.0, 0.09, 3.5, 1.0, 2.0])
    assert rounded(levels).tolist() == [-1.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    assert (rounded(np.zeros(3)) == 0).all()
    drawn = np.random.default_rng(0).normal(size=100_000)
    made = rounded(drawn)
    assert float(made @ drawn / np.linalg.norm(made) / np.linalg.norm(drawn)) > 0.89


def test_packed_and_decoded_ballots_agree():
    mechanism = CPA(128, 0.5, 0.02)
    ballots = ballots_of(mechanism)
    slow, fast = each_decoded(mechanism, ballots), mechanism.votes.decode_each(ballots, KEY)
    assert isinstance(fast, PackedBallots)
    drift, half = rounded(np.random.default_rng(0).normal(size=128)), np.arange(USERS) % 2 == 0
    assert np.allclose(
        slow.score(half, ~half, drift)[2], fast.score(half, ~half, drift)[2], atol=1e-5
    )
    assert slow.max_score == fast.max_score


def test_counting_decoded_ballots_equals_the_tally():
    for dim, users in [(203, 40), (4099, 17), (9000, 33)]:
        mechanism = CPA(dim, 0.5, 0.02)
        updates = np.random.default_rng(0).normal(0, 0.01, (users, dim))
        ballots = mechanism.encode_many(updates, KEY.users(np.arange(users)), SeededCoins(1))
        accepted = np.arange(users) % 3 != 0
        tally = mechanism.tally(KEY)
        tally.add_many([ballots[int(i)] for i in np.flatnonzero(accepted)])
        decoded_ballots, counters = mechanism.votes.decode_each(ballots, KEY), mechanism.tally(KEY)
        assert (decoded_ballots.count(accepted) == tally.counters["stage 0"][0]).all()
        assert mechanism.votes.count_decoded(decoded_ballots, ballots, accepted, counters.counters)
        assert (counters.counters["stage 0"] == tally.counters["stage 0"]).all()


@pytest.mark.parametrize("points", [2, 4])
def test_votes_on_the_norm_are_counted_with_decoded_ballots(points):
    mechanism = NormVote(CPA(64, 0.5, 0.02, points=points), level=0.08, epsilon=1.0, answers=3)
    ballots, chosen = ballots_of(mechanism), np.arange(USERS) % 3 != 0
    tally, counters = mechanism.tally(KEY), mechanism.empty_counters(True)
    decoded_ballots = mechanism.votes.decode_each(ballots, KEY)
    counted = mechanism.votes.count_decoded(decoded_ballots, ballots, chosen, counters)
    assert counted == (points == 2)
    if counted:
        tally.add_many(ballots[chosen])
    for name, counter in tally.counters.items():
        assert (counters[name] == counter).all()


def test_ballots_that_are_not_packed_are_left_to_the_tally():
    mechanism = MECHANISMS["four points"](64)
    ballots, counters = ballots_of(mechanism), mechanism.empty_counters(True)
    decoded_ballots = mechanism.votes.decode_each(ballots, KEY)
    everyone = np.ones(USERS, dtype=np.bool_)
    assert not mechanism.votes.count_decoded(decoded_ballots, ballots, everyone, counters)
    assert not counters["stage 0"].any()


def test_the_scale_of_ballots_is_that_of_the_decoder():
    beta = float(CPA(10, 0.5, 0.02).stage_encoders[0].response.beta)
    assert CPA(10, 0.5, 0.02).votes.scale.noise == pytest.approx(0.02 / beta)
    assert Subset(CPA(10, 0.5, 0.02), 5).votes.scale.noise == pytest.approx(0.02 / beta * 2**0.5)
    assert CPA(16, 0.5, 0.02).votes.scale.largest_norm == pytest.approx(0.08)
    assert CPA(16, 0.5, 0.02, clip=0.03).votes.scale.largest_norm == 0.03
    assert CPA(16, 0.5, 0.02, clip=3.0).votes.scale.largest_norm == pytest.approx(0.08)


def test_sign_bits_are_counted_without_words():
    for mechanism in (SignRR(130, 1.0, 0.1), MVU(130, 1.0, 0.1)):
        ballots = ballots_of(mechanism)
        bits = np.unpackbits(ballots.payload, axis=1, bitorder="little")[:, :130]
        decoded_ballots = mechanism.votes.decode_each(ballots, KEY)
        assert (
            decoded_ballots.count(np.ones(USERS, np.bool_))
            == (1 - 2 * bits.astype(int)).sum(axis=0)
        ).all()
        assert decoded_ballots.max_score == pytest.approx(float(mechanism.response.beta) * 130**0.5)


def test_payloads_without_votes_are_refused():
    assert FedAvg(20).votes is None
    with pytest.raises(InvalidInput, match="bits"):
        Defence().count(FedAvg(20), ballots_of(FedAvg(20)), KEY)


def test_bits_that_no_target_needs_are_not_set():
    mechanism, users = Subset(CPA(40, 1.0, 0.1), 5), 3
    ballots = ballots_of(mechanism)[:users]
    keys = KEY.users(np.arange(users))
    assert not mechanism.votes.payload_towards(np.zeros(40), ballots, keys).any()
