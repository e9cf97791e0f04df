"""Estimate the mean of 1 000 users' private vectors from one bit per entry: no Flower, no torch."""

import secrets

import numpy as np

import hushbit as hb

USERS, DIM = 1000, 500
centre = np.linspace(-0.5, 0.5, DIM)
vectors = np.clip(np.random.default_rng(1).normal(centre, 0.2, (USERS, DIM)), -1, 1)

mechanism = hb.CPA(dim=DIM, epsilon_per_bit=2.0, radius=1.0)  # every entry lies in [-1, 1]
round_key = hb.RoundKey(secret=secrets.token_bytes(32), round=0)  # kept by the server

tally = mechanism.tally(round_key)
for user, vector in enumerate(vectors):
    ballot = mechanism.encode(vector, round_key.user(user))  # on the user's device
    tally.add(hb.Ballot.from_bytes(ballot.to_bytes()))  # at the server

estimate = mechanism.estimate(tally)
error = np.sqrt(np.mean((estimate.mean - vectors.mean(axis=0)) ** 2))
print(f"{estimate.count} users, {len(ballot.to_bytes())} bytes each (float32: {4 * DIM})")
print(f"rms of the true mean {np.sqrt(np.mean(vectors.mean(axis=0) ** 2)):.4f}")
print(f"rms error of the estimate {error:.4f}, predicted {np.sqrt(estimate.variance.mean()):.4f}")
print(mechanism.guarantee)
