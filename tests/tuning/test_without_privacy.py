"""Without privacy: rotated, dithered CPA of one bit against QUIC-FL on the same vectors."""

import math

import numpy as np
import pytest

import hushbit as hb
from hushbit.lab.estimators.compressors import QuicFl

DIM, USERS, SPREADS = 2048, 10, 1.5


def error(estimate, vectors):
    power = np.mean(np.sum(vectors**2, axis=1))
    return float(np.sum((estimate - vectors.mean(axis=0)) ** 2) / power)


def cpa_mean(vectors, number):
    rms = math.sqrt(np.mean(vectors**2))
    mechanism = hb.Rotated(hb.CPA(DIM, math.inf, SPREADS * rms, rounding="subtractive"))
    key = hb.RoundKey(bytes(32), number)
    tally = mechanism.tally(key, histogram=False)
    keys = key.users(np.arange(USERS))
    tally.add_many(mechanism.encode_many(vectors, keys, hb.SeededCoins(number)))
    return mechanism.estimate(tally).mean


@pytest.mark.parametrize("kind", ["gaussian", "log-normal", "sparse", "all the same"])
def test_one_bit_has_at_most_the_error_of_quic_fl(kind):
    """Ten users, mean over three draws of 2048 entries each: at most 1.1 times the error."""
    rng = np.random.default_rng(5)
    ours, theirs = [], []
    for number in range(3):
        vectors = rng.normal(size=(USERS, DIM))
        if kind == "log-normal":
            vectors = np.sign(vectors) * rng.lognormal(size=(USERS, DIM))
        elif kind == "sparse":
            vectors *= rng.random(size=(USERS, DIM)) < 0.02
        elif kind == "all the same":
            vectors = np.repeat(vectors[:1], USERS, axis=0)
        ours.append(error(cpa_mean(vectors, number), vectors))
        theirs.append(error(QuicFl(1).mean_estimate(vectors, rng).mean, vectors))
    assert np.mean(ours) <= 1.1 * np.mean(theirs)
