"""Packed unmasked ballots of two points: one bit a vote, 64 votes a word."""

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
    """How many bits of a 64-bit word are set; sums by shifts, which vector units have."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    low = word & np.uint64(0x3333333333333333)
    word = low + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    word = word + (word >> np.uint64(8))
    word = word + (word >> np.uint64(16))
    return np.int64((word + (word >> np.uint64(32))) & np.uint64(0x7F))


@njit
def count_ones(payload: NDArray[np.uint8], counts: NDArray[np.int64]) -> None:
    """counts[u] = how many bits of row u are set."""
    wide = payload.shape[1] // 8 * 8
    for user in range(payload.shape[0]):
        total = np.int64(0)
        for word in payload[user, :wide].view(np.uint64):
            total += ones(word)
        for byte in payload[user, wide:]:
            total += ones(np.uint64(byte))
        counts[user] = total


@njit
def transpose_bits(rows: Words, first: int, last: int, turned: Words) -> None:
    """turned[64 w + i] has bit u where row u has bit i of word w, for the words first … last-1."""
    block = np.empty(64, np.uint64)
    for w in range(first, last):
        for part in range(turned.shape[1]):
            for u in range(64):
                user = 64 * part + u
                block[u] = rows[user, w] if user < rows.shape[0] else np.uint64(0)
            width, mask = 32, np.uint64(0x00000000FFFFFFFF)
            while width:  # swap ever smaller squares (Hacker's Delight, 7-3)
                shift = np.uint64(width)
                k = 0
                while k < 64:
                    swap = ((block[k] >> shift) ^ block[k + width]) & mask
                    block[k] ^= swap << shift
                    block[k + width] ^= swap
                    k = (k + width + 1) & ~width
                width >>= 1
                mask ^= mask << np.uint64(width)
            for i in range(64):
                turned[64 * w + i, part] = block[i]


@njit
def score_users(
    rows: Words, planes: Words, total: int, first: int, last: int, scores: NDArray[np.int64]
) -> None:
    """scores[u] = sum over votes of (±1) · level, levels being whole numbers in bit-planes.

    `planes` (1 + bits, words): row 0 holds the levels' signs (1 for minus), row 1 + k the bit of
    weight 2^k of their sizes; `total` is the sum of sizes. Votes that pull against the level's
    sign are counted and taken off twice.
    """
    against = np.empty(rows.shape[1], np.uint64)
    for user in range(first, last):
        row = rows[user]
        for w in range(row.size):
            against[w] = ~row[w] ^ planes[0, w]
        lost = np.int64(0)
        for k in range(1, planes.shape[0]):
            sizes = planes[k]
            count = np.int64(0)
            for w in range(row.size):
                count += ones(against[w] & sizes[w])
            lost += count << (k - 1)
        scores[user] = total - 2 * lost


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
