"""Counting ballots of two points, whose words are one bit: the fastest path of a tally."""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.chacha import fill_states, mixed8, mixed8_kept
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

NOT_KEPT = np.empty((0, 0), dtype=np.uint64)


@njit
def count_two_points(
    keys: NDArray[np.uint32], tag: int, stage: int, payload: NDArray[np.uint8],
    chosen: NDArray[np.int64], first: int, last: int, counter: NDArray[np.int64],
    rows: NDArray[np.uint64],
) -> None:  # fmt: skip
    """`count_tiles` of the chosen users for two points: nothing is copied on the way.

    Every ballot is unmasked in hand. Where `rows` has a row for each user, of whole tiles, it is
    written down there: payload xor the signs of the user's words, bit 1 for a vote that pulls up,
    bits beyond the last vote left to chance. The rows of `payload` must follow without gaps.
    """
    votes, users = counter.size, chosen.size
    states = np.empty(128, np.uint32)
    fill_states(states, keys[0], tag, stage, 0, 0)
    group = np.zeros(GROUP * TILE_WORDS, np.uint64)
    words = group.view(np.uint32)
    padded = np.zeros(TILE_BYTES, np.uint8)
    planes = np.zeros(PLANES * TILE_WORDS, np.uint64)
    for tile in range(first, last):
        start, begin = tile * TILE_VOTES, tile * TILE_WORDS
        inside = min(TILE_VOTES, votes - start)
        width = (inside + 7) // 8
        for lane in range(8):
            states[96 + lane] = np.uint32(tile * TILE_BLOCKS + lane)
        held = 0
        for base in range(0, users, GROUP):
            present = min(GROUP, users - base)
            for u in range(present):
                user = chosen[base + u]
                row = payload[user, tile * TILE_BYTES : tile * TILE_BYTES + width]
                # Votes beyond the last are never flushed, so a row may run on into the next one.
                if user * payload.shape[1] + tile * TILE_BYTES + TILE_BYTES > payload.size:
                    padded[:width] = row
                    row = padded[:width]
                into = words[u * 128 : (u + 1) * 128]
                if rows.size > 0:
                    kept = rows[user, begin : begin + TILE_WORDS]
                    mixed8_kept(states, keys[user], row, into, kept)
                else:
                    mixed8(states, keys[user], row, into)
            group[present * TILE_WORDS :] = np.uint64(0)
            add_group(group, planes)
            held += 1
            if held == FLUSH_GROUPS:
                flush(planes, counter[start : start + inside])
                held = 0
        flush(planes, counter[start : start + inside])
        for i in range(start, start + inside):
            counter[i] += users
