"""Top-k: send the k largest entries as they are, and nothing of the rest.

Biased; its error is the power of what it drops. k entries cost 32 bits each, and their places
log2 of the number of ways to choose them: k is the largest that fits the bits.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.arrays import Floats
from hushbit.checks import positive, whole
from hushbit.field.carried import FLOAT_BITS, Carried, checked_vectors


@dataclass(frozen=True)
class Message:
    """Places and values of the entries that are sent."""

    places: NDArray[np.int64]
    values: NDArray[np.float32]


def cost(dim: int, kept: int) -> float:
    """Bits of `kept` values and of their places, log2 C(dim, kept)."""
    ways = math.lgamma(dim + 1) - math.lgamma(kept + 1) - math.lgamma(dim - kept + 1)
    return FLOAT_BITS * kept + ways / math.log(2)


def kept_for(dim: int, bits: float) -> int:
    """The most entries that cost at most `bits` for each entry of the vector.

    >>> kept_for(7850, 1.0)
    202
    """
    dim, limit = whole("dim", dim, 1), positive("bits", bits) * dim
    low, high = 0, dim + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(dim, middle) <= limit else (low, middle)
    return low


def encode(vector: Floats, kept: int) -> Message:
    """The entries of largest magnitude."""
    places = np.sort(np.argsort(-np.abs(vector), kind="stable")[:kept])
    return Message(places, vector[places].astype(np.float32))


def decode(message: Message, dim: int) -> Floats:
    """The entries sent, among zeros."""
    out = np.zeros(dim)
    out[message.places] = message.values
    return out


def mean_estimate(vectors: Any, kept: int) -> Carried:
    """The mean of what the server decodes."""
    rows = checked_vectors(vectors)
    users, dim = rows.shape
    kept = whole("kept", kept, 1, dim)
    total = np.zeros(dim)
    for row in rows:
        total += decode(encode(row, kept), dim)
    return Carried(total / users, cost(dim, kept) / dim)
