"""The two attacks of the paper: constant ones and random flips.

Both ignore the word, so their mean is zero: they only take signal away. On mechanisms whose
ballots are packed bits they replace the bits; on others, the update before it is encoded.
"""

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.baselines import MVU, SignRR
from hushbit.cpa import CPA
from hushbit.mechanism import Mechanism
from hushbit.rotation import Rotated
from hushbit.subset import Subset
from hushbit.tuning.norm_vote import NormVote


def choose_attackers(users: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Which users attack: exactly the given share, rounded, drawn without replacement."""
    marked = np.zeros(users, dtype=np.bool_)
    rng = np.random.default_rng([seed, 0xA77AC])
    marked[rng.permutation(users)[: round(share * users)]] = True
    return marked


def random_bytes(
    seed: int, round_number: int, users: NDArray[np.int64], count: int
) -> NDArray[np.uint8]:
    """Random bytes (users, count) that depend on seed, round and user alone."""
    drawn = np.empty((len(users), count), dtype=np.uint8)
    for row, user in zip(drawn, users, strict=True):
        rng = np.random.default_rng([seed, round_number, int(user), 0xF11])
        row[:] = rng.integers(0, 256, count, dtype=np.uint8)
    return drawn


def attack_updates(
    attack: str, updates: NDArray[np.float32], noise: NDArray[np.uint8]
) -> NDArray[np.float32]:
    """What attackers feed to an encoder that sends more than bits; eight signs a noise byte."""
    if attack == "ones":
        size = np.abs(updates).max(axis=1, keepdims=True)
        return np.broadcast_to(size, updates.shape).astype(np.float32)
    flips = np.unpackbits(noise, axis=1, count=updates.shape[1]).astype(np.bool_)
    return np.where(flips, -updates, updates)


def attack_bits(
    attack: str, payload: NDArray[np.uint8], noise: NDArray[np.uint8], valid: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """All ones, or every bit times a random sign; padding stays zero."""
    if attack == "ones":
        return np.broadcast_to(valid, payload.shape).copy()
    return payload ^ (noise & valid)


def bit_mask(mechanism: Mechanism) -> NDArray[np.uint8] | None:
    """Which bits of a payload are votes; None for mechanisms that send more than bits."""
    if isinstance(mechanism, NormVote):
        inner_mask = bit_mask(mechanism.inner)
        byte, bit = divmod(mechanism.inner.payload_bits, 8)
        if inner_mask is None:
            return None
        mask = np.zeros((mechanism.payload_bits + 7) // 8, dtype=np.uint8)
        mask[: inner_mask.size] = inner_mask
        mask[byte] |= 1 << bit
        return mask
    inner = mechanism.inner if isinstance(mechanism, Rotated) else mechanism
    if isinstance(inner, Subset):
        votes, stages = inner.report, 1
    elif isinstance(inner, CPA):
        votes, stages = inner.blocks, len(inner.stages)
    elif isinstance(inner, SignRR) or (isinstance(inner, MVU) and inner.bits == 1):
        votes, stages = inner.dim, 1
    else:
        return None
    ones = np.packbits(np.ones(votes, dtype=np.uint8), bitorder="little")
    return np.tile(ones, stages)


def cast_attacked(
    mechanism: Mechanism, ballots: Ballots, attack: str, attackers: NDArray[np.bool_], seed: int
) -> Ballots:
    """The ballots with those of attackers replaced."""
    mask = bit_mask(mechanism)
    if mask is None or not attackers.any():
        return ballots
    payload = ballots.payload.copy()
    users = ballots.users[attackers].astype(np.int64)
    noise = random_bytes(seed, ballots.round, users, payload.shape[1])
    payload[attackers] = attack_bits(attack, payload[attackers], noise, mask)
    return Ballots(
        ballots.fingerprint, ballots.round, ballots.bits, ballots.users, payload,
        ballots.overloaded,
    )  # fmt: skip
