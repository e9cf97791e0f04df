"""Packed unmasked ballots of two points: one bit a vote, 64 votes a word."""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.count import (
    FLUSH_GROUPS,
    GROUP,
    PLANES,
    TILE_VOTES,
    TILE_WORDS,
    add_group,
    flush,
)
from hushbit.kernels.jit import njit
from hushbit.kernels.two_points import one_side

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
        total = np.uint64(0)
        for first in range(0, wide, 8):
            word = np.uint64(0)
            for byte in range(8):  # compiled to one load; a view of each row takes twice as long
                word |= np.uint64(payload[user, first + byte]) << np.uint64(8 * byte)
            total += ones(word)
        for at in range(wide, width):
            total += ones(np.uint64(payload[user, at]))
        out[user] = abs(np.float64(total) - fair) > limit
    return out


@njit
def slots_of(
    above: NDArray[np.bool_], below: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Users in slots: those above, those below, the others, each from a new group of slots on.

    As `count_two_points` takes them: the user in each slot or -1, and the side of each group.
    """
    sizes = np.zeros(3, np.int64)
    for user in range(above.size):
        sizes[(1 - above[user]) * (2 - below[user])] += 1
    groups = (sizes + GROUP - 1) // GROUP
    sides = np.empty(groups.sum(), np.uint8)
    sides[: groups[0]], sides[groups[0] : groups[0] + groups[1]] = 0, 1
    sides[groups[0] + groups[1] :] = 2
    order = np.full(sides.size * GROUP, -1, np.int64)
    free = np.zeros(3, np.int64)
    free[1], free[2] = GROUP * groups[0], GROUP * (groups[0] + groups[1])
    for user in range(above.size):
        side = (1 - above[user]) * (2 - below[user])
        order[free[side]] = user
        free[side] += 1
    return order, sides


def laid_out(rows: Words) -> tuple[Words, NDArray[np.int64]]:
    """Rows of bits, one for each user, in tiles and slots; and the order of slots."""
    order, _ = one_side(len(rows))
    tiles = -(-rows.shape[1] // TILE_WORDS)
    wide = np.zeros((order.size, tiles * TILE_WORDS), dtype=np.uint64)
    wide[: len(rows), : rows.shape[1]] = rows
    tiled = wide.reshape(order.size, tiles, TILE_WORDS).transpose(1, 0, 2)
    return np.ascontiguousarray(tiled), order


@njit
def overlap(part: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> tuple[int, int]:
    """How many of a part are chosen, and how many are not."""
    inside, missing = 0, 0
    for user in range(part.size):
        inside += part[user] & chosen[user]
        missing += part[user] & (not chosen[user])
    return inside, missing


@njit
def directions(
    up: NDArray[np.int64], down: NDArray[np.int64], way: NDArray[np.float64], planes: Words,
    sizes: NDArray[np.float64],
) -> None:  # fmt: skip
    """`three_levels` of -up - down, of down - up, and of the way unless it is empty.

    Counters are minus the sums that the directions are made of.
    """
    total, apart = np.empty(up.size), np.empty(up.size)
    for i in range(up.size):
        # Sums of ±1 fit into 32 bits, and those are converted by whole vectors.
        total[i], apart[i] = np.int32(-up[i] - down[i]), np.int32(down[i] - up[i])
    three_levels(total, planes[0], sizes[0])
    three_levels(apart, planes[1], sizes[1])
    sizes[2, 0], sizes[2, 1], sizes[2, 2] = 0.0, 1.0, 0.0
    if way.size > 0:
        three_levels(way, planes[2], sizes[2])


@njit
def three_levels(direction: NDArray[np.float64], planes: Words, sizes: NDArray[np.float64]) -> None:
    """Round a direction d to -1, 0 and 1, in bit-planes.

    Row 0 of `planes` says which entries are not 0, row 1 which of them are 1. 0 is what lies
    within 0.61 root mean squares: that keeps 90 % of a Gaussian direction. sizes = how many are
    not 0; the root of that, its length; and what a ballot that is part of the direction with
    weight 1 adds to its own score, the sum of (level(d + 1) - level(d - 1)) / 2.
    """
    votes = direction.size
    power = np.zeros(8)  # eight sums side by side: each waits for itself alone
    for i in range(0, votes - 7, 8):
        for j in range(8):
            power[j] += direction[i + j] ** 2
    for i in range(votes // 8 * 8, votes):
        power[0] += direction[i] ** 2
    limit = ZERO_WITHIN * np.sqrt(power.sum() / votes)
    count, close = 0, 0
    for w in range(-(-votes // 64)):
        some, plus = np.uint64(0), np.uint64(0)
        for i in range(min(64, votes - 64 * w)):
            size = abs(direction[64 * w + i])
            some |= np.uint64(size > limit) << np.uint64(i)
            plus |= np.uint64(direction[64 * w + i] > limit) << np.uint64(i)
            close += abs(size - limit) < 1
        planes[0, w], planes[1, w] = some, plus
        count += int(ones(some))
    sizes[0], sizes[1], sizes[2] = count, np.sqrt(max(count, 1)), close / 2


@njit
def score_users(
    kept: Words, order: NDArray[np.int64], planes: Words, sizes: NDArray[np.float64],
    above: NDArray[np.bool_], below: NDArray[np.bool_], first: int, last: int,
    scores: NDArray[np.float64],
) -> None:  # fmt: skip
    """scores[d, u] = sum over votes of (±1) · level of direction d / its length, in one pass.

    Three directions: the sum of users above and below, the sum above less that below, and one that
    holds nobody's ballot; a user's own part is left out. `planes` (3, 2, words) and `sizes` are
    what `three_levels` made. Votes that pull against a level are counted and taken off twice.
    """
    for slot in range(first, last):
        user = order[slot]
        if user < 0:
            continue
        lost0 = lost1 = lost2 = np.uint64(0)
        # Written out: a loop over directions keeps no vector of the row in a register.
        for tile in range(kept.shape[0]):
            row, part = kept[tile, slot], slice(tile * TILE_WORDS, (tile + 1) * TILE_WORDS)
            some0, some1, some2 = planes[0, 0, part], planes[1, 0, part], planes[2, 0, part]
            plus0, plus1, plus2 = planes[0, 1, part], planes[1, 1, part], planes[2, 1, part]
            for w in range(TILE_WORDS):
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
    kept: Words, order: NDArray[np.int64], chosen: NDArray[np.bool_], first: int, last: int,
    counter: NDArray[np.int64],
) -> None:  # fmt: skip
    """counter[i] -= sum over the chosen users of (±1 of vote i), for the tiles first … last-1.

    What `count_two_points` counts, from ballots that are unmasked already.
    """
    group = np.zeros(GROUP * TILE_WORDS, np.uint64)
    planes = np.zeros(PLANES * TILE_WORDS, np.uint64)
    for tile in range(first, last):
        into = counter[tile * TILE_VOTES : min((tile + 1) * TILE_VOTES, counter.size)]
        users, present, held = 0, 0, 0
        for slot in range(order.size):
            if order[slot] < 0 or not chosen[order[slot]]:
                continue
            group[present * TILE_WORDS : (present + 1) * TILE_WORDS] = kept[tile, slot]
            users, present = users + 1, present + 1
            if present == GROUP:
                add_group(group, planes)
                present, held = 0, held + 1
            if held == FLUSH_GROUPS:
                flush(planes, into)
                held = 0
        group[present * TILE_WORDS :] = np.uint64(0)
        add_group(group, planes)
        flush(planes, into)
        into += users
