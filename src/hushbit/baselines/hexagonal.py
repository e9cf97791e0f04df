"""Kernels on the hexagonal lattice with basis (1, 0), (1/2, sqrt(3)/2), in units of its cell."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.chacha import keystream
from hushbit.kernels.jit import njit

ROOT3 = math.sqrt(3.0)
WORD = 2.0**-32
FAR = 2.0**30


def codebook(levels: int) -> NDArray[np.int64]:
    """Integer coordinates of the points of least norm, ties in lexicographic order."""
    side = math.isqrt(2 * levels) + 2
    axis = np.arange(-side, side + 1)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    norms = points[:, 0] ** 2 + points[:, 0] * points[:, 1] + points[:, 1] ** 2
    order = np.lexsort((points[:, 1], points[:, 0], norms))[:levels]
    return np.ascontiguousarray(points[order], dtype=np.int64)


def lookup_table(points: NDArray[np.int64]) -> NDArray[np.int64]:
    """table[i + m, j + m] = number of the point with coordinates (i, j), -1 where there is none."""
    reach = int(np.abs(points).max())
    table = np.full((2 * reach + 1, 2 * reach + 1), -1, dtype=np.int64)
    table[points[:, 0] + reach, points[:, 1] + reach] = np.arange(len(points))
    return table


@njit
def nearest_hex(x: float, y: float) -> Any:
    """Coordinates of the nearest point: the nearer of two rectangular lattices' answers."""
    m0, n0 = np.rint(x), np.rint(y / ROOT3)
    m1, n1 = np.rint(x - 0.5), np.rint(y / ROOT3 - 0.5)
    gap0 = (x - m0) ** 2 + (y - n0 * ROOT3) ** 2
    gap1 = (x - m1 - 0.5) ** 2 + (y - (n1 + 0.5) * ROOT3) ** 2
    if gap0 <= gap1:
        return np.int64(m0 - n0), np.int64(2 * n0)
    return np.int64(m1 - n1), np.int64(2 * n1 + 1)


@njit
def nearest_of(points: NDArray[np.int64], x: float, y: float) -> int:
    """The number of the nearest of a few points, for places beyond their cells."""
    best, least = 0, np.inf
    for k in range(points.shape[0]):
        gap = (x - points[k, 0] - 0.5 * points[k, 1]) ** 2 + (y - 0.5 * ROOT3 * points[k, 1]) ** 2
        if gap < least:
            best, least = k, gap
    return best


@njit
def hex_symbols(
    pairs: NDArray[np.float64], scale: float, cell: float, sigma: float, degrees: float,
    coins: NDArray[np.uint32], dither: NDArray[np.uint32], points: NDArray[np.int64],
    lookup: NDArray[np.int64], symbols: NDArray[np.uint32],
) -> int:  # fmt: skip
    """Clip to the disc, add t noise and dither, quantize; returns how many were overloaded."""
    reach = lookup.shape[0] // 2
    over = 0
    for k in range(pairs.shape[0]):
        x, y = pairs[k, 0] / scale, pairs[k, 1] / scale
        # Far entries are cut first, for the squares of the norm to stay finite.
        x, y = min(max(x, -FAR), FAR), min(max(y, -FAR), FAR)
        shrink = 1.0 / max(1.0, math.sqrt(x * x + y * y))
        low, high = np.uint64(coins[4 * k]), np.uint64(coins[4 * k + 1])
        uniform = (np.float64((high << np.uint64(21)) ^ (low >> np.uint64(11))) + 0.5) * 2.0**-53
        radius = sigma * math.sqrt(degrees * (uniform ** (-2.0 / degrees) - 1.0))
        turn = 2.0 * math.pi * (coins[4 * k + 2] + coins[4 * k + 3] * WORD) * WORD
        u, v = dither[2 * k] * WORD, dither[2 * k + 1] * WORD
        i0, j0 = nearest_hex(u + 0.5 * v, 0.5 * ROOT3 * v)
        x = (x * shrink + radius * math.cos(turn)) / cell + (u - i0) + 0.5 * (v - j0)
        y = (y * shrink + radius * math.sin(turn)) / cell + 0.5 * ROOT3 * (v - j0)
        x, y = min(max(x, -FAR), FAR), min(max(y, -FAR), FAR)
        i, j = nearest_hex(x, y)
        symbol = -1
        if abs(i) <= reach and abs(j) <= reach:
            symbol = lookup[i + reach, j + reach]
        if symbol < 0:
            over += 1
            symbol = nearest_of(points, x, y)
        symbols[k] = np.uint32(symbol)
    return over


@njit
def add_hex_dither(
    keys: NDArray[np.uint32], tag: int, tile: int, first: int, last: int,
    sums: NDArray[np.int64],
) -> None:  # fmt: skip
    """sums += lattice coordinates of the users' dither in units of 2^-32, tiles first … last-1."""
    words = np.empty(2 * tile, np.uint32)
    for at in range(first, last):
        start = at * tile
        for user in range(keys.shape[0]):
            keystream(keys[user], tag, 0, 0, start // 8, words)
            for k in range(min(tile, sums.shape[1] - start)):
                u, v = words[2 * k], words[2 * k + 1]
                i0, j0 = nearest_hex(u * WORD + 0.5 * (v * WORD), 0.5 * ROOT3 * (v * WORD))
                sums[0, start + k] += np.int64(u) - (np.int64(i0) << 32)
                sums[1, start + k] += np.int64(v) - (np.int64(j0) << 32)
