"""The denoised mean: its gain over Wiener decoding of one round, and its limits."""

import numpy as np
import pytest

from hushbit.lab.sim.metrics import MeanDenoiser, _bands, _combination, _cosines, shrinkage_factor
from wiener_decoding import wiener_decoded

IMAGE = (1, 12, 12)
SHAPES = [(6, 144), (6,)]


def snr_db(truth, estimate):
    return 10 * np.log10(np.mean(truth**2) / np.mean((truth - estimate) ** 2))


def smooth_rows(rng, rows):
    """Images of three low frequencies."""
    down, across = _cosines(12), _cosines(12)
    waves = np.zeros((rows, 12, 12))
    waves[:, :2, :2] = 3 * rng.normal(size=(rows, 2, 2))
    return (down.T @ waves @ across).reshape(rows, 144)


def test_cosines_are_orthonormal_and_bands_count_half_waves():
    waves = _cosines(28)
    np.testing.assert_allclose(waves @ waves.T, np.eye(28), atol=1e-12)
    # The k-th row changes its sign k times.
    assert [int((np.diff(np.sign(row)) != 0).sum()) for row in waves] == list(range(28))
    bands = _bands((2, 4, 4)).reshape(2, 4, 4)
    assert bands[0].tolist() == bands[1].tolist()
    assert bands[0, 0].tolist() == [0, 0, 1, 1]
    assert bands[0, 3].tolist() == [1, 1, 1, 2]


def test_without_noise_the_mean_is_returned():
    mean = np.arange(1.0, 871.0)
    assert np.array_equal(MeanDenoiser(SHAPES, IMAGE).denoise(mean, 0.0), mean)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_denoising_is_scale_invariant(scale):
    rng = np.random.default_rng(0)
    one, other = MeanDenoiser(SHAPES, IMAGE), MeanDenoiser(SHAPES, IMAGE)
    for _ in range(3):
        mean = rng.normal(size=870)
        np.testing.assert_allclose(
            other.denoise(scale * mean, 0.5 * scale**2),
            scale * one.denoise(mean, 0.5),
            rtol=1e-6,
            atol=1e-9 * scale,
        )


def rounds_of(rng, rows_of, rounds, noise):
    """Rounds of a model with two tensors: the true mean and its noisy estimate."""
    for _ in range(rounds):
        truth = np.concatenate([rows_of().ravel(), rng.normal(size=6)])
        yield truth, truth + np.sqrt(noise) * rng.normal(size=truth.size)


def test_smooth_layers_gain_over_wiener_decoding_in_the_first_round():
    rng, gains = np.random.default_rng(1), []
    for _ in range(20):
        truth, seen = next(rounds_of(rng, lambda: smooth_rows(rng, 6), 1, 1.0))
        gains.append(
            snr_db(truth, MeanDenoiser(SHAPES, IMAGE).denoise(seen, 1.0))
            - snr_db(truth, wiener_decoded(seen, 1.0, SHAPES))
        )
    assert np.mean(gains) > 4.0
    assert min(gains) > 0.5


def test_rounds_that_share_directions_gain_over_time():
    """Rows mix the same three patterns with new weights in each round."""
    rng, noise = np.random.default_rng(2), 1.0
    patterns = rng.normal(size=(3, 144))
    denoiser = MeanDenoiser(SHAPES)
    over_time = []
    for truth, seen in rounds_of(rng, lambda: rng.normal(size=(6, 3)) @ patterns / 2, 12, noise):
        alone = snr_db(truth, wiener_decoded(seen, noise, SHAPES))
        over_time.append(snr_db(truth, denoiser.denoise(seen, noise)) - alone)
    assert abs(over_time[0]) < 0.7
    assert np.mean(over_time[-3:]) > 3.0


@pytest.mark.parametrize("strength", [0.3, 1.0, 3.0])
def test_layers_that_are_not_smooth_lose_little(strength):
    """An image layer whose signal is white loses less than 0.35 dB by the cosine transform."""
    rng, lost = np.random.default_rng(3), []
    for _ in range(20):
        rows = strength * rng.normal(size=(6, 2)) @ rng.normal(size=(2, 144))
        truth, seen = next(rounds_of(rng, lambda rows=rows: rows, 1, 1.0))
        plain = MeanDenoiser(SHAPES).denoise(seen, 1.0)
        lost.append(
            snr_db(truth, plain) - snr_db(truth, MeanDenoiser(SHAPES, IMAGE).denoise(seen, 1.0))
        )
    assert np.mean(lost) < 0.35


@pytest.mark.parametrize(("outputs", "inputs"), [(3, 40), (40, 3), (8, 80), (8, 79)])
def test_both_sides_of_the_matrix_give_the_same_mixture(outputs, inputs):
    """The eigenvectors of B B^T and of B^T B give the same filter."""
    rng = np.random.default_rng(7)
    columns = rng.normal(size=(10 * outputs, inputs)) + 3 * rng.normal(size=inputs)
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    kept = shrinkage_factor(values, columns.shape, 1.0)
    wanted = ((left * kept) @ left.T)[-outputs:]
    found = _combination(columns, np.ones(inputs), slice(9 * outputs, None))
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_noise_without_signal_is_removed():
    rng, denoiser = np.random.default_rng(4), MeanDenoiser(SHAPES, IMAGE)
    left = [np.mean(denoiser.denoise(rng.normal(size=870), 1.0) ** 2) for _ in range(12)]
    assert max(left) < 0.05


def test_tensors_are_denoised_separately():
    rng = np.random.default_rng(5)
    seen, other = rng.normal(size=870), rng.normal(size=870)
    other[864:] = seen[864:]
    one, two = (MeanDenoiser(SHAPES, IMAGE).denoise(x, 0.1) for x in (seen, other))
    assert np.array_equal(one[864:], two[864:])


@pytest.mark.parametrize("scale", [1.0, 1e200])
def test_noise_below_rounding_returns_a_copy_of_the_mean(scale):
    mean = scale * np.arange(1.0, 871.0)
    denoised = MeanDenoiser(SHAPES, IMAGE).denoise(mean, 1e-300)
    assert np.array_equal(denoised, mean)
    assert denoised is not mean
