"""ChaCha20 (RFC 8439) and HChaCha20, eight blocks at a time.

`reference_blocks` is the definition; the vector version must equal it bit for bit. Words are
little-endian, in the order of the RFC, so any ChaCha20 library yields the same keystream.
"""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.jit import HAVE_NUMBA, njit

U32 = NDArray[np.uint32]

LANES = 8
WORDS = 16
CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
QUARTERS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
STEPS = ((0, 1, 3, 16), (2, 3, 1, 12), (0, 1, 3, 8), (2, 3, 1, 7))


def reference_blocks(states: U32) -> U32:
    """ChaCha20 block function on the columns of `states` (16 × lanes): lanes × 16 words out."""
    x = states.copy()
    for _ in range(10):
        for rows in QUARTERS:
            for into, other, mixed, turn in STEPS:
                a, b, d = rows[into], rows[other], rows[mixed]
                x[a] += x[b]
                x[d] ^= x[a]
                x[d] = (x[d] << np.uint32(turn)) | (x[d] >> np.uint32(32 - turn))
    return np.ascontiguousarray((x + states).T)


if HAVE_NUMBA:
    from hushbit.kernels.chacha_vector import blocks8, mixed8
else:  # pragma: no cover - exercised by a test in a process without Numba

    def blocks8(states: U32, out: U32) -> None:
        """Eight blocks from `states` (16·8 words, word-major) into `out` (8·16 words)."""
        out[:] = reference_blocks(states.reshape(WORDS, LANES)).reshape(-1)

    def mixed8(states: U32, key: U32, text: NDArray[np.uint8], out: U32) -> None:
        """out = text XOR eight blocks under `key`; a shorter text is followed by zeros."""
        set_key(states, key)
        blocks8(states, out)
        out.view(np.uint8)[: text.size] ^= text


@njit
def fill_states(states: U32, key: U32, n0: int, n1: int, n2: int, counter: int) -> None:
    """Set eight lanes to one key and nonce and to the block counters counter, counter+1, …"""
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
def set_key(states: U32, key: U32) -> None:
    """Change only the key of eight lanes."""
    for word in range(8):
        for lane in range(LANES):
            states[(4 + word) * LANES + lane] = key[word]


@njit
def set_counter(states: U32, counter: int) -> None:
    """Change only the counters of eight lanes."""
    for lane in range(LANES):
        states[12 * LANES + lane] = np.uint32(counter + lane)


@njit
def keystream(key: U32, n0: int, n1: int, n2: int, counter: int, out: U32) -> None:
    """Fill `out` with the keystream from block `counter` on."""
    states = np.empty(WORDS * LANES, np.uint32)
    buffer = np.empty(WORDS * LANES, np.uint32)
    fill_states(states, key, n0, n1, n2, counter)
    size = WORDS * LANES
    whole = out.size // size
    for group in range(whole):
        blocks8(states, out[group * size : (group + 1) * size])
        set_counter(states, counter + (group + 1) * LANES)
    rest = out.size - whole * size
    if rest > 0:
        blocks8(states, buffer)
        tail = out[whole * size :]
        for i in range(rest):
            tail[i] = buffer[i]


@njit
def derive_keys(root: U32, ids: NDArray[np.uint64], label: U32, keys: U32) -> None:
    """keys[i] = HChaCha20(root, id_i as 8 bytes ‖ label as 8 bytes), eight ids at a time."""
    states = np.empty(WORDS * LANES, np.uint32)
    buffer = np.empty(WORDS * LANES, np.uint32)
    fill_states(states, root, 0, label[0], label[1], 0)
    for first in range(0, ids.size, LANES):
        present = min(LANES, ids.size - first)
        for lane in range(present):
            number = ids[first + lane]
            states[12 * LANES + lane] = np.uint32(number & np.uint64(0xFFFFFFFF))
            states[13 * LANES + lane] = np.uint32(number >> np.uint64(32))
        blocks8(states, buffer)
        # HChaCha20 is the block function without the final addition, first and last rows kept.
        for lane in range(present):
            row = keys[first + lane]
            for word in range(4):
                low, high = word, 12 + word
                row[word] = buffer[lane * WORDS + low] - states[low * LANES + lane]
                row[4 + word] = buffer[lane * WORDS + high] - states[high * LANES + lane]
