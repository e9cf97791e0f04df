"""The ChaCha20 block function (RFC 8439) in NumPy: the definition, and the fallback without Numba.

`chacha_llvm.py` holds the fast version of `blocks8` and `xor_blocks8`.
"""

import numpy as np

from hushbit.kernels import Bytes, Words

LANES = 8  # blocks that are computed together
WORDS = 16  # 32-bit words of a block
BLOCKS8_WORDS = WORDS * LANES  # 32-bit words of eight blocks
CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
# Words of the state that each quarter round mixes: four columns, then four diagonals.
QUARTER_ROUNDS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)
# One step (a, b, d, r) of a quarter round: a += b; d ^= a; rotate d left by r bits.
STEPS = ((0, 1, 3, 16), (2, 3, 1, 12), (0, 1, 3, 8), (2, 3, 1, 7))


def reference_blocks(states: Words) -> Words:
    """ChaCha20 block function on the columns of `states` (16 × lanes): lanes × 16 words out."""
    x = states.copy()
    for _ in range(10):
        for quarter in QUARTER_ROUNDS:
            for target, addend, xored, rotation in STEPS:
                a, b, d = quarter[target], quarter[addend], quarter[xored]
                x[a] += x[b]
                x[d] ^= x[a]
                x[d] = (x[d] << np.uint32(rotation)) | (x[d] >> np.uint32(32 - rotation))
    return np.ascontiguousarray((x + states).T)


def blocks8(states: Words, out: Words) -> None:
    """Eight blocks from `states` (16·8 words, word-major) into `out` (8·16 words)."""
    out[:] = reference_blocks(states.reshape(WORDS, LANES)).reshape(-1)


def xor_blocks8(states: Words, key: Words, text: Bytes, out: Words) -> None:
    """out = text XOR eight blocks under `key`; a text of less than 512 bytes ends with zeros."""
    states.reshape(WORDS, LANES)[4:12] = key[:, None]
    blocks8(states, out)
    out.view(np.uint8)[: text.size] ^= text
