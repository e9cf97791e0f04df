"""Counting ballots of two points that are kept unmasked, for those who look at them once more."""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.chacha import fill_states, mixed8
from hushbit.kernels.count import (
    FLUSH_GROUPS,
    GROUP,
    PLANES,
    TILE_BLOCKS,
    TILE_BYTES,
    TILE_VOTES,
    TILE_WORDS,
    add_group,
    flush,
)
from hushbit.kernels.jit import njit


@njit
def unmask_and_count(
    keys: NDArray[np.uint32], tag: int, payload: NDArray[np.uint8], first: int, last: int,
    rows: NDArray[np.uint64], counter: NDArray[np.int64],
) -> None:  # fmt: skip
    """`count_two_points`, which has every ballot unmasked in hand, and writes it down.

    rows[u] = payload[u] xor the signs of user u's words: bit 1 says that the vote pulls up. Bits
    beyond the last vote are left to chance. The rows of `payload` must follow without gaps.
    """
    votes, users = counter.size, keys.shape[0]
    states = np.empty(128, np.uint32)
    fill_states(states, keys[0], tag, 0, 0, 0)
    group = np.zeros(GROUP * TILE_WORDS, np.uint64)
    words = group.view(np.uint32)
    padded = np.zeros(TILE_BYTES, np.uint8)
    planes = np.zeros(PLANES * TILE_WORDS, np.uint64)
    for tile in range(first, last):
        start, begin = tile * TILE_VOTES, tile * TILE_WORDS
        inside = min(TILE_VOTES, votes - start)
        kept = min(TILE_WORDS, rows.shape[1] - begin)
        width = (inside + 7) // 8
        for lane in range(8):
            states[96 + lane] = np.uint32(tile * TILE_BLOCKS + lane)
        held = 0
        for base in range(0, users, GROUP):
            present = min(GROUP, users - base)
            for u in range(present):
                row = payload[base + u, tile * TILE_BYTES : tile * TILE_BYTES + width]
                if (base + u) * payload.shape[1] + tile * TILE_BYTES + TILE_BYTES > payload.size:
                    padded[:width] = row
                    row = padded[:width]
                mixed8(states, keys[base + u], row, words[u * 128 : (u + 1) * 128])
                rows[base + u, begin : begin + kept] = group[u * TILE_WORDS : u * TILE_WORDS + kept]
            group[present * TILE_WORDS :] = np.uint64(0)
            add_group(group, planes)
            held += 1
            if held == FLUSH_GROUPS:
                flush(planes, counter[start : start + inside])
                held = 0
        flush(planes, counter[start : start + inside])
        for i in range(start, start + inside):
            counter[i] += users
