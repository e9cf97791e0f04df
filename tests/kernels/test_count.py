"""Counting kernels equal their NumPy definition."""

import numpy as np
import pytest

from hushbit.encoding.stage import single_group
from hushbit.kernels import count, encode
from hushbit.kernels.chacha import fill_states
from hushbit.kernels.count import (
    NO_OUTPUT,
    PLANES,
    add_sixteen_rows,
    count_signs,
    count_tiles,
    count_two_points,
    flush_planes,
    sum_tiles,
)
from hushbit.kernels.scores import group_users
from hushbit.kernels.words import TILE_WORDS, WORD_TAG, draw_rows, tile_signs

SIZES = (1, 7, 8, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 9000)
USERS = (1, 15, 16, 17, 239, 240, 241, 500)


def ballots(users: int, votes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2**32, (users, 8), dtype=np.uint32)
    bits = rng.integers(0, 2, (users, votes), dtype=np.uint8)
    return keys, np.packbits(bits, axis=1, bitorder="little")


def tiles(votes: int) -> int:
    return -(-votes // 4096)


@pytest.mark.parametrize("votes", SIZES)
@pytest.mark.parametrize("points", [2, 4, 8, 16])
def test_bit_sliced_counts_for_every_size(votes: int, points: int) -> None:
    keys, payload = ballots(5, votes, seed=votes)
    counters = np.full((points - 1, votes), 3, dtype=np.int64)
    row_bits = points.bit_length() - 1 if points > 2 else 0
    count_tiles(keys, 1, row_bits, payload, 0, tiles(votes), counters)
    table = np.eye(points, points - 1, dtype=np.int64)
    defined = count.reference_counts(keys, 1, "hadamard", points, payload, table, votes)
    assert (counters - 3 == defined).all()


@pytest.mark.parametrize("users", USERS)
@pytest.mark.parametrize("points", [2, 4])
def test_bit_sliced_counts_for_every_number_of_users(users: int, points: int) -> None:
    votes = 70
    keys, payload = ballots(users, votes, seed=users)
    counters = np.zeros((points - 1, votes), dtype=np.int64)
    row_bits = points.bit_length() - 1 if points > 2 else 0
    count_tiles(keys, 0, row_bits, payload, 0, 1, counters)
    table = np.eye(points, points - 1, dtype=np.int64)
    # The words come from a kernel that test_words.py checks: the definition is too slow here.
    total, signs = np.zeros_like(counters), np.empty((votes, points), dtype=np.int8)
    for key, row in zip(keys, payload, strict=True):
        tile_signs(key, 0, True, 0, votes, signs)
        bit = 2 * np.unpackbits(row, bitorder="little")[:votes].astype(np.int64) - 1
        total += bit * (signs.astype(np.int64) @ table).T
    assert (counters == total).all()


@pytest.mark.parametrize("users", [240, 500])
def test_counts_do_not_overflow_when_everyone_differs(users: int) -> None:
    """Every vote is -1, so the bit-planes reach their largest counts."""
    keys = np.tile(np.arange(8, dtype=np.uint32), (users, 1))
    words = encode.draw_words(keys[0], 0, 64, 2, "hadamard")[:, 0]
    payload = np.tile(np.packbits(words < 0, bitorder="little"), (users, 1))
    counters = np.zeros((1, 64), dtype=np.int64)
    count_tiles(keys, 0, 0, payload, 0, 1, counters)
    assert (counters == -users).all()


@pytest.mark.parametrize("votes", [1, 65, 513, 4097])
@pytest.mark.parametrize(("family", "points"), [("hadamard", 4), ("uniform", 5), ("uniform", 6)])
def test_general_counts(votes: int, family: str, points: int) -> None:
    keys, payload = ballots(3, votes, seed=votes)
    rng = np.random.default_rng(points)
    for table in (np.eye(points, dtype=np.int64), rng.integers(-9, 9, (points, 2))):
        counters = np.full((table.shape[1], votes), -4, dtype=np.int64)
        count_signs(
            keys, 2, family == "hadamard", points, payload, table, 0, tiles(votes), counters
        )
        defined = count.reference_counts(keys, 2, family, points, payload, table, votes)
        assert (counters + 4 == defined).all()


@pytest.mark.parametrize("votes", [1, 65, 4097, 9000])
@pytest.mark.parametrize("points", [4, 8, 16, 32])
def test_sums_are_weighted_counts(votes: int, points: int) -> None:
    keys, payload = ballots(17, votes, seed=votes)
    table = np.random.default_rng(points).integers(-9, 9, (points, 2))
    general, sums = (np.full((2, votes), 7, dtype=np.int64) for _ in range(2))
    count_signs(keys, 1, True, points, payload, table, 0, tiles(votes), general)
    row_bits = points.bit_length() - 1
    for tile in reversed(range(tiles(votes))):
        sum_tiles(keys, 1, row_bits, payload, table, tile, tile + 1, sums)
    assert (sums == general).all()


def test_tiles_are_counted_independently() -> None:
    """A range of tiles changes only its own columns; all ranges together give the whole."""
    keys, payload = ballots(17, 9000, seed=1)
    whole, parts = (np.zeros((3, 9000), dtype=np.int64) for _ in range(2))
    count_tiles(keys, 0, 2, payload, 0, 3, whole)
    count_tiles(keys, 0, 2, payload, 1, 3, parts)
    assert not parts[:, :4096].any()
    count_tiles(keys, 0, 2, payload, 0, 1, parts)
    assert (whole == parts).all()


@pytest.mark.parametrize("groups", [1, 15])
def test_carry_save_tree_counts_rows(groups: int) -> None:
    rng = np.random.default_rng(groups)
    planes = np.zeros(PLANES * TILE_WORDS, dtype=np.uint64)
    total = np.zeros(64 * TILE_WORDS, dtype=np.int64)
    for _ in range(groups):
        rows = rng.integers(0, 2**64 - 1, 16 * TILE_WORDS, dtype=np.uint64, endpoint=True)
        add_sixteen_rows(rows, planes)
        bits = np.unpackbits(rows.view(np.uint8), bitorder="little").reshape(16, -1)
        total += bits.sum(axis=0, dtype=np.int64)
    counters = np.zeros(64 * TILE_WORDS, dtype=np.int64)
    flush_planes(planes, counters)
    assert (counters == -2 * total).all()
    assert not planes.any()


@pytest.mark.parametrize("row_bits", [2, 3, 4, 5])
@pytest.mark.parametrize("votes", [1, 64, 100, 4096])
def test_rows_are_nonzero_up_to_the_last_vote_and_zero_after_it(row_bits: int, votes: int) -> None:
    key = np.arange(8, dtype=np.uint32) + np.uint32(votes)
    states = np.empty(128, dtype=np.uint32)
    fill_states(states, key, WORD_TAG, 0, 0, 0)
    rows = np.empty(row_bits * TILE_WORDS, dtype=np.uint64)
    draw_rows(states, row_bits, 0, votes, np.empty(128, dtype=np.uint32), rows)
    planes = np.unpackbits(rows.view(np.uint8), bitorder="little").reshape(row_bits, -1)
    number = (planes.astype(np.int64) << np.arange(row_bits)[:, None]).sum(axis=0)
    assert (number[:votes] > 0).all()
    assert (number[votes:] == 0).all()


@pytest.mark.parametrize("users", [1, 16, 17, 300, 4080, 4081, 4100])
@pytest.mark.parametrize("votes", [1, 65, 4097])
def test_the_kernel_for_two_points_counts_like_the_general_one(users: int, votes: int) -> None:
    """With more than 4080 users the bit-planes are flushed in between."""
    rng = np.random.default_rng(users)
    keys = rng.integers(0, 2**32, (users, 8), dtype=np.uint32)
    payload = rng.integers(0, 256, (users, (votes + 7) // 8), dtype=np.uint8)
    tiles = -(-votes // 4096)
    general, together = np.zeros((1, votes), np.int64), np.zeros((1, votes), np.int64)
    count_tiles(keys, 0, 0, payload, 0, tiles, general)
    everyone = single_group(users)
    count_two_points(keys, 0, payload, *everyone, 0, tiles, together, NO_OUTPUT)
    assert np.array_equal(general, together)
    above = rng.uniform(size=users) < 0.4
    below = ~above & (rng.uniform(size=users) < 0.7)
    order, group_ids = group_users(above, below)
    apart, unmasked_bits = (
        np.zeros((2, votes), np.int64),
        np.zeros((tiles, order.size, 64), np.uint64),
    )
    count_two_points(keys, 0, payload, order, group_ids, 0, tiles, apart, unmasked_bits)
    bits = np.unpackbits(
        unmasked_bits.transpose(1, 0, 2).copy().view(np.uint8).reshape(order.size, -1),
        axis=1,
        bitorder="little",
    )[:, :votes]
    unmasked = np.empty((users, votes), np.int64)
    unmasked[order[order >= 0]] = 1 - 2 * bits[order >= 0].astype(np.int64)
    for group, counter in zip((above, below), apart, strict=True):
        assert np.array_equal(unmasked[group].sum(axis=0), counter)
    assert np.array_equal(unmasked.sum(axis=0), general[0])
    if votes <= 65:
        table = np.eye(2, 1, dtype=np.int64)
        some = slice(0, 50)
        exact = count.reference_counts(keys[some], 0, "hadamard", 2, payload[some], table, votes)
        together[:] = 0
        few = single_group(len(keys[some]))
        count_two_points(keys, 0, payload, *few, 0, 1, together, NO_OUTPUT)
        assert np.array_equal(together[0], exact[0])
