"""Counting ballots with bit-sliced counters: the server's hot path.

A tile holds 4096 votes, one bit each, of every user. A carry-save tree adds sixteen users at a time
to twelve bit-planes, which are flushed to integers before they can overflow. Tiles are independent:
threads never share a counter, and the result does not depend on their number.

    count_tiles, sum_tiles   Hadamard words: votes for each point, or their weighted sums
    count_two_points         two points, whose words are one bit: the fastest path
    count_signs              any words
    count_chosen             any words, ballots on a random subset of the blocks

`reference_counts` is the NumPy definition of what they count.
"""

import numpy as np

from hushbit.kernels import Bytes, Ints, Words, Words64, njit
from hushbit.kernels.chacha import fill_states, keystream, set_counter, set_key, xor_blocks8
from hushbit.kernels.chacha_numpy import BLOCKS8_WORDS, LANES
from hushbit.kernels.words import (
    TILE_BLOCKS,
    TILE_BYTES,
    TILE_VOTES,
    TILE_WORDS,
    WORD_TAG,
    draw_plane,
    draw_rows,
    draw_words,
    tile_signs,
)

GROUP = 16  # users that are added together
PLANES = 12
FLUSH_GROUPS = 255  # 255 · 16 = 4080 users fit into twelve bit-planes
NO_OUTPUT = np.empty((0, 0, 0), dtype=np.uint64)
SUBSET_TAG = int.from_bytes(b"subs", "little")


def reference_counts(
    keys: Words, stage: int, family: str, points: int, payload: Bytes, table: Ints, votes: int
) -> Ints:
    """sum over users of bit_i · sum_j word_i[j] · table[j, c], as (columns, votes)."""
    total = np.zeros((votes, table.shape[1]), dtype=np.int64)
    for key, row in zip(keys, payload, strict=True):
        bit = 2 * np.unpackbits(row, bitorder="little")[:votes].astype(np.int64) - 1
        word = draw_words(key, stage, votes, points, family).astype(np.int64)
        total += bit[:, None] * (word @ table)
    return np.ascontiguousarray(total.T)


@njit
def add_sixteen_rows(rows: Words64, planes: Words64) -> None:
    """Add sixteen rows of bits (16·64 words) to twelve bit-planes (12·64 words)."""
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
def flush_planes(planes: Words64, counters: Ints) -> None:
    """Subtract twice the counts in the planes from `counters`, and clear the planes.

    A set bit is a vote of -1: a counter that gets + 1 for every user and - 2 for every set bit
    holds the sum of the votes.
    """
    for w in range(TILE_WORDS):
        size = min(64, counters.size - 64 * w)
        if size > 0:
            part = counters[64 * w : 64 * w + size]
            for plane in range(PLANES):
                bits = planes[plane * TILE_WORDS + w]
                if bits == np.uint64(0):
                    continue
                for i in range(size):
                    part[i] -= np.int64((bits >> np.uint64(i)) & np.uint64(1)) << (plane + 1)
    planes[:] = np.uint64(0)


@njit
def count_tile(
    keys: Words,
    stage: int,
    row_bits: int,
    payload: Bytes,
    tile: int,
    votes: int,
    start: int,
    counters: Ints,
) -> None:
    """Count the first votes of one tile into the columns of `counters` from `start` on."""
    points, users = counters.shape[0], keys.shape[0]
    states = np.empty(BLOCKS8_WORDS, np.uint32)
    buffer = np.empty(BLOCKS8_WORDS, np.uint32)
    rows = np.empty(max(row_bits, 1) * TILE_WORDS, np.uint64)
    fill_states(states, keys[0], WORD_TAG, stage, 0, 0)
    # Plane 0 of a user: payload xor signs of the words; planes 1, 2, …: bits of the rows.
    user_planes = np.zeros((GROUP, 1 + row_bits, TILE_WORDS), np.uint64)
    group = np.empty(GROUP * TILE_WORDS, np.uint64)
    planes = np.zeros((points, PLANES * TILE_WORDS), np.uint64)
    width = (votes + 7) // 8
    pending = 0
    for base in range(0, users, GROUP):
        present = min(GROUP, users - base)
        for u in range(GROUP):
            if u >= present:
                user_planes[u] = np.uint64(0)
                continue
            set_key(states, keys[base + u])
            draw_plane(states, 0, tile * TILE_BLOCKS, buffer)
            user_planes[u, 0] = buffer.view(np.uint64)
            if row_bits:
                draw_rows(states, row_bits, tile, votes, buffer, rows)
                for bit in range(row_bits):
                    user_planes[u, 1 + bit] = rows[bit * TILE_WORDS : (bit + 1) * TILE_WORDS]
            differs = user_planes[u, 0].view(np.uint8)[:width]
            row = payload[base + u, tile * TILE_BYTES : tile * TILE_BYTES + width]
            for i in range(width):
                differs[i] ^= row[i]
        for point in range(points):
            for u in range(GROUP):
                user_row = group[u * TILE_WORDS : (u + 1) * TILE_WORDS]
                user_row[:] = user_planes[u, 0]
                if u < present:
                    for bit in range(row_bits):
                        if (point >> bit) & 1:
                            row_plane = user_planes[u, 1 + bit]
                            for w in range(TILE_WORDS):
                                user_row[w] ^= row_plane[w]
            add_sixteen_rows(group, planes[point])
        pending += 1
        if pending == FLUSH_GROUPS:
            for point in range(points):
                flush_planes(planes[point], counters[point, start : start + votes])
            pending = 0
    for point in range(points):
        flush_planes(planes[point], counters[point, start : start + votes])
        for i in range(start, start + votes):
            counters[point, i] += users


@njit
def count_tiles(
    keys: Words, stage: int, row_bits: int, payload: Bytes, first: int, last: int, counters: Ints
) -> None:
    """counters[j, i] += sum over users of bit_i · word_i[j], for the tiles first … last-1.

    `counters` has one row for each point but the last, whose votes follow because words are
    balanced, and one column for each vote. `payload` has one row of packed bits for each user.
    """
    for tile in range(first, last):
        start = tile * TILE_VOTES
        votes = min(TILE_VOTES, counters.shape[1] - start)
        count_tile(keys, stage, row_bits, payload, tile, votes, start, counters)


@njit
def sum_tiles(
    keys: Words,
    stage: int,
    row_bits: int,
    payload: Bytes,
    table: Ints,
    first: int,
    last: int,
    sums: Ints,
) -> None:
    """sums[c, i] += sum over users of bit_i · sum_j word_i[j] · table[j, c], for some tiles.

    Votes are counted first and weighted once for all users. The votes for the last point are minus
    the sum of the others.
    """
    kept = table.shape[0] - 1
    counts = np.empty((kept, TILE_VOTES), np.int64)
    for tile in range(first, last):
        start = tile * TILE_VOTES
        votes = min(TILE_VOTES, sums.shape[1] - start)
        counts[:] = 0
        count_tile(keys, stage, row_bits, payload, tile, votes, 0, counts)
        for c in range(table.shape[1]):
            part = sums[c, start : start + votes]
            for j in range(kept):
                weight, point = table[j, c] - table[kept, c], counts[j, :votes]
                for i in range(votes):
                    part[i] += weight * point[i]


@njit
def count_two_points(
    keys: Words,
    stage: int,
    payload: Bytes,
    order: Ints,
    group_ids: Bytes,
    first: int,
    last: int,
    counters: Ints,
    unmasked: Words64,
) -> None:
    """`count_tiles` for two points; each group of users has a row of `counters` of its own.

    order      the user in each slot, -1 for an empty slot; sixteen slots are added together
    group_ids  the row of `counters` for each sixteen slots; a number equal to the number of rows
               means that they are not counted
    unmasked   output (tiles, slots, 64), or NO_OUTPUT: payload xor the signs of the user's words,
               1 for a vote for the upper point; bits after the last vote are undefined

    The rows of `payload` must hold all votes and lie in memory without gaps; this is not checked.
    """
    groups, votes = counters.shape
    states = np.empty(BLOCKS8_WORDS, np.uint32)
    fill_states(states, keys[0], WORD_TAG, stage, 0, 0)
    # Without output, every sixteen slots are written to the same buffer.
    keep = unmasked.size > 0
    slots = unmasked.reshape(-1) if keep else np.zeros(GROUP * TILE_WORDS, np.uint64)
    words = slots.view(np.uint32)
    padded = np.zeros(TILE_BYTES, np.uint8)
    planes = np.zeros((groups, PLANES * TILE_WORDS), np.uint64)
    pending, users = np.zeros(groups, np.int64), np.zeros(groups + 1, np.int64)
    for slot in range(order.size):
        users[group_ids[slot // GROUP]] += order[slot] >= 0
    for tile in range(first, last):
        start, begin = tile * TILE_VOTES, tile * TILE_BYTES
        size = min(TILE_VOTES, votes - start)
        width = (size + 7) // 8
        set_counter(states, tile * TILE_BLOCKS)
        for sixteen in range(group_ids.size):
            base = tile * order.size + sixteen * GROUP if keep else 0
            for u in range(GROUP):
                user = order[sixteen * GROUP + u]
                if user < 0:
                    slots[(base + u) * TILE_WORDS : (base + u + 1) * TILE_WORDS] = np.uint64(0)
                    continue
                text = payload[user, begin : begin + width]
                # Bits after the last vote are never counted, so a read may continue into the
                # next row; only the end of the array needs a padded copy.
                if user * payload.shape[1] + begin + TILE_BYTES > payload.size:
                    padded[:width] = text
                    text = padded[:width]
                low = (base + u) * BLOCKS8_WORDS
                xor_blocks8(states, keys[user], text, words[low : low + BLOCKS8_WORDS])
            group = group_ids[sixteen]
            if group == groups:
                continue
            add_sixteen_rows(slots[base * TILE_WORDS : (base + GROUP) * TILE_WORDS], planes[group])
            pending[group] += 1
            if pending[group] == FLUSH_GROUPS:
                flush_planes(planes[group], counters[group, start : start + size])
                pending[group] = 0
        for group in range(groups):
            counter = counters[group, start : start + size]
            flush_planes(planes[group], counter)
            pending[group] = 0
            counter += users[group]


@njit
def count_signs(
    keys: Words,
    stage: int,
    hadamard: bool,
    points: int,
    payload: Bytes,
    table: Ints,
    first: int,
    last: int,
    counters: Ints,
) -> None:
    """counters[c, i] += sum over users of bit_i · sum_j word_i[j] · table[j, c], for some tiles.

    With the identity as `table` these are the votes of the histogram; with the integer coordinates
    of the points they are the decoded sum.
    """
    columns, votes = counters.shape
    signs = np.empty((TILE_VOTES, points), np.int8)
    for tile in range(first, last):
        start = tile * TILE_VOTES
        size = min(TILE_VOTES, votes - start)
        for user in range(keys.shape[0]):
            tile_signs(keys[user], stage, hadamard, tile, size, signs)
            for i in range(size):
                bit = (payload[user, (start + i) // 8] >> np.uint8(i % 8)) & np.uint8(1)
                vote = 2 * np.int64(bit) - 1
                for c in range(columns):
                    decoded = np.int64(0)
                    for j in range(points):
                        decoded += np.int64(signs[i, j]) * table[j, c]
                    counters[c, start + i] += vote * decoded


@njit
def choose_blocks(key: Words, blocks: int, chosen: Ints) -> None:
    """Fill `chosen` with distinct uniform positions below `blocks`: draw, skip repeats.

    32-bit words of the keystream are reduced modulo `blocks` without bias: words at or above the
    largest multiple of `blocks` are skipped.
    """
    drawn = np.empty(BLOCKS8_WORDS, np.uint32)
    taken = np.zeros((blocks + 7) // 8, np.uint8)
    limit = (np.int64(1) << 32) // blocks * blocks
    found = 0
    counter = 0
    used = drawn.size
    while found < chosen.size:
        if used == drawn.size:
            keystream(key, SUBSET_TAG, 0, 0, counter, drawn)
            counter += LANES
            used = 0
        word = np.int64(drawn[used])
        used += 1
        block = word % blocks
        bit = np.uint8(1 << (block % 8))
        if word < limit and not taken[block // 8] & bit:
            taken[block // 8] |= bit
            chosen[found] = block
            found += 1


@njit
def count_chosen(
    keys: Words, report: int, hadamard: bool, payload: Bytes, coords: Ints, counters: Ints
) -> None:
    """counters[c, block] += bit · sum_j word[j] · coords[j, c] for each bit of each user.

    Bit i of a user is about the i-th of the `report` blocks that `choose_blocks` gives.
    """
    points, columns = coords.shape
    chosen = np.empty(report, np.int64)
    signs = np.empty((min(report, TILE_VOTES), points), np.int8)
    for user in range(keys.shape[0]):
        choose_blocks(keys[user], counters.shape[1], chosen)
        for start in range(0, report, TILE_VOTES):
            size = min(TILE_VOTES, report - start)
            tile_signs(keys[user], 0, hadamard, start // TILE_VOTES, size, signs)
            for i in range(size):
                bit = (payload[user, (start + i) // 8] >> np.uint8(i % 8)) & np.uint8(1)
                vote = 2 * np.int64(bit) - 1
                for c in range(columns):
                    decoded = np.int64(0)
                    for j in range(points):
                        decoded += np.int64(signs[i, j]) * coords[j, c]
                    counters[c, chosen[start + i]] += vote * decoded
