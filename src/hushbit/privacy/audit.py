"""Attacking the real encoder: a lower confidence bound on epsilon beside the claim.

The attacker knows the keys, hence the words. For each ballot it fixes two updates whose words
disagree in every bit, has one of the two encoded, and counts how often a bit speaks for the first.
Two-point mechanisms get updates far beyond radius and clip, so that a missing cut shows as well.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.checks import real, whole
from hushbit.errors import InvalidInput
from hushbit.keys import RoundKey, UserKeys
from hushbit.mechanism import Mechanism
from hushbit.privacy.arguments import failure_probability
from hushbit.privacy.composition import Bound
from hushbit.privacy.intervals import lower_rate, upper_rate
from hushbit.privacy.targets import Target, target_of

Encoder = Callable[[NDArray[np.float64], UserKeys], Ballots]
Counts = NDArray[np.int64]

Bits = NDArray[np.bool_]

CHUNK_CELLS = 1 << 21
KNOWN = ("last coins known", "coins before the last known", "neighbour's coin known")
LEARNING_SHARE = 4
"""One ballot in so many chooses the threshold of the attack on whole messages."""


_ALL = slice(None)
_REUSED = (
    ((slice(1, None),), (slice(None, -1),)),
    ((slice(2, None),), (slice(None, -2),)),
    ((_ALL, _ALL, slice(1, None)), (_ALL, _ALL, slice(None, -1))),
)
"""Bits, and for each way of KNOWN those whose coins they might share: (ballots, stages, places)."""


@dataclass(frozen=True)
class Finding:
    """One attack: the epsilon that it proves at least, beside what was claimed."""

    attack: str
    claim: float
    delta: float
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


@dataclass
class _World:
    """What was counted while all ballots held one of the two updates: its size is fixed.

    `messages` holds how many ballots had each score, apart for learning and testing; `places`
    (hits, trials) of each stage and bit; `known` those of each stage for every way of KNOWN.
    """

    messages: Counts
    places: Counts
    known: Counts


def audit(
    mechanism: Mechanism, ballots: int, *, delta: float = 0.0, confidence: float = 0.9999,
    encoder: Encoder | None = None, progress: Callable[[float], None] | None = None,
) -> list[Finding]:  # fmt: skip
    """Attack `ballots` ballots of each of two updates: per bit, across ballots, per message.

    A bound beyond its claim is a proof, wrong with probability at most 1 - confidence. `delta`
    is that of the claim for the whole message; the other claims are pure. `encoder` stands in
    for the mechanism's own `encode_many`.
    """
    target = target_of(mechanism)
    trials = whole("ballots", ballots, 100)
    delta = failure_probability(delta)
    if not 0 < real("confidence", confidence) < 1:
        raise InvalidInput(f"confidence must lie between 0 and 1; got {confidence!r}")
    cast = encoder or (lambda updates, keys: mechanism.encode_many(updates, keys))
    worlds = [_attack(target, which, trials, cast, progress) for which in (0, 1)]
    findings = []
    for stage, epsilon in enumerate(target.epsilons):
        name = f"one bit of stage {stage + 1}" if len(target.epsilons) > 1 else "one bit"
        places = [world.places[stage] for world in worlds]
        every = [part.sum(axis=0) for part in places]
        findings.append(_finding(Bound(epsilon, 0.0, name), every, confidence))
        worst, sure = _worst_place(places, confidence)
        findings.append(_finding(Bound(epsilon, 0.0, f"{name}, worst place"), worst, sure))
        for way, words in enumerate(KNOWN):
            claim = Bound(epsilon, 0.0, f"{name}, {words}")
            findings.append(_finding(claim, [w.known[way, stage] for w in worlds], confidence))
    message = Bound(mechanism.guarantee.epsilon_per_message(delta), delta, "whole message")
    return [*findings, _finding(message, _above_threshold(worlds, delta), confidence)]


def _attack(
    target: Target, which: int, ballots: int, cast: Encoder,
    progress: Callable[[float], None] | None,
) -> _World:  # fmt: skip
    """Encode one update of each pair again and again, and keep counts only."""
    stages = len(target.epsilons)
    world = _World(
        np.zeros((2, stages * target.votes + 1), np.int64),
        np.zeros((stages, target.votes, 2), np.int64),
        np.zeros((len(KNOWN), stages, 2), np.int64),
    )
    key = RoundKey(secret=bytes(32), round=which)
    chunk = max(LEARNING_SHARE, CHUNK_CELLS // target.cells)
    for start in range(0, ballots, chunk):
        count = min(chunk, ballots - start)
        keys = key.users(np.arange(start, start + count))
        updates, first = target.pair(keys, which)
        _count(world, target.unpacked(cast(updates, keys).payload), first, which)
        if progress is not None:
            progress((which + (start + count) / ballots) / 2)
    return world


def _count(world: _World, bits: Bits, first: Bits, which: int) -> None:
    """`first` holds the bits of the first update before the noise; the second has the opposite."""
    agrees = bits == first
    told = agrees if which == 0 else ~agrees
    world.places[:, :, 0] += agrees.sum(axis=0)
    world.places[:, :, 1] += len(agrees)
    # Coins used again show where a bit of the same sign was told truly with them before.
    for way, (now, before) in enumerate(_REUSED):
        known = told[before] & (first[now] == first[before])
        world.known[way, :, 0] += (agrees[now] & known).sum(axis=(0, 2))
        world.known[way, :, 1] += known.sum(axis=(0, 2))
    score = agrees.sum(axis=(1, 2))
    learning = np.arange(len(score)) % LEARNING_SHARE == 0
    for part, chosen in zip(world.messages, (learning, ~learning), strict=True):
        part += np.bincount(score[chosen], minlength=part.size)


def _above_threshold(worlds: list[_World], delta: float) -> list[Counts]:
    """(hits, trials) of `score >= level` in both worlds, the level chosen on other ballots.

    The likelihood ratio grows with the score. The choice leaves three standard errors
    on either side; whatever it picks, the bound that follows is exact.
    """
    learned, tested = (
        [np.cumsum(world.messages[part][::-1])[::-1] for world in worlds] for part in (0, 1)
    )
    hits, others = (counts.astype(np.float64) for counts in learned)
    low = (hits - 3 * np.sqrt(hits)) / hits[0] - delta
    high = (others + 3 * np.sqrt(others) + 5) / others[0]
    level = int(np.argmax(np.maximum(low, 0.0) / high))
    return [np.array([counts[level], counts[0]]) for counts in tested]


def _worst_place(places: list[Counts], confidence: float) -> tuple[list[Counts], float]:
    """The place whose rates differ most; looking at all of them is paid for in confidence."""
    first, second = (part[:, 0] / part[:, 1] for part in places)
    worst = int(np.argmax(np.log(first + 1e-9) - np.log(second + 1e-9)))
    return [part[worst] for part in places], 1 - (1 - confidence) / len(first)


def _finding(claim: Bound, counts: list[Counts], confidence: float) -> Finding:
    """ln((p - delta) / q) for the least p and the largest q at a joint confidence."""
    each = 1 - (1 - confidence) / 2
    (hits, trials), (other_hits, other_trials) = (tuple(map(int, c)) for c in counts)
    found = 0.0
    if trials and other_trials:
        low = lower_rate(hits, trials, each) - claim.delta
        high = upper_rate(other_hits, other_trials, each)
        found = max(0.0, math.log(low / high)) if low > 0 else 0.0
    return Finding(claim.method, claim.epsilon, claim.delta, found, trials + other_trials,
                   confidence)  # fmt: skip
