"""Casting ballots of scalar points in stages: choose the fine point, then one bit for each stage.

Writes the bits that `CPA` casts user by user from corners, in one pass over tiles that stay in
cache.
"""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.chacha import blocks8, fill_states, set_counter
from hushbit.kernels.jit import njit
from hushbit.kernels.signs import TILE_VOTES, WORD_TAG, hadamard_tile, row_sign
from hushbit.kernels.vote import WORDS, beyond, pack_tile


@njit
def fill_words(states: NDArray[np.uint32], block: int, words: NDArray[np.uint32]) -> None:
    """A tile of keystream words from a block on."""
    for group in range(words.size // WORDS):
        set_counter(states, block + 8 * group)
        blocks8(states, words[group * WORDS : (group + 1) * WORDS])


@njit
def drawn_points(
    x: NDArray[np.floating], lowest: float, pitch: float, most: int, drawn: NDArray[np.uint32],
    points: NDArray[np.int32],
) -> None:  # fmt: skip
    """floor(place + u): the left neighbour, or the right one by the share of the way to it.

    The two corners with weights 1 - share and share, drawn by the same uniform u, are the
    definition; x beyond the outermost points is moved to them.
    """
    top = np.float64(most)
    for i in range(x.size):
        place = min(max((np.float64(x[i]) - lowest) / pitch, 0.0), top)
        # The uniform as a signed number: that conversion is one instruction.
        uniform = np.float64(np.int32(drawn[i] ^ np.uint32(0x80000000))) * 2.0**-32 + 0.5
        points[i] = np.int32(min(place + uniform, top))


@njit
def dithered_points(
    x: NDArray[np.floating], lowest: float, pitch: float, most: int, dither: NDArray[np.uint32],
    points: NDArray[np.int32],
) -> int:  # fmt: skip
    """The point nearest to x + dither, a signed share of the pitch; counts those beyond."""
    top = np.float64(most)
    over = np.int32(0)
    for i in range(x.size):
        place = (np.float64(x[i]) - lowest) / pitch
        place = np.floor(place + np.float64(np.int32(dither[i])) * 2.0**-32 + 0.5)
        inside = min(max(place, 0.0), top)
        over = np.int32(over + np.int32(place != inside))
        points[i] = np.int32(inside)
    return int(over)


@njit
def two_point_signs(
    plane: NDArray[np.uint8], points: NDArray[np.int32], shift: int, out: NDArray[np.int8]
) -> None:
    """The signs of the words (+, -) or (-, +) at one binary digit; `plane` has a bit a word."""
    for i in range(points.size):
        plus = (np.int32(plane[i >> 3]) >> (i & 7)) ^ (points[i] >> shift)
        out[i] = np.int8(2 * (plus & 1) - 1)


@njit
def word_signs(
    rows: NDArray[np.int32], signs: NDArray[np.int8], points: NDArray[np.int32], shift: int,
    size: int, out: NDArray[np.int8],
) -> None:  # fmt: skip
    """The signs of longer words at digits of several bits."""
    for i in range(points.size):
        digit = np.int64(points[i] >> shift) & (size - 1)
        out[i] = np.int8(np.int64(signs[i]) * row_sign(np.int64(rows[i]), digit))


@njit
def flipped(
    signs: NDArray[np.int8], half: float, coins: NDArray[np.uint32], flags: NDArray[np.uint8]
) -> None:
    """A bit is + when its coin is below 2^31 + sign · half."""
    for i in range(signs.size):
        coin = np.float64(np.int32(coins[i] ^ np.uint32(0x80000000)))
        flags[i] = np.uint8(coin < np.float64(signs[i]) * half)


@njit
def cast_line_stages(
    updates: NDArray[np.floating], reach: float, shifts: NDArray[np.int64],
    halves: NDArray[np.float64], keys: NDArray[np.uint32], coins: NDArray[np.uint32],
    tag: int, shared: bool, coin_tag: int, first: int, last: int, payload: NDArray[np.uint8],
    overloaded: NDArray[np.int64],
) -> None:  # fmt: skip
    """Ballots of users first … last-1 for equidistant points from -reach to reach.

    Private coins of purpose `tag` draw the fine point, or a dither that is `shared` decides it.
    Stage s looks up the sign of the bits shifts[s+1] … shifts[s]-1 of the fine point in its
    Hadamard word; `halves` are the stages' 2^31 (2p - 1).
    """
    dim, stages = updates.shape[1], halves.size
    width = payload.shape[1] // stages
    most = (1 << shifts[0]) - 1
    pitch = 2 * reach / most
    points, rows = np.empty(TILE_VOTES, np.int32), np.empty(TILE_VOTES, np.int32)
    signs, chosen = np.empty(TILE_VOTES, np.int8), np.empty(TILE_VOTES, np.int8)
    fresh, flags = np.empty(TILE_VOTES, np.uint32), np.empty(TILE_VOTES, np.uint8)
    states, plane = np.empty(WORDS, np.uint32), np.empty(WORDS, np.uint32)
    for user in range(first, last):
        over = 0
        for start in range(0, dim, TILE_VOTES):
            inside = min(TILE_VOTES, dim - start)
            x = updates[user, start : start + inside]
            fill_states(states, keys[user] if shared else coins[user], tag, 0, 0, 0)
            fill_words(states, start // 16, fresh)
            if shared:
                over += dithered_points(x, -reach, pitch, most, fresh, points)
            else:
                over += beyond(x, reach * (1 + 1e-12))
                drawn_points(x, -reach, pitch, most, fresh, points)
            for stage in range(stages):
                shift = shifts[stage + 1]
                size = 1 << (shifts[stage] - shift)
                if size == 2:
                    fill_states(states, keys[user], WORD_TAG, stage, 0, start // 512)
                    blocks8(states, plane)
                    two_point_signs(plane.view(np.uint8), points[:inside], shift, chosen)
                else:
                    tile = start // TILE_VOTES
                    hadamard_tile(keys[user], stage, size, tile, inside, rows, signs)
                    word_signs(rows, signs, points[:inside], shift, size, chosen)
                fill_states(states, coins[user], coin_tag, stage, 0, 0)
                fill_words(states, start // 16, fresh)
                flags[:] = np.uint8(0)
                flipped(chosen[:inside], halves[stage], fresh, flags)
                place = stage * width + start // 8
                pack_tile(flags, payload[user, place : place + (inside + 7) // 8])
        overloaded[user] = over


@njit
def add_dither(
    keys: NDArray[np.uint32], tag: int, first: int, last: int, sums: NDArray[np.int64]
) -> None:
    """sums += the users' dithers as signed 32-bit words, tiles first … last-1."""
    words, states = np.empty(TILE_VOTES, np.uint32), np.empty(WORDS, np.uint32)
    for tile in range(first, last):
        part = sums[tile * TILE_VOTES : (tile + 1) * TILE_VOTES]
        for user in range(keys.shape[0]):
            fill_states(states, keys[user], tag, 0, 0, 0)
            fill_words(states, tile * (TILE_VOTES // 16), words)
            for i in range(part.size):
                part[i] += np.int64(np.int32(words[i]))
