"""The l2 clip of updates, and the random rotation that all users of a round share.

Guarantees of whole messages need the clip. The rotation makes heavy-tailed updates nearly Gaussian
before they are quantized. It distributes the entries over n blocks of a power of two B (entry i to
block i mod n) and applies random signs and a Hadamard transform to each block. If B does not divide
the length, the last B entries are rotated once more, so that no length needs padding. The rotation
is orthogonal, so the server inverts it once, on the mean. It does not depend on data, so it has no
effect on privacy.
"""

from functools import lru_cache

import numpy as np

from hushbit.checks import Floats
from hushbit.kernels import Reals
from hushbit.kernels.chacha import keystream
from hushbit.kernels.clip import clip_rows
from hushbit.kernels.hadamard import rotate_rows, transform
from hushbit.kernels.threads import parallel_for
from hushbit.wire.keys import key_to_uint32

MAX_BLOCK = 8192
ROTATION_TAG = int.from_bytes(b"rota", "little")


def clip_l2(updates: Reals, clip: float | None) -> Reals:
    """Scale rows whose l2 norm exceeds `clip` down to at most `clip`, rounding included."""
    if clip is None:
        return updates
    largest = clip * (1 - 1e-6)
    clipped = np.empty_like(updates)
    scaled = [0]

    def run(first: int, last: int) -> None:
        scaled.append(clip_rows(updates, largest, first, last, clipped))

    parallel_for(run, len(updates))
    return clipped if sum(scaled) else updates


class Rotation:
    """The rotation of one round for vectors of one length."""

    def __init__(self, dim: int, key: bytes) -> None:
        self.dim = dim
        self.rows = min(MAX_BLOCK, 1 << (dim.bit_length() - 1))
        self.columns = dim // self.rows
        drawn = np.empty(-(-2 * dim // 32), dtype=np.uint32)
        keystream(key_to_uint32(key), ROTATION_TAG, 0, 0, 0, drawn)
        bits = np.unpackbits(drawn.astype("<u4").view(np.uint8), bitorder="little")
        self.signs = (2.0 * bits[:dim] - 1).astype(np.float32)
        self.tail_signs = (2.0 * bits[dim : 2 * dim] - 1).astype(np.float32)[dim - self.rows :]

    def apply(self, vectors: Reals) -> Reals:
        """Rotate every row."""
        rotated = np.empty(vectors.shape, vectors.dtype)
        tail_signs = self.tail_signs[: self.rows * self._has_tail]

        def run(first: int, last: int) -> None:
            rotate_rows(
                vectors, self.signs, tail_signs, self.rows, self.columns, first, last, rotated
            )

        parallel_for(run, len(rotated))
        return rotated

    def invert(self, vector: Floats) -> Floats:
        """The inverse of `apply`, for one vector."""
        out = vector.copy()
        if self._has_tail:
            tail = out[self.dim - self.rows :]
            transform(tail, self.rows, 1)
            tail *= self.tail_signs
        transform(out[: self.rows * self.columns], self.rows, self.columns)
        return np.asarray(out * self.signs)

    @property
    def _has_tail(self) -> bool:
        return self.rows * self.columns != self.dim


@lru_cache(maxsize=1)
def cached_rotation(dim: int, key: bytes) -> Rotation:
    """The rotation of a round; the last one is cached."""
    return Rotation(dim, key)
