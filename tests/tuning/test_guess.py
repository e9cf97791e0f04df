"""The best guess of a mean: what it is worth where the truth is known, and what it never costs."""

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.tuning.guess import BestGuess, _bands, _cosines, _mixing
from hushbit.tuning.wiener import kept_share, shrunken

IMAGE = (1, 12, 12)
SHAPES = [(6, 144), (6,)]


def decibel(truth, guess):
    return 10 * np.log10(np.mean(truth**2) / np.mean((truth - guess) ** 2))


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


def test_without_noise_nothing_changes():
    mean = np.arange(1.0, 871.0)
    assert np.array_equal(BestGuess(SHAPES, IMAGE).guess(mean, 0.0), mean)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_units_do_not_matter(scale):
    rng = np.random.default_rng(0)
    one, other = BestGuess(SHAPES, IMAGE), BestGuess(SHAPES, IMAGE)
    for _ in range(3):
        mean = rng.normal(size=870)
        np.testing.assert_allclose(
            other.guess(scale * mean, 0.5 * scale**2), scale * one.guess(mean, 0.5), rtol=1e-6,
            atol=1e-9 * scale,
        )  # fmt: skip


def rounds_of(rng, rows_of, rounds, noise):
    """Rounds of a two-tensor model: truth and what a server sees."""
    for _ in range(rounds):
        truth = np.concatenate([rows_of().ravel(), rng.normal(size=6)])
        yield truth, truth + np.sqrt(noise) * rng.normal(size=truth.size)


def test_smooth_layers_gain_in_the_first_round():
    rng, gains = np.random.default_rng(1), []
    for _ in range(20):
        truth, seen = next(rounds_of(rng, lambda: smooth_rows(rng, 6), 1, 1.0))
        gains.append(
            decibel(truth, BestGuess(SHAPES, IMAGE).guess(seen, 1.0))
            - decibel(truth, shrunken(seen, 1.0, SHAPES))
        )
    assert np.mean(gains) > 4.0
    assert min(gains) > 0.5


def test_rounds_with_directions_in_common_gain_over_time():
    """Rows mix the same three patterns, new in each round: earlier rounds know the patterns."""
    rng, noise = np.random.default_rng(2), 1.0
    patterns = rng.normal(size=(3, 144))
    best = BestGuess(SHAPES)
    over_time = []
    for truth, seen in rounds_of(rng, lambda: rng.normal(size=(6, 3)) @ patterns / 2, 12, noise):
        alone = decibel(truth, shrunken(seen, noise, SHAPES))
        over_time.append(decibel(truth, best.guess(seen, noise)) - alone)
    assert abs(over_time[0]) < 0.7
    assert np.mean(over_time[-3:]) > 3.0


@pytest.mark.parametrize("strength", [0.3, 1.0, 3.0])
def test_layers_that_are_not_smooth_lose_nothing(strength):
    """An image layer whose signal is at all frequencies alike: within a third of a decibel."""
    rng, lost = np.random.default_rng(3), []
    for _ in range(20):
        rows = strength * rng.normal(size=(6, 2)) @ rng.normal(size=(2, 144))
        truth, seen = next(rounds_of(rng, lambda rows=rows: rows, 1, 1.0))
        plain = BestGuess(SHAPES).guess(seen, 1.0)
        lost.append(
            decibel(truth, plain) - decibel(truth, BestGuess(SHAPES, IMAGE).guess(seen, 1.0))
        )
    assert np.mean(lost) < 0.35


@pytest.mark.parametrize(("outputs", "inputs"), [(3, 40), (40, 3), (8, 80), (8, 79)])
def test_either_side_finds_the_same_mixtures(outputs, inputs):
    """The columns' side and the inputs' side of a matrix have the same singular values."""
    rng = np.random.default_rng(7)
    columns = rng.normal(size=(10 * outputs, inputs)) + 3 * rng.normal(size=inputs)
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    kept = kept_share(values, columns.shape, 1.0)
    wanted = ((left * kept) @ left.T)[-outputs:]
    found = _mixing(columns, np.ones(inputs), slice(9 * outputs, None))
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_noise_alone_becomes_almost_nothing():
    rng, best = np.random.default_rng(4), BestGuess(SHAPES, IMAGE)
    left = [np.mean(best.guess(rng.normal(size=870), 1.0) ** 2) for _ in range(12)]
    assert max(left) < 0.05


def test_tensors_do_not_touch_each_other():
    rng = np.random.default_rng(5)
    seen, other = rng.normal(size=870), rng.normal(size=870)
    other[864:] = seen[864:]
    one, two = (BestGuess(SHAPES, IMAGE).guess(x, 0.1) for x in (seen, other))
    assert np.array_equal(one[864:], two[864:])


@pytest.mark.parametrize(("mean", "noise"), [
    (np.ones(870), -1.0), (np.ones(870), np.nan), (np.ones(869), 0.1), (np.ones((2, 435)), 0.1),
    (np.ones(870), "0.1"), (np.full(870, np.nan), 1.0), (np.r_[np.ones(869), np.inf], 1.0),
    (None, 1.0), (np.ones(870, dtype=int), 1.0),
])  # fmt: skip
def test_bad_values_are_refused_and_leave_no_trace(mean, noise):
    best, fresh = BestGuess(SHAPES, IMAGE), BestGuess(SHAPES, IMAGE)
    with pytest.raises(InvalidInput):
        best.guess(mean, noise)
    seen = np.random.default_rng(6).normal(size=870)
    assert np.array_equal(best.guess(seen, 0.1), fresh.guess(seen, 0.1))


@pytest.mark.parametrize(("shapes", "image"), [
    ([], None), ([(0, 3)], None), ([(2, -3)], None), ([(2, 4)], (2, 2)), ([(2, 2.5)], None),
])  # fmt: skip
def test_senseless_models_are_refused(shapes, image):
    with pytest.raises(InvalidInput):
        BestGuess(shapes, image)


@pytest.mark.parametrize("scale", [1.0, 1e200])
def test_noise_below_rounding_leaves_a_copy_of_the_mean(scale):
    mean = scale * np.arange(1.0, 871.0)
    guess = BestGuess(SHAPES, IMAGE).guess(mean, 1e-300)
    assert np.array_equal(guess, mean)
    assert guess is not mean
