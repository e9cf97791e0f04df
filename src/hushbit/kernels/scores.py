"""Scores of packed ballots of two points: one bit per vote, 64 votes per word.

Ballots are unmasked first (payload xor the signs of the words, see `count_two_points`), so that a
set bit is a vote for the upper point. They are stored by tile, then by slot: (tiles, slots, 64).
"""

import numpy as np

from hushbit.kernels import Bytes, Flags, Floats, Ints, Words64, njit
from hushbit.kernels.count import FLUSH_GROUPS, GROUP, PLANES, add_sixteen_rows, flush_planes
from hushbit.kernels.words import TILE_VOTES, TILE_WORDS

ZERO_WITHIN = 0.612  # in root mean squares: the threshold of the best three levels for a Gaussian


@njit
def ones(word: np.uint64) -> np.uint64:
    """Number of set bits of a 64-bit word, in a form that compilers turn into one instruction."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    low = word & np.uint64(0x3333333333333333)
    word = low + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.uint64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit
def biased_rows(payload: Bytes, width: int, expected: float, limit: float) -> Flags:
    """Rows whose number of ones in `width` bytes is further than `limit` from `expected`."""
    out = np.empty(payload.shape[0], np.bool_)
    for user in range(payload.shape[0]):
        total = np.uint64(0)
        for byte in payload[user, :width]:
            total += ones(np.uint64(byte))
        out[user] = abs(np.float64(total) - expected) > limit
    return out


@njit
def group_users(above: Flags, below: Flags) -> tuple[Ints, Bytes]:
    """Slots and group numbers for `count_two_points`: users above, users below, the others.

    Returns the user in each slot (-1 for none) and the group of each sixteen slots: 0, 1 or 2.
    Every group starts at a multiple of sixteen slots. A user in both is counted as above.
    """
    order = np.full(above.size + 3 * GROUP, -1, np.int64)
    numbers = np.empty(order.size // GROUP + 1, np.uint8)
    end = 0
    for number, flags in enumerate((above, below & ~above, ~(above | below))):
        users = np.flatnonzero(flags)
        start, end = end, end + -(-users.size // GROUP)
        order[GROUP * start : GROUP * start + users.size] = users
        numbers[start:end] = number
    return order[: GROUP * end], numbers[:end]


def to_tiles(payload: Bytes) -> tuple[Words64, Ints]:
    """One row of bits for each user, stored by tile and slot; and the user in each slot."""
    users, width = payload.shape
    tiles = -(-8 * width // TILE_VOTES)
    rows = np.zeros((users, tiles * TILE_VOTES // 8), np.uint8)
    rows[:, :width] = payload
    tiled = rows.view(np.uint64).reshape(users, tiles, TILE_WORDS).transpose(1, 0, 2)
    return np.ascontiguousarray(tiled), np.arange(users)


@njit
def ternary_planes(direction: Floats, planes: Words64) -> tuple[int, float, float]:
    """Round a direction d to the levels -1, 0 and 1, as two bit-planes.

    Row 0 of `planes` marks the entries that are not 0, row 1 those that are 1. Entries within 0.61
    root mean squares become 0, which keeps 90 % of a Gaussian direction. Returns the number of
    entries that are not 0, its square root (the length), and what a ballot that is part of the
    direction with weight 1 adds to its own score: the sum of (level(d + 1) - level(d - 1)) / 2.
    """
    votes = direction.size
    power = np.zeros(8)  # eight partial sums: each addition waits only for its own predecessor
    for i in range(0, votes - 7, 8):
        for j in range(8):
            power[j] += direction[i + j] ** 2
    for i in range(votes // 8 * 8, votes):
        power[0] += direction[i] ** 2
    limit = ZERO_WITHIN * np.sqrt(power.sum() / votes)
    count, close = 0, 0
    for w in range(-(-votes // 64)):
        nonzero, plus = np.uint64(0), np.uint64(0)
        for i in range(min(64, votes - 64 * w)):
            size = abs(direction[64 * w + i])
            nonzero |= np.uint64(size > limit) << np.uint64(i)
            plus |= np.uint64(direction[64 * w + i] > limit) << np.uint64(i)
            close += abs(size - limit) < 1
        planes[0, w], planes[1, w] = nonzero, plus
        count += int(ones(nonzero))
    return count, np.sqrt(max(count, 1)), close / 2


@njit
def score_users(
    unmasked: Words64,
    order: Ints,
    planes: Words64,
    sizes: Floats,
    above: Flags,
    below: Flags,
    first: int,
    last: int,
    scores: Floats,
) -> None:
    """scores[d, u] = sum of (±1 of user u) · (level of direction d) / its length, in one pass.

    The three directions are the sum of both groups, their difference, and one that contains no
    ballot; `planes[d]` and `sizes[d]` come from `ternary_planes`. A user's own part is left out.
    """
    for slot in range(first, last):
        user = order[slot]
        if user < 0:
            continue
        against0 = against1 = against2 = np.uint64(0)
        # Unrolled: a loop over directions keeps no vector of the row in a register.
        for tile in range(unmasked.shape[0]):
            row, part = unmasked[tile, slot], slice(tile * TILE_WORDS, (tile + 1) * TILE_WORDS)
            nonzero0, nonzero1 = planes[0, 0, part], planes[1, 0, part]
            nonzero2 = planes[2, 0, part]
            plus0, plus1, plus2 = planes[0, 1, part], planes[1, 1, part], planes[2, 1, part]
            for w in range(TILE_WORDS):
                against0 += ones((row[w] & nonzero0[w]) ^ plus0[w])
                against1 += ones((row[w] & nonzero1[w]) ^ plus1[w])
                against2 += ones((row[w] & nonzero2[w]) ^ plus2[w])
        up, down = np.float64(above[user]), np.float64(below[user])
        own0, own1 = (up + down) * sizes[0, 2], (up - down) * sizes[1, 2]
        scores[0, user] = (sizes[0, 0] - 2 * np.float64(against0) - own0) / sizes[0, 1]
        scores[1, user] = (sizes[1, 0] - 2 * np.float64(against1) - own1) / sizes[1, 1]
        scores[2, user] = (sizes[2, 0] - 2 * np.float64(against2)) / sizes[2, 1]


@njit
def count_rows(unmasked: Words64, slots: Ints, first: int, last: int, counter: Ints) -> None:
    """counter[i] -= sum over these slots of (±1 of vote i), for the tiles first … last-1."""
    group = np.empty((GROUP, TILE_WORDS), np.uint64)
    planes = np.zeros(PLANES * TILE_WORDS, np.uint64)
    for tile in range(first, last):
        part = counter[tile * TILE_VOTES : min((tile + 1) * TILE_VOTES, counter.size)]
        for sixteen in range(-(-slots.size // GROUP)):
            group[:] = np.uint64(0)
            for row, slot in enumerate(slots[sixteen * GROUP : (sixteen + 1) * GROUP]):
                group[row] = unmasked[tile, slot]
            add_sixteen_rows(group.reshape(-1), planes)
            if (sixteen + 1) % FLUSH_GROUPS == 0:
                flush_planes(planes, part)
        flush_planes(planes, part)
        part += slots.size
