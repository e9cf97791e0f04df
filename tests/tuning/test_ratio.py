"""The predicted error, against integrals and against what mechanisms really do."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

import hushbit as hb
from hushbit.errors import InvalidInput
from hushbit.tuning.ratio import RATIOS, SIZE_SPREAD, best_ratio, predicted

NOISE = 1 / math.tanh(0.25) ** 2


def over_sizes(function):
    return integrate.quad(
        lambda z: function(2.0 ** (SIZE_SPREAD * z)) * stats.norm.pdf(z), -8, 8, limit=200
    )[0]


def kept(ratio, size):
    """E[x clip(x)] / E[x²] of a Gaussian of this size, by integration."""
    product = integrate.quad(
        lambda x: x * np.clip(x, -ratio, ratio) * stats.norm.pdf(x, scale=size),
        -12 * size, 12 * size, points=[-ratio, ratio], limit=200,
    )[0]  # fmt: skip
    return product / size**2


@pytest.mark.parametrize("ratio", [0.5, 1.2, 4.0])
def test_gain_and_error_are_the_integrals(ratio):
    found = predicted(ratio, 50, NOISE, 0.2)
    size = over_sizes(lambda t: t)
    gain = size / over_sizes(lambda t: t * kept(ratio, t))
    uneven = over_sizes(lambda t: t * (gain * kept(ratio, t) - 1) ** 2) / size
    assert found.gain == pytest.approx(gain, rel=1e-4)
    wanted = gain**2 * ratio**2 * NOISE / 50 + 0.2 * uneven
    assert found.error == pytest.approx(wanted, rel=1e-3)


def test_a_clip_of_the_norm_keeps_what_it_keeps():
    found = predicted(1.5, 50, NOISE, 0.2, clips="norm")
    gain = over_sizes(lambda t: t) / over_sizes(lambda t: t * min(1, 1.5 / t))
    assert found.gain == pytest.approx(gain, rel=5e-3)


def test_the_choice_is_the_least_and_grows_with_users():
    ratios = []
    for users in (10, 1000, 10**5, 10**7):
        choice = best_ratio(users, NOISE, 0.3)
        errors = [predicted(float(r), users, NOISE, 0.3).error for r in RATIOS]
        assert choice.error == min(errors)
        ratios.append(choice.ratio)
    assert ratios == sorted(ratios)
    assert ratios[0] == RATIOS[0]
    assert ratios[-1] > 2
    assert best_ratio(1000, NOISE, 0.0).ratio == RATIOS[0]


def test_noise_is_what_a_mechanism_has():
    """Equal users of Gaussian entries: the decoded mean's error is the predicted first term."""
    rng, users, dim, ratio = np.random.default_rng(1), 60, 4096, 0.8
    mechanism = hb.Rotated(hb.CPA(dim, 0.5, ratio))
    vectors = rng.normal(size=(users, dim))
    vectors *= np.sqrt(dim) / np.linalg.norm(vectors, axis=1, keepdims=True)
    key = hb.RoundKey(bytes(32), 0)
    tally = mechanism.tally(key)
    tally.add_many(mechanism.encode_many(vectors, key.users(np.arange(users)), hb.SeededCoins(1)))
    error = mechanism.estimate(tally).mean - vectors.mean(axis=0)
    wanted = ratio**2 * NOISE / users
    # Relative error of a variance from 4096 entries is 2.2 %; the clip's own part is below 3 %.
    assert np.mean(error**2) == pytest.approx(wanted, rel=0.12)


@pytest.mark.parametrize(
    "arguments",
    [(0.0, 10, 1.0, 0.1), (1.0, 0, 1.0, 0.1), (1.0, 10, 0.0, 0.1), (1.0, 10, 1.0, -0.1),
     (math.nan, 10, 1.0, 0.1), (1.0, 10, 1.0, math.nan), (1.0, 10, 1.0, 0.1, "weights")],
)  # fmt: skip
def test_nonsense_is_refused(arguments):
    with pytest.raises(InvalidInput):
        predicted(*arguments)
