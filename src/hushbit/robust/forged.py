"""Ballots that an honest encoder would not make: without the l2 clip, or every bit chosen."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.cpa import CPA, NestedCPA
from hushbit.keys import UserKeys
from hushbit.mechanism import Mechanism
from hushbit.robust.layers import bare, votes_off
from hushbit.rotation import Rotated, Rotation
from hushbit.subset import Subset
from hushbit.tally import Counters
from hushbit.tuning.norm_vote import NormVote


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
