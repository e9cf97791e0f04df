"""An audit attacks the real encoder and states a lower confidence bound on epsilon.

The attacker knows the keys, hence the words. For each ballot it fixes two updates whose bits all
differ before the noise, has one of them encoded, and counts how often a bit indicates the first.
Updates for two-point mechanisms lie far outside radius and clip, so that a missing clip is found.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import Floats, Ints, check_delta, check_float, check_int
from hushbit.cpa import StagedCPA
from hushbit.encoding.stage import StageEncoder
from hushbit.errors import InvalidInput
from hushbit.kernels.words import signs_at
from hushbit.mechanism import Mechanism
from hushbit.privacy.accountant import Bound
from hushbit.privacy.binomial import lower_rate, upper_rate
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import RoundKey, UserKeys
from hushbit.wrappers import Subset

Bits = NDArray[np.bool_]
Progress = Callable[[float], None]
FAR_RADII = 4.0
"""Distance of two-point updates from zero, in radii."""


@dataclass(frozen=True)
class AuditTarget:
    """A CPA, nested or not, or a Subset of one, seen by an attacker who holds the keys.

    votes  bits of one stage
    """

    mechanism: Mechanism
    inner: StagedCPA
    votes: int

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The claim for one bit of each stage."""
        return tuple(stage.response.epsilon for stage in self.inner.stage_encoders)

    @property
    def cells(self) -> int:
        """Numbers to hold for each ballot, entries and signs alike."""
        return self.mechanism.dim + self.votes * max(self.inner.points_per_stage)

    @cached_property
    def two_scalars(self) -> bool:
        """Whether the points are ±radius."""
        return self.inner.points_per_stage == (2,) and self.inner.block_size == 1

    def audit_pair(self, keys: UserKeys, which: int) -> tuple[Floats, Bits]:
        """Updates for these keys, the first (0) or second (1) of each pair; bits of the first.

        Bits have shape (users, stages, votes).
        """
        signs = [self._signs(stage, keys) for stage in self.inner.stage_encoders]
        first = np.stack([sign[0] for sign in signs], axis=1)
        if self.two_scalars:
            side = self.inner.quantizer.points.positions[which, 0]
            return np.full((len(keys), self.mechanism.dim), FAR_RADII * side), first > 0
        fine = np.zeros((len(keys), self.votes), dtype=np.int64)
        if which == 1:
            for sign in signs:
                # A balanced word has both signs, so some point always differs from the first.
                fine = fine * len(sign) + np.argmax(sign != sign[0], axis=0)
        places = self.inner.quantizer.points.positions[fine]
        return places.reshape(len(keys), -1), first > 0

    def unpacked(self, payload: NDArray[np.uint8]) -> Bits:
        """The bits of many ballots, (users, stages, votes)."""
        step, count = (self.votes + 7) // 8, len(self.epsilons)
        stages = payload[:, : step * count].reshape(len(payload), count, step)
        bits = np.unpackbits(stages, axis=2, bitorder="little", count=self.votes)
        return bits.astype(np.bool_)

    def _signs(self, stage: StageEncoder, keys: UserKeys) -> NDArray[np.int8]:
        """Words of a stage, (points, users, votes)."""
        size = stage.points.size
        signs = np.empty((size, len(keys), self.votes), dtype=np.int8)
        places = np.arange(size, dtype=np.int64)
        signs_at(keys.keys, stage.number, stage.family == "hadamard", size, places, signs)
        return signs


def target_of(mechanism: Mechanism) -> AuditTarget:
    """The target of an audit of this mechanism; refuses what cannot be audited."""
    if isinstance(mechanism, Subset):
        target = AuditTarget(mechanism, mechanism.inner, mechanism.report)
    elif isinstance(mechanism, StagedCPA):
        target = AuditTarget(mechanism, mechanism, mechanism.blocks)
    else:
        raise InvalidInput(f"audit attacks CPA, NestedCPA and Subset; got {mechanism!r}")
    inner = target.inner
    if target.two_scalars:
        return target
    if isinstance(mechanism, Subset):
        points = inner.points_per_stage[0]
        raise InvalidInput(f"audit attacks a Subset of two points; got {points} points")
    if inner.quantizer.uses_dither or inner.clip is not None:
        raise InvalidInput("audit attacks more than two points without dither and clip: drop them")
    if inner.dim % inner.block_size:
        raise InvalidInput(f"audit needs a dim that {inner.block_size} divides; got {inner.dim}")
    return target


Encoder = Callable[[Floats, UserKeys], Ballots]

CHUNK_CELLS = 1 << 21
REUSE_CASES = ("last coins known", "coins before the last known", "neighbour's coin known")
THRESHOLD_SPLIT = 4
"""One ballot in so many chooses the threshold of the attack on whole messages."""


_ALL = slice(None)
_REUSE_SLICES = (
    ((slice(1, None),), (slice(None, -1),)),
    ((slice(2, None),), (slice(None, -2),)),
    ((_ALL, _ALL, slice(1, None)), (_ALL, _ALL, slice(None, -1))),
)
"""For each of REUSE_CASES: bits, and the bits whose coins they might share, as slices of
(ballots, stages, places)."""


@dataclass(frozen=True)
class AuditFinding:
    """One attack: the lower bound of epsilon that it proves, beside the claim."""

    attack: str
    claim: float
    delta: float
    lower_bound: float
    trials: int
    confidence: float

    @property
    def passed(self) -> bool:
        """Whether the lower bound is within the claim."""
        return self.lower_bound <= self.claim

    def row(self) -> dict[str, Any]:
        """The figures with the verdict."""
        return asdict(self) | {"passed": self.passed}


@dataclass
class _InputCounts:
    """Ints over the ballots of one of the two updates; their size is fixed.

    messages  ballots with each score, separately for choosing the threshold and for testing
    places    (hits, trials) of each stage and bit
    known     (hits, trials) of each stage for each of REUSE_CASES
    """

    messages: Ints
    places: Ints
    known: Ints


def audit(
    mechanism: Mechanism,
    ballots: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.9999,
    encoder: Encoder | None = None,
    progress: Progress | None = None,
) -> list[AuditFinding]:
    """Attack `ballots` ballots of each of two updates: per bit, across ballots, per message.

    A bound above its claim disproves the claim, except with probability 1 - confidence. `delta` is
    that of the claim for the whole message; the other claims are pure. `encoder` replaces
    `mechanism.encode_many`.
    """
    target = target_of(mechanism)
    trials = check_int("ballots", ballots, 100)
    delta = check_delta(delta)
    if not 0 < check_float("confidence", confidence) < 1:
        raise InvalidInput(f"confidence must lie between 0 and 1; got {confidence!r}")
    encode = encoder or (lambda updates, keys: mechanism.encode_many(updates, keys))
    inputs = [_attack(target, which, trials, encode, progress) for which in (0, 1)]
    findings = []
    for stage, epsilon in enumerate(target.epsilons):
        name = f"one bit of stage {stage + 1}" if len(target.epsilons) > 1 else "one bit"
        places = [counts.places[stage] for counts in inputs]
        every = [part.sum(axis=0) for part in places]
        findings.append(audit_finding(Bound(epsilon, 0.0, name), every, confidence))
        worst, sure = _worst_place(places, confidence)
        findings.append(audit_finding(Bound(epsilon, 0.0, f"{name}, worst place"), worst, sure))
        for case, words in enumerate(REUSE_CASES):
            claim = Bound(epsilon, 0.0, f"{name}, {words}")
            findings.append(
                audit_finding(claim, [w.known[case, stage] for w in inputs], confidence)
            )
    message = Bound(mechanism.guarantee.epsilon_per_message(delta), delta, "whole message")
    return [*findings, audit_finding(message, _above_threshold(inputs, delta), confidence)]


def _attack(
    target: AuditTarget,
    which: int,
    ballots: int,
    encode: Encoder,
    progress: Progress | None,
) -> _InputCounts:
    """Encode one update of each pair again and again, and keep counts only."""
    stages = len(target.epsilons)
    counts = _InputCounts(
        np.zeros((2, stages * target.votes + 1), np.int64),
        np.zeros((stages, target.votes, 2), np.int64),
        np.zeros((len(REUSE_CASES), stages, 2), np.int64),
    )
    key = RoundKey(secret=bytes(32), round=which)
    chunk = max(THRESHOLD_SPLIT, CHUNK_CELLS // target.cells)
    for start in range(0, ballots, chunk):
        count = min(chunk, ballots - start)
        keys = key.users(np.arange(start, start + count))
        updates, first = target.audit_pair(keys, which)
        _count(counts, target.unpacked(encode(updates, keys).payload), first, which)
        if progress is not None:
            progress((which + (start + count) / ballots) / 2)
    return counts


def _count(counts: _InputCounts, bits: Bits, first: Bits, which: int) -> None:
    """`first` has the bits of the first update before the noise; the second has the opposite."""
    agrees = bits == first
    unflipped = agrees if which == 0 else ~agrees
    counts.places[:, :, 0] += agrees.sum(axis=0)
    counts.places[:, :, 1] += len(agrees)
    # Reused coins show where a bit of the same sign was not flipped with them before.
    for case, (now, before) in enumerate(_REUSE_SLICES):
        known = unflipped[before] & (first[now] == first[before])
        counts.known[case, :, 0] += (agrees[now] & known).sum(axis=(0, 2))
        counts.known[case, :, 1] += known.sum(axis=(0, 2))
    score = agrees.sum(axis=(1, 2))
    learning = np.arange(len(score)) % THRESHOLD_SPLIT == 0
    for part, chosen in zip(counts.messages, (learning, ~learning), strict=True):
        part += np.bincount(score[chosen], minlength=part.size)


def _above_threshold(inputs: list[_InputCounts], delta: float) -> list[Ints]:
    """(hits, trials) of `score >= level` for both updates, the level chosen on other ballots.

    The likelihood ratio grows with the score. The choice allows three standard errors on either
    side; whatever level it picks, the bound that follows is exact.
    """
    learned, tested = (
        [np.cumsum(counts.messages[part][::-1])[::-1] for counts in inputs] for part in (0, 1)
    )
    hits, others = (counts.astype(np.float64) for counts in learned)
    low = (hits - 3 * np.sqrt(hits)) / hits[0] - delta
    high = (others + 3 * np.sqrt(others) + 5) / others[0]
    level = int(np.argmax(np.maximum(low, 0.0) / high))
    return [np.array([counts[level], counts[0]]) for counts in tested]


def _worst_place(places: list[Ints], confidence: float) -> tuple[list[Ints], float]:
    """The place whose rates differ most; the confidence accounts for having compared all."""
    first, second = (part[:, 0] / part[:, 1] for part in places)
    worst = int(np.argmax(np.log(first + 1e-9) - np.log(second + 1e-9)))
    return [part[worst] for part in places], 1 - (1 - confidence) / len(first)


def audit_finding(claim: Bound, counts: list[Ints], confidence: float) -> AuditFinding:
    """ln((p - delta) / q) for the least p and the largest q at a joint confidence."""
    each = 1 - (1 - confidence) / 2
    (hits, trials), (other_hits, other_trials) = (tuple(map(int, c)) for c in counts)
    found = 0.0
    if trials and other_trials:
        low = lower_rate(hits, trials, each) - claim.delta
        high = upper_rate(other_hits, other_trials, each)
        found = max(0.0, math.log(low / high)) if low > 0 else 0.0
    return AuditFinding(
        claim.method, claim.epsilon, claim.delta, found, trials + other_trials, confidence
    )
