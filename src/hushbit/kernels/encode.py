"""Encoding ballots: the user's hot path.

One 32-bit coin u decides a bit: the bit is + if u < 2^31 + trunc(expected_sign · offset), where
expected_sign in [-1, 1] is the mean sign of the word at the randomly rounded block, and
offset = 2^31 (2p - 1). Drawing the rounded point first and flipping its sign afterwards gives the
same law with two coins.

    encode_two_points     the points ±radius, stochastic rounding: one comparison for each weight
    encode_signs          the signs of the entries, without words (signSGD)
    encode_scalar_tiles   equidistant scalar points in stages: draw the point, one bit per stage
    encode_soft           any points, from the soft assignment of each block

`reference_two_points` and `reference_soft` are the NumPy definitions. `encode_scalar_tiles` must
give the bits of `Quantizer.soft_assign` followed by `encode_soft`.
"""

from typing import NamedTuple

import numpy as np

from hushbit.kernels import Bytes, Flags, Floats, Halves, Indices, Ints, Reals, Signs, Words, njit
from hushbit.kernels.chacha import blocks8, fill_states, keystream, set_counter
from hushbit.kernels.chacha_numpy import BLOCKS8_WORDS, WORDS
from hushbit.kernels.words import (
    TILE_BLOCKS,
    TILE_BYTES,
    TILE_VOTES,
    WORD_TAG,
    draw_words,
    hadamard_tile,
    row_sign,
    stream,
    uniform_signs,
)

COIN_TAG = int.from_bytes(b"coin", "little")  # private: randomized response
ROUND_TAG = int.from_bytes(b"rnd ", "little")  # private: stochastic rounding
DITHER_TAG = int.from_bytes(b"dith", "little")  # shared by user and server
SIGN_BIT = 0x80000000
PACK_BYTES = 0x0102040810204080  # a multiplication by it gathers the low bits of eight bytes
CHUNK_COINS = 2 * BLOCKS8_WORDS  # 16-bit halves of coins in eight ChaCha20 blocks


def signed_coins(coin: Words, stage: int, votes: int) -> Floats:
    """Private uniform integers in [-2^31, 2^31), one for each vote."""
    return stream(coin, (COIN_TAG, stage, 0), votes).astype(np.float64) - 2**31


def split_coins(coin: Words, votes: int) -> Floats:
    """Private uniform integers in [-2^31, 2^31), whose 16-bit halves come from two streams."""
    upper = stream(coin, (COIN_TAG, 0, 0), -(-votes // 2)).view(np.int16)[:votes]
    lower = stream(coin, (COIN_TAG, 0, 1), votes) & np.uint32(0xFFFF)
    return upper * 2.0**16 + lower


def threshold(scaled_sign: Floats, offset: float) -> Floats:
    """The integer below which a signed coin gives +; scaled_sign = expected_sign · offset.

    So P(+) = 1/2 + expected_sign · (2p - 1) / 2 to within 2^-32. Rounding towards zero never makes
    a bit more biased than the guarantee allows.
    """
    return np.clip(np.trunc(scaled_sign), -offset, offset)


def reference_two_points(
    update: Reals, radius: float, offset: float, key: Words, coin: Words
) -> Flags:
    """One user's bits for the points ±radius: x · offset / radius compared with a coin.

    The word is (v, -v) over (-radius, radius); v = + inverts the bit.
    """
    word = draw_words(key, 0, update.size, 2, "hadamard")
    value = threshold(update.astype(np.float64) * (offset / radius), offset)
    return (split_coins(coin, update.size) < value) ^ (word[:, 0] > 0)


def reference_soft(
    index: Indices,
    weight: Floats,
    points: int,
    family: str,
    offset: float,
    key: Words,
    stage: int,
    coin: Words,
) -> Flags:
    """One user's bits of a stage: expected_sign = sum_c weight_c · (sign of the word at c)."""
    votes, candidates = index.shape
    word = draw_words(key, stage, votes, points, family)
    expected_sign = np.zeros(votes)
    for c in range(candidates):
        expected_sign += weight[:, c] * word[np.arange(votes), index[:, c]]
    return signed_coins(coin, stage, votes) < threshold(expected_sign * offset, offset)


def pack_bits(bits: Flags) -> Bytes:
    """Bit i is bit i mod 8 of byte i div 8."""
    return np.packbits(bits, bitorder="little")


@njit
def pack_tile(flags: Bytes, row: Bytes) -> None:
    """`pack_bits` of 0/1 bytes, a multiple of 8 of them that ends with zeros, into `row`."""
    words = flags.view(np.uint64)
    for i in range(row.size):
        row[i] = np.uint8((words[i] * np.uint64(PACK_BYTES)) >> np.uint64(56))


class Comparison(NamedTuple):
    """Constants that compare entries with coins.

    slope, top      offset / radius / 2^16 and offset / 2^16, in the precision of the entries
    scale, offset   offset / radius and offset, in float64
    """

    slope: np.floating
    top: np.floating
    scale: float
    offset: float


@njit
def comparison_of(x: Reals, radius: float, offset: float) -> Comparison:
    """The constants for entries like those of x."""
    slope, top = offset / radius * 2.0**-16, offset * 2.0**-16
    return Comparison(x.dtype.type(slope), x.dtype.type(top), offset / radius, offset)


@njit
def overload_limit(x: Reals, radius: float) -> np.floating:
    """The largest number in the precision of x that does not overload; the radius does not."""
    limit = x.dtype.type(radius * (1 + 1e-12))
    if np.float64(limit) > radius * (1 + 1e-12):
        limit = np.nextafter(limit, x.dtype.type(0))
    return limit


class CoinBuffers(NamedTuple):
    """Scratch arrays of one thread: states and keystream of the upper and lower coin halves."""

    upper_states: Words
    lower_states: Words
    upper: Words
    lower: Words
    undecided: Bytes


@njit
def new_coin_buffers() -> CoinBuffers:
    """Buffers whose `undecided` is zero, as `flag_tile` needs it."""
    return CoinBuffers(
        np.empty(BLOCKS8_WORDS, np.uint32),
        np.empty(BLOCKS8_WORDS, np.uint32),
        np.empty(BLOCKS8_WORDS, np.uint32),
        np.empty(BLOCKS8_WORDS, np.uint32),
        np.zeros(CHUNK_COINS, np.uint8),
    )


@njit
def start_coins(buffers: CoinBuffers, coin: Words) -> None:
    """Set both keystreams to the private key of a user."""
    fill_states(buffers.upper_states, coin, COIN_TAG, 0, 0, 0)
    fill_states(buffers.lower_states, coin, COIN_TAG, 0, 1, 0)


@njit
def flag_below_threshold(
    x: Reals, upper: Halves, slope: float, top: float, flags: Bytes, undecided: Bytes
) -> None:
    """Flag where the threshold is above the coin's upper half, and where that is not certain."""
    half_unit = x.dtype.type(0.5)
    for i in range(x.size):
        gap = min(max(x[i] * slope, -top), top) - np.float32(upper[i])
        flags[i] = np.uint8(gap > 0)
        undecided[i] = np.uint8(abs(gap - half_unit) < half_unit + half_unit)


@njit
def compare_exactly(
    x: float, upper: float, vote: int, comparison: Comparison, buffers: CoinBuffers
) -> bool:
    """The comparison with all 32 bits of a coin; its lower half is drawn only here."""
    set_counter(buffers.lower_states, vote // WORDS)
    blocks8(buffers.lower_states, buffers.lower)
    coin = upper * 2.0**16 + np.float64(buffers.lower[vote % WORDS] & np.uint32(0xFFFF))
    offset = comparison.offset
    return bool(coin < min(max(np.trunc(np.float64(x) * comparison.scale), -offset), offset))


@njit
def flag_tile(
    x: Reals, start: int, comparison: Comparison, buffers: CoinBuffers, flags: Bytes
) -> None:
    """Flags of a tile of entries, the first of which is vote `start`: 1 where the coin is below.

    The upper half of a coin decides, in the precision of the entries, unless it is next to the
    threshold. That happens twice in 2^16 votes, whatever the update, and only then the lower half
    is drawn. `buffers.undecided` must be zero and is zero afterwards.
    """
    upper, undecided = buffers.upper.view(np.int16), buffers.undecided
    flags[:] = np.uint8(0)
    for chunk in range(0, x.size, CHUNK_COINS):
        set_counter(buffers.upper_states, (start + chunk) // (2 * WORDS))
        blocks8(buffers.upper_states, buffers.upper)
        count = min(CHUNK_COINS, x.size - chunk)
        part, into = x[chunk : chunk + count], flags[chunk : chunk + count]
        flag_below_threshold(part, upper, comparison.slope, comparison.top, into, undecided[:count])
        if undecided.view(np.uint64).max():
            for i in range(count):
                if undecided[i]:
                    vote = start + chunk + i
                    into[i] = compare_exactly(part[i], upper[i], vote, comparison, buffers)
            undecided[:] = np.uint8(0)


@njit
def count_beyond(x: Reals, limit: float) -> int:
    """How many entries are larger than `limit` in absolute value."""
    count = np.int32(0)
    for i in range(x.size):
        count = np.int32(count + np.int32(abs(x[i]) > limit))
    return int(count)


@njit
def encode_two_points(
    updates: Reals,
    radius: float,
    offset: float,
    keys: Words,
    coins: Words,
    first: int,
    last: int,
    payload: Bytes,
    overloaded: Ints,
) -> None:
    """Ballots of users first … last-1 for the points ±radius; counts the entries beyond them.

    For float32 updates offset / radius must be within float32's range of normal numbers.
    """
    size = updates.shape[1]
    comparison = comparison_of(updates, radius, offset)
    limit = overload_limit(updates, radius)
    states = np.empty(BLOCKS8_WORDS, np.uint32)
    words = np.empty(BLOCKS8_WORDS, np.uint32)
    buffers = new_coin_buffers()
    flags = np.zeros(TILE_VOTES, np.uint8)
    for user in range(first, last):
        fill_states(states, keys[user], WORD_TAG, 0, 0, 0)
        start_coins(buffers, coins[user])
        beyond = 0
        for start in range(0, size, TILE_VOTES):
            votes = min(TILE_VOTES, size - start)
            x = updates[user, start : start + votes]
            flag_tile(x, start, comparison, buffers, flags)
            beyond += count_beyond(x, limit)
            width = (votes + 7) // 8
            row = payload[user, start // 8 : start // 8 + width]
            pack_tile(flags, row)
            set_counter(states, start // TILE_VOTES * TILE_BLOCKS)
            blocks8(states, words)
            signs = words.view(np.uint8)[:width]
            for i in range(width):
                row[i] ^= signs[i]
            if votes % 8:
                row[width - 1] &= np.uint8((1 << (votes % 8)) - 1)
        overloaded[user] = beyond


@njit
def encode_signs(
    updates: Reals,
    sign_of_zero: float,
    offset: float,
    coins: Words,
    first: int,
    last: int,
    payload: Bytes,
) -> None:
    """Bits of users first … last-1 for the signs of their entries, without words.

    A bit is + if its coin is below 2^31 + sign · offset.
    """
    size = updates.shape[1]
    buffers = new_coin_buffers()
    flags = np.zeros(TILE_VOTES, np.uint8)
    signs = np.empty(TILE_VOTES, np.float32)
    comparison = comparison_of(signs, 1.0, offset)
    for user in range(first, last):
        start_coins(buffers, coins[user])
        for start in range(0, size, TILE_VOTES):
            votes = min(TILE_VOTES, size - start)
            for i in range(votes):
                x = updates[user, start + i]
                signs[i] = np.float32(np.float32(x > 0) - np.float32(x < 0))
                signs[i] += np.float32(np.float32(x == 0) * sign_of_zero)
            flag_tile(signs[:votes], start, comparison, buffers, flags)
            pack_tile(flags, payload[user, start // 8 : start // 8 + (votes + 7) // 8])


@njit
def signed_coin(drawn: np.uint32) -> float:
    """A uniform 32-bit word as a number in [-2^31, 2^31); this conversion is one instruction."""
    return np.float64(np.int32(drawn ^ np.uint32(SIGN_BIT)))


@njit
def encode_soft(
    index: Indices,
    weight: Floats,
    points: int,
    hadamard: bool,
    offset: float,
    key: Words,
    stage: int,
    coin: Words,
    payload: Bytes,
) -> None:
    """One user's bits of one stage, from the candidate points and weights of each block."""
    blocks, candidates = index.shape
    rows = np.empty(TILE_VOTES, np.int32)
    first = np.empty(TILE_VOTES, np.int8)
    signs = np.empty((1 if hadamard else TILE_VOTES, points), np.int8)
    flags = np.zeros(TILE_VOTES, np.uint8)
    states = np.empty(BLOCKS8_WORDS, np.uint32)
    drawn = np.empty(BLOCKS8_WORDS, np.uint32)
    fill_states(states, coin, COIN_TAG, stage, 0, 0)
    for start in range(0, blocks, TILE_VOTES):
        votes = min(TILE_VOTES, blocks - start)
        tile = start // TILE_VOTES
        if hadamard:
            hadamard_tile(key, stage, points, tile, votes, rows, first)
        else:
            uniform_signs(key, stage, tile, votes, signs)
        flags[:] = np.uint8(0)
        for i in range(votes):
            if i % BLOCKS8_WORDS == 0:
                set_counter(states, (start + i) // WORDS)
                blocks8(states, drawn)
            expected_sign = 0.0
            for c in range(candidates):
                point = np.int64(index[start + i, c])
                if hadamard:
                    sign = np.int64(first[i]) * row_sign(np.int64(rows[i]), point)
                else:
                    sign = np.int64(signs[i, point])
                expected_sign += weight[start + i, c] * np.float64(sign)
            value = min(max(np.trunc(expected_sign * offset), -offset), offset)
            flags[i] = np.uint8(signed_coin(drawn[i % BLOCKS8_WORDS]) < value)
        pack_tile(flags, payload[start // 8 : start // 8 + (votes + 7) // 8])


@njit
def round_stochastically(
    x: Reals, lowest: float, spacing: float, last: int, drawn: Words, points: Indices
) -> None:
    """floor(position + u) for u uniform in [0, 1), position in units of the spacing.

    The definition: the two neighbours with weights 1 - fraction and fraction, chosen by the same
    u. An x beyond the outermost points is moved to them.
    """
    top = np.float64(last)
    for i in range(x.size):
        position = min(max((np.float64(x[i]) - lowest) / spacing, 0.0), top)
        uniform = signed_coin(drawn[i]) * 2.0**-32 + 0.5
        points[i] = np.int32(min(position + uniform, top))


@njit
def round_dithered(
    x: Reals, lowest: float, spacing: float, last: int, dither: Words, points: Indices
) -> int:
    """The point nearest to x + dither, a signed fraction of the spacing; counts x beyond them."""
    top = np.float64(last)
    beyond = np.int32(0)
    for i in range(x.size):
        position = (np.float64(x[i]) - lowest) / spacing
        position = np.floor(position + np.float64(np.int32(dither[i])) * 2.0**-32 + 0.5)
        inside = min(max(position, 0.0), top)
        beyond = np.int32(beyond + np.int32(position != inside))
        points[i] = np.int32(inside)
    return int(beyond)


@njit
def two_point_signs(plane: Bytes, points: Indices, shift: int, out: Signs) -> None:
    """Signs of the words (+, -) or (-, +) at one binary digit; `plane` has one bit per word."""
    for i in range(points.size):
        plus = (np.int32(plane[i >> 3]) >> (i & 7)) ^ (points[i] >> shift)
        out[i] = np.int8(2 * (plus & 1) - 1)


@njit
def word_signs(
    rows: Indices, signs: Signs, points: Indices, shift: int, size: int, out: Signs
) -> None:
    """Signs of longer words at digits of several bits."""
    for i in range(points.size):
        digit = np.int64(points[i] >> shift) & (size - 1)
        out[i] = np.int8(np.int64(signs[i]) * row_sign(np.int64(rows[i]), digit))


@njit
def respond(signs: Signs, offset: float, coins: Words, flags: Bytes) -> None:
    """Randomized response: a bit is + if its coin is below 2^31 + sign · offset."""
    for i in range(signs.size):
        flags[i] = np.uint8(signed_coin(coins[i]) < np.float64(signs[i]) * offset)


@njit
def encode_scalar_tiles(
    updates: Reals,
    radius: float,
    shifts: Ints,
    offsets: Floats,
    keys: Words,
    coins: Words,
    dithered: bool,
    first: int,
    last: int,
    payload: Bytes,
    overloaded: Ints,
) -> None:
    """Ballots of users first … last-1 for equidistant points from -radius to radius.

    Private coins round stochastically, or (`dithered`) a shared dither is added and the nearest
    point is taken. Stage s sends the sign of its Hadamard word at the bits shifts[s+1] …
    shifts[s]-1 of the point's index; `offsets` are 2^31 (2p - 1) of the stages.
    """
    dim, stages = updates.shape[1], offsets.size
    width = payload.shape[1] // stages
    last_point = (1 << shifts[0]) - 1
    spacing = 2 * radius / last_point
    points, rows = np.empty(TILE_VOTES, np.int32), np.empty(TILE_VOTES, np.int32)
    signs, chosen = np.empty(TILE_VOTES, np.int8), np.empty(TILE_VOTES, np.int8)
    drawn, flags = np.empty(TILE_VOTES, np.uint32), np.empty(TILE_VOTES, np.uint8)
    plane = np.empty(BLOCKS8_WORDS, np.uint32)
    for user in range(first, last):
        beyond = 0
        for start in range(0, dim, TILE_VOTES):
            votes = min(TILE_VOTES, dim - start)
            tile = start // TILE_VOTES
            x = updates[user, start : start + votes]
            if dithered:
                keystream(keys[user], DITHER_TAG, 0, 0, start // WORDS, drawn)
                beyond += round_dithered(x, -radius, spacing, last_point, drawn, points)
            else:
                keystream(coins[user], ROUND_TAG, 0, 0, start // WORDS, drawn)
                beyond += count_beyond(x, radius * (1 + 1e-12))
                round_stochastically(x, -radius, spacing, last_point, drawn, points)
            for stage in range(stages):
                shift = shifts[stage + 1]
                size = 1 << (shifts[stage] - shift)
                if size == 2:
                    keystream(keys[user], WORD_TAG, stage, 0, tile * TILE_BLOCKS, plane)
                    two_point_signs(plane.view(np.uint8), points[:votes], shift, chosen)
                else:
                    hadamard_tile(keys[user], stage, size, tile, votes, rows, signs)
                    word_signs(rows, signs, points[:votes], shift, size, chosen)
                keystream(coins[user], COIN_TAG, stage, 0, start // WORDS, drawn)
                flags[:] = np.uint8(0)
                respond(chosen[:votes], offsets[stage], drawn, flags)
                low = stage * width + tile * TILE_BYTES
                pack_tile(flags, payload[user, low : low + (votes + 7) // 8])
        overloaded[user] = beyond


@njit
def add_dither(keys: Words, signed: bool, first: int, last: int, sums: Ints) -> None:
    """sums += the dithers of all users as 32-bit integers, for the tiles first … last-1."""
    words = np.empty(TILE_VOTES, np.uint32)
    for tile in range(first, last):
        part = sums[tile * TILE_VOTES : (tile + 1) * TILE_VOTES]
        for user in range(keys.shape[0]):
            keystream(keys[user], DITHER_TAG, 0, 0, tile * (TILE_VOTES // WORDS), words)
            for i in range(part.size):
                part[i] += np.int64(np.int32(words[i]) if signed else words[i])
