"""The ballot filter: colluders share a direction in a round, or are against the others in many.

1. Ballots whose bits are no fair coins go.
2. Every ballot is scored, its own part left out, on the mean of the others and on what users share
   besides: the sum of those who scored above the median on it last time, less the sum of those
   below. That is a step of the power method; where all were there in the last round it goes on
   from its first look, else it takes several steps from chance. The rules
   (`hushbit.robust.rules`) say who goes; again, until nobody does. Who moves the mean is seen
   along it.
3. Scores on the mean, and on the way that the model has come, are summed over rounds
   (`hushbit.robust.memory`): who is against the others there goes as well, until that changes.
   Who comes back is counted from the next round on, in which it is looked at like anybody else.

A bounded number of passes over packed ballots, so linear in users, whatever the ballots say:
mostly two, one that counts and unmasks, both halves of step 2 apart, and one that scores on all
directions.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.robust.humps import halved, middle_of, still_in
from hushbit.robust.memory import Memory
from hushbit.robust.pulls import Pulls, Vector, unmask
from hushbit.robust.rules import (
    ONE_MIND,
    SEEN,
    STEPS_BACK,
    UPPER_SPREADS,
    Rule,
    between,
    beyond_reach,
    come_round,
    cut_off,
    far_behind,
    loaded_coins,
    other_minds,
)
from hushbit.robust.settle import ROOT_2, settle

FEWEST_USERS = 20
START, FIRST_STEPS = 0x70, 8
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Verdict:
    """Whose ballots count, how many went by which rule, and what is remembered of these users."""

    accepted: Flags
    reach: float
    coins: int
    minds: int
    against: int
    memory: Memory

    @property
    def removed(self) -> int:
        """How many ballots were removed."""
        return int((~self.accepted).sum())


def filter_ballots(
    mechanism: Mechanism, ballots: Ballots, round_key: RoundKey, rule: Rule | None = None
) -> Verdict:
    """Find the ballots of one round that no honest group of users would send together."""
    rule = Rule() if rule is None else rule
    coins = loaded_coins(mechanism, ballots)
    return judge(unmask(mechanism, ballots, round_key), rule, coins)


def judge(
    pulls: Pulls, rule: Rule, coins: Flags | None = None, memory: Memory | None = None,
    way: Vector | None = None, sides: tuple[Flags, Flags] | None = None,
) -> Verdict:  # fmt: skip
    """The filter on unmasked ballots; `coins` marks those that are refused already.

    `memory` has a row for each ballot, `way` is the way of the model in the ballots' coordinates,
    `sides` are the `halves` that were counted by themselves.
    """
    memory = Memory.fresh(pulls.users) if memory is None else memory
    loaded = np.zeros(pulls.users, dtype=np.bool_) if coins is None else coins
    if pulls.users < FEWEST_USERS:
        return _verdict(pulls, loaded, still_in(loaded, memory.gone), 0, memory)
    above, below = halves(memory, loaded) if sides is None else sides
    if not memory.goes_on:
        return ruled(pulls, rule, loaded, memory, way, (above, below), None)
    look = pulls.look(above, below, way)
    if way is not None:
        heard = memory.mean, memory.way, memory.rounds, memory.gone
        limits = rule.limits(pulls.users, pulls.reach, pulls.edge)
        made = settle(look, above, below, *heard, limits)
        if made.usual:
            kept = Memory(made.mean, made.way, made.rounds, look[1], made.gone, memory.last)
            return _verdict(pulls, loaded, made.accepted, 0, kept)
    return ruled(pulls, rule, loaded, memory, way, (above, below), look)


def ruled(
    pulls: Pulls, rule: Rule, loaded: Flags, memory: Memory, way: Vector | None,
    sides: tuple[Flags, Flags], look: Vector | None,
) -> Verdict:  # fmt: skip
    """The verdict rule by rule, for any round; `look` is the first one, else it starts from chance.

    `hushbit.robust.settle` says the same of a round in which nobody new stands out.
    """
    counted, gone = sides[0] | sides[1], np.zeros_like(loaded)
    look = look_from_chance(pulls, counted, way) if look is None else look
    present, last, crowded = _by_this_round(pulls, counted, look, rule, way)
    if crowded and not (counted | loaded).all():
        # Those held from before and those found now are too many: all are looked at together.
        freed = replace(memory, gone=gone)
        return ruled(pulls, rule, loaded, freed, way, halves(freed, loaded), None)
    if way is not None:
        memory = memory.heard(turned(last[0], present), last[2], rule.memory)
        gone = _by_many_rounds(memory, present, rule, pulls.edge)
    accepted = present & ~gone if few(~present | gone) else present
    here = int(np.count_nonzero(counted & ~present))
    # The next round goes on from what all who were counted share, those found among them.
    return _verdict(pulls, loaded, accepted, here, memory.after(look[1], gone))


def _verdict(pulls: Pulls, loaded: Flags, accepted: Flags, here: int, memory: Memory) -> Verdict:
    """Who is neither accepted nor out by this round's ballots is out by the memory of rounds."""
    coined = int(np.count_nonzero(loaded))
    against = accepted.size - int(np.count_nonzero(accepted)) - coined - here
    return Verdict(accepted, pulls.reach, coined, here, against, memory)


def halves(memory: Memory, coins: Flags) -> tuple[Flags, Flags]:
    """Those who are not out yet, above and below the median of their last scores.

    Where some of them were not there in the last round chance decides.
    """
    goes_on, users = memory.goes_on, coins.size
    scores = memory.shared if goes_on else np.random.default_rng(START).normal(size=users)
    above, below = halved(scores, still_in(coins, memory.gone))
    return above, below


def turned(scores: Vector, present: Flags) -> Vector:
    """The scores with the sign that most users have plus: the majority says what is forward."""
    return scores if middle_of(scores, present) >= 0 else -scores


def few(flags: Flags) -> bool:
    """Attackers are a minority: a cut that leaves less than half of all users is no finding."""
    return 2 * int(np.count_nonzero(flags)) <= flags.size


def _by_this_round(
    pulls: Pulls, counted: Flags, look: Vector, rule: Rule, way: Vector | None
) -> tuple[Flags, Vector, bool]:
    """Who stays by this round alone, the last look, and whether more than half would go."""
    present, crowded = counted, False
    for _ in range(rule.looks):
        scores = look[:2]
        group, far = other_minds(scores, present, rule), beyond_reach(look, pulls.reach, rule)
        found = present & (group | far)
        rest = present & ~found
        crowded = not few(~rest)
        if crowded or not found.any():
            break
        divided = float(scores[:, present].var(axis=1).max()) - 1
        again = look_from_chance(pulls, rest, way)
        # Where the rest differ as much among themselves users are of many kinds: none is a find,
        # and the mean of one kind says nothing of the others.
        if group.any() and float(again[1][rest].var()) - 1 > ONE_MIND * divided:
            if (present & far).any():
                present = present & ~far
                look = look_from_chance(pulls, present, way)
            break
        present, look = rest, again
    return present, look, crowded


def look_from_chance(pulls: Pulls, present: Flags, way: Vector | None) -> Vector:
    """The scores after several steps of the power method."""
    scores = np.random.default_rng(START).normal(size=pulls.users)
    for _ in range(FIRST_STEPS):
        above, below = halved(scores, present)
        look = pulls.look(above, below, way)
        scores = look[1]
    return look


def _by_many_rounds(memory: Memory, present: Flags, rule: Rule, edge: float) -> Flags:
    """Who is found against the others; where no gap says so, also who was and is not back."""
    noise = np.sqrt(np.maximum(memory.rounds, 1.0))
    both = [turned(sums / noise, present) for sums in (memory.mean, memory.way)]
    apart = cut_off(both[0], rule) | cut_off(both[1], rule)
    # Who is a little against the others by either sum is so twice.
    apart |= cut_off((both[0] + both[1]) / ROOT_2, rule, STEPS_BACK / 2)
    for sums in both:
        apart |= sums < between(sums, present, memory.gone & ~present, rule)
    newly, natural = rule.newly(present.size), rule.many_back(present.size, edge)
    gone, seen = memory.gone, memory.rounds >= SEEN
    found = apart | far_behind(both[0], present, apart, gone, rule.depth, newly, seen)
    found |= far_behind(both[1], present, apart, gone, UPPER_SPREADS, newly, seen, natural)
    held = np.zeros_like(found)
    if memory.gone.any() and not apart.any():
        held = memory.gone & ~come_round(both, present, memory.gone, rule)
    for gone in (found | held, found):
        if few(gone):
            return gone
    return np.zeros_like(found)
