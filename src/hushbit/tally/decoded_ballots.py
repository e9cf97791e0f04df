"""Ballots decoded one by one, in units of their own noise.

    y = (one decoded ballot) / sigma,   E y = update / sigma,   noise of variance 1

An honest ballot is close to coin flips: |E y| <= clip / sigma, and no entry of E y exceeds
radius / sigma. For two points, y is ±1 and sigma = radius / (2p - 1). This module reads only
ballots, which are already private.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import Floats, Ints
from hushbit.kernels.count import count_two_points
from hushbit.kernels.scores import (
    count_overlap,
    count_rows,
    directions,
    group_users,
    score_users,
    to_tiles,
)
from hushbit.kernels.threads import parallel_for
from hushbit.kernels.words import TILE_VOTES, TILE_WORDS

NO_DIRECTION = np.empty(0)
ROW_CHUNK = 256
MAX_CACHED_ENTRIES = 1 << 28  # a gigabyte; more entries are decoded again for each score
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class BallotScale:
    """The noise of one decoded ballot, and bounds of an honest update.

    noise          sigma, root mean square of the noise in an entry
    largest_norm   largest l2 norm of an honest update
    largest_entry  largest entry of E y
    """

    noise: float
    largest_norm: float
    largest_entry: float

    @property
    def max_score(self) -> float:
        """Largest |E y|."""
        return self.largest_norm / self.noise


class SingleBallots(Protocol):
    """The decoded ballots of a round, of which only scores are read."""

    users: int
    dim: int
    max_score: float

    def score(self, above: Flags, below: Flags, drift_direction: Floats | None) -> Floats:
        """Scores of all users, (3, users): y · direction, leaving the user out of the direction.

        The three directions are the sum of y over both groups, the sum over `above` minus the sum
        over `below`, and the drift direction, which does not depend on these ballots. Scores along
        a missing drift direction are zero.
        """


class PackedBallots:
    """Ballots of two points, one bit for each entry, stored as packed bits.

    parts  disjoint groups of users, each with minus the sum of its y
    """

    def __init__(
        self,
        kept: NDArray[np.uint64],
        order: Ints,
        users: int,
        dim: int,
        max_score: float,
        parts: Sequence[tuple[Flags, Ints]] = (),
    ) -> None:
        self.users, self.dim, self.max_score = users, dim, max_score
        self._kept, self._order, self._parts = kept, order, parts

    @classmethod
    def of_two_points(
        cls,
        keys: NDArray[np.uint32],
        payload: NDArray[np.uint8],
        dim: int,
        scale: BallotScale,
        groups: tuple[Flags, Flags] | None,
    ) -> "PackedBallots":
        """From payloads of two-point CPA; one pass removes the words and counts the groups."""
        counted = (np.ones(len(payload), dtype=np.bool_),) if groups is None else groups
        order, group_ids = group_users(counted[0], counted[-1])
        tiles = -(-dim // TILE_VOTES)
        kept = np.empty((tiles, len(order), TILE_WORDS), dtype=np.uint64)
        counters = np.zeros((len(counted), dim), dtype=np.int64)

        def run(first: int, last: int) -> None:
            count_two_points(keys, 0, payload, order, group_ids, first, last, counters, kept)

        parallel_for(run, tiles)
        parts = tuple(zip(counted, counters, strict=True))
        return cls(kept, order, len(payload), dim, scale.max_score, parts)

    @classmethod
    def of_payload(cls, payload: NDArray[np.uint8], dim: int, max_score: float) -> "PackedBallots":
        """From payloads without words, whose bits are the signs of the entries."""
        rows = np.zeros((len(payload), 8 * -(-payload.shape[1] // 8)), dtype=np.uint8)
        rows[:, : payload.shape[1]] = payload
        return cls.of_rows(rows.view(np.uint64), dim, max_score)

    @classmethod
    def of_rows(
        cls,
        rows: NDArray[np.uint64],
        dim: int,
        max_score: float,
        parts: Sequence[tuple[Flags, Ints]] = (),
    ) -> "PackedBallots":
        """From one row of bits for each user; bits after the first `dim` are ignored."""
        made = cls(*to_tiles(rows), len(rows), dim, max_score, parts)
        if not parts:
            everyone = np.ones(len(rows), dtype=np.bool_)
            made._parts = ((everyone, made._counted(everyone)),)
        return made

    def _counted(self, chosen: Flags) -> Ints:
        kept, order, counter = self._kept, self._order, np.zeros(self.dim, dtype=np.int64)
        parallel_for(
            lambda first, last: count_rows(kept, order, chosen, first, last, counter), len(kept)
        )
        return counter

    def count(self, chosen: Flags) -> Ints:
        """The counter of a two-point tally of the chosen ballots."""
        for part, counter in self._parts:
            if part is chosen:
                return counter
        total = np.zeros(self.dim, dtype=np.int64)
        self.count_into(total, chosen)
        return total

    def count_into(self, total: Ints, chosen: Flags) -> None:
        """Add the counter of the chosen ballots.

        At most half of the ballots of a part are read, and none if the whole part is chosen.
        """
        outside = chosen
        for part, counter in self._parts:
            inside, missing = count_overlap(part, chosen)
            outside = outside & ~part
            if missing <= inside:
                total += counter
                if missing:
                    total -= self._counted(part & ~chosen)
            elif inside:
                total += self._counted(part & chosen)
        if outside.any():
            total += self._counted(outside)

    def score(self, above: Flags, below: Flags, drift_direction: Floats | None) -> Floats:
        """Scores along directions rounded to -1, 0 and 1, in one pass over the ballots."""
        kept, order, found = self._kept, self._order, np.empty((3, self.users))
        planes = np.zeros((3, 2, len(kept) * TILE_WORDS), dtype=np.uint64)
        sizes = np.empty((3, 3))
        along = NO_DIRECTION if drift_direction is None else drift_direction
        directions(self.count(above), self.count(below), along, planes, sizes)

        def run(first: int, last: int) -> None:
            score_users(kept, order, planes, sizes, above, below, first, last, found)

        parallel_for(run, len(order))
        return found


class DecodedBallots:
    """Ballots that are decoded one by one, for all other mechanisms with votes."""

    def __init__(
        self, decode: Callable[[int], Floats], users: int, dim: int, scale: BallotScale
    ) -> None:
        self.users, self.dim, self.max_score = users, dim, scale.max_score
        self.sigma = scale.noise
        self._decode = decode

    def _rows(self, first: int) -> NDArray[np.float32]:
        """A chunk of decoded ballots, (users, dim)."""
        last = min(first + ROW_CHUNK, self.users)
        if self.users * self.dim <= MAX_CACHED_ENTRIES:
            return self._all_rows[first:last]
        return self._decoded(first, last)

    @cached_property
    def _all_rows(self) -> NDArray[np.float32]:
        return self._decoded(0, self.users)

    def _decoded(self, first: int, last: int) -> NDArray[np.float32]:
        made = np.empty((last - first, self.dim), dtype=np.float32)
        for row, user in zip(made, range(first, last), strict=True):
            row[:] = self._decode(user) / self.sigma
        return made

    def score(self, above: Flags, below: Flags, drift_direction: Floats | None) -> Floats:
        """Scores, minus |y|² of the user times its weight in the direction."""
        groups = np.stack([above, below]).astype(np.float64)
        sums, found = np.zeros((2, self.dim)), np.empty((3, self.users))
        for chunk, rows in self._chunks():
            sums += groups[:, chunk] @ rows
        along = np.zeros(self.dim) if drift_direction is None else drift_direction
        directions = np.stack([sums[0] + sums[1], sums[0] - sums[1], along])
        weights = np.stack([groups[0] + groups[1], groups[0] - groups[1], np.zeros(self.users)])
        for chunk, rows in self._chunks():
            found[:, chunk] = directions @ rows.T - (rows**2).sum(axis=1) * weights[:, chunk]
        lengths = np.linalg.norm(directions, axis=1)
        return np.asarray(found / np.where(lengths > 0, lengths, 1.0)[:, None])

    def _chunks(self) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        for first in range(0, self.users, ROW_CHUNK):
            rows = self._rows(first)
            yield slice(first, first + len(rows)), rows
