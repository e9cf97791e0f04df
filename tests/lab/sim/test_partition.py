"""Partitions: properties for every seed, and wrong arguments."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbit.errors import InvalidInput
from hushbit.lab.sim import partition
from hushbit.lab.sim.partition import EqualOffsets, Federation
from hushbit.lab.sim.training import batch_seeds, draw_batch

LABELS = np.repeat(np.arange(10), 30)
WRITERS = np.arange(300) % 7 * 100


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(seed=st.integers(0, 2**32), users=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_full_partitions_give_every_sample_to_one_user(seed: int, users: int) -> None:
    for parts, expected in (
        (partition.iid(LABELS, users, rng(seed)), users),
        (partition.dirichlet(LABELS, users, rng(seed), alpha=0.1), users),
        (partition.shards(LABELS, users, rng(seed), shards_per_user=2), users),
        (partition.by_writer(WRITERS, 7, rng(seed)), 7),
    ):
        assert len(parts) == expected
        assert sorted(np.concatenate(parts)) == list(range(300))
        assert all(len(part) for part in parts)


@given(seed=st.integers(0, 2**32), users=st.integers(1, 60), samples=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_per_user_counts_and_no_repeats(seed: int, users: int, samples: int) -> None:
    parts = partition.same_size_parts(LABELS, users, rng(seed), samples)
    assert parts.shape == (users, samples)
    assert len(np.unique(parts)) == users * samples


def test_a_partition_is_a_function_of_the_seed() -> None:
    for make in (
        lambda g: partition.iid(LABELS, 7, g),
        lambda g: list(partition.same_size_parts(LABELS, 7, g, 3)),
        lambda g: partition.dirichlet(LABELS, 7, g, 0.5),
        lambda g: partition.shards(LABELS, 7, g, 2),
        lambda g: partition.by_writer(WRITERS, 3, g),
    ):
        first, again, other = make(rng(1)), make(rng(1)), make(rng(2))
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_sizes_differ_by_at_most_one() -> None:
    sizes = {len(part) for part in partition.iid(LABELS, 7, rng())}
    assert sizes == {42, 43}


def test_shards_limit_the_labels_of_a_user() -> None:
    for part in partition.shards(LABELS, 10, rng(), 2):
        assert len(np.unique(LABELS[part])) <= 2


def test_small_alpha_skews_the_dirichlet_partition() -> None:
    def mean_top_share(alpha: float) -> float:
        parts = partition.dirichlet(LABELS, 10, rng(3), alpha)
        return float(np.mean([np.bincount(LABELS[p]).max() / len(p) for p in parts]))

    assert mean_top_share(0.05) > 0.5 > 0.2 > mean_top_share(1000.0)


def test_by_writer_gives_each_user_one_writer() -> None:
    for part in partition.by_writer(WRITERS, 7, rng()):
        assert len(np.unique(WRITERS[part])) == 1
    assert len(partition.by_writer(WRITERS, 3, rng())) == 3


def test_hold_out_splits_all_samples() -> None:
    train, held = partition.hold_out(100, 20, rng(4))
    assert len(held) == 20
    assert sorted([*train, *held]) == list(range(100))


def test_users_of_a_federation_may_hold_different_numbers_of_samples() -> None:
    images = np.zeros((5, 1, 2, 2), np.uint8)
    fed = Federation.of(images, np.arange(5), [np.array([4, 0]), np.array([], int), np.array([1])])
    assert fed.images is images
    assert fed.users == 3
    assert fed.counts.tolist() == [2, 0, 1]
    assert fed.samples_of(0).tolist() == [4, 0]
    assert fed.samples_of(2).tolist() == [1]
    square = Federation.of(images, np.arange(5), np.array([[0, 1], [3, 2]]))
    assert square.samples_of(1).tolist() == [3, 2]


@pytest.mark.parametrize(
    "call",
    [
        lambda: partition.iid(LABELS, 301, rng()),
        lambda: partition.same_size_parts(LABELS, 61, rng(), 5),
        lambda: partition.shards(LABELS, 200, rng(), 2),
        lambda: partition.by_writer(WRITERS, 8, rng()),
        lambda: partition.hold_out(10, 10, rng()),
        lambda: Federation.of(np.zeros((2, 1, 1, 1)), np.zeros(2, int), [np.array([0])]),
        lambda: Federation.of(np.zeros((2, 1, 1, 1), np.uint8), np.zeros(3, int), [[0]]),
        lambda: Federation.of(np.zeros((2, 1, 1, 1), np.uint8), np.zeros(2, int), [[2]]),
        lambda: Federation.of(np.zeros((2, 1, 1, 1), np.uint8), np.zeros(2, int), [[-1]]),
    ],
)
def test_wrong_arguments_raise(call) -> None:
    with pytest.raises(InvalidInput):
        call()


def test_the_error_for_too_many_users_names_the_limit() -> None:
    with pytest.raises(InvalidInput, match="at most 60 users or replace=True"):
        partition.same_size_parts(LABELS, 61, rng(), 5)
    parts = partition.same_size_parts(LABELS, 1000, rng(), 5, replace=True)
    assert parts.shape == (1000, 5)
    assert parts.max() < 300


def test_equal_offsets_give_the_same_batches_as_an_array_of_offsets() -> None:
    parts = rng(7).integers(0, 300, (40, 3))
    images = np.zeros((300, 1, 2, 2), np.uint8)
    even, ragged = (Federation.of(images, LABELS, held) for held in (parts, list(parts)))
    assert isinstance(even.starts, EqualOffsets)
    assert not isinstance(ragged.starts, EqualOffsets)
    assert np.array_equal(even.counts, ragged.counts)
    assert (even.users, even.largest) == (ragged.users, ragged.largest) == (40, 3)
    users = np.array([0, 7, 39])
    seeds = batch_seeds(1, 2, users)
    for size in (2, 3, 5):
        one, other = (draw_batch(who, users, seeds, 1, size) for who in (even, ragged))
        assert np.array_equal(one.rows, other.rows)
        assert np.array_equal(one.present, other.present)
    assert all(np.array_equal(even.samples_of(u), parts[u]) for u in range(40))


def test_rows_have_the_narrowest_type() -> None:
    for largest, size in ((2**16 - 1, 2), (2**16, 4), (2**31 - 1, 4), (2**31, 8)):
        kept = partition.narrow_dtype(np.array([0, largest]))
        assert kept.itemsize == size
        assert kept.astype(np.int64).tolist() == [0, largest]
        assert (kept - np.array([1, 1])).tolist() == [-1, largest - 1]


def test_drawing_in_chunks_gives_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "DRAW_CHUNK", 7)
    pieces = partition.same_size_parts(LABELS, 50, rng(3), 3, replace=True)
    assert np.array_equal(pieces, rng(3).integers(0, 300, size=(50, 3)))
