"""The ballot filter: colluders share a direction, honest noise does not.

1. Ballots whose bits are no fair coins go.
2. Directions of the unmasked ballots that stand above the edge of noise are looked at
   (`hushbit.robust.spectrum`), every user is scored on them, the rules (`hushbit.robust.rules`)
   say who goes; again, until nobody does.
3. Along the directions that are left the mean of the accepted users is replaced by their median:
   whoever stayed, a share f of them, moves it by no more than from the median to the quantile
   1/2 / (1 - f) of the honest scores, however far they stand. Elsewhere the mean is kept.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.robust.pulls import Pulls, Vector, unmask
from hushbit.robust.rules import Rule, beyond_reach, far_off, loaded_coins, other_minds
from hushbit.robust.spectrum import Spectrum, look

FEWEST_USERS = 20
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Look:
    """One look: the top variance in units of the edge, directions above it, who went by what."""

    top: float
    directions: int
    reach: int
    minds: int
    distance: int


@dataclass(frozen=True, eq=False)
class Verdict:
    """Whose ballots count, why the others do not, and what the median changes.

    `shift` is to be added to the mean of the accepted unmasked ballots; None for no change.
    """

    accepted: Flags
    reach: float
    coins: int
    looks: tuple[Look, ...]
    shift: Vector | None

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


def judge(pulls: Pulls, rule: Rule, coins: Flags | None = None) -> Verdict:
    """The filter on unmasked ballots; `coins` marks those that are refused already."""
    accepted = np.ones(pulls.users, dtype=np.bool_)
    # Attackers are a minority: a cut that leaves less than half of all users is no finding.
    if coins is not None and 2 * coins.sum() <= pulls.users:
        accepted &= ~coins
    gone, looks, seen = int((~accepted).sum()), list[Look](), None
    while len(looks) < rule.looks and accepted.sum() >= FEWEST_USERS:
        seen = look(pulls, accepted, min(rule.directions, int(accepted.sum()) - 1), seen)
        if not seen.found:
            break
        suspects, record = _suspects(seen, accepted, pulls.reach, rule)
        looks.append(record)
        if not suspects.any() or 2 * int((accepted & ~suspects).sum()) < pulls.users:
            break
        accepted &= ~suspects
    return Verdict(accepted, pulls.reach, gone, tuple(looks), _median_shift(seen, accepted))


def _suspects(seen: Spectrum, accepted: Flags, reach: float, rule: Rule) -> tuple[Flags, Look]:
    beyond = beyond_reach(seen.scores, accepted, reach, rule)
    group = other_minds(seen.scores, accepted, rule)
    if 2 * group.sum() > accepted.sum():  # cuts that together leave a minority are no finding
        group[:] = False
    far = far_off(seen.scores, accepted)
    top = float(seen.values[0] / seen.edge)
    record = Look(top, seen.found, int(beyond.sum()), int(group.sum()), int(far.sum()))
    return beyond | group | far, record


def _median_shift(seen: Spectrum | None, accepted: Flags) -> Vector | None:
    """What makes the mean of the accepted ballots their median along every direction seen."""
    if seen is None or not seen.found:
        return None
    inside = seen.scores[accepted]
    wanted = np.median(inside, axis=0) - inside.mean(axis=0)
    axes = seen.axes
    return np.asarray(axes @ np.linalg.solve(axes.T @ axes, wanted))
