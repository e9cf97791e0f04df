"""QUIC-FL (Ben Basat et al., ICML 2024): unbiased for every vector, decoded all at once.

All users share one rotation. A rotated entry, in units of |x| / sqrt(dim), is sent as it is if it
lies beyond the reach (one in 512 of a normal law), and otherwise as a symbol of a few bits that
is decoded with a column drawn from randomness that user and server share.
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
    index_bits,
)
from hushbit.field.quicfl_table import Table, quicfl_table
from hushbit.field.turning import Turning


@dataclass(frozen=True)
class Message:
    """Symbols of all entries, the entries beyond the reach, and the norm."""

    symbols: NDArray[np.uint8]
    exact_at: NDArray[np.int64]
    exact: Floats
    norm: float


def columns(dim: int, table: Table, shared: np.random.Generator) -> NDArray[np.int64]:
    """The columns that user and server draw from what they share."""
    return shared.integers(0, table.values.shape[1], dim)


def encode(
    turned: Floats, table: Table, column: NDArray[np.int64], rng: np.random.Generator
) -> Message:
    """Symbols of a rotated vector; a private coin decides in the column of a tie."""
    norm = float(np.linalg.norm(turned))
    scaled = turned * (math.sqrt(len(turned)) / norm) if norm else turned
    outside = np.flatnonzero(np.abs(scaled) > table.reach)
    inside = np.clip(scaled, -table.reach, table.reach)
    last = len(table.owner) - 1
    tie = np.clip(np.searchsorted(table.means, inside, side="right") - 1, 0, last)
    share = (inside - table.means[tie]) / (table.means[tie + 1] - table.means[tie])
    upper = (column == table.owner[tie]) & (rng.random(len(turned)) < share)
    symbols = table.symbols[tie, column] + upper
    return Message(symbols.astype(np.uint8), outside, scaled[outside], norm)


def decode(message: Message, table: Table, column: NDArray[np.int64]) -> Floats:
    """The rotated vector, without bias."""
    values = table.values[message.symbols, column]
    values[message.exact_at] = message.exact
    return values * (message.norm / math.sqrt(len(values)))


def mean_estimate(vectors: Any, bits: int, rng: np.random.Generator) -> Carried:
    """The mean of what the server decodes; the rotation is undone once."""
    rows = checked_vectors(vectors)
    users, dim = rows.shape
    table, rotation = quicfl_table(bits), Turning(dim, rng)
    total, exact = np.zeros(dim), 0
    for row in rows:
        column = columns(dim, table, rng)
        message = encode(rotation.forward(row), table, column, rng)
        total += decode(message, table, column)
        exact += len(message.exact)
    extra = exact / users * (FLOAT_BITS + index_bits(dim)) + FLOAT_BITS
    return Carried(rotation.back(total / users), bits + extra / dim)
