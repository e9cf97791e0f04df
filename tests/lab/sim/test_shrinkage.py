"""Wiener decoding of one round has the least square error where that is known."""

import numpy as np
import pytest

from wiener_decoding import shrunk_matrix, wiener_decoded


def test_without_noise_the_mean_is_returned():
    mean = np.arange(1.0, 12.0)
    assert np.array_equal(wiener_decoded(mean, 0.0, [(2, 4), (3,)]), mean)


def test_a_vector_is_scaled_by_signal_over_power():
    """A scan of factors confirms that 1 - noise / power has the least square error."""
    rng = np.random.default_rng(0)
    signal, noise = rng.normal(size=20_000), 0.7
    seen = signal + np.sqrt(noise) * rng.normal(size=signal.size)
    factor = (wiener_decoded(seen, noise, [(20_000,)]) / seen)[0]
    scan = np.linspace(0, 1, 201)
    errors = [np.mean((f * seen - signal) ** 2) for f in scan]
    assert abs(factor - scan[int(np.argmin(errors))]) < 0.02
    assert factor == pytest.approx(1 - noise / np.mean(seen**2))


@pytest.mark.parametrize("shape", [(10, 784), (784, 10), (40, 40)])
def test_noise_without_signal_is_removed(shape):
    noise = 0.3 * np.random.default_rng(1).normal(size=shape)
    assert np.mean(shrunk_matrix(noise, 0.09) ** 2) < 0.02 * 0.09


@pytest.mark.parametrize("strength", [2.0, 4.0, 8.0])
def test_a_low_rank_matrix_is_shrunk_by_the_best_factor(strength):
    """No other factor of the leading component has a smaller error, up to 3 %."""
    rng, (rows, columns), noise = np.random.default_rng(2), (30, 900), 0.25
    left, right = rng.normal(size=rows), rng.normal(size=columns)
    unit = np.outer(left / np.linalg.norm(left), right / np.linalg.norm(right))
    signal = strength * np.sqrt(columns * noise) * unit
    seen = signal + np.sqrt(noise) * rng.normal(size=(rows, columns))
    error = np.sum((shrunk_matrix(seen, noise) - signal) ** 2)
    u, values, v = np.linalg.svd(seen, full_matrices=False)
    component = np.outer(u[:, 0], v[0])
    least = min(
        np.sum((size * component - signal) ** 2) for size in np.linspace(0, 1.2 * values[0], 400)
    )
    assert error <= 1.03 * least
    assert error < 0.2 * noise * rows * columns


def test_tensors_are_shrunk_separately():
    rng = np.random.default_rng(3)
    mean = np.concatenate([rng.normal(size=200) * 0.1, 10 + rng.normal(size=5) * 0.1])
    out = wiener_decoded(mean, 0.01, [(2, 10, 10), (5,)])
    assert np.abs(out[:200]).max() < 0.1
    np.testing.assert_allclose(out[200:], mean[200:], rtol=1e-3)
