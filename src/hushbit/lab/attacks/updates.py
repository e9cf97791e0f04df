"""Updates that colluding users encode instead of their own (`CRAFTED` in `hushbit.lab.attacks`).

An attacker has its own key, hence its words, and its own honest update. As the strongest coalition
would, it also has the mean and the spread of the honest updates. It crafts an update and encodes it
like an honest user, or chooses the bits itself (`ballots.py`).
"""

import math
from statistics import NormalDist

import numpy as np

from hushbit.checks import Floats, check_choice
from hushbit.lab.attacks import CRAFTED, FRESH
from hushbit.lab.attacks.adaptive import adaptive_attack
from hushbit.lab.attacks.view import AttackerView, Rows, scale_of
from hushbit.mechanism import Mechanism

SCALE = 20.0
SYBIL_GROUPS = 4
SLEEP_ROUNDS = 15
DECOY_SIGMAS = 4.5


def honest_norm(mechanism: Mechanism, view: AttackerView) -> float:
    """The largest norm of an honest update: the clip, or the range of the points.

    Without a clip, the root mean square norm of honest updates.
    """
    scale = scale_of(mechanism)
    if mechanism.clip is not None and scale is not None:
        return scale.largest_norm
    return float(np.sqrt(view.mean @ view.mean + view.spread @ view.spread))


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
    scale = scale_of(mechanism)
    crafted = np.empty_like(updates)
    crafted[0::2] = against * 2 * norm
    if attack == "decoys":
        crafted[1::2] = against * (norm if scale is None else DECOY_SIGMAS * scale.noise)
    else:
        crafted[1::2] = _orthogonal(against, [seed, 0x2C0]) * 2 * norm
    return crafted
