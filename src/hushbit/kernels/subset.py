"""Which blocks a user reports, and counting bits that speak of chosen blocks only."""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.chacha import keystream
from hushbit.kernels.jit import njit
from hushbit.kernels.signs import TILE_VOTES, tile_signs

SUBSET_TAG = int.from_bytes(b"subs", "little")


@njit
def choose_blocks(key: NDArray[np.uint32], blocks: int, chosen: NDArray[np.int64]) -> None:
    """Distinct uniform positions below `blocks`: successive draws, repeats skipped.

    The keystream's 32-bit words are reduced without bias: words at or above the largest
    multiple of `blocks` are passed over.
    """
    drawn = np.empty(128, np.uint32)
    taken = np.zeros((blocks + 7) // 8, np.uint8)
    limit = (np.int64(1) << 32) // blocks * blocks
    found = 0
    counter = 0
    used = drawn.size
    while found < chosen.size:
        if used == drawn.size:
            keystream(key, SUBSET_TAG, 0, 0, counter, drawn)
            counter += 8
            used = 0
        word = np.int64(drawn[used])
        used += 1
        place = word % blocks
        mark = np.uint8(1 << (place % 8))
        if word < limit and not taken[place // 8] & mark:
            taken[place // 8] |= mark
            chosen[found] = place
            found += 1


@njit
def count_chosen(
    keys: NDArray[np.uint32], report: int, hadamard: bool, payload: NDArray[np.uint8],
    coords: NDArray[np.int64], counters: NDArray[np.int64],
) -> None:  # fmt: skip
    """counters[c, block] += bit · sum_j word[j] · coords[j, c] for each bit of each user."""
    points, columns = coords.shape
    chosen = np.empty(report, np.int64)
    signs = np.empty((min(report, TILE_VOTES), points), np.int8)
    for user in range(keys.shape[0]):
        choose_blocks(keys[user], counters.shape[1], chosen)
        for start in range(0, report, TILE_VOTES):
            inside = min(TILE_VOTES, report - start)
            tile_signs(keys[user], 0, hadamard, start // TILE_VOTES, inside, signs)
            for i in range(inside):
                bit = (payload[user, (start + i) // 8] >> np.uint8(i % 8)) & np.uint8(1)
                vote = 2 * np.int64(bit) - 1
                for c in range(columns):
                    pull = np.int64(0)
                    for j in range(points):
                        pull += np.int64(signs[i, j]) * coords[j, c]
                    counters[c, chosen[start + i]] += vote * pull
