"""EDEN (Vargaftik et al., ICML 2022); one bit is DRIVE (NeurIPS 2021).

Rotate the vector at random, round every entry to the best levels for a normal law, and send the
levels and one scale. The scale |x|² / <Rx, Q(Rx)> makes the estimate unbiased over rotations, so
every user needs a rotation of its own. Exactly so for uniform rotations; Hadamard's, which its
authors use too, come close for long vectors that no few entries dominate. Error of one user over
|x|²: 1 / (1 - D) - 1 for the levels' squared error D; for one bit pi/2 - 1.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.arrays import Floats
from hushbit.field.carried import (
    FLOAT_BITS,
    Carried,
    checked_vectors,
)
from hushbit.field.normal import best_levels, explained
from hushbit.field.turning import Turning


@dataclass(frozen=True)
class Message:
    """The level of every rotated entry and the scale of all."""

    levels: NDArray[np.uint8]
    scale: float


def error(bits: int) -> float:
    """Squared error of one user over |x|², for many entries.

    >>> abs(error(1) - (math.pi / 2 - 1)) < 1e-12
    True
    """
    return 1 / explained(bits) - 1


def encode(vector: Floats, bits: int, rotation: Turning) -> Message:
    """Rotate, round to the nearest level, and find the scale that makes it unbiased."""
    values = best_levels(bits)
    norm = float(np.linalg.norm(vector))
    if norm == 0:
        return Message(np.zeros(len(vector), dtype=np.uint8), 0.0)
    turned = rotation.forward(vector)
    edges = (values[1:] + values[:-1]) / 2
    levels = np.searchsorted(edges, turned * (math.sqrt(len(vector)) / norm)).astype(np.uint8)
    return Message(levels, norm**2 / float(turned @ values[levels]))


def decode(message: Message, bits: int, rotation: Turning) -> Floats:
    """Scale the levels and turn them back."""
    return rotation.back(message.scale * best_levels(bits)[message.levels])


def mean_estimate(vectors: Any, bits: int, rng: np.random.Generator) -> Carried:
    """The mean of what the server decodes, every user with a rotation of its own."""
    rows = checked_vectors(vectors)
    users, dim = rows.shape
    total = np.zeros(dim)
    for row in rows:
        rotation = Turning(dim, rng)
        total += decode(encode(row, bits, rotation), bits, rotation)
    return Carried(total / users, bits + FLOAT_BITS / dim)
