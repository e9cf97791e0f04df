"""Casting ballots: the user's hot path.

One 32-bit coin u decides a bit: it is + when u < 2^31 + trunc(lean · half), where lean in
[-1, 1] is the expected sign of the word at the rounded block, and half / 2^31 = 2p - 1. Drawing
the rounded point first and flipping its sign afterwards gives the same law with two coins.
"""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.chacha import blocks8, fill_states
from hushbit.kernels.jit import njit
from hushbit.kernels.signs import TILE_VOTES, hadamard_tile, row_sign, uniform_signs

PACK = 0x0102040810204080
WORDS = 128  # 32-bit words in eight ChaCha20 blocks


@njit
def pack_tile(flags: NDArray[np.uint8], row: NDArray[np.uint8]) -> None:
    """Pack the 0/1 bytes of `flags` (a multiple of 8, zero at the end) into bits of `row`."""
    words = flags.view(np.uint64)
    for i in range(row.size):
        row[i] = np.uint8((words[i] * np.uint64(PACK)) >> np.uint64(56))


def compared_units(
    updates: NDArray[np.floating], radius: float, half: float
) -> tuple[NDArray[np.floating], tuple[np.floating, ...]]:
    """Updates, and reach, slope, top and half a unit in a precision that can tell them apart.

    A threshold is exact to a hundredth of a unit of 2^16 in float32, as long as no factor leaves
    the range of its normal numbers; others are compared in float64.
    """
    slope = half / radius * 2.0**-16
    if not 1e-30 < slope < 1e30:
        updates = updates.astype(np.float64)
    kind = updates.dtype.type
    reach = kind(radius * (1 + 1e-12))  # an entry that equals the radius is not beyond it
    if float(reach) > radius * (1 + 1e-12):
        reach = np.nextafter(reach, kind(0))
    return updates, (reach, kind(slope), kind(half * 2.0**-16), kind(0.5))


@njit
def compare(
    x: NDArray[np.floating], upper: NDArray[np.int16], slope: float, top: float, half_unit: float,
    into: NDArray[np.uint8], near: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Flag where the threshold is above the coin's upper half, and where that is not certain."""
    for i in range(x.size):
        gap = min(max(x[i] * slope, -top), top) - np.float32(upper[i])
        into[i] = np.uint8(gap > 0)
        near[i] = np.uint8(abs(gap - half_unit) < half_unit + half_unit)


@njit
def beyond(x: NDArray[np.floating], reach: float) -> int:
    """How many entries are larger than `reach`."""
    count = np.int32(0)
    for i in range(x.size):
        count = np.int32(count + np.int32(abs(x[i]) > reach))
    return int(count)


@njit
def exact_flag(
    x: float, scale: float, half: float, upper: float,
    vote: int, states: NDArray[np.uint32], drawn: NDArray[np.uint32],
) -> bool:  # fmt: skip
    """The comparison of all 32 bits of a coin, whose lower half is drawn only here."""
    for lane in range(8):
        states[96 + lane] = np.uint32(vote // 16 + lane)
    blocks8(states, drawn)
    coin = upper * 2.0**16 + np.float64(drawn[vote % 16] & np.uint32(0xFFFF))
    return bool(coin < min(max(np.trunc(np.float64(x) * scale), -half), half))


@njit
def vote_tile(
    x: NDArray[np.floating], start: int, slope: float, top: float, half_unit: float, scale: float,
    half: float, coin_states: NDArray[np.uint32], low_states: NDArray[np.uint32],
    fresh: NDArray[np.uint32], words: NDArray[np.uint32], near: NDArray[np.uint8],
    flags: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Flags of a tile of entries, the first of which is vote `start`: + where the coin is below.

    The upper half of a coin decides, in the entries' own precision, unless it lies next to the
    threshold. That happens twice in 2^16 votes, whatever the update, and only then is the lower
    half drawn. `near` must be zero, and is left so.
    """
    upper = fresh.view(np.int16)
    flags[:] = np.uint8(0)
    for chunk in range(0, x.size, 2 * WORDS):
        for lane in range(8):
            coin_states[96 + lane] = np.uint32((start + chunk) // 32 + lane)
        blocks8(coin_states, fresh)
        count = min(2 * WORDS, x.size - chunk)
        part, into = x[chunk : chunk + count], flags[chunk : chunk + count]
        compare(part, upper, slope, top, half_unit, into, near[:count])
        if near.view(np.uint64).max():
            for i in range(count):
                if near[i]:
                    into[i] = exact_flag(
                        part[i], scale, half, upper[i], start + chunk + i, low_states, words
                    )
            near[:] = np.uint8(0)


@njit
def cast_two_points(
    updates: NDArray[np.floating], reach: float, slope: float, top: float, half_unit: float,
    radius: float, half: float,
    keys: NDArray[np.uint32], word_tag: int, coins: NDArray[np.uint32], coin_tag: int,
    first: int, last: int, payload: NDArray[np.uint8], overloaded: NDArray[np.int64],
) -> None:  # fmt: skip
    """Ballots of users first … last-1 for the points ±radius: one fused draw for each weight.

    `slope` = half / radius / 2^16 and `top` = half / 2^16. Entries beyond `reach` are overloaded.
    """
    size = updates.shape[1]
    states = np.empty(WORDS, np.uint32)
    words = np.empty(WORDS, np.uint32)
    coin_states = np.empty(WORDS, np.uint32)
    low_states = np.empty(WORDS, np.uint32)
    fresh = np.empty(WORDS, np.uint32)
    near = np.zeros(2 * WORDS, np.uint8)
    flags = np.zeros(TILE_VOTES, np.uint8)
    for user in range(first, last):
        fill_states(states, keys[user], word_tag, 0, 0, 0)
        fill_states(coin_states, coins[user], coin_tag, 0, 0, 0)
        fill_states(low_states, coins[user], coin_tag, 0, 1, 0)
        over = 0
        for start in range(0, size, TILE_VOTES):
            inside = min(TILE_VOTES, size - start)
            x = updates[user, start : start + inside]
            vote_tile(x, start, slope, top, half_unit, half / radius, half, coin_states,
                      low_states, fresh, words, near, flags)  # fmt: skip
            over += beyond(x, reach)
            width = (inside + 7) // 8
            row = payload[user, start // 8 : start // 8 + width]
            pack_tile(flags, row)
            for lane in range(8):
                states[96 + lane] = np.uint32(start // 512 + lane)
            blocks8(states, words)
            signs = words.view(np.uint8)[:width]
            for i in range(width):
                row[i] ^= signs[i]
            if inside % 8:
                row[width - 1] &= np.uint8((1 << (inside % 8)) - 1)
        overloaded[user] = over


@njit
def cast_signs(
    updates: NDArray[np.floating], at_zero: float, half: float, coins: NDArray[np.uint32],
    coin_tag: int, first: int, last: int, payload: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Bits of users first … last-1 for the signs of their entries, without a word.

    A bit is + when its coin is below 2^31 + sign · half; entries of zero have sign `at_zero`.
    """
    size = updates.shape[1]
    words = np.empty(WORDS, np.uint32)
    coin_states = np.empty(WORDS, np.uint32)
    low_states = np.empty(WORDS, np.uint32)
    fresh = np.empty(WORDS, np.uint32)
    near = np.zeros(2 * WORDS, np.uint8)
    flags = np.zeros(TILE_VOTES, np.uint8)
    signs = np.empty(TILE_VOTES, np.float32)
    top = np.float32(half * 2.0**-16)
    for user in range(first, last):
        fill_states(coin_states, coins[user], coin_tag, 0, 0, 0)
        fill_states(low_states, coins[user], coin_tag, 0, 1, 0)
        for start in range(0, size, TILE_VOTES):
            inside = min(TILE_VOTES, size - start)
            for i in range(inside):
                x = updates[user, start + i]
                signs[i] = np.float32(np.float32(x > 0) - np.float32(x < 0))
                signs[i] += np.float32(np.float32(x == 0) * at_zero)
            vote_tile(signs[:inside], start, top, top, np.float32(0.5), half, half, coin_states,
                      low_states, fresh, words, near, flags)  # fmt: skip
            pack_tile(flags, payload[user, start // 8 : start // 8 + (inside + 7) // 8])


@njit
def cast_corners(
    index: NDArray[np.int32], weight: NDArray[np.float64], points: int, hadamard: bool,
    half: float, key: NDArray[np.uint32], stage: int,
    coin: NDArray[np.uint32], coin_tag: int, payload: NDArray[np.uint8],
) -> None:  # fmt: skip
    """One user's bits of one stage, from the corners and weights of each block's rounding."""
    votes, corners = index.shape
    rows = np.empty(TILE_VOTES, np.int32)
    first = np.empty(TILE_VOTES, np.int8)
    signs = np.empty((1 if hadamard else TILE_VOTES, points), np.int8)
    flags = np.zeros(TILE_VOTES, np.uint8)
    states = np.empty(WORDS, np.uint32)
    fresh = np.empty(WORDS, np.uint32)
    fill_states(states, coin, coin_tag, stage, 0, 0)
    for start in range(0, votes, TILE_VOTES):
        inside = min(TILE_VOTES, votes - start)
        tile = start // TILE_VOTES
        if hadamard:
            hadamard_tile(key, stage, points, tile, inside, rows, first)
        else:
            uniform_signs(key, stage, tile, inside, signs)
        flags[:] = np.uint8(0)
        for i in range(inside):
            if i % WORDS == 0:
                for lane in range(8):
                    states[96 + lane] = np.uint32((start + i) // 16 + lane)
                blocks8(states, fresh)
            lean = 0.0
            for c in range(corners):
                point = np.int64(index[start + i, c])
                if hadamard:
                    sign = np.int64(first[i]) * row_sign(np.int64(rows[i]), point)
                else:
                    sign = np.int64(signs[i, point])
                lean += weight[start + i, c] * np.float64(sign)
            value = min(max(np.trunc(lean * half), -half), half)
            drawn = np.float64(np.int32(fresh[i % WORDS] ^ np.uint32(0x80000000)))
            flags[i] = np.uint8(drawn < value)
        width = (inside + 7) // 8
        pack_tile(flags, payload[start // 8 : start // 8 + width])
