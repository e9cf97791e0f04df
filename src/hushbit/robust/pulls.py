"""Unmasked ballots: what each user's bits pull at, in units of their own noise.

    y = (what one ballot alone decodes to) / sigma,   E y = update / sigma,   noise of variance 1

An honest ballot is nearly coin flips: |E y| <= reach = clip / sigma, and no entry of it is beyond
edge = radius / sigma. For two points y is ±1 and sigma = radius / (2p - 1), so edge = 2p - 1.
Nothing here needs more than the ballots, which are already private.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.baselines import MVU, SignRR
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.kernels.count import TILE_VOTES, TILE_WORDS
from hushbit.kernels.signs import WORD_TAG
from hushbit.kernels.threads import spread
from hushbit.kernels.two_points import count_two_points
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.robust.bits import (
    ZERO_WITHIN,
    count_rows,
    directions,
    laid_out,
    overlap,
    score_users,
    slots_of,
)
from hushbit.robust.layers import bare, votes_off
from hushbit.subset import Subset

NO_WAY = np.empty(0)
ROWS_AT_ONCE = 256
KEPT_ENTRIES = 1 << 28  # up to a gigabyte is decoded once, more is decoded at each look
Vector = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counter = NDArray[np.int64]


class Pulls(Protocol):
    """The unmasked ballots of a round, seen through sums only."""

    users: int
    dim: int
    reach: float
    edge: float

    def look(self, above: Flags, below: Flags, way: Vector | None) -> Vector:
        """Scores of all users, (3, users): y · direction in noises, their own part left out.

        The directions are the sum of the y of both groups, the sum above less the sum below, and
        the way, which holds nobody's ballot; without a way, zeros.
        """


class PackedPulls:
    """Ballots of two points: a bit an entry, kept packed.

    parts  groups that were counted by themselves, nobody in two of them, and minus the sum of
           their y
    """

    def __init__(
        self, kept: NDArray[np.uint64], order: NDArray[np.int64], users: int, dim: int,
        reach: float, edge: float, parts: Sequence[tuple[Flags, Counter]] = (),
    ) -> None:  # fmt: skip
        self.users, self.dim, self.reach, self.edge = users, dim, reach, edge
        self._kept, self._order, self._parts = kept, order, parts

    @classmethod
    def of_rows(
        cls, rows: NDArray[np.uint64], dim: int, reach: float, edge: float = 0.0,
        parts: Sequence[tuple[Flags, Counter]] = (),
    ) -> "PackedPulls":  # fmt: skip
        """From one row of bits for each user; those beyond `dim` do not matter."""
        made = cls(*laid_out(rows), len(rows), dim, reach, edge, parts)
        if not parts:
            everyone = np.ones(len(rows), dtype=np.bool_)
            made._parts = ((everyone, made._counted(everyone)),)
        return made

    def _counted(self, chosen: Flags) -> Counter:
        kept, order, counter = self._kept, self._order, np.zeros(self.dim, dtype=np.int64)
        spread(lambda first, last: count_rows(kept, order, chosen, first, last, counter), len(kept))
        return counter

    def count(self, chosen: Flags) -> Counter:
        """The counter that a tally of two points has after the chosen ballots."""
        for part, counter in self._parts:
            if part is chosen:
                return counter
        total = np.zeros(self.dim, dtype=np.int64)
        self.count_into(total, chosen)
        return total

    def count_into(self, total: Counter, chosen: Flags) -> None:
        """Add the counter of the chosen ballots.

        No more than half of a part's ballots are read for it, none where it is chosen whole.
        """
        others = np.count_nonzero(chosen)
        for part, counter in self._parts:
            inside, missing = overlap(part, chosen)
            others -= inside
            if missing <= inside:
                total += counter
                if missing:
                    total -= self._counted(part & ~chosen)
            elif inside:
                total += self._counted(part & chosen)
        if others:
            for part, _ in self._parts:
                chosen = chosen & ~part
            total += self._counted(chosen)

    def look(self, above: Flags, below: Flags, way: Vector | None) -> Vector:
        """The scores, directions rounded to three levels: one pass over ballots for all."""
        kept, order, found = self._kept, self._order, np.empty((3, self.users))
        planes = np.zeros((3, 2, len(kept) * TILE_WORDS), dtype=np.uint64)
        sizes = np.empty((3, 3))
        along = NO_WAY if way is None else way
        directions(self.count(above), self.count(below), along, planes, sizes)

        def run(first: int, last: int) -> None:
            score_users(kept, order, planes, sizes, above, below, first, last, found)

        spread(run, len(order))
        return found


class DecodedPulls:
    """Ballots of any other bit mechanism, each decoded by itself."""

    def __init__(self, mechanism: CPA | Subset, ballots: Ballots, round_key: RoundKey) -> None:
        self.users, self.dim = len(ballots), mechanism.dim
        self._source = mechanism, ballots, round_key
        self.sigma, self.edge = noise_size(mechanism), edge_of(mechanism)
        self.reach = largest_norm(mechanism) / self.sigma

    def _decode(self, user: int) -> Vector:
        mechanism, ballots, round_key = self._source
        tally = mechanism.tally(round_key, histogram=False)
        tally.add_many(ballots[user : user + 1])
        if isinstance(mechanism, CPA):
            return mechanism.estimate(tally, decoder="corrected").mean
        return mechanism.estimate(tally).mean

    def _rows(self, first: int) -> NDArray[np.float32]:
        """Some users' ballots; two axes."""
        last = min(first + ROWS_AT_ONCE, self.users)
        if self.users * self.dim <= KEPT_ENTRIES:
            return self._kept[first:last]
        return self._decoded(first, last)

    @cached_property
    def _kept(self) -> NDArray[np.float32]:
        return self._decoded(0, self.users)

    def _decoded(self, first: int, last: int) -> NDArray[np.float32]:
        made = np.empty((last - first, self.dim), dtype=np.float32)
        for row, user in zip(made, range(first, last), strict=True):
            row[:] = self._decode(user) / self.sigma
        return made

    def look(self, above: Flags, below: Flags, way: Vector | None) -> Vector:
        """The scores, less the own ballot's |y|² as often as it is part of a direction."""
        sides = np.stack([above, below]).astype(np.float64)
        sums, found = np.zeros((2, self.dim)), np.empty((3, self.users))
        for some, rows in self._chunks():
            sums += sides[:, some] @ rows
        nowhere = np.zeros(self.dim) if way is None else way
        directions = np.stack([sums[0] + sums[1], sums[0] - sums[1], nowhere])
        weights = np.stack([sides[0] + sides[1], sides[0] - sides[1], np.zeros(self.users)])
        for some, rows in self._chunks():
            found[:, some] = directions @ rows.T - (rows**2).sum(axis=1) * weights[:, some]
        lengths = np.linalg.norm(directions, axis=1)
        return np.asarray(found / np.where(lengths > 0, lengths, 1.0)[:, None])

    def _chunks(self) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        for first in range(0, self.users, ROWS_AT_ONCE):
            rows = self._rows(first)
            yield slice(first, first + len(rows)), rows


def unmask(
    mechanism: Mechanism, ballots: Ballots, round_key: RoundKey,
    parts: tuple[Flags, Flags] | None = None,
) -> Pulls:  # fmt: skip
    """The pulls of a round's ballots; mechanisms whose ballots are not bits are refused.

    `parts` are two groups of users, nobody in both of them, whose sums will be asked for.
    """
    check_readable(mechanism)
    mechanism.check_bits(ballots.bits)  # kernels trust the width of a row
    inner, ballots = bare(mechanism), votes_off(mechanism, ballots)
    if isinstance(inner, SignRR | MVU):
        # Signs of full size in every entry are honest here: there is no l2 clip.
        edge = float(inner.response.beta)
        reach = edge * math.sqrt(inner.dim)
        return PackedPulls.of_rows(_whole_words(ballots.payload), inner.dim, reach, edge)
    if isinstance(inner, CPA) and _one_bit_an_entry(inner):
        return _two_point_pulls(inner, ballots, round_key, parts)
    assert isinstance(inner, CPA | Subset)
    moved = dataclasses.replace(ballots, fingerprint=inner.fingerprint)
    return DecodedPulls(inner, moved, round_key)


def check_readable(mechanism: Mechanism) -> None:
    """Refuse a mechanism whose ballots are not bits."""
    inner = bare(mechanism)
    readable = isinstance(inner, CPA | SignRR) or (isinstance(inner, MVU) and inner.bits == 1)
    if not readable and not (isinstance(inner, Subset) and inner.inner.preset == "corrected"):
        raise InvalidInput(
            f"the spectral filter reads ballots of bits (cpa, nested, signsgd, mvu with 1 bit); "
            f"got {mechanism.description['mechanism']}: choose another defence"
        )


@lru_cache(maxsize=16)
def largest_norm(mechanism: CPA | Subset) -> float:
    """The largest l2 norm of an honest update: the agreed clip, else what the points reach."""
    cpa = mechanism.inner if isinstance(mechanism, Subset) else mechanism
    edge = cpa.radius * math.sqrt(cpa.blocks)
    return edge if cpa.clip is None else min(cpa.clip, edge)


@lru_cache(maxsize=16)
def noise_size(mechanism: CPA | Subset) -> float:
    """sigma: root mean square of one ballot's noise in an entry of its own decoded update."""
    cpa = mechanism.inner if isinstance(mechanism, Subset) else mechanism
    power = sum(float(stage.readings["corrected"].noise.mean()) for stage in cpa.stages)
    if isinstance(mechanism, Subset):
        power *= cpa.blocks / mechanism.report
    return math.sqrt(power)


def edge_of(mechanism: CPA | Subset) -> float:
    """The largest mean of an entry of y."""
    cpa = mechanism.inner if isinstance(mechanism, Subset) else mechanism
    return cpa.radius / noise_size(mechanism)


def _one_bit_an_entry(cpa: CPA) -> bool:
    two = cpa.counts == (2,) and cpa.block_size == 1 and cpa.stages[0].family == "hadamard"
    return two and cpa.rounding != "subtractive"


def _two_point_pulls(
    cpa: CPA, ballots: Ballots, round_key: RoundKey, parts: tuple[Flags, Flags] | None
) -> PackedPulls:
    keys = round_key.users(ballots.users).keys
    payload = np.ascontiguousarray(ballots.payload)
    tiles = -(-cpa.dim // TILE_VOTES)
    groups = (np.ones(len(payload), dtype=np.bool_),) if parts is None else parts
    order, sides = slots_of(groups[0], groups[-1])
    kept = np.empty((tiles, len(order), TILE_WORDS), dtype=np.uint64)
    counters = np.zeros((len(groups), cpa.dim), dtype=np.int64)

    def run(first: int, last: int) -> None:
        count_two_points(
            keys, WORD_TAG, 0, payload, order, sides, first, last, counters, kept
        )  # fmt: skip

    spread(run, tiles)
    counted = tuple(zip(groups, counters, strict=True))
    reach = largest_norm(cpa) / noise_size(cpa)
    return PackedPulls(kept, order, len(payload), cpa.dim, reach, edge_of(cpa), counted)


def _whole_words(payload: NDArray[np.uint8]) -> NDArray[np.uint64]:
    rows = np.zeros((len(payload), 8 * -(-payload.shape[1] // 8)), dtype=np.uint8)
    rows[:, : payload.shape[1]] = payload
    return rows.view(np.uint64)


def rounded(direction: Vector) -> Vector:
    """The three levels of a direction that scores over packed ballots take."""
    large = np.abs(direction) > ZERO_WITHIN * np.sqrt((direction**2).mean())
    return np.asarray(np.sign(direction) * large)
