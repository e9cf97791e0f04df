"""QSGD (Alistarh et al., NeurIPS 2017): random rounding to multiples of |x| / s.

Q(x_i) = |x| sign(x_i) l / s with E[Q(x)] = x and E|Q(x) - x|² <= min(dim / s², sqrt(dim) / s) |x|².
Levels are coded by how often they occur (the paper uses Elias codes); here an ideal code for the
levels of all users of a round, whose table is free. `s` is the largest that fits the bits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.arrays import Floats
from hushbit.checks import positive, whole
from hushbit.field.carried import FLOAT_BITS, Carried, checked_vectors, entropy

MOST_STEPS = 1 << 20


@dataclass(frozen=True)
class Message:
    """Signed levels and the norm."""

    levels: NDArray[np.int64]
    norm: float


def encode(vector: Floats, steps: int, rng: np.random.Generator) -> Message:
    """Round every entry at random to one of the two nearest multiples of |x| / steps."""
    norm = float(np.linalg.norm(vector))
    if norm == 0:
        return Message(np.zeros(len(vector), dtype=np.int64), 0.0)
    exact = np.abs(vector) * (steps / norm)
    levels = np.floor(exact + rng.random(len(vector)))
    return Message((np.sign(vector) * levels).astype(np.int64), norm)


def decode(message: Message, steps: int) -> Floats:
    """Levels times |x| / steps."""
    return np.asarray(message.levels * (message.norm / steps), dtype=np.float64)


def expected_entropy(rows: Floats, steps: int) -> float:
    """Bits of an ideal code for the levels of all rows, by their expected numbers."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    exact = np.abs(rows) * (steps / np.where(norms > 0, norms, 1.0))
    low = np.floor(exact)
    part = exact - low
    signs = np.where(rows < 0, -1, 1)
    levels = np.concatenate([(signs * low).ravel(), (signs * (low + 1)).ravel()])
    weights = np.concatenate([(1 - part).ravel(), part.ravel()])
    found, place = np.unique(levels, return_inverse=True)
    return entropy(np.asarray(np.bincount(place, weights, len(found)), dtype=np.float64))


def steps_for(vectors: Any, bits: float) -> int:
    """The most steps whose levels take at most `bits` an entry."""
    rows, limit = checked_vectors(vectors), positive("bits", bits)
    low, high = 1, 2
    while high < MOST_STEPS and expected_entropy(rows, high) <= limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if expected_entropy(rows, middle) <= limit else (low, middle)
    return low


def mean_estimate(vectors: Any, steps: int, rng: np.random.Generator) -> Carried:
    """The mean of what the server decodes."""
    rows, steps = checked_vectors(vectors), whole("steps", steps, 1, MOST_STEPS)
    users, dim = rows.shape
    messages = [encode(row, steps, rng) for row in rows]
    _, counts = np.unique(np.concatenate([m.levels for m in messages]), return_counts=True)
    total = np.zeros(dim)
    for message in messages:
        total += decode(message, steps)
    return Carried(total / users, entropy(counts.astype(np.float64)) + FLOAT_BITS / dim)
