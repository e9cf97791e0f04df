"""A shared random rotation: heavy-tailed updates become nearly Gaussian before quantizing.

Entries are dealt to blocks of a power of two B like cards (entry i to block i mod n), each block
gets random signs and a Hadamard transform, and, where B does not divide the length, the last B
entries are turned once more: no padding for any length. The rotation is orthogonal, so the mean
is turned back once on the server. All users of a round share it, which costs no privacy.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.clipping import clipped
from hushbit.decode import Estimate, check_counted
from hushbit.errors import InvalidInput
from hushbit.kernels.chacha import keystream
from hushbit.kernels.hadamard import transform, turn_rows
from hushbit.kernels.threads import spread
from hushbit.keys import UserKeys, as_words
from hushbit.mechanism import Mechanism
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally import Counters, Tally

LARGEST_BLOCK = 8192
ROTATION_TAG = int.from_bytes(b"rota", "little")


class Rotation:
    """The rotation of one round for vectors of one length."""

    def __init__(self, dim: int, key: bytes) -> None:
        self.dim = dim
        self.rows = min(LARGEST_BLOCK, 1 << (dim.bit_length() - 1))
        self.columns = dim // self.rows
        drawn = np.empty(-(-2 * dim // 32), dtype=np.uint32)
        keystream(as_words(key), ROTATION_TAG, 0, 0, 0, drawn)
        bits = np.unpackbits(drawn.astype("<u4").view(np.uint8), bitorder="little")
        self.signs = (2.0 * bits[:dim] - 1).astype(np.float32)
        self.more_signs = (2.0 * bits[dim : 2 * dim] - 1).astype(np.float32)[dim - self.rows :]

    def forward(self, vectors: NDArray[np.floating]) -> NDArray[np.floating]:
        """Turn every row."""
        turned = np.empty(vectors.shape, vectors.dtype)
        tail_signs = self.more_signs[: self.rows * self._uneven]

        def run(first: int, last: int) -> None:
            turn_rows(vectors, self.signs, tail_signs, self.rows, self.columns, first, last, turned)

        spread(run, len(turned))
        return turned

    def back(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Undo `forward` on one vector."""
        out = vector.copy()
        if self._uneven:
            tail = out[self.dim - self.rows :]
            transform(tail, self.rows, 1)
            tail *= self.more_signs
        transform(out[: self.rows * self.columns], self.rows, self.columns)
        return np.asarray(out * self.signs)

    @property
    def _uneven(self) -> bool:
        return self.rows * self.columns != self.dim


class Rotated(Mechanism):
    """Any mechanism behind a shared rotation: same bits, same guarantee, other coordinates."""

    def __init__(self, inner: Mechanism) -> None:
        if not isinstance(inner, Mechanism):
            raise InvalidInput(f"Rotated wraps a mechanism; got {inner!r}")
        self.inner = inner
        self.dim = inner.dim

    @property
    def description(self) -> dict[str, Any]:
        """The inner description, marked as rotated."""
        return {"mechanism": "Rotated", "inner": self.inner.description}

    @property
    def guarantee(self) -> Guarantee:
        """A rotation that does not depend on data leaves the guarantee as it is."""
        return self.inner.guarantee

    @property
    def payload_bits(self) -> int:
        """As the inner mechanism."""
        return self.inner.payload_bits

    @property
    def unbiased_radius(self) -> float:
        """As the inner mechanism, for blocks of the rotated update."""
        return float(getattr(self.inner, "unbiased_radius", np.inf))

    def cast(
        self, updates: NDArray[np.floating], keys: UserKeys, coins: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Rotate, then cast."""
        # Clipping first keeps the norm that the inner guarantee counts on, rounding included.
        updates = clipped(updates, getattr(self.inner, "clip", None))
        turned = self._rotation(keys.rotation).forward(updates)
        if not np.isfinite(turned).all():
            raise InvalidInput("updates are too large to be rotated; clip or scale them down")
        return self.inner.cast(turned, keys, coins)

    def check_payload(self, payload: NDArray[np.uint8]) -> None:
        """As the inner mechanism."""
        self.inner.check_payload(payload)

    def empty_counters(self, histogram: bool) -> Counters:
        """As the inner mechanism."""
        return self.inner.empty_counters(histogram)

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """As the inner mechanism."""
        self.inner.absorb(counters, payload, keys)

    def estimate(self, tally: Tally) -> Estimate:
        """Decode, then turn back; the histogram belongs to rotated entries and is left out."""
        check_counted(tally, self)
        inner = Tally(self.inner, tally.round_key, tally.counters)
        inner.roll = tally.roll
        estimate = self.inner.estimate(inner)
        mean = self._rotation(tally.round_key.rotation).back(estimate.mean)
        # Every entry of the mean is spread over a whole block, so the block's average applies.
        variance = np.full_like(mean, estimate.variance.mean())
        return Estimate(mean, variance, estimate.count, estimate.unbiased, noise=estimate.noise)

    def _rotation(self, key: bytes) -> Rotation:
        return rotation_of(self.dim, key)


@lru_cache(maxsize=1)
def rotation_of(dim: int, key: bytes) -> Rotation:
    """The rotation of a round, drawn once for all that a round does with it."""
    return Rotation(dim, key)
