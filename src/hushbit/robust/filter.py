"""The ballot filter: colluders share a direction, honest noise does not.

1. Each unmasked ballot is sketched to a few hundred numbers. Directions of the sketches whose
   variance stands above the edge of pure noise (Marchenko-Pastur, Tracy-Widom) are looked at.
2. Each is sharpened on whole ballots; every user is scored on the direction that the *others*
   span, s = y · v, so that an honest score is m + noise with |m| <= reach = clip / sigma.
3. Reach rule:  |s| > reach + z cannot be honest, z = sqrt(2 ln(2 K D / rate)) by Hoeffding.
   Group rule:  var(s) > 1 + share · reach²: more of one mind than a natural group; the
   smaller of two groups goes. `share` is the largest natural group of honest users that all
   send clip-long updates one way (1/10: users who hold one of ten classes each give 0.09).
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


@dataclass(frozen=True)
class Rule:
    """What the filter promises; nothing in it depends on the data.

    rate        chance that any honest user at all is removed in a round by the reach rule
    share       largest natural group: honest variance along a direction <= share · reach²
    sketch      numbers kept of each ballot
    directions  most directions that are looked at in a round
    """

    rate: float = 0.01
    share: float = 0.1
    sketch: int = 256
    directions: int = 12

    def __post_init__(self) -> None:
        if not 0 < real("rate", self.rate) < 1 or not 0 < real("share", self.share) <= 1:
            raise InvalidInput(f"rate and share lie in (0, 1); got {self.rate} and {self.share}")
        whole("sketch", self.sketch, 8, 4096)
        whole("directions", self.directions, 1, 1000)

    def slack(self, users: int) -> float:
        """z: an honest score leaves its mean by more with a chance of rate / (users · directions)."""
        return math.sqrt(2 * math.log(2 * users * self.directions / self.rate))


@dataclass(frozen=True, eq=False)
class Verdict:
    """Whose ballots count, and why the others do not.

    `looked` lists (top eigenvalue, edge, score variance, removed by reach, removed by group).
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
    width = root * (1 / math.sqrt(n) + 1 / math.sqrt(p)) ** (1 / 3)
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
    """Largest variance of the accepted sketches off the natural axes, its axis and the users'
    places along it."""
    rows = sketch[accepted] if not accepted.all() else sketch
    rows = rows - rows.mean(axis=0)
    for axis in natural:
        rows -= np.outer(rows @ axis, axis)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    axis = vectors[:, -1]
    weights = np.zeros(len(sketch))
    weights[accepted] = rows @ axis
    return float(values[-1]) / (len(rows) - 1), axis, weights


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
    """Who breaks the reach rule, who stands in the smaller group if the group rule is broken."""
    beyond = accepted & (np.abs(scores) > reach + rule.slack(scores.size))
    inside = scores[accepted]
    variance = float(inside.var(ddof=1))
    allowed = 1 + rule.share * reach**2
    group = np.zeros_like(accepted)
    if variance > allowed * (1 + 3 * math.sqrt(2 / inside.size)):
        cut = split(inside)
        high = accepted & (scores > cut)
        low = accepted & ~high
        group = high if high.sum() < low.sum() else low
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
