"""Counting ballots with bit-sliced counters: the server's hot path.

A tile is 4096 votes, one bit each, of every user. Sixteen users at a time are added by a
carry-save tree into twelve bit-planes, which are flushed to integers before they can overflow.
Tiles are independent, so threads never share a counter and the result does not depend on them.
"""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.chacha import blocks8, fill_states, set_key
from hushbit.kernels.jit import njit

TILE_BYTES = 512
TILE_VOTES = 8 * TILE_BYTES
TILE_BLOCKS = TILE_BYTES // 64
TILE_WORDS = TILE_BYTES // 8
GROUP = 16
PLANES = 12
WHOLE_BITS = 6  # attempts on whole tiles go on until at most one lane in 2^6 is without a row
RETRY = 1 << 31  # plane number of tile 0's retry stream
FLUSH_GROUPS = 255  # 255 · 16 = 4080 users fit into twelve bit-planes


@njit
def add_group(rows: NDArray[np.uint64], planes: NDArray[np.uint64]) -> None:
    """Add sixteen rows of bits (16·64 words) into twelve bit-planes (12·64 words)."""
    for w in range(TILE_WORDS):
        ones = planes[w]
        twos = planes[TILE_WORDS + w]
        fours = planes[2 * TILE_WORDS + w]
        eights = planes[3 * TILE_WORDS + w]
        carry16 = np.uint64(0)
        held8 = np.uint64(0)
        for half in range(2):
            held4 = np.uint64(0)
            for quarter in range(2):
                held2 = np.uint64(0)
                for pair in range(2):
                    row = ((half * 2 + quarter) * 2 + pair) * 2 * TILE_WORDS + w
                    a = rows[row]
                    b = rows[row + TILE_WORDS]
                    mixed = ones ^ a
                    two = (ones & a) | (mixed & b)
                    ones = mixed ^ b
                    if pair == 0:
                        held2 = two
                    else:
                        mixed = twos ^ held2
                        four = (twos & held2) | (mixed & two)
                        twos = mixed ^ two
                        if quarter == 0:
                            held4 = four
                        else:
                            mixed = fours ^ held4
                            eight = (fours & held4) | (mixed & four)
                            fours = mixed ^ four
                            if half == 0:
                                held8 = eight
                            else:
                                mixed = eights ^ held8
                                carry16 = (eights & held8) | (mixed & eight)
                                eights = mixed ^ eight
        planes[w] = ones
        planes[TILE_WORDS + w] = twos
        planes[2 * TILE_WORDS + w] = fours
        planes[3 * TILE_WORDS + w] = eights
        for plane in range(4, PLANES):
            held = planes[plane * TILE_WORDS + w]
            planes[plane * TILE_WORDS + w] = held ^ carry16
            carry16 = held & carry16


@njit
def flush(planes: NDArray[np.uint64], counters: NDArray[np.int64]) -> None:
    """Take twice the counts of differing signs off `counters` and clear the planes."""
    for w in range(TILE_WORDS):
        inside = min(64, counters.size - 64 * w)
        if inside > 0:
            into = counters[64 * w : 64 * w + inside]
            for plane in range(PLANES):
                bits = planes[plane * TILE_WORDS + w]
                if bits == np.uint64(0):
                    continue
                for i in range(inside):
                    into[i] -= np.int64((bits >> np.uint64(i)) & np.uint64(1)) << (plane + 1)
    planes[:] = np.uint64(0)


@njit
def draw_plane(
    states: NDArray[np.uint32], plane: int, counter: int, buffer: NDArray[np.uint32]
) -> None:
    """One tile of bit-plane `plane` of a user's words into `buffer` (128 words)."""
    for lane in range(8):
        states[12 * 8 + lane] = np.uint32(counter + lane)
        states[15 * 8 + lane] = np.uint32(plane)
    blocks8(states, buffer)


@njit
def draw_rows(
    states: NDArray[np.uint32], row_bits: int, tile: int, inside: int,
    buffer: NDArray[np.uint32], rows: NDArray[np.uint64],
) -> None:  # fmt: skip
    """Bit-planes of uniform non-zero Hadamard rows for one tile, by rejection.

    A few attempts fill all lanes at once, plane by plane; the lanes that are still zero, in
    ascending order, take the next non-zero 16-bit digits (mod N) of the tile's retry stream.
    """
    fresh = buffer.view(np.uint64)
    empty = np.empty(TILE_WORDS, np.uint64)
    for w in range(TILE_WORDS):
        lanes = inside - 64 * w
        empty[w] = np.uint64(0)
        if lanes >= 64:
            empty[w] = ~np.uint64(0)
        elif lanes > 0:
            empty[w] = (np.uint64(1) << np.uint64(lanes)) - np.uint64(1)
    rows[:] = np.uint64(0)
    plane = 1
    for _ in range((WHOLE_BITS + row_bits - 1) // row_bits):
        for bit in range(row_bits):
            draw_plane(states, plane, tile * TILE_BLOCKS, buffer)
            plane += 1
            into = rows[bit * TILE_WORDS : (bit + 1) * TILE_WORDS]
            for w in range(TILE_WORDS):
                into[w] |= fresh[w] & empty[w]
        for bit in range(row_bits):
            into = rows[bit * TILE_WORDS : (bit + 1) * TILE_WORDS]
            for w in range(TILE_WORDS):
                empty[w] &= ~into[w]
    digits = buffer.view(np.uint16)
    used = digits.size
    counter = 0
    for w in range(TILE_WORDS):
        left = empty[w]
        while left != np.uint64(0):
            lane = left & (~left + np.uint64(1))
            left ^= lane
            digit = 0
            while digit == 0:
                if used == digits.size:
                    draw_plane(states, RETRY + tile, counter, buffer)
                    counter += 8
                    used = 0
                digit = np.int64(digits[used]) & ((1 << row_bits) - 1)
                used += 1
            for bit in range(row_bits):
                if (digit >> bit) & 1:
                    rows[bit * TILE_WORDS + w] |= lane


@njit
def count_tiles(
    keys: NDArray[np.uint32], tag: int, stage: int, row_bits: int,
    payload: NDArray[np.uint8], first: int, last: int, counters: NDArray[np.int64],
) -> None:  # fmt: skip
    """counters[j, i] += sum over users of bit_i · word_i[j], for the tiles first … last-1.

    `counters` has one row for each point but the last (words are balanced, so it is implied)
    and one column for each vote; `payload` one row of packed bits for each user.
    """
    for tile in range(first, last):
        start = tile * TILE_VOTES
        inside = min(TILE_VOTES, counters.shape[1] - start)
        count_tile(keys, tag, stage, row_bits, payload, tile, inside, start, counters)


@njit
def sum_tiles(
    keys: NDArray[np.uint32], tag: int, stage: int, row_bits: int,
    payload: NDArray[np.uint8], table: NDArray[np.int64], first: int, last: int,
    sums: NDArray[np.int64],
) -> None:  # fmt: skip
    """sums[c, i] += sum over users of bit_i · sum_j word_i[j] · table[j, c], for some tiles.

    Votes are counted first and weighted once for all users; the last point's are minus the sum
    of the others'.
    """
    columns = table.shape[0] - 1
    votes = np.empty((columns, TILE_VOTES), np.int64)
    for tile in range(first, last):
        start = tile * TILE_VOTES
        inside = min(TILE_VOTES, sums.shape[1] - start)
        votes[:] = 0
        count_tile(keys, tag, stage, row_bits, payload, tile, inside, 0, votes)
        for c in range(table.shape[1]):
            into = sums[c, start : start + inside]
            for j in range(columns):
                weight, point = table[j, c] - table[columns, c], votes[j, :inside]
                for i in range(inside):
                    into[i] += weight * point[i]


@njit
def count_tile(
    keys: NDArray[np.uint32], tag: int, stage: int, row_bits: int,
    payload: NDArray[np.uint8], tile: int, inside: int, start: int, counters: NDArray[np.int64],
) -> None:  # fmt: skip
    """The first `inside` votes of one tile, into the counters' columns from `start` on."""
    columns, users = counters.shape[0], keys.shape[0]
    states = np.empty(128, np.uint32)
    buffer = np.empty(128, np.uint32)
    rows = np.empty(max(row_bits, 1) * TILE_WORDS, np.uint64)
    fill_states(states, keys[0], tag, stage, 0, 0)
    marks = np.zeros((GROUP, 1 + row_bits, TILE_WORDS), np.uint64)
    group = np.empty(GROUP * TILE_WORDS, np.uint64)
    planes = np.zeros((columns, PLANES * TILE_WORDS), np.uint64)
    inside_bytes = (inside + 7) // 8
    held = 0
    for base in range(0, users, GROUP):
        present = min(GROUP, users - base)
        for u in range(GROUP):
            if u >= present:
                marks[u] = np.uint64(0)
                continue
            set_key(states, keys[base + u])
            draw_plane(states, 0, tile * TILE_BLOCKS, buffer)
            if row_bits > 1:
                sign = marks[u, 0]
                fresh = buffer.view(np.uint64)
                for w in range(TILE_WORDS):
                    sign[w] = fresh[w]
                draw_rows(states, row_bits, tile, inside, buffer, rows)
                for bit in range(row_bits):
                    marks[u, 1 + bit] = rows[bit * TILE_WORDS : (bit + 1) * TILE_WORDS]
            else:
                marks[u, 0] = buffer.view(np.uint64)
            cast = marks[u, 0].view(np.uint8)[:inside_bytes]
            row = payload[base + u, tile * TILE_BYTES : tile * TILE_BYTES + inside_bytes]
            for i in range(inside_bytes):
                cast[i] ^= row[i]
        for column in range(columns):
            for u in range(GROUP):
                into = group[u * TILE_WORDS : (u + 1) * TILE_WORDS]
                into[:] = marks[u, 0]
                if u < present:
                    for bit in range(row_bits):
                        if (column >> bit) & 1:
                            other = marks[u, 1 + bit]
                            for w in range(TILE_WORDS):
                                into[w] ^= other[w]
            add_group(group, planes[column])
        held += 1
        if held == FLUSH_GROUPS:
            for column in range(columns):
                flush(planes[column], counters[column, start : start + inside])
            held = 0
    for column in range(columns):
        flush(planes[column], counters[column, start : start + inside])
        for i in range(start, start + inside):
            counters[column, i] += users
