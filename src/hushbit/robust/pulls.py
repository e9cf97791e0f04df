"""Unmasked ballots: what each user's bits pull at, in units of their own noise.

    y = (what one ballot alone decodes to) / sigma,   E y = update / sigma,   noise of variance 1

An honest ballot is nearly coin flips: |E y| <= reach = clip / sigma. For two points y is ±1 and
sigma = radius / (2p - 1). Nothing here needs more than the ballots, which are already private.
"""

import dataclasses
import math
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.baselines import MVU, SignRR
from hushbit.cpa import CPA
from hushbit.decode import gain_and_shift, noise_power
from hushbit.errors import InvalidInput
from hushbit.kernels.count import TILE_WORDS
from hushbit.kernels.signs import WORD_TAG
from hushbit.kernels.threads import spread
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.robust.bits import count_rows, score_users, transpose_bits, unmask_users
from hushbit.rotation import Rotated
from hushbit.subset import Subset

SCORE_BITS = 4
ROWS_AT_ONCE = 256
KEPT_ENTRIES = 1 << 28  # up to a gigabyte is decoded once, more is decoded at each look
Vector = NDArray[np.float64]


class Pulls(Protocol):
    """The unmasked ballots of a round, seen through sums only."""

    users: int
    dim: int
    reach: float
    sigma: float

    def combine(self, weights: Vector) -> Vector:
        """Sum over users of weight · y."""

    def scores(self, direction: Vector) -> Vector:
        """y · direction of every user."""

    def powers(self) -> Vector:
        """|y|² of every user."""


class PackedPulls:
    """Ballots of two points: a bit an entry, kept packed."""

    def __init__(self, rows: NDArray[np.uint8], dim: int, reach: float, sigma: float = 0.0) -> None:
        self.users, self.dim, self.reach, self.sigma = len(rows), dim, reach, sigma
        self._words = rows.view(np.uint64)

    @cached_property
    def _turned(self) -> NDArray[np.uint64]:
        """Bits by entry and user: a sum over users is then a score like any other."""
        words = self._words.shape[1]
        turned = np.empty((64 * words, -(-self.users // 64)), dtype=np.uint64)
        spread(lambda first, last: transpose_bits(self._words, first, last, turned), words)
        return turned[: self.dim]

    def combine(self, weights: Vector) -> Vector:
        """Sum over users of weight · y, weights rounded to a sign and a few bits."""
        return _scored(self._turned, weights)

    def scores(self, direction: Vector) -> Vector:
        """y · direction, the direction rounded to a sign and a few bits."""
        return _scored(self._words, direction)

    def count(self, accepted: NDArray[np.bool_], counter: NDArray[np.int64]) -> None:
        """Count the accepted ballots as a tally of two points does."""
        rows = self._words if accepted.all() else self._words[accepted]
        tiles = -(-rows.shape[1] // TILE_WORDS)
        spread(lambda first, last: count_rows(rows, first, last, counter), tiles)

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

    def combine(self, weights: Vector) -> Vector:
        """Sum over users of weight · y."""
        total = np.zeros(self.dim)
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
    payload = ballots.payload
    rows = np.zeros((len(payload), 8 * -(-payload.shape[1] // 8)), dtype=np.uint8)
    spread(
        lambda first, last: unmask_users(keys, WORD_TAG, payload, first, last, rows), len(payload)
    )
    rows &= _words(np.ones(cpa.dim, dtype=np.uint8)).view(np.uint8)
    sigma = noise_size(cpa)
    return PackedPulls(rows, cpa.dim, largest_norm(cpa) / sigma, sigma)


def _plain_reach(mechanism: SignRR | MVU) -> float:
    """Signs of full size in every entry are honest here: there is no l2 clip."""
    return float(mechanism.response.beta) * math.sqrt(mechanism.dim)


def _whole_words(payload: NDArray[np.uint8]) -> NDArray[np.uint8]:
    rows = np.zeros((len(payload), 8 * -(-payload.shape[1] // 8)), dtype=np.uint8)
    rows[:, : payload.shape[1]] = payload
    return rows


def _words(bits: NDArray[Any]) -> NDArray[np.uint64]:
    packed = np.packbits(bits, bitorder="little")
    return np.asarray(_whole_words(packed[None, :])[0].view(np.uint64))


def rounded(levels: Vector) -> Vector:
    """The levels at a sign and a few bits, as sums over packed ballots take them."""
    unit = float(np.abs(levels).max()) / (2**SCORE_BITS - 1) or 1.0
    return np.asarray(np.rint(levels / unit) * unit)


def _scored(rows: NDArray[np.uint64], levels: Vector) -> Vector:
    """Sum over the bits of each row of (±1) · level, levels rounded."""
    unit = float(np.abs(levels).max()) / (2**SCORE_BITS - 1) or 1.0
    whole = np.rint(levels / unit).astype(np.int8)
    sizes = np.abs(whole)
    planes = np.stack(
        [_words(whole < 0), *(_words(sizes & (1 << bit)) for bit in range(SCORE_BITS))]
    )
    total = int(sizes.sum(dtype=np.int64))
    found = np.empty(len(rows), dtype=np.int64)
    spread(lambda first, last: score_users(rows, planes, total, first, last, found), len(rows))
    return np.asarray(found * unit)
