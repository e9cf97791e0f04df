"""What every scheme of the field returns, and the small parts that they share."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.arrays import Floats, finite_floats
from hushbit.errors import InvalidInput

FLOAT_BITS = 32


@dataclass(frozen=True)
class Carried:
    """The mean at the server, and the bits that each entry of a user's vector cost."""

    mean: Floats
    bits_per_entry: float


def checked_vectors(vectors: Any) -> Floats:
    """Finite vectors of shape (users, dim)."""
    rows = finite_floats("vectors", vectors)
    if rows.ndim != 2:
        raise InvalidInput(f"vectors have shape {rows.shape}; the shape must be (users, dim)")
    return rows


def checked_ball(vectors: Any) -> Floats:
    """Finite vectors of shape (users, dim) whose l2 norms are at most 1."""
    rows = checked_vectors(vectors)
    longest = float(np.linalg.norm(rows, axis=1).max())
    if longest > 1 + 1e-9:
        raise InvalidInput(
            f"a vector has l2 norm {longest:.6g}; the guarantee holds up to 1: scale them down"
        )
    return rows


def entropy(counts: NDArray[np.floating]) -> float:
    """Bits of an ideal code for symbols that occur this often: -sum p log2 p."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def index_bits(dim: int) -> int:
    """Bits of a position in a vector."""
    return max(1, math.ceil(math.log2(dim)))
