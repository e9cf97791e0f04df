"""The words of one user, tile by tile, as ±1 matrices: the general path of encode and tally."""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.chacha import blocks8, fill_states
from hushbit.kernels.count import TILE_VOTES, TILE_WORDS, draw_plane, draw_rows
from hushbit.kernels.jit import njit

WORD_TAG = int.from_bytes(b"word", "little")
UNIFORM_TAG = int.from_bytes(b"unif", "little")


@njit
def hadamard_tile(
    key: NDArray[np.uint32], stage: int, points: int, tile: int, inside: int,
    rows: NDArray[np.int32], signs: NDArray[np.int8],
) -> None:  # fmt: skip
    """Row r_i and sign s_i of the words s · (-1)^<r, j> of the first `inside` votes of a tile."""
    row_bits = 0
    while (1 << row_bits) < points:
        row_bits += 1
    states = np.empty(128, np.uint32)
    buffer = np.empty(128, np.uint32)
    planes = np.zeros(row_bits * TILE_WORDS, np.uint64)
    fill_states(states, key, WORD_TAG, stage, 0, 0)
    draw_plane(states, 0, tile * 8, buffer)
    sign = buffer.view(np.uint64).copy()
    if row_bits == 1:
        planes[:] = ~np.uint64(0)
    else:
        draw_rows(states, row_bits, tile, inside, buffer, planes)
    for i in range(inside):
        shift = np.uint64(i % 64)
        row = 0
        for bit in range(row_bits):
            drawn = (planes[bit * TILE_WORDS + i // 64] >> shift) & np.uint64(1)
            row |= np.int64(drawn) << bit
        rows[i] = row
        signs[i] = np.int8(2 * np.int64((sign[i // 64] >> shift) & np.uint64(1)) - 1)


@njit
def row_sign(row: int, point: int) -> int:
    """(-1)^<row, point>, the parity of the bits that both have."""
    both = row & point
    both ^= both >> 16
    both ^= both >> 8
    both ^= both >> 4
    both ^= both >> 2
    both ^= both >> 1
    return 1 - 2 * (both & 1)


@njit
def hadamard_signs(
    key: NDArray[np.uint32], stage: int, tile: int, inside: int, signs: NDArray[np.int8]
) -> None:
    """signs[i, j] = s_i · (-1)^<r_i, j> for the first `inside` votes of a tile."""
    points = signs.shape[1]
    rows = np.empty(TILE_VOTES, np.int32)
    first = np.empty(TILE_VOTES, np.int8)
    hadamard_tile(key, stage, points, tile, inside, rows, first)
    for i in range(inside):
        for j in range(points):
            signs[i, j] = np.int8(np.int64(first[i]) * row_sign(np.int64(rows[i]), j))


@njit
def uniform_signs(
    key: NDArray[np.uint32], stage: int, tile: int, inside: int, signs: NDArray[np.int8]
) -> None:
    """Words drawn uniformly from all balanced ones, by selection sampling with rejection.

    Vote i of a stage reads its own keystream: nonce (tag, stage, i), 32-bit words in order. The
    first blocks of eight votes are drawn together; only long words and rejections read on.
    """
    points = signs.shape[1]
    limits = np.empty(points + 1, np.uint32)  # the last multiple of `left` below 2^32, less one
    for left in range(1, points + 1):
        limits[left] = np.uint32((np.int64(1) << 32) // left * left - 1)
    states = np.empty(128, np.uint32)
    blocks = np.empty(128, np.uint32)
    own_states = np.empty(128, np.uint32)
    further = np.empty(128, np.uint32)
    fill_states(states, key, UNIFORM_TAG, stage, 0, 0)
    fill_states(own_states, key, UNIFORM_TAG, stage, 0, 0)
    for base in range(0, inside, 8):
        for lane in range(8):
            states[96 + lane] = np.uint32(0)
            states[120 + lane] = np.uint32(tile * TILE_VOTES + base + lane)
        blocks8(states, blocks)
        for lane in range(min(8, inside - base)):
            for other in range(8):
                own_states[120 + other] = states[120 + lane]
            block = blocks[16 * lane : 16 * (lane + 1)]
            select_signs(block, own_states, further, limits, signs[base + lane])


@njit
def select_signs(
    block: NDArray[np.uint32], states: NDArray[np.uint32], further: NDArray[np.uint32],
    limits: NDArray[np.uint32], word: NDArray[np.int8],
) -> None:  # fmt: skip
    """One balanced word from a keystream: its first block, and `further` ones from `states`."""
    points = word.size
    source, used, counter = block, 0, 1
    plus = np.uint32(points // 2)
    if points % 2 == 1:
        plus = np.uint32(plus + (block[0] & np.uint32(1)))
        used = 1
    for j in range(points):
        left = np.uint32(points - j)
        while True:
            if used == source.size:
                for lane in range(8):
                    states[96 + lane] = np.uint32(counter + lane)
                blocks8(states, further)
                source, used, counter = further, 0, counter + 8
            drawn = source[used]
            used += 1
            if drawn <= limits[left]:
                break
        if drawn % left < plus:
            word[j] = np.int8(1)
            plus = np.uint32(plus - np.uint32(1))
        else:
            word[j] = np.int8(-1)


@njit
def tile_signs(
    key: NDArray[np.uint32], stage: int, hadamard: bool, tile: int, inside: int,
    signs: NDArray[np.int8],
) -> None:  # fmt: skip
    """Fill the first `inside` rows of `signs` with the words of one tile of votes."""
    if hadamard:
        hadamard_signs(key, stage, tile, inside, signs)
    else:
        uniform_signs(key, stage, tile, inside, signs)


@njit
def count_signs(
    keys: NDArray[np.uint32], stage: int, hadamard: bool, points: int,
    payload: NDArray[np.uint8], table: NDArray[np.int64], first: int, last: int,
    counters: NDArray[np.int64],
) -> None:  # fmt: skip
    """counters[c, i] += sum over users of bit_i · sum_j word_i[j] · table[j, c], for some tiles.

    With the identity as `table` these are the histogram's votes, with the points' integer
    coordinates the decoded sum itself.
    """
    columns, votes = counters.shape
    signs = np.empty((TILE_VOTES, points), np.int8)
    for tile in range(first, last):
        start = tile * TILE_VOTES
        inside = min(TILE_VOTES, votes - start)
        for user in range(keys.shape[0]):
            tile_signs(keys[user], stage, hadamard, tile, inside, signs)
            for i in range(inside):
                bit = (payload[user, (start + i) // 8] >> np.uint8(i % 8)) & np.uint8(1)
                vote = 2 * np.int64(bit) - 1
                for c in range(columns):
                    pull = np.int64(0)
                    for j in range(points):
                        pull += np.int64(signs[i, j]) * table[j, c]
                    counters[c, start + i] += vote * pull


@njit
def signs_at(
    keys: NDArray[np.uint32], stage: int, hadamard: bool, points: int,
    places: NDArray[np.int64], out: NDArray[np.int8],
) -> None:  # fmt: skip
    """out[p, user, vote] = the sign of a user's word at point places[p]."""
    votes = out.shape[2]
    signs = np.empty((TILE_VOTES, points), np.int8)
    for user in range(keys.shape[0]):
        for start in range(0, votes, TILE_VOTES):
            inside = min(TILE_VOTES, votes - start)
            tile_signs(keys[user], stage, hadamard, start // TILE_VOTES, inside, signs)
            for p in range(places.size):
                for i in range(inside):
                    out[p, user, start + i] = signs[i, places[p]]
