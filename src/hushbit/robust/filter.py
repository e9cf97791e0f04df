"""The ballot filter: colluders share a direction, honest noise does not.

1. Each unmasked ballot is sketched to a few hundred numbers. Directions of the sketches whose
   variance stands above the edge of pure noise (Marchenko-Pastur, Tracy-Widom) are looked at.
2. Each is sharpened on whole ballots; every user is scored on the direction that the *others*
   span, s = y · v, so that an honest score is m + noise with |m| <= reach = clip / sigma.
3. Reach rule:  |s| > reach + z cannot be honest, z² = 2 V ln(2 K D / rate) (Hoeffding, variance V).
   Two-minds rule:  the best cut in two explains 3/4 of the variance of a uniform spread and up to
   0.87 of that of a peak with a flat tail. A cut that explains more than `explained` of what is
   not noise, between groups more than GAP noises apart, of which the smaller is larger than
   `share` (a natural group), divides users of two minds: the smaller group goes.
4. Directions that break neither rule are natural: they are set aside and nobody is removed.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.checks import real, whole
from hushbit.errors import InvalidInput
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.robust.pulls import Pulls, Vector, sketch_signs, unmask

TRACY_WIDOM_99 = 2.0234
FEWEST_USERS = 20
SHARPENINGS = 2
GAP = 5.0
# A ballot also sways the weights of the others a little: on pure noise scores have a variance of
# 1.6 to 2.1 after two sharpenings (K from 100 to 3000, dim from 2000 to 26 000), not of 1.
SCORE_VARIANCE = 2.25
POWER_STEPS, POWER_GAIN, POWER_START = 40, 5e-3, 0x70


@dataclass(frozen=True)
class Rule:
    """What the filter promises; nothing in it depends on the data.

    rate        chance that any honest user at all is removed in a round by the reach rule
    share       largest natural group of honest users who are all of one mind
    explained   share of the variance that a cut of honest users in two never explains
    sketch      numbers kept of each ballot
    directions  most directions that are looked at in a round
    """

    rate: float = 0.01
    share: float = 0.15
    explained: float = 0.87
    sketch: int = 256
    directions: int = 12

    def __post_init__(self) -> None:
        for name in ("rate", "share", "explained"):
            if not 0 < real(name, getattr(self, name)) < 1:
                raise InvalidInput(f"{name} must lie in (0, 1); got {getattr(self, name)!r}")
        whole("sketch", self.sketch, 8, 4096)
        whole("directions", self.directions, 1, 1000)

    def slack(self, users: int) -> float:
        """z: how far an honest score may leave its mean, but for a chance of rate in a round."""
        chances = 2 * users * self.directions / self.rate
        return math.sqrt(2 * SCORE_VARIANCE * math.log(chances))


@dataclass(frozen=True, eq=False)
class Verdict:
    """Whose ballots count, and why the others do not.

    `looked` lists (top eigenvalue, edge, score variance, removed by reach, removed as a group).
    """

    accepted: NDArray[np.bool_]
    reach: float
    looked: tuple[tuple[float, float, float, int, int], ...]

    @property
    def removed(self) -> int:
        """How many ballots were removed."""
        return int((~self.accepted).sum())


def noise_edge(users: int, size: int) -> float:
    """99 % quantile of the top eigenvalue of the sample covariance of pure unit noise.

    (sqrt(n) + sqrt(p))² / n plus Johnstone's Tracy-Widom width, n = users - 1, p = size.
    """
    n, p = float(users - 1), float(size)
    root = math.sqrt(n) + math.sqrt(p)
    width: float = root * (1 / math.sqrt(n) + 1 / math.sqrt(p)) ** (1 / 3)
    return (root**2 + TRACY_WIDOM_99 * width) / n


def filter_ballots(
    mechanism: Mechanism, ballots: Ballots, round_key: RoundKey, rule: Rule | None = None
) -> Verdict:
    """Find the ballots of one round that no honest group of users would send together."""
    pulls = unmask(mechanism, ballots, round_key)
    return judge(pulls, sketch_signs(round_key, pulls.dim), Rule() if rule is None else rule)


def judge(pulls: Pulls, signs: NDArray[np.uint8], rule: Rule) -> Verdict:
    """The filter on unmasked ballots."""
    accepted = np.ones(pulls.users, dtype=np.bool_)
    looked: list[tuple[float, float, float, int, int]] = []
    if pulls.users < FEWEST_USERS:
        return Verdict(accepted, pulls.reach, ())
    sketch = pulls.sketch(signs, rule.sketch)
    natural: list[NDArray[np.float32]] = []
    while len(looked) < rule.directions:
        edge = noise_edge(int(accepted.sum()), sketch.shape[1])
        top, axis, weights = _top(sketch, accepted, natural)
        if top <= edge:
            break
        scores = _sharpen(pulls, accepted, weights)
        beyond, group, variance = _suspects(scores, accepted, pulls.reach, rule)
        suspects = beyond | group
        # Attackers are a minority: a cut that leaves less than half of all users is no finding.
        if not suspects.any() or 2 * int((accepted & ~suspects).sum()) < pulls.users:
            suspects[:] = beyond[:] = group[:] = False
            natural.append(axis)
        accepted &= ~suspects
        looked.append((top, edge, variance, int(beyond.sum()), int((group & ~beyond).sum())))
    return Verdict(accepted, pulls.reach, tuple(looked))


def _top(
    sketch: NDArray[np.float32], accepted: NDArray[np.bool_], natural: list[NDArray[np.float32]]
) -> tuple[float, NDArray[np.float32], Vector]:
    """Largest variance of the accepted sketches off the natural axes, its axis, users' places.

    Power iteration: it never finds more variance than there is.
    """
    rows = sketch if accepted.all() else sketch[accepted]
    centre = rows.mean(axis=0)
    axis = np.random.default_rng(POWER_START).normal(size=centre.size).astype(np.float32)
    last, found = axis, 0.0
    for _ in range(POWER_STEPS):
        for other in natural:
            axis -= (axis @ other) * other
        axis /= np.linalg.norm(axis)
        places = rows @ axis
        places -= centre @ axis
        before, found = found, float(places @ places) / (len(rows) - 1)
        last = axis
        if found <= before * (1 + POWER_GAIN):
            break
        axis = places @ rows - places.sum() * centre
    weights = np.zeros(len(sketch))
    weights[accepted] = places
    return found, last, weights


def _sharpen(pulls: Pulls, accepted: NDArray[np.bool_], weights: Vector) -> Vector:
    """Scores on whole ballots: power iteration from the sketch's weights, each user left out.

    v_i = sum over others of w_j y_j,  s_i = y_i · v_i / |v_i|.
    """
    powers = pulls.powers()
    scores = weights
    for _ in range(SHARPENINGS):
        total = pulls.combine(weights)
        along = pulls.scores(total)
        own = weights * powers
        length = float(total @ total) - 2 * weights * along + weights * own
        scores = (along - own) / np.sqrt(np.maximum(length, 1e-12))
        weights = np.where(accepted, scores - scores[accepted].mean(), 0.0)
    return scores


def _suspects(
    scores: Vector, accepted: NDArray[np.bool_], reach: float, rule: Rule
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], float]:
    """Who breaks the reach rule, who is in the smaller of two groups."""
    beyond = accepted & (np.abs(scores) > reach + rule.slack(scores.size))
    inside = scores[accepted]
    group = np.zeros_like(accepted)
    cut = split(inside)
    low, high = inside[inside <= cut], inside[inside > cut]
    smaller = min(low.size, high.size) / inside.size
    apart = float(high.mean() - low.mean()) if smaller else 0.0
    between = smaller * (1 - smaller) * apart**2
    variance = float(inside.var())
    if smaller > rule.share and apart > GAP and between > rule.explained * (variance - 1):
        group = accepted & ((scores <= cut) == (low.size < high.size))
    return beyond, group, variance


def split(values: Vector) -> float:
    """Where a line of numbers falls into two groups of least inner variance (Otsu).

    >>> split(np.array([0.0, 0.1, 0.2, 5.0, 5.1]))
    2.6
    """
    line = np.sort(values)
    count = np.arange(1, line.size)
    total = np.cumsum(line)
    low = total[:-1] / count
    high = (total[-1] - total[:-1]) / (line.size - count)
    between = count * (line.size - count) * (high - low) ** 2
    best = int(np.argmax(between))
    return float((line[best] + line[best + 1]) / 2)
