"""ChaCha20 (RFC 8439) keystreams and HChaCha20 keys, eight blocks at a time.

Words are little-endian, in the order of the RFC, so any ChaCha20 library gives the same keystream.
The block function is defined in `chacha_numpy.py`; `chacha_llvm.py` is its fast form.
"""

import numpy as np

from hushbit.kernels import HAVE_NUMBA, Words, Words64, njit
from hushbit.kernels.chacha_numpy import BLOCKS8_WORDS, CONSTANTS, LANES, WORDS

if HAVE_NUMBA:
    from hushbit.kernels.chacha_llvm import blocks8, xor_blocks8
else:  # pragma: no cover - exercised by a test in a process without Numba
    from hushbit.kernels.chacha_numpy import blocks8, xor_blocks8

__all__ = [
    "blocks8",
    "derive_keys",
    "fill_states",
    "keystream",
    "set_counter",
    "set_key",
    "xor_blocks8",
]


@njit
def fill_states(states: Words, key: Words, n0: int, n1: int, n2: int, counter: int) -> None:
    """Give eight lanes one key, one nonce and the block counters counter, counter + 1, …"""
    for lane in range(LANES):
        for word in range(4):
            states[word * LANES + lane] = CONSTANTS[word]
        for word in range(8):
            states[(4 + word) * LANES + lane] = key[word]
        states[12 * LANES + lane] = np.uint32(counter + lane)
        states[13 * LANES + lane] = np.uint32(n0)
        states[14 * LANES + lane] = np.uint32(n1)
        states[15 * LANES + lane] = np.uint32(n2)


@njit
def set_key(states: Words, key: Words) -> None:
    """Change the key of eight lanes, nothing else."""
    for word in range(8):
        for lane in range(LANES):
            states[(4 + word) * LANES + lane] = key[word]


@njit
def set_counter(states: Words, counter: int) -> None:
    """Set the block counters of eight lanes to counter, counter + 1, …, nothing else."""
    for lane in range(LANES):
        states[12 * LANES + lane] = np.uint32(counter + lane)


@njit
def keystream(key: Words, n0: int, n1: int, n2: int, counter: int, out: Words) -> None:
    """Fill `out` with the keystream of nonce (n0, n1, n2), starting at block `counter`."""
    states = np.empty(BLOCKS8_WORDS, np.uint32)
    buffer = np.empty(BLOCKS8_WORDS, np.uint32)
    fill_states(states, key, n0, n1, n2, counter)
    size = BLOCKS8_WORDS
    groups = out.size // size
    for group in range(groups):
        blocks8(states, out[group * size : (group + 1) * size])
        set_counter(states, counter + (group + 1) * LANES)
    tail = out[groups * size :]
    if tail.size > 0:
        blocks8(states, buffer)
        for i in range(tail.size):
            tail[i] = buffer[i]


@njit
def derive_keys(root: Words, ids: Words64, label: Words, keys: Words) -> None:
    """keys[i] = HChaCha20(root, id_i as 8 bytes ‖ label as 8 bytes), eight ids at a time."""
    states = np.empty(BLOCKS8_WORDS, np.uint32)
    buffer = np.empty(BLOCKS8_WORDS, np.uint32)
    fill_states(states, root, 0, label[0], label[1], 0)
    for first in range(0, ids.size, LANES):
        present = min(LANES, ids.size - first)
        for lane in range(present):
            user = ids[first + lane]
            states[12 * LANES + lane] = np.uint32(user & np.uint64(0xFFFFFFFF))
            states[13 * LANES + lane] = np.uint32(user >> np.uint64(32))
        blocks8(states, buffer)
        # HChaCha20 is the block function without the final addition; it keeps the first and the
        # last four words.
        for lane in range(present):
            row = keys[first + lane]
            for word in range(4):
                low, high = word, 12 + word
                row[word] = buffer[lane * WORDS + low] - states[low * LANES + lane]
                row[4 + word] = buffer[lane * WORDS + high] - states[high * LANES + lane]
