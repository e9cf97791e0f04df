"""An audit of tallies attacks their counters and states a lower confidence bound on epsilon.

The attacker sees the counters of tallies and nothing else. It chooses two updates h and -h of one
user, the target, and gives h to all other honest users. Entries of h are as large as clip and
points allow; no pair with a larger privacy loss is known (docs/privacy.md). If every user
votes + with probability p, the number t of + votes among H users has the log likelihood ratio

    ln P(t) / Q(t) = -ln( t/H · (1 - p)/p + (1 - t/H) · p/(1 - p) )

where P is the law with h and Q the law with -h. Ratios of entries and rounds add up. In every other
round h and -h are exchanged: if users reuse their coins, the tallies of two rounds then differ
only by the votes of the target.

Updates lie far outside the clip. If they differ in many entries, the attack detects a missing clip.
"""

import math
from dataclasses import dataclass

import numpy as np

from hushbit.checks import Floats, Ints, check_float, check_int
from hushbit.cpa import CPA
from hushbit.encoding.clip_and_rotate import cached_rotation
from hushbit.errors import InvalidInput
from hushbit.lab.attacks.audit import (
    CHUNK_CELLS,
    FAR_RADII,
    THRESHOLD_SPLIT,
    AuditFinding,
    Encoder,
    Progress,
    audit_finding,
)
from hushbit.mechanism import Mechanism
from hushbit.privacy.accountant import Bound, delta_text
from hushbit.privacy.central import VoteSums
from hushbit.wire.keys import RoundKey
from hushbit.wrappers import Rotated


@dataclass(frozen=True)
class TallyTarget:
    """Two updates of the target that differ in the first `entries` entries of the votes.

    honest  users in each tally, the target included
    """

    mechanism: Mechanism
    inner: CPA
    honest: int
    entries: int

    @property
    def chance(self) -> float:
        """Probability of a + vote of a user who holds h."""
        stage, clip = self.inner.stage_encoders[0], self.inner.clip
        reach = 1.0
        if clip is not None:
            reach = min(reach, clip / math.sqrt(self.entries) / stage.points.radius)
        return (1 + stage.response.beta * reach) / 2

    @property
    def log_ratio(self) -> Floats:
        """ln P(t) / Q(t) of one counter, for t = 0 … honest + votes."""
        share = np.arange(self.honest + 1) / self.honest
        odds = self.chance / (1 - self.chance)
        return -np.log(share / odds + (1 - share) * odds)

    def update(self, key: RoundKey) -> Floats:
        """h in the coordinates of updates."""
        stage, clip = self.inner.stage_encoders[0], self.inner.clip
        votes = np.zeros(self.inner.dim)
        votes[: self.entries] = FAR_RADII * max(stage.points.radius, clip or 0.0)
        if isinstance(self.mechanism, Rotated):
            return cached_rotation(self.inner.dim, key.rotation).invert(votes)
        return votes

    def scores(
        self, which: int, runs: int, rounds: int, encode: Encoder, progress: Progress | None
    ) -> Floats:
        """Log likelihood ratios of many runs in which the target has h (0) or -h (1)."""
        scores = np.zeros(runs)
        chunk = max(1, CHUNK_CELLS // (self.honest * self.inner.dim))
        for start in range(0, runs, chunk):
            stop = min(start + chunk, runs)
            users = np.arange(start, stop)[:, None] * self.honest + np.arange(self.honest)
            users = 2 * users.ravel() + which
            for number in range(rounds):
                swapped = number % 2
                counts = self.plus_votes(users, number, which ^ swapped, encode)
                ratios = self.log_ratio[counts].sum(axis=1)
                scores[start:stop] += -ratios if swapped else ratios
            if progress is not None:
                progress((which + stop / runs) / 2)
        return np.asarray(scores.round(9))

    def plus_votes(self, users: Ints, number: int, which: int, encode: Encoder) -> Ints:
        """Numbers of + votes, (tallies, entries), of tallies of `honest` users each."""
        key = RoundKey(secret=bytes(32), round=number)
        updates = np.tile(self.update(key), (users.size, 1))
        if which == 1:
            updates[:: self.honest] *= -1
        keys = key.users(users)
        payload = encode(updates, keys).payload
        stage = self.inner.stage_encoders[0]
        sums = np.empty((users.size // self.honest, self.entries), dtype=np.int64)
        counters = self.mechanism.empty_counters(False)
        for row in range(len(sums)):
            voters = slice(row * self.honest, (row + 1) * self.honest)
            counters[stage.name].fill(0)
            # Not `Tally.add_many`: its checks of voters and headers would take most of the time.
            self.mechanism.add_payload(counters, payload[voters], keys[voters])
            sums[row] = counters[stage.name][0, : self.entries]
        side = int(np.sign(stage.points.positions[0, 0]))
        return np.asarray((self.honest + side * sums) // 2)


def tally_target(mechanism: Mechanism, honest: int, entries: int | None = None) -> TallyTarget:
    """The pair of updates to attack, which differ in `entries` entries; see `audit_tally`."""
    inner = mechanism.inner if isinstance(mechanism, Rotated) else mechanism
    sums = mechanism.guarantee.sums
    if not (
        isinstance(inner, CPA) and isinstance(sums, VoteSums) and inner.rounding == "stochastic"
    ):
        raise InvalidInput(
            "the audit of tallies attacks CPA with two points and stochastic rounding, alone or "
            f"rotated; got {mechanism!r}"
        )
    if not math.isfinite(sums.epsilon):
        raise InvalidInput(
            "without randomized response no epsilon is claimed, so there is nothing to audit"
        )
    if entries is None:
        ratio = sums.clip_ratio
        entries = inner.dim if ratio is None else max(1, math.ceil(ratio**2 - 1e-9))
        entries = min(entries, inner.dim)
    entries = check_int("entries", entries, 1, inner.dim)
    return TallyTarget(mechanism, inner, check_int("honest", honest, 1), entries)


def audit_tally(
    mechanism: Mechanism,
    honest: int,
    tallies: int,
    *,
    delta: float,
    rounds: int = 1,
    entries: int | None = None,
    claim: Bound | None = None,
    confidence: float = 0.99,
    encoder: Encoder | None = None,
    progress: Progress | None = None,
) -> AuditFinding:
    """Attack `tallies` tallies of `honest` users for each of two updates of one user.

    rounds      tallies in a run of the same users
    entries     number of entries in which the updates differ; default: the fewest that reach the
                clip. With more entries the attack detects a missing clip
    claim       the claim to test; default: `guarantee.of_tally(honest, rounds, delta=delta)`
    confidence  the lower bound exceeds the true epsilon with probability at most 1 - confidence
    encoder     replaces `mechanism.encode_many`
    """
    target = tally_target(mechanism, honest, entries)
    runs = check_int("tallies", tallies, 10 * THRESHOLD_SPLIT * check_int("rounds", rounds, 1))
    if not 0 < check_float("confidence", confidence) < 1:
        raise InvalidInput(f"confidence must lie between 0 and 1; got {confidence!r}")
    claim = claim or mechanism.guarantee.of_tally(honest, rounds, delta=delta)
    encode = encoder or (lambda updates, keys: mechanism.encode_many(updates, keys))
    first, second = (
        target.scores(which, runs // rounds, rounds, encode, progress) for which in (0, 1)
    )
    tallied = "one tally" if rounds == 1 else f"{rounds} tallies"
    name = f"{tallied}, {target.entries} of {target.inner.dim} entries differ"
    counts = hits_of_best_level(first, second, delta)
    return audit_finding(Bound(claim.epsilon, delta, name), counts, confidence)


def tally_sentence(finding: AuditFinding) -> str:
    """The result of an audit of tallies in one sentence, also for a privacy note.

    >>> tally_sentence(AuditFinding("one tally", 1.9, 1e-5, 1.21, 4000, 0.99))
    'lower bound 1.21 (99 % confidence) of the claimed 1.9 at delta 1e-5: the claim was not broken'
    """
    verdict = "the claim was not broken" if finding.passed else "THE CLAIM IS BROKEN"
    return (
        f"lower bound {finding.lower_bound:.3g} ({100 * finding.confidence:g} % confidence) of the "
        f"claimed {finding.claim:.3g} at delta {delta_text(finding.delta)}: {verdict}"
    )


MEASURABLE_CLAIM = 4.0  # some hundred thousand tallies can measure an epsilon of this size
MAX_ENTRIES = 64


def measurable_clip(epsilon: float, honest: int, rounds: int, delta: float) -> float:
    """The largest clip, in radii, whose claimed epsilon is at most MEASURABLE_CLAIM.

    It is the square root of a number of entries, at most MAX_ENTRIES, and at least 1.
    """

    def claim(entries: int) -> float:
        mechanism = CPA(entries, epsilon, 1.0, clip=math.sqrt(entries))
        return mechanism.guarantee.of_tally(honest, rounds, delta=delta).epsilon

    low, high = 1, MAX_ENTRIES + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if claim(middle) <= MEASURABLE_CLAIM else (low, middle)
    return math.sqrt(low)


def hits_of_best_level(first: Floats, second: Floats, delta: float) -> list[Ints]:
    """(hits, trials) of a guess from the scores, for the guessed update and for the other one.

    The attack guesses the first update if the score is at least some level, or the second one if it
    is at most some level. Level and side are chosen on one run in THRESHOLD_SPLIT, with a margin of
    three standard errors; hits are counted on the other runs, so the bound holds for any choice.
    """
    learning = np.arange(len(first)) % THRESHOLD_SPLIT == 0
    best, chosen = -math.inf, [np.array([0, 1]), np.array([0, 1])]
    for guessed, other in ((first, second), (-second, -first)):
        levels = np.unique(np.concatenate([guessed[learning], other[learning]]))
        trials = int(learning.sum())
        hits, misses = (
            (trials - np.searchsorted(np.sort(scores[learning]), levels)).astype(np.float64)
            for scores in (guessed, other)
        )
        low = (hits - 3 * np.sqrt(hits)) / trials - delta
        gains = np.maximum(low, 0.0) / (misses + 3 * np.sqrt(misses) + 5)
        level = int(gains.argmax())
        if gains[level] > best:
            best = gains[level]
            chosen = [
                np.array([(scores[~learning] >= levels[level]).sum(), (~learning).sum()])
                for scores in (guessed, other)
            ]
    return chosen
