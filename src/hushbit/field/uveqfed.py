"""UVeQFed (Shlezinger et al., 2021): lattice quantization with subtractive dither.

Blocks of x / |x| plus a shared dither, uniform on the lattice's cell, go to the nearest lattice
point; the server subtracts the dither. The error is uniform on the cell, independent of x:

    E|error|² = |x|² (blocks) (second moment of the cell)

Lattice points are entropy coded: here by an ideal code for all users of a round, whose table is
free. The lattice's scale is the finest that fits the bits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.arrays import Floats, Ints
from hushbit.checks import positive
from hushbit.field.carried import FLOAT_BITS, Carried, checked_vectors, entropy
from hushbit.lattice import Lattice, lattice

HALVINGS = 24


@dataclass(frozen=True)
class Message:
    """Integer coordinates of the blocks and the norm."""

    coordinates: Ints
    norm: float


def dither(dim: int, grid: Lattice, shared: np.random.Generator) -> Floats:
    """One vector uniform on the cell for each block, from what user and server share."""
    return grid.dither(shared.random((-(-dim // grid.dim), grid.dim)))


def encode(vector: Floats, grid: Lattice, added: Floats) -> Message:
    """The lattice points nearest to the blocks of x / |x| plus the dither."""
    norm = float(np.linalg.norm(vector))
    blocks = np.zeros(added.shape)
    blocks.reshape(-1)[: len(vector)] = vector / norm if norm else 0.0
    return Message(grid.nearest(blocks + added), norm)


def decode(message: Message, grid: Lattice, added: Floats, dim: int) -> Floats:
    """Lattice points less the dither, times the norm."""
    blocks = message.coordinates @ grid.generator - added
    return np.asarray(message.norm * blocks.reshape(-1)[:dim])


def grid_for(vectors: Any, bits: float, rng: np.random.Generator, name: str = "A2") -> Lattice:
    """The finest lattice of this name whose points take at most `bits` an entry."""
    rows, limit = checked_vectors(vectors), positive("bits", bits)
    coarse, fine = 64.0, 1e-6
    for _ in range(HALVINGS):
        middle = (coarse * fine) ** 0.5
        grid = lattice(name).scaled(middle)
        needed = _entropy([encode(r, grid, dither(len(r), grid, rng)) for r in rows]) / grid.dim
        coarse, fine = (middle, fine) if needed <= limit else (coarse, middle)
    return lattice(name).scaled(coarse)


def mean_estimate(vectors: Any, grid: Lattice, rng: np.random.Generator) -> Carried:
    """The mean of what the server decodes."""
    rows = checked_vectors(vectors)
    users, dim = rows.shape
    total, messages = np.zeros(dim), []
    for row in rows:
        added = dither(dim, grid, rng)
        messages.append(encode(row, grid, added))
        total += decode(messages[-1], grid, added, dim)
    blocks = messages[0].coordinates.shape[0]
    return Carried(total / users, (_entropy(messages) * blocks + FLOAT_BITS) / dim)


def _entropy(messages: list[Message]) -> float:
    """Bits a block of an ideal code for the points of all messages."""
    points: NDArray[np.int64] = np.concatenate([message.coordinates for message in messages])
    _, counts = np.unique(points, axis=0, return_counts=True)
    return entropy(counts.astype(np.float64))
