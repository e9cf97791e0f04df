"""Ballots in which every vote moves the estimate along a target, and their mean."""

import dataclasses

import numpy as np

from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey

KEY = RoundKey(b"a" * 32, 1)
DIM, USERS = 300, 50
RNG = np.random.default_rng(0)
MEAN = RNG.normal(0, 0.004, DIM)
UPDATES = (MEAN + RNG.normal(0, 0.01, (USERS, DIM))).astype(np.float32)


def directed_ballots(mechanism, target, users=USERS):
    """Ballots of attackers who choose every vote."""
    keys = KEY.users(np.arange(users))
    ballots = mechanism.encode_many(np.zeros((users, mechanism.dim)), keys, SeededCoins(0))
    payload = mechanism.votes.payload_towards(target, ballots, keys)
    return dataclasses.replace(ballots, payload=payload)


def mean_of(mechanism, ballots):
    """The mean that ballots decode to."""
    tally = mechanism.tally(KEY, histogram=False)
    tally.add_many(ballots)
    return mechanism.estimate(tally).mean
