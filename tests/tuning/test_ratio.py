"""The predicted error, compared with integrals and with the error of a mechanism."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

import hushbit as hb
from hushbit.errors import InvalidInput
from hushbit.tuning.auto import RATIOS, SIZE_SPREAD, best_ratio, predict_error

NOISE = 1 / math.tanh(0.25) ** 2


def over_sizes(function):
    return integrate.quad(
        lambda z: function(2.0 ** (SIZE_SPREAD * z)) * stats.norm.pdf(z), -8, 8, limit=200
    )[0]


def kept(ratio, size):
    """E[x clip(x)] / E[x²] of a Gaussian of this size, by integration."""
    product = integrate.quad(
        lambda x: x * np.clip(x, -ratio, ratio) * stats.norm.pdf(x, scale=size),
        -12 * size,
        12 * size,
        points=[-ratio, ratio],
        limit=200,
    )[0]
    return product / size**2


@pytest.mark.parametrize("ratio", [0.5, 1.2, 4.0])
def test_gain_and_error_equal_the_integrals(ratio):
    found = predict_error(ratio, 50, NOISE, 0.2)
    size = over_sizes(lambda t: t)
    gain = size / over_sizes(lambda t: t * kept(ratio, t))
    size_bias = over_sizes(lambda t: t * (gain * kept(ratio, t) - 1) ** 2) / size
    assert found.gain == pytest.approx(gain, rel=1e-4)
    wanted = gain**2 * ratio**2 * NOISE / 50 + 0.2 * size_bias
    assert found.error == pytest.approx(wanted, rel=1e-3)


def test_the_gain_of_a_norm_clip_is_the_integral():
    found = predict_error(1.5, 50, NOISE, 0.2, clip_kind="norm")
    gain = over_sizes(lambda t: t) / over_sizes(lambda t: t * min(1, 1.5 / t))
    assert found.gain == pytest.approx(gain, rel=5e-3)


def test_best_ratio_minimizes_the_error_and_grows_with_users():
    ratios = []
    for users in (10, 1000, 10**5, 10**7):
        best = best_ratio(users, NOISE, 0.3)
        errors = [predict_error(float(r), users, NOISE, 0.3).error for r in RATIOS]
        assert best.error == min(errors)
        ratios.append(best.ratio)
    assert ratios == sorted(ratios)
    assert ratios[0] == RATIOS[0]
    assert ratios[-1] > 2
    assert best_ratio(1000, NOISE, 0.0).ratio == RATIOS[0]


def test_the_noise_of_a_mechanism_is_as_predicted():
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
    # Relative error of a variance from 4096 entries is 2.2 %; the clip adds less than 3 %.
    assert np.mean(error**2) == pytest.approx(wanted, rel=0.12)


@pytest.mark.parametrize(
    "arguments",
    [
        (0.0, 10, 1.0, 0.1),
        (1.0, 0, 1.0, 0.1),
        (1.0, 10, 0.0, 0.1),
        (1.0, 10, 1.0, -0.1),
        (math.nan, 10, 1.0, 0.1),
        (1.0, 10, 1.0, math.nan),
        (1.0, 10, 1.0, 0.1, "weights"),
    ],
)
def test_invalid_arguments_are_refused(arguments):
    with pytest.raises(InvalidInput):
        predict_error(*arguments)
