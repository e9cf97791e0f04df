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
COINS = 128  # 32-bit coins in eight ChaCha20 blocks


@njit
def pack_tile(flags: NDArray[np.uint8], row: NDArray[np.uint8]) -> None:
    """Pack the 0/1 bytes of `flags` (a multiple of 8, zero at the end) into bits of `row`."""
    words = flags.view(np.uint64)
    for i in range(row.size):
        row[i] = np.uint8((words[i] * np.uint64(PACK)) >> np.uint64(56))


@njit
def cast_two_points(
    updates: NDArray[np.floating], radius: float, half: float,
    keys: NDArray[np.uint32], word_tag: int, coins: NDArray[np.uint32], coin_tag: int,
    first: int, last: int, payload: NDArray[np.uint8], overloaded: NDArray[np.int64],
) -> None:  # fmt: skip
    """Ballots of users first … last-1 for the points ±radius: one fused draw for each weight."""
    size = updates.shape[1]
    states = np.empty(COINS, np.uint32)
    words = np.empty(COINS, np.uint32)
    fresh = np.empty(COINS, np.uint32)
    flags = np.zeros(TILE_VOTES, np.uint8)
    coin_states = np.empty(COINS, np.uint32)
    scale = half / radius
    limit = half * (1 + 1e-12)  # an entry that equals the radius is not beyond it
    for user in range(first, last):
        fill_states(states, keys[user], word_tag, 0, 0, 0)
        fill_states(coin_states, coins[user], coin_tag, 0, 0, 0)
        over = 0
        for start in range(0, size, TILE_VOTES):
            inside = min(TILE_VOTES, size - start)
            flags[:] = np.uint8(0)
            for chunk in range(0, inside, COINS):
                for lane in range(8):
                    coin_states[96 + lane] = np.uint32((start + chunk) // 16 + lane)
                blocks8(coin_states, fresh)
                count = min(COINS, inside - chunk)
                x = updates[user, start + chunk : start + chunk + count]
                into = flags[chunk : chunk + count]
                for i in range(count):
                    value = np.float64(x[i]) * scale
                    over += np.int64(abs(value) > limit)
                    value = min(max(np.trunc(value), -half), half)
                    coin = np.float64(np.int32(fresh[i] ^ np.uint32(0x80000000)))
                    into[i] = np.uint8(coin < value)
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
    states = np.empty(COINS, np.uint32)
    fresh = np.empty(COINS, np.uint32)
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
            if i % COINS == 0:
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
            drawn = np.float64(np.int32(fresh[i % COINS] ^ np.uint32(0x80000000)))
            flags[i] = np.uint8(drawn < value)
        width = (inside + 7) // 8
        pack_tile(flags, payload[start // 8 : start // 8 + width])
