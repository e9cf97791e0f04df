"""Attacking the real encoder: a lower confidence bound on epsilon beside the claim.

The attacker knows the words. It asks for ballots of the two worst updates, all blocks at one
outer point or all at the opposite one, unmasks each bit with the word's signs at the two
points, and counts how often the bit speaks for the first. Where the two signs agree a bit tells
nothing and is skipped.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.checks import real, whole
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.kernels.signs import signs_at
from hushbit.keys import RoundKey, UserKeys
from hushbit.privacy.intervals import lower_rate, upper_rate

Encoder = Callable[[NDArray[np.float64], UserKeys], Ballots]
CHUNK_BITS = 1 << 22


@dataclass(frozen=True)
class Finding:
    """One attack: the epsilon that it proves at least, beside what was claimed."""

    attack: str
    claim: float
    lower_bound: float
    trials: int
    confidence: float

    @property
    def passed(self) -> bool:
        """Whether the attack stayed within the claim."""
        return self.lower_bound <= self.claim

    def row(self) -> dict[str, Any]:
        """The figures with the verdict."""
        return asdict(self) | {"passed": self.passed}


def audit(
    mechanism: CPA, ballots: int, *, confidence: float = 0.9999,
    encoder: Encoder | None = None, progress: Callable[[float], None] | None = None,
) -> list[Finding]:  # fmt: skip
    """Attack `ballots` ballots of each of two updates per bit, per message and across ballots."""
    if not isinstance(mechanism, CPA) or len(mechanism.stages) != 1:
        raise InvalidInput(f"audit attacks a CPA of one stage; got {mechanism!r}")
    trials = whole("ballots", ballots, 100)
    if not 0 < real("confidence", confidence) < 1:
        raise InvalidInput(f"confidence must lie between 0 and 1; got {confidence!r}")
    cast = encoder or (lambda updates, keys: mechanism.encode_many(updates, keys))
    first, second = worst_updates(mechanism)
    told = [
        _agreements(mechanism, update, trials, cast, progress, half / 2)
        for half, update in enumerate((first, second))
    ]
    return [
        _per_bit(mechanism, told, confidence),
        _across_ballots(mechanism, told, confidence),
        _per_message(mechanism, told, confidence),
    ]


def worst_updates(mechanism: CPA) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Every block at the outermost point, or at the one opposite to it."""
    positions = mechanism.quantizer.points.positions
    far = positions[int(np.argmax((positions**2).sum(axis=1)))]
    opposite = positions[int(np.argmin(positions @ far))]
    size = mechanism.dim
    updates = (np.tile(point, mechanism.blocks)[:size] for point in (far, opposite))
    first, second = updates
    return first, second


def _agreements(
    mechanism: CPA, update: NDArray[np.float64], ballots: int, cast: Encoder,
    progress: Callable[[float], None] | None, done: float,
) -> NDArray[np.int8]:  # fmt: skip
    """For each ballot and bit: +1 speaks for the first update, -1 for the second, 0 for neither."""
    key = RoundKey(secret=bytes(32), round=0)
    stage = mechanism.stages[0]
    ends = np.stack([u[: mechanism.block_size] for u in worst_updates(mechanism)])
    places = mechanism.quantizer.nearest(ends).astype(np.int64)
    parts = []
    chunk = max(1, CHUNK_BITS // mechanism.dim)
    for start in range(0, ballots, chunk):
        count = min(chunk, ballots - start)
        keys = key.users(range(start, start + count))
        cast_bits = cast(np.tile(update, (count, 1)), keys).payload
        bits = np.unpackbits(cast_bits, axis=1, bitorder="little", count=mechanism.blocks)
        signs = np.empty((2, count, mechanism.blocks), dtype=np.int8)
        signs_at(keys.keys, 0, stage.family == "hadamard", stage.points.size, places, signs)
        vote = 2 * bits.astype(np.int8) - 1
        parts.append(np.where(signs[0] == signs[1], 0, vote * signs[0]).astype(np.int8))
        if progress is not None:
            progress(done + (start + count) / ballots / 2)
    return np.concatenate(parts)


def _epsilon(hits: tuple[int, int], trials: tuple[int, int], confidence: float) -> float:
    """ln of the least likely ratio of two rates at a joint confidence."""
    each = 1 - (1 - confidence) / 2
    low = lower_rate(hits[0], trials[0], each)
    high = upper_rate(hits[1], trials[1], each)
    return max(0.0, math.log(low / high)) if low > 0 and high > 0 else 0.0


def _per_bit(mechanism: CPA, told: list[NDArray[np.int8]], confidence: float) -> Finding:
    hits = tuple(int((part == 1).sum()) for part in told)
    trials = tuple(int((part != 0).sum()) for part in told)
    found = _epsilon((hits[0], hits[1]), (trials[0], trials[1]), confidence)
    return Finding("one bit", mechanism.guarantee.epsilon_per_bit, found, sum(trials), confidence)


def _across_ballots(mechanism: CPA, told: list[NDArray[np.int8]], confidence: float) -> Finding:
    """The same bit, once the attacker has seen that the ballot before was told truly."""
    hits, trials = [], []
    for part, truth in zip(told, (1, -1), strict=True):
        known = (part[:-1] == truth) & (part[1:] != 0)
        trials.append(int(known.sum()))
        hits.append(int((part[1:][known] == 1).sum()))
    found = _epsilon((hits[0], hits[1]), (trials[0], trials[1]), confidence)
    claim = mechanism.guarantee.epsilon_per_bit
    return Finding("one bit, coins of the last ballot known", claim, found, sum(trials), confidence)


def _per_message(mechanism: CPA, told: list[NDArray[np.int8]], confidence: float) -> Finding:
    """The whole message by its likelihood ratio; the threshold comes from the first half."""
    score = [part.sum(axis=1, dtype=np.int64) for part in told]
    half = len(score[0]) // 2
    learn, test = [s[:half] for s in score], [s[half:] for s in score]
    best, threshold = -1.0, 0
    for level in np.unique(learn[0]):
        counts = tuple(int((s >= level).sum()) for s in learn)
        found = _epsilon((counts[0], counts[1]), (half, half), confidence)
        if found > best:
            best, threshold = found, int(level)
    hits = tuple(int((s >= threshold).sum()) for s in test)
    size = len(test[0])
    found = _epsilon((hits[0], hits[1]), (size, size), confidence)
    claim = mechanism.guarantee.epsilon_per_message()
    return Finding("whole message", claim, found, 2 * size, confidence)
