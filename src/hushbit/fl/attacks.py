"""The two attacks of the paper: constant ones and random flips.

Both ignore the word, so their mean is zero: they only take signal away. On mechanisms whose
ballots are packed bits they replace the bits; on others, the update before it is encoded.
"""

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.mechanism import Mechanism


def choose_attackers(users: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Which users attack: exactly the given share, rounded, drawn without replacement."""
    marked = np.zeros(users, dtype=np.bool_)
    rng = np.random.default_rng([seed, 0xA77AC])
    marked[rng.permutation(users)[: round(share * users)]] = True
    return marked


def attack_updates(
    attack: str, updates: NDArray[np.float32], rng: np.random.Generator
) -> NDArray[np.float32]:
    """What attackers feed to an encoder that sends more than bits."""
    if attack == "ones":
        size = np.abs(updates).max(axis=1, keepdims=True)
        return np.broadcast_to(size, updates.shape).astype(np.float32)
    signs = rng.integers(0, 2, updates.shape, dtype=np.int8) * 2 - 1
    return np.asarray(updates * signs, dtype=np.float32)


def attack_bits(attack: str, payload: NDArray[np.uint8], rng: np.random.Generator,
                valid: NDArray[np.uint8]) -> NDArray[np.uint8]:  # fmt: skip
    """All ones, or every bit times a random sign; padding stays zero."""
    if attack == "ones":
        return np.broadcast_to(valid, payload.shape).copy()
    return payload ^ (rng.integers(0, 256, payload.shape, dtype=np.uint8) & valid)


def bit_mask(mechanism: Mechanism) -> NDArray[np.uint8] | None:
    """Which bits of a payload are votes; None for mechanisms that send more than bits."""
    inner = mechanism
    while hasattr(inner, "inner") and not hasattr(inner, "report"):
        inner = inner.inner
    blocks = getattr(inner, "report", getattr(inner, "blocks", None))
    if blocks is None and inner.payload_bits == inner.dim:
        blocks = inner.dim
    if blocks is None:
        return None
    stages = len(getattr(inner, "stages", (0,)))
    ones = np.packbits(np.ones(blocks, dtype=np.uint8), bitorder="little")
    return np.tile(ones, stages)


def cast_attacked(
    mechanism: Mechanism, ballots: Ballots, attack: str, attackers: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Ballots:  # fmt: skip
    """The ballots with those of attackers replaced."""
    mask = bit_mask(mechanism)
    if mask is None or not attackers.any():
        return ballots
    payload = ballots.payload.copy()
    payload[attackers] = attack_bits(attack, payload[attackers], rng, mask)
    return Ballots(
        ballots.fingerprint, ballots.round, ballots.bits, ballots.users, payload,
        ballots.overloaded,
    )  # fmt: skip
