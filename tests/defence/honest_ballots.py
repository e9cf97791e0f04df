"""Ballots of honest users of several kinds of data, and of attackers among them."""

import dataclasses
import math

import numpy as np

from hushbit.cpa import CPA
from hushbit.lab.attacks.updates import craft_updates
from hushbit.lab.attacks.view import AttackerView
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey

KEY = RoundKey(b"f" * 32, 2)
DIM, USERS, CLIP = 2000, 400, 1.0
MECHANISM = CPA(DIM, 0.5, 2 * CLIP / math.sqrt(DIM), clip=CLIP)


def honest_updates(kind, seed=0, users=USERS, dim=DIM):
    """Updates of norm 1: unstructured, all equal, of ten kinds, or with a common mean."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(users, dim))
    if kind == "equal":
        noise = np.broadcast_to(noise[0], noise.shape)
    if kind == "classes":
        noise = noise[rng.integers(0, 10, users)] + 0.3 * noise
    if kind == "common mean":
        noise = noise + 0.5 * rng.normal(size=dim)
    return (noise / np.linalg.norm(noise, axis=1, keepdims=True)).astype(np.float32)


def encode(mechanism, updates, attack=None, attackers=0.0, seed=1):
    count = round(attackers * len(updates))
    keys = KEY.users(np.arange(len(updates)))
    ballots = mechanism.encode_many(updates, keys, SeededCoins(seed))
    if not count:
        return ballots
    rest = updates[count:]
    view = AttackerView(
        rest.mean(axis=0, dtype=np.float64), rest.std(axis=0, dtype=np.float64), len(updates), count
    )
    crafted = craft_updates(attack, updates[:count], view, mechanism, 0)
    encoder = mechanism if attack == "adaptive" else mechanism.with_clip(None)
    sent = encoder.encode_many(crafted, keys[:count], SeededCoins(seed + 1))
    attack_payload = sent.payload
    if attack == "directed":
        attack_payload = mechanism.votes.payload_towards(-view.mean, sent, keys[:count])
    payload = ballots.payload.copy()
    payload[:count] = attack_payload
    return dataclasses.replace(ballots, payload=payload)
