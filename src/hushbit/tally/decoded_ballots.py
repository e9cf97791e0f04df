"""Ballots decoded one by one, in units of their own noise.

    y = (one decoded ballot) / sigma,   E y = update / sigma,   noise of variance 1

For two points, y is ±1 and sigma = radius / (2p - 1). Ballots are private already.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import Floats, Ints
from hushbit.kernels import Bytes, Flags, Words, Words64
from hushbit.kernels.count import count_two_points
from hushbit.kernels.scores import count_rows, group_users, score_users, ternary_planes, to_tiles
from hushbit.kernels.threads import parallel_for
from hushbit.kernels.words import TILE_VOTES, TILE_WORDS

ROW_CHUNK = 256
MAX_CACHED_ENTRIES = 1 << 28  # a gigabyte; more entries are decoded again for each score


class SingleBallots(Protocol):
    """The decoded ballots of a round, of which only scores are read."""

    users: int
    dim: int
    max_score: float

    def score(self, above: Flags, below: Flags, direction: Floats | None) -> Floats:
        """Scores of all users, (3, users): y · direction, leaving the user out of the direction.

        The three directions are the sum of y over both groups, the sum over `above` minus the sum
        over `below`, and `direction`. Scores on a direction of None are zero.
        """


@dataclass(eq=False)
class PackedBallots:
    """Ballots of two points, one bit for each entry, stored as packed bits.

    kept   the bits, by tile and slot
    order  the user in each slot
    parts  disjoint groups of users, each with minus the sum of its y
    """

    kept: Words64
    order: Ints
    users: int
    dim: int
    max_score: float
    parts: Sequence[tuple[Flags, Ints]] = ()

    @classmethod
    def of_two_points(
        cls,
        keys: Words,
        payload: Bytes,
        dim: int,
        max_score: float,
        groups: Sequence[Flags] | None,
    ) -> "PackedBallots":
        """From payloads of two-point CPA; one pass removes the words and counts the groups."""
        counted = groups or (np.ones(len(payload), dtype=np.bool_),)
        order, group_ids = group_users(counted[0], counted[-1])
        tiles = -(-dim // TILE_VOTES)
        kept = np.empty((tiles, len(order), TILE_WORDS), dtype=np.uint64)
        counters = np.zeros((len(counted), dim), dtype=np.int64)

        def run(first: int, last: int) -> None:
            count_two_points(keys, 0, payload, order, group_ids, first, last, counters, kept)

        parallel_for(run, tiles)
        parts = tuple(zip(counted, counters, strict=True))
        return cls(kept, order, len(payload), dim, max_score, parts)

    @classmethod
    def of_payload(cls, payload: Bytes, dim: int, max_score: float) -> "PackedBallots":
        """From payloads without words, whose bits are the signs of the entries."""
        return cls(*to_tiles(payload), len(payload), dim, max_score)

    def count(self, chosen: Flags) -> Ints:
        """Minus the sum of y of the chosen ballots, which is their counter in a tally.

        At most half of the ballots of a part are read, and none if the whole part is chosen.
        """
        for part, counter in self.parts:
            if part is chosen:
                return counter
        total, left = np.zeros(self.dim, dtype=np.int64), chosen
        for part, counter in self.parts:
            missing, left = part & ~chosen, left & ~part
            if 2 * np.count_nonzero(missing) <= np.count_nonzero(part):
                total += counter
                self._add(total, missing, -1)
            else:
                self._add(total, part & chosen, 1)
        self._add(total, left, 1)
        return total

    def _add(self, total: Ints, chosen: Flags, sign: int) -> None:
        """Read the bits of all chosen ballots."""
        if not np.count_nonzero(chosen):
            return
        counter = np.zeros(self.dim, dtype=np.int64)
        slots = np.flatnonzero((self.order >= 0) & chosen[self.order])
        tiles = len(self.kept)
        parallel_for(lambda first, last: count_rows(self.kept, slots, first, last, counter), tiles)
        total += sign * counter

    def score(self, above: Flags, below: Flags, direction: Floats | None) -> Floats:
        """Scores on directions rounded to -1, 0 and 1, in one pass over the ballots."""
        kept, order, found = self.kept, self.order, np.empty((3, self.users))
        up, down = self.count(above), self.count(below)
        given = np.zeros(self.dim) if direction is None else direction
        words = len(kept) * TILE_WORDS
        buffer = np.zeros(6 * words + 8, dtype=np.uint64)
        start = -buffer.ctypes.data % 64 // 8  # aligned to 64 bytes: 40 % less time
        planes, sizes = buffer[start:][: 6 * words].reshape(3, 2, words), np.empty((3, 3))
        for row, values in enumerate((-up - down, down - up, given)):
            sizes[row] = ternary_planes(values, planes[row])

        def run(first: int, last: int) -> None:
            score_users(kept, order, planes, sizes, above, below, first, last, found)

        parallel_for(run, len(order))
        return found


class DecodedBallots:
    """Ballots decoded by a function of the user that returns y, for all other mechanisms."""

    def __init__(
        self, decode: Callable[[int], Floats], users: int, dim: int, max_score: float
    ) -> None:
        self.users, self.dim, self.max_score = users, dim, max_score

        @lru_cache(MAX_CACHED_ENTRIES // (ROW_CHUNK * dim))
        def decoded(chunk: range) -> NDArray[np.float32]:
            return np.array([decode(user) for user in chunk], dtype=np.float32)

        self._decoded = decoded

    def _chunks(self) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        for first in range(0, self.users, ROW_CHUNK):
            last = min(first + ROW_CHUNK, self.users)
            yield slice(first, last), self._decoded(range(first, last))

    def score(self, above: Flags, below: Flags, direction: Floats | None) -> Floats:
        """Scores, minus |y|² of the user times its weight in the direction."""
        groups = np.stack([above, below]).astype(np.float64)
        sums, found = np.zeros((2, self.dim)), np.empty((3, self.users))
        for chunk, rows in self._chunks():
            sums += groups[:, chunk] @ rows
        given = np.zeros(self.dim) if direction is None else direction
        directions = np.stack([sums[0] + sums[1], sums[0] - sums[1], given])
        weights = np.stack([groups[0] + groups[1], groups[0] - groups[1], np.zeros(self.users)])
        for chunk, rows in self._chunks():
            found[:, chunk] = directions @ rows.T - (rows**2).sum(axis=1) * weights[:, chunk]
        lengths = np.linalg.norm(directions, axis=1)
        return np.asarray(found / np.where(lengths > 0, lengths, 1.0)[:, None])
