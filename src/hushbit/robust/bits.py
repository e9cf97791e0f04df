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

ZERO_WITHIN = 0.612  # the best three levels for a Gaussian
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
def unfair(payload: NDArray[np.uint8], width: int, fair: float, limit: float) -> NDArray[np.bool_]:
    """Whose row has a number of ones in `width` bytes that is further than `limit` from `fair`."""
    wide = width // 8 * 8
    out = np.empty(payload.shape[0], np.bool_)
    for user in range(payload.shape[0]):
        total, rest = np.uint64(0), np.uint64(0)
        for word in payload[user, :wide].view(np.uint64):
            total += ones(word)
        for byte in payload[user, wide:width]:
            rest = (rest << np.uint64(8)) | np.uint64(byte)
        out[user] = abs(np.float64(total + ones(rest)) - fair) > limit
    return out


@njit
def three_levels(
    up: NDArray[np.float64], down: NDArray[np.float64], sign: int, planes: Words,
    sizes: NDArray[np.float64],
) -> None:  # fmt: skip
    """Round the direction d = up + sign · down to -1, 0 and 1, in bit-planes.

    Row 0 of `planes` says which entries are not 0, row 1 which of them are 1. 0 is what lies
    within 0.61 root mean squares: that keeps 90 % of a Gaussian direction. sizes = how many are
    not 0; the root of that, its length; and what a ballot that is part of the direction with
    weight 1 adds to its own score, the sum of (level(d + 1) - level(d - 1)) / 2.
    """
    votes, power = up.size, 0.0
    for i in range(votes):
        power += np.float64(up[i] + sign * down[i]) ** 2
    limit = ZERO_WITHIN * np.sqrt(power / votes)
    count, close = 0, 0
    for w in range(-(-votes // 64)):
        some, plus = np.uint64(0), np.uint64(0)
        for i in range(min(64, votes - 64 * w)):
            level = np.float64(up[64 * w + i] + sign * down[64 * w + i])
            size = abs(level)
            some |= np.uint64(size > limit) << np.uint64(i)
            plus |= np.uint64(level > limit) << np.uint64(i)
            close += abs(size - limit) < 1
        planes[0, w], planes[1, w] = some, plus
        count += int(ones(some))
    sizes[0], sizes[1], sizes[2] = count, np.sqrt(max(count, 1)), close / 2


@njit
def score_users(
    rows: Words, planes: Words, sizes: NDArray[np.float64], above: NDArray[np.bool_],
    below: NDArray[np.bool_], first: int, last: int, scores: NDArray[np.float64],
) -> None:  # fmt: skip
    """scores[d, u] = sum over votes of (±1) · level of direction d / its length, in one pass.

    Three directions: the sum of users above and below, the sum above less that below, and one that
    holds nobody's ballot; a user's own part is left out. `planes` (3, 2, words) and `sizes` are
    what `three_levels` made. Votes that pull against a level are counted and taken off twice.
    """
    some0, some1, some2 = planes[0, 0], planes[1, 0], planes[2, 0]
    plus0, plus1, plus2 = planes[0, 1], planes[1, 1], planes[2, 1]
    for user in range(first, last):
        row = rows[user]
        lost0 = lost1 = lost2 = np.uint64(0)
        # Written out: a loop over directions keeps no vector of the row in a register.
        for w in range(row.size):
            lost0 += ones((row[w] & some0[w]) ^ plus0[w])
            lost1 += ones((row[w] & some1[w]) ^ plus1[w])
            lost2 += ones((row[w] & some2[w]) ^ plus2[w])
        up, down = np.float64(above[user]), np.float64(below[user])
        own0, own1 = (up + down) * sizes[0, 2], (up - down) * sizes[1, 2]
        scores[0, user] = (sizes[0, 0] - 2 * np.float64(lost0) - own0) / sizes[0, 1]
        scores[1, user] = (sizes[1, 0] - 2 * np.float64(lost1) - own1) / sizes[1, 1]
        scores[2, user] = (sizes[2, 0] - 2 * np.float64(lost2)) / sizes[2, 1]


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
