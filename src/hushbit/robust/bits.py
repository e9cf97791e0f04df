"""Packed unmasked ballots of two points: one bit a vote, 64 votes a word."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.chacha import fill_states
from hushbit.kernels.count import (
    FLUSH_GROUPS,
    GROUP,
    PLANES,
    TILE_BLOCKS,
    TILE_BYTES,
    TILE_WORDS,
    add_group,
    draw_plane,
    flush,
)
from hushbit.kernels.jit import njit

Words = NDArray[np.uint64]


@njit
def unmask_users(
    keys: NDArray[np.uint32], tag: int, payload: NDArray[np.uint8], first: int, last: int,
    rows: NDArray[np.uint8],
) -> None:  # fmt: skip
    """rows[u] = payload[u] xor the signs of user u's words: bit 1 says that the vote pulls up."""
    states = np.empty(128, np.uint32)
    buffer = np.empty(128, np.uint32)
    size = payload.shape[1]
    for user in range(first, last):
        fill_states(states, keys[user], tag, 0, 0, 0)
        for start in range(0, size, TILE_BYTES):
            draw_plane(states, 0, start // TILE_BYTES * TILE_BLOCKS, buffer)
            signs = buffer.view(np.uint8)
            inside = min(TILE_BYTES, size - start)
            cast = payload[user, start : start + inside]
            into = rows[user, start : start + inside]
            for i in range(inside):
                into[i] = cast[i] ^ signs[i]


@njit
def ones(word: np.uint64) -> np.int64:
    """How many bits of a 64-bit word are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    low = word & np.uint64(0x3333333333333333)
    word = low + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit
def sketch_users(
    rows: NDArray[Any], signs: NDArray[Any], sizes: NDArray[np.int64], run: int, first: int,
    last: int, sketch: NDArray[np.int16],
) -> None:  # fmt: skip
    """sketch[u, b] = sum of ballot times random sign over the b-th run of `run` words.

    Words have 8, 16, 32 or 64 bits; `sizes` says how many votes a run has.
    """
    words = rows.shape[1]
    for user in range(first, last):
        row = rows[user]
        if run == 1:  # apart, since a loop without an inner one is vectorised
            for w in range(sketch.shape[1]):
                sketch[user, w] = np.int16(sizes[w] - 2 * ones(np.uint64(row[w] ^ signs[w])))
            continue
        for bucket in range(sketch.shape[1]):
            differ = np.int64(0)
            for w in range(bucket * run, min((bucket + 1) * run, words)):
                differ += ones(np.uint64(row[w] ^ signs[w]))
            sketch[user, bucket] = np.int16(sizes[bucket] - 2 * differ)


@njit
def add_weighted(
    rows: Words, weights: NDArray[np.float32], first: int, last: int, total: NDArray[np.float32]
) -> None:
    """total[j] += sum over users of weights[u] · (±1 of vote j), for the words first … last-1.

    A weight is added where the bit is set; the sum of all weights is taken off once.
    """
    everything = np.float32(0.0)
    for user in range(rows.shape[0]):
        everything += weights[user]
    for w in range(first, last):
        held = np.zeros(64, np.float32)
        for user in range(rows.shape[0]):
            bits = rows[user, w]
            weight = np.float32(2.0) * weights[user]
            for i in range(64):
                held[i] += weight * np.float32((bits >> np.uint64(i)) & np.uint64(1))
        inside = min(64, total.size - 64 * w)
        for i in range(inside):
            total[64 * w + i] += held[i] - everything


@njit
def score_users(
    rows: Words, planes: Words, first: int, last: int, scores: NDArray[np.int64]
) -> None:
    """scores[u] = sum over votes of (±1) · level, levels being whole numbers in bit-planes.

    `planes` (1 + bits, words): row 0 holds the levels' signs (1 for minus), row 1 + k the bit of
    weight 2^k of their sizes.
    """
    for user in range(first, last):
        row = rows[user]
        total = np.int64(0)
        for w in range(row.size):
            down = ~row[w] ^ planes[0, w]
            for k in range(1, planes.shape[0]):
                size = planes[k, w]
                total += (ones(size) - 2 * ones(down & size)) << (k - 1)
        scores[user] = total


@njit
def count_rows(rows: Words, first: int, last: int, counter: NDArray[np.int64]) -> None:
    """counter[i] -= sum over users of (±1 of vote i), for the tiles first … last-1.

    What `count_tiles` counts for two points, from ballots that are unmasked already.
    """
    users, words = rows.shape
    group = np.zeros(GROUP * TILE_WORDS, np.uint64)
    planes = np.zeros(PLANES * TILE_WORDS, np.uint64)
    for tile in range(first, last):
        begin = tile * TILE_WORDS
        inside = min(TILE_WORDS, words - begin)
        into = counter[64 * begin : min(64 * (begin + inside), counter.size)]
        held = 0
        group[:] = np.uint64(0)
        for base in range(0, users, GROUP):
            for u in range(GROUP):
                part = group[u * TILE_WORDS : u * TILE_WORDS + inside]
                if base + u < users:
                    part[:] = rows[base + u, begin : begin + inside]
                else:
                    part[:] = np.uint64(0)
            add_group(group, planes)
            held += 1
            if held == FLUSH_GROUPS:
                flush(planes, into)
                held = 0
        flush(planes, into)
        into += users
