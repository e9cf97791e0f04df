"""The ballot filter: colluders share a direction in a round, or are against the others in many.

1. Ballots whose bits are no fair coins go.
2. Every ballot is scored, its own part left out, on the mean of the others and on what users share
   besides: the sum of those who scored above the median on it last time, less the sum of those
   below. That is a step of the power method, and users stay the same from round to round, so it
   goes on where the last round stopped. The rules (`hushbit.robust.rules`) say who goes; again,
   until nobody does. Who moves the mean is seen along it.
3. Scores on the mean, and on the way that the model has come, are summed over rounds
   (`hushbit.robust.memory`): who is against the others there goes as well, until that changes.
4. Along what users share the mean of the accepted gives way to their median: whoever stayed, a
   share f of them, moves it by no more than from the median to the quantile 1/2 / (1 - f) of the
   honest scores, however far they stand.

A fixed number of passes over packed ballots, so linear in users, whatever the ballots say.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.robust.memory import Memory
from hushbit.robust.pulls import Pulls, Vector, unmask
from hushbit.robust.rules import (
    ONE_MIND,
    SCORE_VARIANCE,
    Rule,
    against_the_others,
    beyond_reach,
    loaded_coins,
    other_minds,
)

FEWEST_USERS = 20
START, FIRST_STEPS = 0x70, 8
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Verdict:
    """Whose ballots count, how many went by which rule, and what is remembered of these users.

    `shift` is to be added to the mean of the accepted unmasked ballots; None for no change.
    """

    accepted: Flags
    reach: float
    coins: int
    minds: int
    against: int
    memory: Memory
    shift: Vector | None = None

    @property
    def removed(self) -> int:
        """How many ballots were removed."""
        return int((~self.accepted).sum())


@dataclass(frozen=True, eq=False)
class Look:
    """Scores of all users on the mean of the present, and on what these share besides."""

    mean: Vector
    shared: Vector
    axis: Vector


def filter_ballots(
    mechanism: Mechanism, ballots: Ballots, round_key: RoundKey, rule: Rule | None = None
) -> Verdict:
    """Find the ballots of one round that no honest group of users would send together."""
    rule = Rule() if rule is None else rule
    coins = loaded_coins(mechanism, ballots)
    return judge(unmask(mechanism, ballots, round_key), rule, coins)


def judge(
    pulls: Pulls, rule: Rule, coins: Flags | None = None, memory: Memory | None = None,
    way: Vector | None = None,
) -> Verdict:  # fmt: skip
    """The filter on unmasked ballots; `coins` marks those that are refused already.

    `memory` has a row for each ballot, `way` is the way of the model in the ballots' coordinates.
    """
    memory = Memory.fresh(pulls.users) if memory is None else memory
    nobody = np.zeros(pulls.users, dtype=np.bool_)
    # Attackers are a minority: a cut that leaves less than half of all users is no finding.
    loaded = coins if coins is not None and 2 * coins.sum() <= pulls.users else nobody
    if pulls.users < FEWEST_USERS:
        return Verdict(~loaded, pulls.reach, int(loaded.sum()), 0, 0, memory)
    counted = ~loaded & ~memory.gone
    if 2 * counted.sum() < pulls.users:  # too few to compare with
        counted = ~loaded
    here, look = _by_this_round(pulls, counted, memory.shared, rule)
    gone = nobody
    if way is not None:
        memory = memory.heard(look.mean, _along(pulls, way), rule.memory)
        gone = _by_many_rounds(memory, counted & ~here, rule)
    memory = replace(memory, gone=gone, shared=look.shared)
    out = loaded | here
    gone = gone & ~out if 2 * (out | gone).sum() <= pulls.users else nobody
    accepted = ~(out | gone)
    return Verdict(
        accepted, pulls.reach, int(loaded.sum()), int(here.sum()), int(gone.sum()), memory,
        _median_shift(look, accepted),
    )  # fmt: skip


def _by_this_round(pulls: Pulls, counted: Flags, before: Vector, rule: Rule) -> tuple[Flags, Look]:
    """Who goes by this round alone, and the last look."""
    present, look = counted, look_at(pulls, counted, before)
    for _ in range(rule.looks):
        scores = np.stack([look.mean, look.shared], axis=1)
        group = other_minds(scores, present, rule)
        far = beyond_reach(scores, present, pulls.reach, rule)
        rest = present & ~group & ~far
        if not (group | far).any() or 2 * int(rest.sum()) < pulls.users:
            break
        divided = float(scores[present].var(axis=0).max()) - 1
        present, look = rest, look_at(pulls, rest, np.zeros(pulls.users))
        # Where the rest differ as much among themselves users are of many kinds: none is a find.
        if group.any() and float(look.shared[rest].var()) - 1 > ONE_MIND * divided:
            present = rest | group & ~far
            break
    return counted & ~present, look


def look_at(pulls: Pulls, present: Flags, before: Vector) -> Look:
    """Score the present on their mean, and by a step of the power method from the last scores.

    Where there are none, several steps from chance.
    """
    total, steps = pulls.sum_of(present), 1
    mean = _without_own(pulls, present, total)
    if not before.any():
        before, steps = np.random.default_rng(START).normal(size=pulls.users), FIRST_STEPS
    for _ in range(steps):
        above = before > np.median(before[present])
        axis = 2 * pulls.sum_of(present & above) - total
        before = _without_own(pulls, np.where(above, 1.0, -1.0) * present, axis)
    return Look(mean, before, axis)


def _without_own(pulls: Pulls, weights: Vector | Flags, total: Vector) -> Vector:
    """y · (total less the own part) of each user, in noises: `total` is the sum of weight · y."""
    length = float(np.linalg.norm(total)) or 1.0
    return np.asarray((pulls.scores(total) - pulls.powers() * weights) / length)


def _along(pulls: Pulls, way: Vector) -> Vector:
    length = float(np.linalg.norm(way))
    return pulls.scores(way) / length if length else np.zeros(pulls.users)


def _by_many_rounds(memory: Memory, present: Flags, rule: Rule) -> Flags:
    noise = np.sqrt(np.maximum(memory.rounds, 1.0))
    found = [against_the_others(sums / noise, present, rule) for sums in (memory.mean, memory.way)]
    gone = found[0] | found[1]
    return gone if 2 * gone.sum() <= gone.size else np.zeros_like(gone)


def _median_shift(look: Look, accepted: Flags) -> Vector | None:
    """What makes the mean of the accepted ballots their median along what they share."""
    inside = look.shared[accepted]
    if inside.var() < SCORE_VARIANCE:  # nothing but noise
        return None
    shift = float(np.median(inside) - inside.mean()) / (float(np.linalg.norm(look.axis)) or 1.0)
    return shift * look.axis
