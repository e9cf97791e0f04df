"""The words of a user: random ±1 vectors over the points, one for each vote.

A vote is one bit of one block in one stage. Words are drawn in tiles of 4096 votes from ChaCha20
keystreams under the user's key. There are two families:

    hadamard   v_j = s · (-1)^<r, j> with a random sign s and a uniform non-zero row r
    uniform    drawn uniformly from all balanced ±1 vectors

`draw_words` is the NumPy definition of both; the kernels below it must equal it bit for bit.
"""

import numpy as np

from hushbit.kernels import Bytes, Indices, Ints, Signs, Words, Words64, njit
from hushbit.kernels.chacha import blocks8, fill_states, set_counter
from hushbit.kernels.chacha_numpy import BLOCKS8_WORDS, CONSTANTS, LANES, WORDS, reference_blocks

TILE_BYTES = 512  # one bit-plane of a tile: eight ChaCha20 blocks
TILE_VOTES = 8 * TILE_BYTES
TILE_BLOCKS = TILE_BYTES // 64
TILE_WORDS = TILE_BYTES // 8  # 64-bit words of a bit-plane
TILE_ATTEMPT_BITS = 6  # whole tiles are redrawn until at most 1 vote in 2^6 has no row
RETRY_PLANE = 1 << 31  # plane number of tile 0's retry stream
WORD_TAG = int.from_bytes(b"word", "little")
UNIFORM_TAG = int.from_bytes(b"unif", "little")


def draw_words(key: Words, stage: int, votes: int, points: int, family: str) -> Signs:
    """The words of one user for one stage: a (votes, points) matrix of ±1."""
    if family == "uniform":
        return _uniform_words(key, stage, votes, points)
    sign = _plane_bits(key, stage, 0, votes)
    rows = _nonzero_rows(key, stage, votes, points.bit_length() - 1)
    index = np.arange(points)
    parity = np.array([[int(r & j).bit_count() & 1 for j in index] for r in range(points)])
    return np.asarray(2 * (sign[:, None] ^ parity[rows]) - 1, dtype=np.int8)


def stream(key: Words, nonce: tuple[int, int, int], words: int) -> Words:
    """The first 32-bit words of the ChaCha20 keystream of a key and nonce."""
    return np.asarray(_streams(key, nonce[:2], np.array(nonce[2:]), words)[0])


def _streams(key: Words, nonce: tuple[int, int], last: Ints, words: int) -> Words:
    """One row of keystream for each value of the last word of the nonce."""
    blocks = -(-words // WORDS)
    states = np.empty((WORDS, last.size, blocks), dtype=np.uint32)
    states[:12] = np.concatenate([CONSTANTS, key])[:, None, None]
    states[12] = np.arange(blocks, dtype=np.uint32)
    states[13:15] = np.array(nonce, dtype=np.uint32)[:, None, None]
    states[15] = last.astype(np.uint32)[:, None]
    return reference_blocks(states.reshape(WORDS, -1)).reshape(last.size, -1)[:, :words]


def _plane_bits(key: Words, stage: int, plane: int, votes: int) -> Bytes:
    words = stream(key, (WORD_TAG, stage, plane), -(-votes // 32)).astype("<u4")
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:votes]


def _nonzero_rows(key: Words, stage: int, votes: int, row_bits: int) -> Ints:
    """Uniform rows from 1 to 2^row_bits - 1: rejection first by tile, then vote by vote."""
    if row_bits == 1:
        return np.ones(votes, dtype=np.int64)
    rows = np.zeros(votes, dtype=np.int64)
    for attempt in range(-(-TILE_ATTEMPT_BITS // row_bits)):
        drawn = np.zeros(votes, dtype=np.int64)
        for bit in range(row_bits):
            plane = 1 + attempt * row_bits + bit
            drawn |= _plane_bits(key, stage, plane, votes).astype(np.int64) << bit
        rows = np.where(rows == 0, drawn, rows)
    for tile in range(-(-votes // TILE_VOTES)):
        part = rows[tile * TILE_VOTES : (tile + 1) * TILE_VOTES]
        missing = np.flatnonzero(part == 0)
        length = 64
        digits = np.empty(0, dtype=np.int64)
        while digits.size < missing.size:
            length *= 2
            words = stream(key, (WORD_TAG, stage, RETRY_PLANE + tile), length).astype("<u4")
            digits = words.view("<u2").astype(np.int64) & ((1 << row_bits) - 1)
            digits = digits[digits != 0]
        part[missing] = digits[: missing.size]
    return rows


def _uniform_words(key: Words, stage: int, votes: int, points: int) -> Signs:
    """Selection sampling; each vote has a keystream of its own."""
    streams = _streams(key, (UNIFORM_TAG, stage), np.arange(votes), 4 * points + 64)
    words = np.empty((votes, points), dtype=np.int8)
    for word, numbers in zip(words, streams, strict=True):
        drawn = iter(numbers.tolist())
        plus = points // 2 + (next(drawn) & 1 if points % 2 else 0)
        for j in range(points):
            left = points - j
            limit = 2**32 // left * left
            number = next(value for value in drawn if value < limit)
            word[j] = 1 if number % left < plus else -1
            plus -= number % left < plus
    return words


@njit
def draw_plane(states: Words, plane: int, counter: int, buffer: Words) -> None:
    """One tile of bit-plane `plane` of a user's words into `buffer` (128 words)."""
    set_counter(states, counter)
    for lane in range(LANES):
        states[15 * LANES + lane] = np.uint32(plane)
    blocks8(states, buffer)


@njit
def draw_rows(
    states: Words, row_bits: int, tile: int, votes: int, buffer: Words, rows: Words64
) -> None:
    """Bit-planes of uniform non-zero Hadamard rows for the first votes of a tile, by rejection.

    A few attempts draw all votes at once, plane by plane. The votes whose row is still zero, in
    ascending order, take the next non-zero 16-bit digits (mod N) of the tile's retry stream.
    """
    drawn = buffer.view(np.uint64)
    missing = np.empty(TILE_WORDS, np.uint64)
    for w in range(TILE_WORDS):
        count = votes - 64 * w
        missing[w] = np.uint64(0)
        if count >= 64:
            missing[w] = ~np.uint64(0)
        elif count > 0:
            missing[w] = (np.uint64(1) << np.uint64(count)) - np.uint64(1)
    rows[:] = np.uint64(0)
    plane = 1
    for _ in range((TILE_ATTEMPT_BITS + row_bits - 1) // row_bits):
        for bit in range(row_bits):
            draw_plane(states, plane, tile * TILE_BLOCKS, buffer)
            plane += 1
            row_plane = rows[bit * TILE_WORDS : (bit + 1) * TILE_WORDS]
            for w in range(TILE_WORDS):
                row_plane[w] |= drawn[w] & missing[w]
        for bit in range(row_bits):
            row_plane = rows[bit * TILE_WORDS : (bit + 1) * TILE_WORDS]
            for w in range(TILE_WORDS):
                missing[w] &= ~row_plane[w]
    digits = buffer.view(np.uint16)
    used = digits.size
    counter = 0
    for w in range(TILE_WORDS):
        left = missing[w]
        while left != np.uint64(0):
            vote = left & (~left + np.uint64(1))  # the lowest bit that is set
            left ^= vote
            digit = 0
            while digit == 0:
                if used == digits.size:
                    draw_plane(states, RETRY_PLANE + tile, counter, buffer)
                    counter += LANES
                    used = 0
                digit = np.int64(digits[used]) & ((1 << row_bits) - 1)
                used += 1
            for bit in range(row_bits):
                if (digit >> bit) & 1:
                    rows[bit * TILE_WORDS + w] |= vote


@njit
def hadamard_tile(
    key: Words, stage: int, points: int, tile: int, votes: int, rows: Indices, signs: Signs
) -> None:
    """Row r_i and sign s_i of the words s · (-1)^<r, j> of the first votes of a tile."""
    row_bits = 0
    while (1 << row_bits) < points:
        row_bits += 1
    states = np.empty(BLOCKS8_WORDS, np.uint32)
    buffer = np.empty(BLOCKS8_WORDS, np.uint32)
    planes = np.zeros(row_bits * TILE_WORDS, np.uint64)
    fill_states(states, key, WORD_TAG, stage, 0, 0)
    draw_plane(states, 0, tile * TILE_BLOCKS, buffer)
    sign = buffer.view(np.uint64).copy()
    if row_bits == 1:
        planes[:] = ~np.uint64(0)
    else:
        draw_rows(states, row_bits, tile, votes, buffer, planes)
    for i in range(votes):
        shift = np.uint64(i % 64)
        row = 0
        for bit in range(row_bits):
            drawn = (planes[bit * TILE_WORDS + i // 64] >> shift) & np.uint64(1)
            row |= np.int64(drawn) << bit
        rows[i] = row
        signs[i] = np.int8(2 * np.int64((sign[i // 64] >> shift) & np.uint64(1)) - 1)


@njit
def row_sign(row: int, point: int) -> int:
    """(-1)^<row, point>: the parity of the bits that both have set."""
    common = row & point
    common ^= common >> 16
    common ^= common >> 8
    common ^= common >> 4
    common ^= common >> 2
    common ^= common >> 1
    return 1 - 2 * (common & 1)


@njit
def uniform_signs(key: Words, stage: int, tile: int, votes: int, signs: Signs) -> None:
    """Words drawn uniformly from all balanced ones, by selection sampling with rejection.

    Vote i of a stage reads a keystream of its own: nonce (tag, stage, i), 32-bit words in order.
    The first blocks of eight votes are drawn together; only long words and rejections need more.
    """
    points = signs.shape[1]
    limits = np.empty(points + 1, np.uint32)  # the last multiple of `left` below 2^32, less one
    for left in range(1, points + 1):
        limits[left] = np.uint32((np.int64(1) << 32) // left * left - 1)
    states = np.empty(BLOCKS8_WORDS, np.uint32)
    blocks = np.empty(BLOCKS8_WORDS, np.uint32)
    vote_states = np.empty(BLOCKS8_WORDS, np.uint32)
    later_blocks = np.empty(BLOCKS8_WORDS, np.uint32)
    fill_states(states, key, UNIFORM_TAG, stage, 0, 0)
    fill_states(vote_states, key, UNIFORM_TAG, stage, 0, 0)
    for base in range(0, votes, LANES):
        for lane in range(LANES):
            states[12 * LANES + lane] = np.uint32(0)
            states[15 * LANES + lane] = np.uint32(tile * TILE_VOTES + base + lane)
        blocks8(states, blocks)
        for lane in range(min(LANES, votes - base)):
            for other in range(LANES):
                vote_states[15 * LANES + other] = states[15 * LANES + lane]
            block = blocks[WORDS * lane : WORDS * (lane + 1)]
            select_signs(block, vote_states, later_blocks, limits, signs[base + lane])


@njit
def select_signs(
    block: Words, states: Words, later_blocks: Words, limits: Words, word: Signs
) -> None:
    """One balanced word from the first block of its keystream, and later ones from `states`."""
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
                set_counter(states, counter)
                blocks8(states, later_blocks)
                source, used, counter = later_blocks, 0, counter + LANES
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
def tile_signs(key: Words, stage: int, hadamard: bool, tile: int, votes: int, signs: Signs) -> None:
    """Fill the first rows of `signs` with the words of the first votes of a tile."""
    if not hadamard:
        uniform_signs(key, stage, tile, votes, signs)
        return
    points = signs.shape[1]
    rows, first = np.empty(TILE_VOTES, np.int32), np.empty(TILE_VOTES, np.int8)
    hadamard_tile(key, stage, points, tile, votes, rows, first)
    for i in range(votes):
        for j in range(points):
            signs[i, j] = np.int8(np.int64(first[i]) * row_sign(np.int64(rows[i]), j))


@njit
def signs_at(
    keys: Words, stage: int, hadamard: bool, points: int, chosen: Ints, out: Signs
) -> None:
    """out[p, user, vote] = the sign of a user's word at point chosen[p]."""
    votes = out.shape[2]
    signs = np.empty((TILE_VOTES, points), np.int8)
    for user in range(keys.shape[0]):
        for start in range(0, votes, TILE_VOTES):
            size = min(TILE_VOTES, votes - start)
            tile_signs(keys[user], stage, hadamard, start // TILE_VOTES, size, signs)
            for p in range(chosen.size):
                for i in range(size):
                    out[p, user, start + i] = signs[i, chosen[p]]
