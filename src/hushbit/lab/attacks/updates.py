"""Updates that colluding users encode instead of their own (`CRAFTED` in `hushbit.lab.attacks`).

An attacker has its own key, hence its words, and its own honest update. As the strongest coalition
would, it also has the mean and the spread of the honest updates. It crafts an update and encodes it
like an honest user, or chooses the bits itself (`ballots.py`).
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import Floats, check_choice
from hushbit.defence.modality import NO_SPLIT, split_point
from hushbit.defence.rules import DEFAULT_RULE, LIMIT_SIGMAS, MIN_USERS, TOLERATED_SHARE
from hushbit.lab.attacks import CRAFTED, FRESH
from hushbit.mechanism import HonestMean, Mechanism
from hushbit.tally.decoded_ballots import BallotScale

Rows = NDArray[np.float32]
SCALE = 20.0
SYBIL_GROUPS = 4
SLEEP_ROUNDS = 15
DECOY_SIGMAS = 4.5


@dataclass(frozen=True, eq=False)
class AttackerView:
    """What the coalition has: mean and spread of the honest updates, and the numbers of users.

    honest_mean      expectation of the mean of honest ballots, which the points clip
    drift_direction  direction of model drift since round 1
    """

    mean: Floats
    spread: Floats
    users: int
    attackers: int
    honest_mean: HonestMean | None = None
    drift_direction: Floats | None = None
    round: int = 0


def honest_norm(mechanism: Mechanism, view: AttackerView) -> float:
    """The largest norm of an honest update: the clip, or the range of the points.

    Without a clip, the root mean square norm of honest updates.
    """
    scale = _scale(mechanism)
    if mechanism.clip is not None and scale is not None:
        return scale.largest_norm
    return float(np.sqrt(view.mean @ view.mean + view.spread @ view.spread))


def _scale(mechanism: Mechanism) -> BallotScale | None:
    return None if mechanism.votes is None else mechanism.votes.scale


def adaptive_attack(
    updates: Rows, mechanism: Mechanism, view: AttackerView, seed: int
) -> Rows | None:
    """The largest shift against the honest mean m that the filter does not detect.

    In units of the noise: along the drift direction, the score per round is the one whose sum over
    rounds exceeds the limit by noise for no more of the coalition than the filter tolerates
    (`allowed_score`). Orthogonal to it, the coalition shifts by L against m, with the spread of
    honest users, as long as the scores stay unimodal and the score on the mean of all users,
    (1-f) m + f a, stays within the allowed one. Both together are reduced until the sums over
    rounds are unimodal. Returns None where the expected mean is unknown or users are too few for
    a filter.
    """
    scale = _scale(mechanism)
    if scale is None or view.users < MIN_USERS or view.honest_mean is None:
        return None
    sigma, share = scale.noise, min(view.attackers / view.users, 0.49)
    honest = mean = view.honest_mean.mean / sigma
    drift = np.zeros_like(mean)
    if view.drift_direction is not None:
        drift = view.drift_direction / float(np.linalg.norm(view.drift_direction))
        mean = mean - (mean @ drift) * drift
    back = -allowed_score(share, DEFAULT_RULE.lagging_share(scale.largest_entry)) * drift
    length = float(np.linalg.norm(mean)) or 1.0
    honest_spread = view.honest_mean.honest_spread / sigma
    shift = largest_hidden_shift(length, honest_spread, share, view.users, mechanism.dim)
    attack = back - shift / length * mean
    attack *= undetected_fraction(honest, attack, drift, honest_spread, view)
    rng = np.random.default_rng([seed, view.round, 0xADA])
    spread = honest_spread * rng.normal(size=(len(updates), 1)) / length * mean
    return np.asarray((attack - spread) * sigma, dtype=np.float32)


def undetected_fraction(
    honest: Floats,
    attack: Floats,
    drift: Floats,
    honest_spread: float,
    view: AttackerView,
) -> float:
    """The fraction of an attack that leaves the sums on mean and drift together unimodal."""
    share, decay = view.attackers / view.users, DEFAULT_RULE.decay
    scale = math.sqrt((1 + decay) / (1 - decay) / 2)
    for part in np.linspace(1.0, 0.0, 9):
        gap, total = honest - part * attack, (1 - share) * honest + share * part * attack
        on_mean = gap @ total / math.sqrt(total @ total + honest.size / view.users)
        if is_unimodal(scale * (on_mean + gap @ drift), scale * honest_spread, share, view.users):
            return float(part)
    return 0.0


def allowed_score(share: float, tolerated: float = TOLERATED_SHARE) -> float:
    """Score per round against the other users, in units of noise, that the history tolerates.

    Of a share f, the part tolerated / f may exceed the limit by noise:
    n^1/2 score >= -LIMIT_SIGMAS + its quantile.
    """
    decay = DEFAULT_RULE.decay
    noise = NormalDist().inv_cdf(1 - min(tolerated / max(share, tolerated), 0.5))
    return (LIMIT_SIGMAS - noise) * math.sqrt((1 - decay) / (1 + decay))


def largest_hidden_shift(
    length: float, honest_spread: float, share: float, users: int, dim: int
) -> float:
    """The largest shift L that neither a split of the scores nor the mean of all users reveals."""
    tried = np.linspace(0.0, 10 * math.hypot(1, honest_spread), 200)
    left = (1 - share) * length - share * tried
    scores = -tried * left / np.sqrt(left**2 + dim / users)
    hidden = (
        shift
        for shift in tried[scores >= -allowed_score(share)][::-1]
        if is_unimodal(length + shift, honest_spread, share, users)
    )
    return float(next(hidden, 0.0))


def is_unimodal(
    distance: float, honest_spread: float, share: float, users: int, trials: int = 5
) -> bool:
    """Whether the filter finds no split if a share of the users is shifted by `distance`.

    Both groups have the honest spread and the noise; no trial may find a split.
    """
    everyone, natural_size = np.ones(users, dtype=np.bool_), int(DEFAULT_RULE.natural_share * users)
    moved = distance * (np.arange(users) < share * users)
    for trial in range(trials):
        noise = np.random.default_rng(trial).normal(size=users) * math.hypot(1, honest_spread)
        split = split_point(noise - moved, everyone, natural_size, DEFAULT_RULE.split_rate, np.inf)
        if split != NO_SPLIT:
            return False
    return True


def craft_updates(
    attack: str, updates: Rows, view: AttackerView, mechanism: Mechanism, seed: int
) -> Rows:
    """The updates that attackers encode instead of their own, one row each."""
    check_choice("attack", attack, CRAFTED)
    if attack == "scaled":
        return np.asarray(-SCALE * updates, dtype=np.float32)
    if attack == "sleepers" and view.round < SLEEP_ROUNDS:
        return updates
    against = -view.mean / (float(np.linalg.norm(view.mean)) or 1.0)
    norm = honest_norm(mechanism, view)
    if attack == "sybils":
        return _sybils(updates, against, 2 * norm, seed)
    if attack == "mirror":
        return np.asarray(updates - 2 * np.outer(updates @ against, against), dtype=np.float32)
    if attack in ("decoys", "two-coalitions"):
        return _two_halves(attack, updates, against, norm, mechanism, seed)
    crafted = adaptive_attack(updates, mechanism, view, seed) if attack == "adaptive" else None
    if crafted is not None:
        return crafted
    if attack == "inner-product":
        row = -view.mean
    elif attack == "little":
        row = view.mean - alie_z(view.users, view.attackers) * view.spread
    elif attack == "cancel":
        sent = view.mean if view.honest_mean is None else view.honest_mean.mean
        row = -sent * (view.users - view.attackers) / view.attackers
    elif attack == "rotating":
        row = (against + _orthogonal(against, [seed, view.round, 0x207])) * math.sqrt(2) * norm
    else:
        row = against * (norm if attack in ("adaptive", FRESH) else 2 * norm)
    return np.broadcast_to(row.astype(np.float32), updates.shape).copy()


def alie_z(users: int, attackers: int) -> float:
    """z of "A little is enough" (Baruch et al. 2019): standard deviations that a majority hides.

    >>> round(alie_z(1000, 300), 3)
    0.562
    """
    honest = users - attackers
    needed = users // 2 + 1 - attackers
    share = min(max((honest - needed) / honest, 0.5), 1 - 1e-6)
    return NormalDist().inv_cdf(share)


def _sybils(updates: Rows, against: Floats, norm: float, seed: int) -> Rows:
    """Four groups, each 45 degrees from the direction against the mean, at random."""
    rng = np.random.default_rng([seed, 0x5B1])
    crafted = np.empty_like(updates)
    for group in range(SYBIL_GROUPS):
        direction = (against + _orthogonal(against, rng)) / math.sqrt(2)
        crafted[group::SYBIL_GROUPS] = direction * norm
    return crafted


def _orthogonal(against: Floats, seed: np.random.Generator | list[int]) -> Floats:
    """A random direction of length 1, orthogonal to another."""
    other = np.random.default_rng(seed).normal(size=against.size)
    other -= (other @ against) * against
    return np.asarray(other / float(np.linalg.norm(other)))


def _two_halves(
    attack: str, updates: Rows, against: Floats, norm: float, mechanism: Mechanism, seed: int
) -> Rows:
    """Extreme users, and as many who push a little or in a direction of their own."""
    scale = _scale(mechanism)
    crafted = np.empty_like(updates)
    crafted[0::2] = against * 2 * norm
    if attack == "decoys":
        crafted[1::2] = against * (norm if scale is None else DECOY_SIGMAS * scale.noise)
    else:
        crafted[1::2] = _orthogonal(against, [seed, 0x2C0]) * 2 * norm
    return crafted
