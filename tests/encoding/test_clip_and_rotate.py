"""The shared rotation: orthogonal and invertible for every length; it spreads large entries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hushbit as hb
from hushbit.encoding.clip_and_rotate import Rotation

KEY = hb.RoundKey(bytes(32), 3)
DIMS = (1, 2, 3, 7, 8, 9, 100, 1023, 1025, 8191, 8192, 8193, 20_000)


@pytest.mark.parametrize("dim", DIMS)
def test_invert_is_the_inverse_and_norms_are_preserved(dim: int) -> None:
    rotation = Rotation(dim, bytes(32))
    vectors = np.random.default_rng(dim).normal(size=(2, dim))
    rotated = rotation.apply(vectors)
    assert np.allclose((rotated**2).sum(axis=1), (vectors**2).sum(axis=1), rtol=1e-12)
    assert np.allclose(rotation.invert(rotated[0]), vectors[0], atol=1e-12)
    assert np.allclose(rotation.invert(rotated.mean(axis=0)), vectors.mean(axis=0), atol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 8, 12, 33])
def test_the_matrix_is_orthogonal(dim: int) -> None:
    matrix = Rotation(dim, b"k" * 32).apply(np.eye(dim))
    assert np.allclose(matrix @ matrix.T, np.eye(dim), atol=1e-12)


def test_keys_change_the_rotation() -> None:
    vector = np.ones((1, 64))
    rotated = {Rotation(64, bytes([k]) * 32).apply(vector).tobytes() for k in range(6)}
    assert len(rotated) == 6


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_a_large_entry_is_distributed_over_its_block(dim: int, seed: int) -> None:
    vector = np.zeros((1, dim))
    vector[0, seed % dim] = 1.0
    rotated = Rotation(dim, bytes(32)).apply(vector)[0]
    rows = 1 << (dim.bit_length() - 1)
    assert np.abs(rotated).max() <= 1 / np.sqrt(rows) * (1 + 1e-9) or dim != rows
    assert (rotated**2).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "inner",
    [
        hb.CPA(dim=300, epsilon_per_bit=3.0, radius=0.5),
        hb.CPA(dim=300, epsilon_per_bit=3.0, radius=1.0, lattice="D4", points=8),
        hb.NestedCPA(dim=300, epsilon_per_bit=3.0, radius=0.5, stages=(2, 2)),
        hb.Subset(hb.CPA(dim=300, epsilon_per_bit=3.0, radius=0.5), report=150),
    ],
    ids=["two", "D4", "nested", "subset"],
)
def test_a_rotated_mechanism_is_unbiased(inner: hb.Mechanism) -> None:
    """The z-score of 300 entries over 600 users: |mean| and spread within 6 sigma."""
    mechanism = hb.Rotated(inner)
    update = np.zeros(300)
    update[[3, 100, 299]] = (1.0, -0.7, 0.5)
    users = 600
    ballots = mechanism.encode_many(
        np.tile(update, (users, 1)), KEY.users(range(users)), hb.SeededCoins(2)
    )
    assert not any(ballot.overloaded for ballot in ballots)
    tally = mechanism.tally(KEY)
    tally.add_many(ballots)
    estimate = mechanism.estimate(tally)
    scores = (estimate.mean - update) / np.sqrt(estimate.variance)
    assert abs(scores.mean()) < 6 / np.sqrt(300)
    assert 0.7 < (scores**2).mean() < 1.4
    assert estimate.unbiased
    assert estimate.count == users
    with pytest.raises(hb.InvalidInput, match="without rotation"):
        estimate.histogram()


def test_guarantee_and_size_are_those_of_the_inner_mechanism() -> None:
    inner = hb.CPA(dim=300, epsilon_per_bit=3.0, radius=0.5)
    mechanism = hb.Rotated(inner)
    assert mechanism.guarantee == inner.guarantee
    assert mechanism.payload_bits == 300
    assert mechanism.unbiased_radius == inner.unbiased_radius
    assert mechanism.fingerprint != inner.fingerprint
    assert "Rotated" in repr(mechanism)
    with pytest.raises(hb.RefusedBallot, match="mechanism"):
        inner.tally(KEY).add(mechanism.encode(np.zeros(300), KEY.user(1)))


def test_vectors_are_rotated_as_updates_are() -> None:
    """The coordinates of votes: a vector has the same inner products there."""
    mechanism = hb.Rotated(hb.CPA(dim=9, epsilon_per_bit=1.0, radius=1.0))
    key = hb.RoundKey(bytes(32), 1)
    vector = np.linspace(-1, 2, 9)
    found = mechanism.votes.to_vote_space(vector, key)
    assert np.allclose(found, Rotation(9, key.rotation).apply(vector[None])[0])
    assert not np.allclose(found[:9], vector)


def test_padding_is_checked_behind_the_rotation() -> None:
    mechanism = hb.Rotated(hb.CPA(dim=3, epsilon_per_bit=1.0, radius=1.0))
    ballot = mechanism.encode(np.zeros(3), KEY.user(1))
    bad = hb.Ballot(ballot.fingerprint, 3, 1, 3, b"\xff")
    with pytest.raises(hb.RefusedBallot) as caught:
        mechanism.tally(KEY).add(bad)
    assert caught.value.reason == "padding"


def test_updates_that_overflow_when_rotated_are_refused() -> None:
    mechanism = hb.Rotated(hb.CPA(dim=8, epsilon_per_bit=1.0, radius=1.0))
    with pytest.raises(hb.InvalidInput, match="too large"), np.errstate(all="ignore"):
        mechanism.encode(np.full(8, 1e308), KEY.user(1))
    with pytest.raises(hb.InvalidInput, match="too large"), np.errstate(all="ignore"):
        mechanism.encode(np.full(8, 3e38, dtype=np.float32), KEY.user(1))


def test_updates_are_not_changed() -> None:
    mechanism = hb.Rotated(hb.CPA(dim=9, epsilon_per_bit=1.0, radius=1.0, clip=0.1))
    updates = np.ones((2, 9), dtype=np.float32)
    mechanism.encode_many(updates, KEY.users([1, 2]))
    assert (updates == 1).all()


@pytest.mark.parametrize("inner", [None, 5, "CPA", hb.CPA])
def test_only_mechanisms_are_wrapped(inner: object) -> None:
    with pytest.raises(hb.InvalidInput, match="wraps a mechanism"):
        hb.Rotated(inner)  # type: ignore[arg-type]
