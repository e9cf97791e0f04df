"""Counting ballots of two points, whose words are one bit: the fastest path of a tally."""

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

NOT_KEPT = np.empty((0, 0, 0), dtype=np.uint64)


def one_side(users: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The order of slots that `count_two_points` takes where everybody is on one side."""
    groups = -(-users // GROUP)
    order = np.arange(groups * GROUP)
    order[users:] = -1
    return order, np.zeros(groups, dtype=np.uint8)


@njit
def count_two_points(
    keys: NDArray[np.uint32], tag: int, stage: int, payload: NDArray[np.uint8],
    order: NDArray[np.int64], sides: NDArray[np.uint8], first: int, last: int,
    counters: NDArray[np.int64], kept: NDArray[np.uint64],
) -> None:  # fmt: skip
    """`count_tiles` for two points, users of each side into a row of `counters` of their own.

    order  the user in each slot, -1 for nobody; sixteen slots make a group
    sides  the row of `counters` for each group; the one after the last is not counted
    kept   (tiles, slots, 64): unmasked ballots, payload xor the signs of the user's words, bit 1
           for a vote that pulls up, bits beyond the last vote left to chance; may be empty

    The rows of `payload` must hold all votes and follow without gaps: that is not checked here.
    """
    counted, votes = counters.shape
    states = np.empty(128, np.uint32)
    fill_states(states, keys[0], tag, stage, 0, 0)
    # One group of slots is written over and over where nothing is kept.
    slots = kept.reshape(-1) if kept.size > 0 else np.zeros(GROUP * TILE_WORDS, np.uint64)
    words = slots.view(np.uint32)
    padded = np.zeros(TILE_BYTES, np.uint8)
    planes = np.zeros((counted, PLANES * TILE_WORDS), np.uint64)
    held, users = np.zeros(counted, np.int64), np.zeros(counted + 1, np.int64)
    for slot in range(order.size):
        users[sides[slot // GROUP]] += order[slot] >= 0
    for tile in range(first, last):
        start, begin = tile * TILE_VOTES, tile * TILE_BYTES
        inside = min(TILE_VOTES, votes - start)
        width = (inside + 7) // 8
        for lane in range(8):
            states[96 + lane] = np.uint32(tile * TILE_BLOCKS + lane)
        for group in range(sides.size):
            base = tile * order.size + group * GROUP if kept.size > 0 else 0
            for u in range(GROUP):
                user = order[group * GROUP + u]
                if user < 0:
                    slots[(base + u) * TILE_WORDS : (base + u + 1) * TILE_WORDS] = np.uint64(0)
                    continue
                text = payload[user, begin : begin + width]
                # Votes beyond the last are never flushed, so a row may run on into the next one.
                if user * payload.shape[1] + begin + TILE_BYTES > payload.size:
                    padded[:width] = text
                    text = padded[:width]
                mixed8(states, keys[user], text, words[(base + u) * 128 : (base + u + 1) * 128])
            side = sides[group]
            if side == counted:
                continue
            add_group(slots[base * TILE_WORDS : (base + GROUP) * TILE_WORDS], planes[side])
            held[side] += 1
            if held[side] == FLUSH_GROUPS:
                flush(planes[side], counters[side, start : start + inside])
                held[side] = 0
        for side in range(counted):
            counter = counters[side, start : start + inside]
            flush(planes[side], counter)
            held[side] = 0
            counter += users[side]
