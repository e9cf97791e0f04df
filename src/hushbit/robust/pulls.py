"""Unmasked ballots: what each user's bits pull at, in units of their own noise.

    y = (what one ballot alone decodes to) / sigma,   E y = update / sigma,   noise of variance 1

An honest ballot is nearly coin flips: |E y| <= reach = clip / sigma. For two points y is ±1 and
sigma = radius / (2p - 1). Nothing here needs more than the ballots, which are already private.
"""

import dataclasses
import math
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.baselines import MVU, SignRR
from hushbit.cpa import CPA
from hushbit.decode import gain_and_shift, noise_power
from hushbit.errors import InvalidInput
from hushbit.kernels.count import TILE_VOTES, TILE_WORDS
from hushbit.kernels.signs import WORD_TAG
from hushbit.kernels.threads import spread
from hushbit.kernels.unmask import unmask_and_count
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.robust.bits import count_rows, level_planes, score_users
from hushbit.rotation import Rotated
from hushbit.subset import Subset

SCORE_BITS = 3
LEVELS = 2**SCORE_BITS - 1
ROWS_AT_ONCE = 256
KEPT_ENTRIES = 1 << 28  # up to a gigabyte is decoded once, more is decoded at each look
Vector = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Pulls(Protocol):
    """The unmasked ballots of a round, seen through sums only."""

    users: int
    dim: int
    reach: float
    sigma: float

    def sum_of(self, chosen: Flags) -> Vector:
        """Sum over the chosen users of y."""

    def scores(self, direction: Vector) -> Vector:
        """y · direction of every user."""

    def powers(self) -> Vector:
        """|y|² of every user."""


class PackedPulls:
    """Ballots of two points: a bit an entry, kept packed; `counter` is minus the sum of all."""

    def __init__(
        self, rows: NDArray[np.uint64], dim: int, reach: float, sigma: float = 0.0,
        counter: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        self.users, self.dim, self.reach, self.sigma = len(rows), dim, reach, sigma
        self._words = rows
        self._counter = self._counted(np.arange(self.users)) if counter is None else counter

    def _counted(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        counter = np.zeros(self.dim, dtype=np.int64)
        tiles = -(-self._words.shape[1] // TILE_WORDS)
        spread(lambda first, last: count_rows(self._words, users, first, last, counter), tiles)
        return counter

    def count(self, chosen: Flags) -> NDArray[np.int64]:
        """The counter that a tally of two points has after the chosen ballots."""
        few = np.flatnonzero(chosen)
        if 2 * few.size <= self.users:
            return self._counted(few)
        others = np.flatnonzero(~chosen)
        return self._counter - self._counted(others) if others.size else self._counter

    def sum_of(self, chosen: Flags) -> Vector:
        """Sum over the chosen users of y; no more than half of the ballots are read for it."""
        return -self.count(chosen).astype(np.float64)

    def scores(self, direction: Vector) -> Vector:
        """y · direction, the direction rounded to a sign and a few bits."""
        rows, unit = self._words, float(np.abs(direction).max()) / LEVELS or 1.0
        planes = np.empty((1 + SCORE_BITS, rows.shape[1]), dtype=np.uint64)
        total = level_planes(np.asarray(direction, dtype=np.float64), unit, planes)
        found = np.empty(self.users, dtype=np.int64)
        spread(lambda first, last: score_users(rows, planes, total, first, last, found), len(rows))
        return np.asarray(found * unit)

    def powers(self) -> Vector:
        """Every entry is ±1."""
        return np.full(self.users, float(self.dim))


class DecodedPulls:
    """Ballots of any other bit mechanism, each decoded by itself."""

    def __init__(self, mechanism: CPA | Subset, ballots: Ballots, round_key: RoundKey) -> None:
        self.users, self.dim = len(ballots), mechanism.dim
        self._source = mechanism, ballots, round_key
        self.sigma = noise_size(mechanism)
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

    def sum_of(self, chosen: Flags) -> Vector:
        """Sum over the chosen users of y."""
        weights, total = chosen.astype(np.float64), np.zeros(self.dim)
        for first in range(0, self.users, ROWS_AT_ONCE):
            rows = self._rows(first)
            total += weights[first : first + len(rows)] @ rows
        return total

    def scores(self, direction: Vector) -> Vector:
        """y · direction of every user."""
        starts = range(0, self.users, ROWS_AT_ONCE)
        return np.concatenate([self._rows(first) @ direction for first in starts])

    def powers(self) -> Vector:
        """|y|² of every user."""
        starts = range(0, self.users, ROWS_AT_ONCE)
        return np.concatenate([(self._rows(first) ** 2).sum(axis=1) for first in starts])


def unmask(mechanism: Mechanism, ballots: Ballots, round_key: RoundKey) -> Pulls:
    """The pulls of a round's ballots; mechanisms whose ballots are not bits are refused."""
    inner = mechanism.inner if isinstance(mechanism, Rotated) else mechanism
    if isinstance(inner, SignRR) or (isinstance(inner, MVU) and inner.bits == 1):
        return PackedPulls(_whole_words(ballots.payload), inner.dim, _plain_reach(inner))
    if isinstance(inner, CPA) and _one_bit_an_entry(inner):
        return _two_point_pulls(inner, ballots, round_key)
    if isinstance(inner, CPA) or (isinstance(inner, Subset) and inner.inner.preset == "corrected"):
        moved = dataclasses.replace(ballots, fingerprint=inner.fingerprint)
        return DecodedPulls(inner, moved, round_key)
    raise InvalidInput(
        f"the spectral filter reads ballots of bits (cpa, nested, signsgd, mvu with 1 bit); got "
        f"{mechanism.description['mechanism']}: choose another defence"
    )


def largest_norm(mechanism: CPA | Subset) -> float:
    """The largest l2 norm of an honest update: the agreed clip, else what the points reach."""
    cpa = mechanism.inner if isinstance(mechanism, Subset) else mechanism
    edge = cpa.radius * math.sqrt(cpa.blocks)
    return edge if cpa.clip is None else min(cpa.clip, edge)


def noise_size(mechanism: CPA | Subset) -> float:
    """sigma: root mean square of one ballot's noise in an entry of its own decoded update."""
    cpa = mechanism.inner if isinstance(mechanism, Subset) else mechanism
    power = 0.0
    for stage in cpa.stages:
        gain, _ = gain_and_shift("corrected", stage.response.beta, stage.rho)
        power += float(noise_power(stage.points, gain, stage.rho).mean())
    if isinstance(mechanism, Subset):
        power *= cpa.blocks / mechanism.report
    return math.sqrt(power)


def _one_bit_an_entry(cpa: CPA) -> bool:
    two = cpa.counts == (2,) and cpa.block_size == 1 and cpa.stages[0].family == "hadamard"
    return two and cpa.rounding != "subtractive"


def _two_point_pulls(cpa: CPA, ballots: Ballots, round_key: RoundKey) -> PackedPulls:
    keys = round_key.users(ballots.users).keys
    payload = np.ascontiguousarray(ballots.payload)
    rows = np.empty((len(payload), -(-payload.shape[1] // 8)), dtype=np.uint64)
    counter = np.zeros(cpa.dim, dtype=np.int64)

    def run(first: int, last: int) -> None:
        unmask_and_count(keys, WORD_TAG, payload, first, last, rows, counter)

    spread(run, -(-cpa.dim // TILE_VOTES))
    sigma = noise_size(cpa)
    return PackedPulls(rows, cpa.dim, largest_norm(cpa) / sigma, sigma, counter)


def _plain_reach(mechanism: SignRR | MVU) -> float:
    """Signs of full size in every entry are honest here: there is no l2 clip."""
    return float(mechanism.response.beta) * math.sqrt(mechanism.dim)


def _whole_words(payload: NDArray[np.uint8]) -> NDArray[np.uint64]:
    rows = np.zeros((len(payload), 8 * -(-payload.shape[1] // 8)), dtype=np.uint8)
    rows[:, : payload.shape[1]] = payload
    return rows.view(np.uint64)


def rounded(direction: Vector) -> Vector:
    """A direction at a sign and a few bits, as scores over packed ballots take it."""
    unit = float(np.abs(direction).max()) / LEVELS or 1.0
    return np.asarray(np.rint(direction / unit) * unit)
