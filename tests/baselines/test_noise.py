"""Grid noise: exact distribution and epsilon by enumeration, and samples of the kernel."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hushbit.baselines.laplace import GridNoise, add_grid_noise, lanes_below
from hushbit.errors import InvalidInput
from noise_law import law


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("sensitivity", [1, 2, 8, 13])
def test_epsilon_of_the_noise_by_enumeration(epsilon, sensitivity):
    noise = GridNoise(epsilon, sensitivity)
    most = Fraction(math.exp(epsilon)) * (1 + Fraction(1, 2**50))
    period = 1 << noise.digits  # beyond it the law repeats, scaled by a constant
    values = range(-2 * period - sensitivity, 2 * period + sensitivity + 1)
    chance = {value: law(noise, value) for value in values}
    worst = max(
        chance[value] / chance[value + step]
        for value in values
        for step in (*range(1, sensitivity + 1), -sensitivity)
        if value + step in chance
    )
    assert worst <= most
    assert math.log(worst) <= noise.realised_epsilon * (1 + 1e-12)
    assert noise.realised_epsilon <= epsilon
    assert math.log(worst) > 0.999 * epsilon - 2e-6 or noise.rate > 8  # close to epsilon


@given(st.floats(2e-4, 1000), st.integers(1, 2**13))
def test_rounded_thresholds_never_exceed_epsilon(epsilon, sensitivity):
    noise = GridNoise(epsilon, sensitivity)
    assert noise.realised_epsilon <= epsilon
    assert noise.realised_epsilon > epsilon * 0.999 or noise.rate > 8
    assert noise.thresholds.min() > 0


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_variance_formula_by_enumeration(epsilon):
    noise = GridNoise(epsilon, 8)
    total = sum(law(noise, v) for v in range(-800, 801))
    power = sum(v * v * law(noise, v) for v in range(-800, 801))
    assert float(total) == pytest.approx(1, abs=1e-9)
    assert float(power) == pytest.approx(noise.variance, rel=1e-6)


def test_noise_that_does_not_fit_32_bits_is_refused():
    for epsilon in (1e-5, 1001.0):
        with pytest.raises(InvalidInput):
            GridNoise(epsilon, 8192)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_coins_are_compared_as_integers(threshold, asked, seed):
    words = np.random.default_rng(seed).integers(0, 2**64, 64, dtype=np.uint64)
    place = np.array([3, 0])
    below = int(lanes_below(threshold, np.uint64(asked), words, place))
    for lane in range(64):
        coin = sum((int(words[3 + i]) >> lane & 1) << (31 - i) for i in range(32))
        assert (below >> lane & 1) == (coin < threshold and asked >> lane & 1)
    assert 3 <= place[0] <= 35


@pytest.mark.parametrize("epsilon", [0.5, 8.0, 40.0])
def test_the_kernel_samples_the_distribution(epsilon):
    """Chi-square over the middle values; a correct kernel fails for one seed in 10^4."""
    noise = GridNoise(epsilon, 16)
    out = np.empty(400_000, dtype=np.int64)
    coin = np.arange(8, dtype=np.uint32)
    assert add_grid_noise(np.zeros(out.size), 1.0, 16.0, noise.thresholds, coin, out) == 0
    reach = max(1, round(1.5 * math.sqrt(noise.variance)))
    middle = np.arange(-reach, reach + 1)
    expected = np.array([float(law(noise, int(v))) for v in middle] + [0.0]) * out.size
    seen = np.array([(out == v).sum() for v in middle] + [(np.abs(out) > reach).sum()])
    expected[-1] = out.size - expected.sum()
    assert stats.chisquare(seen, expected).pvalue > 1e-4


def test_rounding_to_the_grid_is_unbiased_and_clipped():
    out = np.empty(200_000, dtype=np.int64)
    coin = np.arange(8, dtype=np.uint32)
    none = GridNoise(math.inf, 8).thresholds
    assert add_grid_noise(np.full(out.size, 0.3), 10.0, 8.0, none, coin, out) == 0
    assert set(out) == {3}
    add_grid_noise(np.full(out.size, 0.325), 10.0, 8.0, none, coin, out)
    assert set(out) == {3, 4}
    assert out.mean() == pytest.approx(3.25, abs=5 * 0.433 / math.sqrt(out.size))
    assert add_grid_noise(np.full(out.size, -9.0), 10.0, 8.0, none, coin, out) == out.size
    assert set(out) == {-8}
