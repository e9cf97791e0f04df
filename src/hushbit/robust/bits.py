"""Packed unmasked ballots of two points: one bit a vote, 64 votes a word."""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.count import (
    FLUSH_GROUPS,
    GROUP,
    PLANES,
    TILE_WORDS,
    add_group,
    flush,
)
from hushbit.kernels.jit import njit

Words = NDArray[np.uint64]


@njit
def ones(word: np.uint64) -> np.uint64:
    """How many bits of a 64-bit word are set, in the form that compilers know an opcode for."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    low = word & np.uint64(0x3333333333333333)
    word = low + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.uint64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit
def count_ones(payload: NDArray[np.uint8], counts: NDArray[np.int64]) -> None:
    """counts[u] = how many bits of row u are set."""
    wide = payload.shape[1] // 8 * 8
    for user in range(payload.shape[0]):
        total = np.uint64(0)
        for word in payload[user, :wide].view(np.uint64):
            total += ones(word)
        for byte in payload[user, wide:]:
            total += ones(np.uint64(byte))
        counts[user] = np.int64(total)


@njit
def level_planes(levels: NDArray[np.float64], unit: float, planes: Words) -> int:
    """Round levels to whole numbers of `unit` and write them down in bit-planes.

    `planes` (1 + bits, words): row 0 holds the signs (1 for plus), row 1 + k the bit of weight 2^k
    of the sizes. Returns the sum of sizes.
    """
    total = np.int64(0)
    for w in range(planes.shape[1]):
        inside = min(64, levels.size - 64 * w)
        planes[:, w] = np.uint64(0)
        for i in range(inside):
            level = np.int64(np.rint(levels[64 * w + i] / unit))
            size = abs(level)
            total += size
            planes[0, w] |= np.uint64(level > 0) << np.uint64(i)
            for k in range(1, planes.shape[0]):
                planes[k, w] |= np.uint64((size >> (k - 1)) & 1) << np.uint64(i)
    return int(total)


@njit
def score_users(
    rows: Words, planes: Words, total: int, first: int, last: int, scores: NDArray[np.int64]
) -> None:
    """scores[u] = sum over votes of (±1) · level, levels being whole numbers in bit-planes.

    `planes` and `total` are what `level_planes` made. Votes that pull against the level's sign
    are counted and taken off twice.
    """
    signs = planes[0]
    for user in range(first, last):
        row = rows[user]
        lost = np.uint64(0)
        for k in range(1, planes.shape[0]):
            sizes = planes[k]
            count = np.uint64(0)
            for w in range(row.size):
                count += ones((row[w] ^ signs[w]) & sizes[w])
            lost += count << np.uint64(k - 1)
        scores[user] = total - 2 * np.int64(lost)


@njit
def count_rows(
    rows: Words, chosen: NDArray[np.int64], first: int, last: int, counter: NDArray[np.int64]
) -> None:
    """counter[i] -= sum over the chosen users of (±1 of vote i), for the tiles first … last-1.

    What `count_two_points` counts, from ballots that are unmasked already.
    """
    users, words = chosen.size, rows.shape[1]
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
                    part[:] = rows[chosen[base + u], begin : begin + inside]
                else:
                    part[:] = np.uint64(0)
            add_group(group, planes)
            held += 1
            if held == FLUSH_GROUPS:
                flush(planes, into)
                held = 0
        flush(planes, into)
        into += users
