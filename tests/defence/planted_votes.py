"""Decoded ballots with known means, for tests of scores and of the defence."""

import math

import numpy as np

from hushbit.tally.decoded_ballots import PackedBallots


def packed(votes):
    """Packed ballots of rows of ±1."""
    payload = np.packbits(votes > 0, axis=1, bitorder="little")
    return PackedBallots.of_payload(payload, votes.shape[1], max_score=10.0)


def votes(means, seed=0):
    """±1 with the given means, each within [-1, 1]."""
    drawn = np.random.default_rng(seed).uniform(-1, 1, size=means.shape)
    return np.where(drawn < means, 1.0, -1.0)


def planted(users, dim, places, seed=0):
    """The means of users at `places` sigma along one direction, and the direction."""
    axis = np.random.default_rng(seed + 9).choice([-1.0, 1.0], dim) / math.sqrt(dim)
    return np.outer(np.broadcast_to(places, users), axis), axis
