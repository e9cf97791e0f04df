"""Attacks on ballots: constant bits, random flips, and ballots that colluding users craft.

The two attacks of the paper ignore the word, so their mean is zero and they only remove signal. On
mechanisms whose payload is made of votes they replace the bits; on others they replace the update
before it is encoded. Colluding users encode a crafted update without the l2 clip, or choose every
bit.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import Floats, Ints
from hushbit.kernels import Flags
from hushbit.lab.attacks import CRAFTED
from hushbit.lab.attacks.updates import craft_updates
from hushbit.lab.attacks.view import AttackerView, Rows
from hushbit.lab.sim.settings import Settings
from hushbit.mechanism import Mechanism
from hushbit.wire.ballot import Ballots
from hushbit.wire.coins import SimulationCoins
from hushbit.wire.keys import RoundKey
from hushbit.wrappers import NormVoteVotes

Payload = NDArray[np.uint8]


def choose_attackers(users: int, share: float, seed: int) -> Flags:
    """Which users attack: exactly the given share, rounded, drawn without replacement."""
    marked = np.zeros(users, dtype=np.bool_)
    rng = np.random.default_rng([seed, 0xA77AC])
    marked[rng.permutation(users)[: round(share * users)]] = True
    return marked


def random_payload(seed: int, round_number: int, users: Ints, count: int) -> Payload:
    """Random bytes (users, count) that depend on seed, round and user alone."""
    drawn = np.empty((len(users), count), dtype=np.uint8)
    for row, user in zip(drawn, users, strict=True):
        rng = np.random.default_rng([seed, round_number, int(user), 0xF11])
        row[:] = rng.integers(0, 256, count, dtype=np.uint8)
    return drawn


def attack_updates(attack: str, updates: Rows, noise: Payload) -> Rows:
    """The updates that attackers encode if ballots are not votes.

    ones: every entry is the largest absolute entry. flip: random signs, eight per byte of noise.
    """
    if attack == "ones":
        size = np.abs(updates).max(axis=1, keepdims=True)
        return np.broadcast_to(size, updates.shape).astype(np.float32)
    flips = np.unpackbits(noise, axis=1, count=updates.shape[1]).astype(np.bool_)
    return np.where(flips, -updates, updates)


def attack_bits(attack: str, payload: Payload, noise: Payload, mask: Payload) -> Payload:
    """All ones, or every bit times a random sign; bits outside the mask do not change."""
    if attack == "ones":
        return np.broadcast_to(mask, payload.shape).copy()
    return payload ^ (noise & mask)


def attack_ballots(
    mechanism: Mechanism, ballots: Ballots, attack: str, attackers: Flags, seed: int
) -> Ballots:
    """The ballots with the bits of attackers replaced by ones or random flips."""
    if mechanism.votes is None or not attackers.any():
        return ballots
    users = ballots.users[attackers].astype(np.int64)
    noise = random_payload(seed, ballots.round, users, ballots.payload.shape[1])
    bits = attack_bits(attack, ballots.payload[attackers], noise, mechanism.votes.mask())
    return _with_payload(ballots, attackers, bits)


def forge_norm_votes(
    mechanism: Mechanism, ballots: Ballots, attack: str, attackers: NDArray[np.bool_]
) -> Ballots:
    """The ballots in which attackers answer that their norm is above the level, or below it."""
    votes = mechanism.votes
    if not isinstance(votes, NormVoteVotes):
        return ballots
    vote = votes.wrapper
    answers = np.full((int(attackers.sum()), vote.answers), attack == "norm-low")
    inner, _ = vote.split_payload(ballots.payload[attackers])
    return _with_payload(ballots, attackers, vote.append_answers(inner, answers))


def craft_ballots(
    settings: Settings,
    mechanism: Mechanism,
    ballots: Ballots,
    updates: Rows,
    attackers: Flags,
    round_key: RoundKey,
    drift_direction: Floats | None = None,
) -> Ballots:
    """The ballots with those of colluding users replaced by crafted ones."""
    if settings.attack not in CRAFTED or not attackers.any() or attackers.all():
        return ballots
    honest, votes, adaptive = updates[~attackers], mechanism.votes, settings.attack == "adaptive"
    reads_ballots = settings.attack in ("adaptive", "cancel")
    view = AttackerView(
        honest.mean(axis=0, dtype=np.float64),
        update_spread(honest, settings, mechanism),
        len(updates),
        int(attackers.sum()),
        votes.expected_mean(honest, round_key) if votes is not None and reads_ballots else None,
        drift_direction,
        round_key.round,
    )
    crafted = craft_updates(settings.attack, updates[attackers], view, mechanism, settings.seed)
    keys = round_key.users(ballots.users[attackers])
    encoder = mechanism if adaptive else mechanism.with_clip(None)
    sent = encoder.encode_many(crafted, keys, SimulationCoins(settings.seed))
    payload = sent.payload
    if settings.attack == "directed" and votes is not None:
        payload = votes.payload_towards(-view.mean, sent, keys)
    return _with_payload(ballots, attackers, payload)


def _with_payload(ballots: Ballots, users: Flags, payload: Payload) -> Ballots:
    """The ballots with the payload of some users replaced."""
    replaced = ballots.payload.copy()
    replaced[users] = payload
    return dataclasses.replace(ballots, payload=replaced)


def update_spread(honest: Rows, settings: Settings, mechanism: Mechanism) -> Floats:
    """Standard deviation of each entry over honest users; zeros for attacks that do not use it.

    It is slow to compute.
    """
    if settings.attack == "little" or mechanism.clip is None:
        return np.asarray(honest.std(axis=0, dtype=np.float64))
    return np.zeros(honest.shape[1])
