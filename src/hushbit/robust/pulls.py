"""Unmasked ballots: what each user's bits pull at, in units of their own noise.

    y = (what one ballot alone decodes to) / sigma,   E y = update / sigma,   noise of variance 1

An honest ballot is nearly coin flips: |E y| <= reach = clip / sigma. For two points y is ±1 and
sigma = radius / (2p - 1). Nothing here needs more than the ballots, which are already private.
"""

import dataclasses
import hmac
import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.baselines import MVU, SignRR
from hushbit.cpa import CPA
from hushbit.decode import gain_and_shift, noise_power
from hushbit.errors import InvalidInput
from hushbit.kernels.chacha import keystream
from hushbit.kernels.count import TILE_WORDS
from hushbit.kernels.signs import WORD_TAG
from hushbit.kernels.threads import spread
from hushbit.keys import RoundKey, as_words
from hushbit.mechanism import Mechanism
from hushbit.robust.bits import add_weighted, count_rows, score_users, sketch_users, unmask_users
from hushbit.rotation import Rotated
from hushbit.subset import Subset

SKETCH_TAG = int.from_bytes(b"sket", "little")
SCORE_BITS = 7
ROWS_AT_ONCE = 256
Vector = NDArray[np.float64]


class Pulls(Protocol):
    """The unmasked ballots of a round, seen through sums only."""

    users: int
    dim: int
    reach: float

    def sketch(self, signs: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
        """At most `size` signed sums of each ballot over equal runs, each of variance 1."""

    def combine(self, weights: Vector) -> Vector:
        """Sum over users of weight · y."""

    def scores(self, direction: Vector) -> Vector:
        """y · direction of every user."""

    def powers(self) -> Vector:
        """|y|² of every user."""


class PackedPulls:
    """Ballots of two points: a bit an entry, kept packed."""

    def __init__(self, rows: NDArray[np.uint8], dim: int, reach: float) -> None:
        self.users, self.dim, self.reach = len(rows), dim, reach
        self._words = rows.view(np.uint64)

    def sketch(self, signs: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
        """Counts of differing bits; unused bits of ballots and signs are zero and never differ."""
        votes = -(-self.dim // size)
        unit = next((bits for bits in (8, 16, 32) if bits >= votes), 64)
        run = -(-votes // unit)
        rows = self._words.view(f"u{unit // 8}")
        flips = _words(signs).view(f"u{unit // 8}")
        scale, sizes = _runs(self.dim, unit * run)
        counted = np.empty((self.users, sizes.size), dtype=np.int16)
        spread(
            lambda first, last: sketch_users(rows, flips, sizes, run, first, last, counted),
            self.users,
        )
        return counted * scale

    def combine(self, weights: Vector) -> Vector:
        """Sum over users of weight · y."""
        total = np.zeros(self.dim, dtype=np.float32)
        narrow = weights.astype(np.float32)
        chosen = np.flatnonzero(narrow)
        rows, narrow = self._words[chosen], narrow[chosen]
        spread(
            lambda first, last: add_weighted(rows, narrow, first, last, total),
            self._words.shape[1],
        )
        return total.astype(np.float64)

    def scores(self, direction: Vector) -> Vector:
        """y · direction, the direction rounded to 7 bits and a sign."""
        unit = float(np.abs(direction).max()) / (2**SCORE_BITS - 1) or 1.0
        levels = np.rint(direction / unit).astype(np.int64)
        sizes = np.abs(levels)
        planes = np.stack([
            _words((levels < 0).astype(np.uint8)),
            *(_words(((sizes >> k) & 1).astype(np.uint8)) for k in range(SCORE_BITS)),
        ])  # fmt: skip
        found = np.empty(self.users, dtype=np.int64)
        spread(lambda first, last: score_users(self._words, planes, first, last, found), self.users)
        return np.asarray(found * unit)

    def count(self, accepted: NDArray[np.bool_], counter: NDArray[np.int64]) -> None:
        """Count the accepted ballots as a tally of two points does."""
        rows = self._words if accepted.all() else self._words[accepted]
        tiles = -(-rows.shape[1] // TILE_WORDS)
        spread(lambda first, last: count_rows(rows, first, last, counter), tiles)

    def powers(self) -> Vector:
        """Every entry is ±1."""
        return np.full(self.users, float(self.dim))


class DecodedPulls:
    """Ballots of any other bit mechanism, each decoded by itself; recomputed chunk by chunk."""

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
        made = np.empty((last - first, self.dim), dtype=np.float32)
        for row, user in zip(made, range(first, last), strict=True):
            row[:] = self._decode(user) / self.sigma
        return made

    def sketch(self, signs: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
        """Signed sums over runs."""
        run = -(-self.dim // size)
        flips = 2 * signs.astype(np.float32) - 1
        edges = np.arange(0, self.dim, run)
        parts = [
            np.add.reduceat(self._rows(first) * flips, edges, axis=1)
            for first in range(0, self.users, ROWS_AT_ONCE)
        ]
        return np.concatenate(parts) * _runs(self.dim, run)[0]

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


def sketch_signs(round_key: RoundKey, dim: int) -> NDArray[np.uint8]:
    """Random bits, one an entry, from the server's secret: no user can foresee them."""
    label = b"hushbit/1 sketch" + round_key.round.to_bytes(8, "little")
    drawn = np.empty(-(-dim // 32), dtype=np.uint32)
    keystream(as_words(hmac.digest(round_key.secret, label, "sha256")), SKETCH_TAG, 0, 0, 0, drawn)
    return np.unpackbits(drawn.astype("<u4").view(np.uint8), bitorder="little")[:dim]


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
    return PackedPulls(rows, cpa.dim, largest_norm(cpa) / noise_size(cpa))


def _plain_reach(mechanism: SignRR | MVU) -> float:
    """Signs of full size in every entry are honest here: there is no l2 clip."""
    return float(mechanism.response.beta) * math.sqrt(mechanism.dim)


def _whole_words(payload: NDArray[np.uint8]) -> NDArray[np.uint8]:
    rows = np.zeros((len(payload), 8 * -(-payload.shape[1] // 8)), dtype=np.uint8)
    rows[:, : payload.shape[1]] = payload
    return rows


def _words(bits: NDArray[np.uint8]) -> NDArray[np.uint64]:
    packed = np.packbits(bits, bitorder="little")
    return np.asarray(_whole_words(packed[None, :])[0].view(np.uint64))


def _runs(dim: int, run: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """1 / sqrt(entries) and entries of each run; the last one may be short."""
    starts = np.arange(0, dim, run)
    sizes = np.minimum(starts + run, dim) - starts
    return (1 / np.sqrt(sizes)).astype(np.float32), sizes.astype(np.int64)
