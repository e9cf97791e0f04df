"""Which samples a user sees in which step: a pure function of seed, round and user.

Like a shuffling data loader that keeps the last short batch: a user with n samples and batch size
b takes ceil(n/b) batches from one random order, then draws a new order. A user with n <= b uses
all its samples in every step.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushbit.fl.partition import Federation, Indices

Words = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


class Batch(NamedTuple):
    """Rows of the data set, shape (users, batch), and 1 where a row is real, 0 where padding."""

    rows: Indices
    present: NDArray[np.float32]


def user_keys(seed: int, round_number: int, users: Indices) -> Words:
    """Return one 64-bit key per user, for this seed and round only."""
    start = np.array([seed & _MASK], dtype=np.uint64)
    per_round = _scrambled(_scrambled(start) + np.uint64(round_number & _MASK))
    return _scrambled(per_round + users.astype(np.uint64) * _GOLDEN)


def draw_batch(federation: Federation, users: Indices, keys: Words, step: int, size: int) -> Batch:
    """Choose the samples of one local step for several users at once."""
    begins = federation.starts[users].astype(np.int64)
    counts = federation.starts[users + 1] - begins
    steps_per_pass = np.maximum(-(-counts // size), 1)
    passes, turn = np.divmod(step, steps_per_pass)
    position = turn[:, None] * size + np.arange(size)
    present = position < counts[:, None]
    slots = np.where(present, position, 0)
    if (counts > size).any():
        shuffled = np.take_along_axis(_orders(counts, keys, passes), slots, axis=1)
        slots = np.where(counts[:, None] > size, shuffled, slots)
    rows = begins[:, None] + slots
    safe = np.minimum(rows, max(len(federation.members) - 1, 0))
    return Batch(federation.members[safe].astype(np.int64), present.astype(np.float32))


def dropout_masks(
    keys: Words, step: int, samples: int, shapes: tuple[tuple[int, ...], ...], rate: float
) -> tuple[NDArray[np.bool_], ...]:
    """Draw dropout masks of shape (users, samples, *shape), true where a value is kept."""
    masks = tuple(np.empty((len(keys), samples, *shape), dtype=np.bool_) for shape in shapes)
    for row, key in enumerate(keys):
        rng = np.random.Generator(np.random.Philox(key=[int(key), step]))
        for mask, shape in zip(masks, shapes, strict=True):
            mask[row] = rng.random((samples, *shape), dtype=np.float32) >= rate
    return masks


def _orders(counts: Indices, keys: Words, passes: Indices) -> Indices:
    """Return a random order of 0..count-1 per row; what lies behind count is meaningless."""
    slot = np.arange(counts.max())
    base = _scrambled(keys + passes.astype(np.uint64))[:, None]
    ticket = _scrambled(base + slot.astype(np.uint64) * _GOLDEN)
    ticket[slot >= counts[:, None]] = np.uint64(_MASK)
    return np.argsort(ticket, axis=1, kind="stable")


def _scrambled(word: Words) -> Words:
    """Mix 64 bits so that neighbouring inputs look unrelated (the finaliser of SplitMix64)."""
    word = word + _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
