"""Attacks: what colluding users send instead of their honest ballots.

An attacker sees its own key (hence its words), its own honest update and, as the strongest
coalition would, the mean and the spread of the honest users' updates. Attacks of the first kind
craft an update and encode it like anybody else; those of the second choose the bits themselves.

ones, flip        the paper's: constant bits, random flips; their mean is zero (bits)
directed          every bit pulls against the true mean; debiasing multiplies it by 1/(2p-1) (bits)
directed-stealth  like an extreme user: against the mean, twice the longest honest update
scaled            the own update times -20 (model replacement against the task)
inner-product     -mean: the sum keeps its direction but loses 2f of its length
little            mean - z · spread, z as large as hides within the majority's spread
sybils            four groups, each an extreme user with its own direction
adaptive          knows the filter and its memory: against the mean, as far as both let pass
label-flip, backdoor  poisoned data, see `hushbit.robust.poison`; updates and bits are honest
"""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import choice
from hushbit.mechanism import Mechanism
from hushbit.robust.adaptive import adaptive
from hushbit.robust.view import Rows, View, extreme_norm, honest_norm

CRAFTED = (
    "directed", "directed-stealth", "scaled", "inner-product", "little", "sybils", "adaptive",
)  # fmt: skip
SCALE = 20.0
GROUPS = 4


def craft(attack: str, updates: Rows, view: View, mechanism: Mechanism, seed: int) -> Rows:
    """The updates that attackers encode in place of their own (one row each)."""
    choice("attack", attack, CRAFTED)
    against = -view.mean / (float(np.linalg.norm(view.mean)) or 1.0)
    if attack == "scaled":
        return np.asarray(-SCALE * updates, dtype=np.float32)
    if attack == "inner-product":
        return _repeat(-view.mean, updates)
    if attack == "little":
        return _repeat(view.mean - little_z(view.users, view.attackers) * view.spread, updates)
    if attack == "adaptive":
        made = adaptive(updates, mechanism, view, seed)
        return _repeat(against * honest_norm(mechanism, view), updates) if made is None else made
    if attack == "sybils":
        return _sybils(updates, mechanism, view, seed)
    return _repeat(against * extreme_norm(mechanism, view), updates)


def little_z(users: int, attackers: int) -> float:
    """How many spreads off the mean still has a majority on its side (Baruch et al. 2019).

    >>> round(little_z(1000, 300), 3)
    0.562
    """
    honest = users - attackers
    needed = users // 2 + 1 - attackers
    share = min(max((honest - needed) / honest, 0.5), 1 - 1e-6)
    return NormalDist().inv_cdf(share)


def _sybils(updates: Rows, mechanism: Mechanism, view: View, seed: int) -> Rows:
    """Four groups: against the mean, and turned by random directions of the same length."""
    rng = np.random.default_rng([seed, 0x5B1])
    crafted = np.empty_like(updates)
    base = -view.mean / (float(np.linalg.norm(view.mean)) or 1.0)
    for group in range(GROUPS):
        turned = rng.normal(size=base.size)
        turned -= (turned @ base) * base
        direction = (base + turned / float(np.linalg.norm(turned))) / math.sqrt(2)
        crafted[group::GROUPS] = direction * extreme_norm(mechanism, view)
    return crafted


def _repeat(row: NDArray[np.float64], updates: Rows) -> Rows:
    return np.broadcast_to(row.astype(np.float32), updates.shape).copy()
