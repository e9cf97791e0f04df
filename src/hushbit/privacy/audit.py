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
LEARNING_SHARE = 4
"""One ballot in so many chooses the threshold of the attack on whole messages."""


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

    `messages` holds how many ballots had each score, apart for learning and testing; `bits` and
    `repeats` hold (hits, trials) of each stage.
    """

    messages: Counts
    bits: Counts
    repeats: Counts


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
        again = Bound(epsilon, 0.0, f"{name}, last coins known")
        findings += [
            _finding(Bound(epsilon, 0.0, name), [w.bits[stage] for w in worlds], confidence),
            _finding(again, [w.repeats[stage] for w in worlds], confidence),
        ]
    message = Bound(mechanism.guarantee.epsilon_per_message(delta), delta, "whole message")
    return [*findings, _finding(message, _above_threshold(worlds, delta), confidence)]


def _attack(
    target: Target, which: int, ballots: int, cast: Encoder,
    progress: Callable[[float], None] | None,
) -> _World:  # fmt: skip
    """Encode one update of each pair again and again, and keep counts only."""
    stages = len(target.epsilons)
    scores, rates = (2, stages * target.votes + 1), (2, stages, 2)
    world = _World(np.zeros(scores, np.int64), *np.zeros(rates, np.int64))
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
    # Coins used again show where the same bit was told truly just before.
    known = told[:-1] & (first[1:] == first[:-1])
    for stage in range(len(world.bits)):
        said, seen = agrees[:, stage], known[:, stage]
        world.bits[stage] += (int(said.sum()), said.size)
        world.repeats[stage] += (int(said[1:][seen].sum()), int(seen.sum()))
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
