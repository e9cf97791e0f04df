"""Attacks: what colluding users send instead of their honest ballots.

An attacker sees its own key (hence its words), its own honest update and, as the strongest
coalition would, the mean and the spread of the honest users' updates. Attacks of the first kind
craft an update and encode it like anybody else; those of the second choose the bits themselves.

ones, flip        the paper's: constant bits, random flips; their mean is zero (bits)
directed          every bit pulls against the true mean; debiasing multiplies it by 1/(2p-1) (bits)
directed-stealth  an honest extreme user: each entry at the largest value, against the mean
scaled            the own update times -20 (model replacement against the task)
inner-product     -mean: the sum keeps its direction but loses 2f of its length
little            mean - z · spread, z as large as hides within the majority's spread
sybils            four groups, each an extreme user with its own direction
adaptive          knows the filter and its memory: against the mean, as far as both let pass
label-flip, backdoor  poisoned data, see `hushbit.robust.poison`; updates and bits are honest
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.checks import choice
from hushbit.clipping import clipped
from hushbit.cpa import CPA, NestedCPA
from hushbit.keys import RoundKey, UserKeys
from hushbit.mechanism import Mechanism
from hushbit.robust.filter import FEWEST_USERS
from hushbit.robust.humps import NOWHERE, valley
from hushbit.robust.layers import bare, is_rotated, votes_off
from hushbit.robust.pulls import edge_of, largest_norm, noise_size
from hushbit.robust.rules import STEPS_BACK, TOLERATED, Rule
from hushbit.rotation import Rotated, Rotation
from hushbit.subset import Subset
from hushbit.tally import Counters
from hushbit.tuning.norm_vote import NormVote

CRAFTED = (
    "directed", "directed-stealth", "scaled", "inner-product", "little", "sybils", "adaptive",
)  # fmt: skip
SCALE = 20.0
GROUPS = 4
Rows = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class View:
    """What the coalition knows of the others: mean and spread of honest updates, head counts.

    pull  what honest ballots decode to, where points cut updates off
    way   how the model has moved since the first round
    round which round it is
    """

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]
    users: int
    attackers: int
    pull: "Pull | None" = None
    way: NDArray[np.float64] | None = None
    round: int = 0


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
        return _adaptive(updates, mechanism, view, seed)
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


def honest_norm(mechanism: Mechanism, view: View) -> float:
    """The longest update that an honest user may send: the clip where there is one."""
    inner = bare(mechanism)
    if isinstance(inner, CPA | Subset):
        cpa = inner.inner if isinstance(inner, Subset) else inner
        if cpa.clip is not None:
            return largest_norm(inner)
    return float(np.sqrt(view.mean @ view.mean + view.spread @ view.spread))


def extreme_norm(mechanism: Mechanism, view: View) -> float:
    """Twice the longest honest update: entries at the edge of the points, no l2 clip kept."""
    return 2 * honest_norm(mechanism, view)


def against_clip(mechanism: Mechanism) -> Mechanism:
    """The encoder that an attacker runs: the same bits, without the l2 clip."""
    if isinstance(mechanism, NormVote):
        free, epsilon = against_clip(mechanism.inner), mechanism.response.epsilon
        return NormVote(free, mechanism.level, epsilon)
    if isinstance(mechanism, Rotated):
        return Rotated(against_clip(mechanism.inner))
    if isinstance(mechanism, Subset):
        free = against_clip(mechanism.inner)
        assert isinstance(free, CPA)
        return Subset(free, mechanism.report)
    if not isinstance(mechanism, CPA) or mechanism.clip is None:
        return mechanism
    more: dict[str, Any] = {
        name: getattr(mechanism, name) for name in ("lattice", "rounding", "words", "preset")
    }
    dim, radius, counts = mechanism.dim, mechanism.radius, mechanism.counts
    epsilons = tuple(stage.response.epsilon for stage in mechanism.stages)
    if len(counts) == 1:
        return CPA(dim, epsilons[0], radius, points=counts[0], **more)
    return NestedCPA(dim, epsilons, radius, stages=counts, **more)


@dataclass(frozen=True, eq=False)
class Pull:
    """What honest ballots decode to, points cutting updates off: mean, and spread along it."""

    mean: NDArray[np.float64]
    natural: float


def pull_of(mechanism: Mechanism, updates: Rows, round_key: RoundKey) -> Pull | None:
    """What the updates' ballots decode to; None where it is not known."""
    inner = bare(mechanism)
    if not isinstance(inner, CPA) or inner.block_size > 1:
        return None
    turn = Rotation(mechanism.dim, round_key.rotation) if is_rotated(mechanism) else None
    cut = clipped(updates, inner.clip)
    cut = np.clip(cut if turn is None else turn.forward(cut), -inner.radius, inner.radius)
    mean = cut.mean(axis=0, dtype=np.float64)
    natural = float((cut @ mean).std() / (float(np.linalg.norm(mean)) or 1.0))
    return Pull(mean if turn is None else turn.back(mean), natural)


def directed_bits(
    mechanism: Mechanism, ballots: Ballots, keys: UserKeys, target: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """Payloads in which every bit pulls towards `target`: bit = sign of word's pull · target."""
    inner = bare(mechanism)
    if isinstance(mechanism, NormVote):
        made = directed_bits(mechanism.inner, votes_off(mechanism, ballots), keys, target)
        return mechanism.joined(made, mechanism.parts(ballots.payload)[1] > 0)
    if isinstance(mechanism, Rotated):
        target = Rotation(mechanism.dim, keys.rotation).forward(target[None, :])[0]
    payload = np.zeros_like(ballots.payload)
    if not isinstance(inner, CPA | Subset):  # no words: the bit is the sign of the entry
        payload[:] = np.packbits(target > 0, bitorder="little")
        return payload
    cpa = inner.inner if isinstance(inner, Subset) else inner
    blocks = np.zeros((cpa.blocks, cpa.block_size))
    blocks.reshape(-1)[: cpa.dim] = target
    nothing = np.zeros_like(payload[:1])  # all bits down: the opposite of each word's pull
    for row, number in zip(payload, range(len(keys)), strict=True):
        key = keys[number : number + 1]
        counters = inner.empty_counters(False)
        inner.absorb(counters, nothing, key)
        row[:] = _wanted(inner, counters, blocks, key)
    return payload


def _wanted(
    inner: CPA | Subset, counters: Counters, blocks: NDArray[np.float64], key: UserKeys
) -> NDArray[np.uint8]:
    if isinstance(inner, Subset):
        places = inner.positions(key.keys[0])
        down = counters["sum"].T @ inner.inner.stages[0].points.basis
        return _packed((down[places] * blocks[places]).sum(axis=1) < 0)
    parts = []
    for stage in inner.stages:
        counter = counters[stage.name]
        if stage.keeps_votes(counter):
            shown = stage.points.coords[: counter.shape[0]]
            if stage.points.size > counter.shape[0]:
                shown = shown - stage.points.coords[-1]
            counter = shown.T @ counter
        parts.append(_packed(((counter.T @ stage.points.basis) * blocks).sum(axis=1) < 0))
    return np.concatenate(parts)


def _packed(bits: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.packbits(bits, bitorder="little")


def _adaptive(updates: Rows, mechanism: Mechanism, view: View, seed: int) -> Rows:
    """Against the honest pull m, and no further than the filter lets pass.

    In noises: along the way that the model has come, a score of `allowed` against it a round keeps
    the sum over rounds where noise trips no more of the coalition than is tolerated. Off the way
    it pushes by L against m: as far as leaves one hump, each of the coalition spread around L like
    honest users are, and as its score on the mean of all, (1-f) m + f a, stays within `allowed`.
    Of both together it does as much as leaves one hump in the sums over rounds.
    """
    inner = bare(mechanism)
    against = -view.mean / (float(np.linalg.norm(view.mean)) or 1.0)
    known = isinstance(inner, CPA | Subset) and view.users >= FEWEST_USERS
    if not known or view.pull is None:
        return _repeat(against * honest_norm(mechanism, view), updates)
    assert isinstance(inner, CPA | Subset)
    sigma, share = noise_size(inner), min(view.attackers / view.users, 0.49)
    honest = pull = view.pull.mean / sigma
    way = np.zeros_like(pull)
    if view.way is not None:
        way = view.way / float(np.linalg.norm(view.way))
        pull = pull - (pull @ way) * way
    back = -allowed_score(share, Rule().set_back(edge_of(inner))) * way
    length, natural = float(np.linalg.norm(pull)) or 1.0, view.pull.natural / sigma
    push = hidden_push(length, natural, share, view.users, inner.dim)
    attack = back - push / length * pull
    attack *= unseen_part(honest, attack, way, natural, view)
    rng = np.random.default_rng([seed, view.round, 0xADA])
    spread = natural * rng.normal(size=(len(updates), 1)) / length * pull
    return np.asarray((attack - spread) * sigma, dtype=np.float32)


def unseen_part(
    honest: NDArray[np.float64], attack: NDArray[np.float64], way: NDArray[np.float64],
    natural: float, view: View,
) -> float:  # fmt: skip
    """How much of an attack leaves one hump in the sums on mean and way taken together."""
    share, memory = view.attackers / view.users, Rule().memory
    scale = math.sqrt((1 + memory) / (1 - memory) / 2)
    for part in np.linspace(1.0, 0.0, 9):
        apart, total = honest - part * attack, (1 - share) * honest + share * part * attack
        on_mean = apart @ total / math.sqrt(total @ total + honest.size / view.users)
        if one_hump(scale * (on_mean + apart @ way), scale * natural, share, view.users):
            return float(part)
    return 0.0


def allowed_score(share: float, tolerated: float = TOLERATED) -> float:
    """Score against the others a round, in noises, that the memory of rounds forgives.

    Of a share f a part tolerated / f may trip on noise: n^1/2 score >= -STEPS_BACK + its quantile.
    """
    memory = Rule().memory
    noise = NormalDist().inv_cdf(1 - min(tolerated / max(share, tolerated), 0.5))
    return (STEPS_BACK - noise) * math.sqrt((1 - memory) / (1 + memory))


def hidden_push(length: float, natural: float, share: float, users: int, dim: int) -> float:
    """The largest L that neither a valley nor the score on the mean of all tells, in noises."""
    tried = np.linspace(0.0, 10 * math.hypot(1, natural), 200)
    left = (1 - share) * length - share * tried
    scores = -tried * left / np.sqrt(left**2 + dim / users)
    unseen = (push for push in tried[scores >= -allowed_score(share)][::-1]
              if one_hump(length + push, natural, share, users))  # fmt: skip
    return float(next(unseen, 0.0))


def one_hump(apart: float, natural: float, share: float, users: int, trials: int = 5) -> bool:
    """Whether the filter sees one group where a share of the users stands that far from the rest.

    Both are spread by the natural spread and the noise; no trial may find a valley.
    """
    rule, everyone = Rule(), np.ones(users, dtype=np.bool_)
    moved = apart * (np.arange(users) < share * users)
    for trial in range(trials):
        noise = np.random.default_rng(trial).normal(size=users) * math.hypot(1, natural)
        least = int(rule.share * users)
        if valley(noise - moved, everyone, least, rule.hump_rate, np.inf) != NOWHERE:
            return False
    return True


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
