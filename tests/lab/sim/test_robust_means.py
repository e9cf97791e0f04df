"""Robust means: exact on small rows, and robust where the mean is not."""

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.sim.robust_means import ROBUST_MEANS, robust_mean

ROWS = np.array([[1.0, 2.0], [2.0, 3.0], [3.0, 1.0], [100.0, -100.0]])


def test_robust_means_of_four_rows():
    assert robust_mean("median", ROWS, 1).tolist() == [2.5, 1.5]
    assert robust_mean("trimmed-mean", ROWS, 1).tolist() == [2.5, 1.5]
    assert robust_mean("multi-krum", ROWS, 1).tolist() == [2.0, 2.0]


def total_distance(rows, point):
    return float(np.linalg.norm(rows - point, axis=1).sum())


@pytest.mark.parametrize("users", [5, 12])
def test_the_geometric_median_of_numbers_is_their_median(users):
    rows = np.random.default_rng(users).normal(size=(users, 1))
    found = robust_mean("geometric-median", rows, 0)
    best = total_distance(rows, np.median(rows, axis=0))
    assert total_distance(rows, found) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_geometric_median_of_the_plane_is_the_best_of_a_grid(seed):
    rows = np.random.default_rng(seed).normal(size=(7, 2)) * [1, 5]
    best, width = rows.mean(axis=0), 20.0
    for _ in range(12):  # each grid is four times as fine as the one before
        axis = np.linspace(-width, width, 41)
        grid = best + np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        sums = np.linalg.norm(grid[:, None] - rows, axis=2).sum(axis=1)
        best, width = grid[np.argmin(sums)], width / 4
    found = robust_mean("geometric-median", rows, 0)
    assert total_distance(rows, found) <= total_distance(rows, best) * (1 + 1e-5)
    assert np.abs(found - best).max() < 1e-3


def test_the_geometric_median_can_be_an_update_where_it_begins():
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 3.0], [0.0, -3.0]])
    assert np.abs(robust_mean("geometric-median", rows, 0)).max() < 1e-6
    assert robust_mean("geometric-median", np.ones((3, 2)), 0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ROBUST_MEANS)
def test_a_fifth_of_distant_attackers_shift_it_little(name):
    rng = np.random.default_rng(0)
    honest = rng.normal(1.0, 0.1, (40, 30)).astype(np.float32)
    attackers = np.full((10, 30), -50.0, dtype=np.float32)
    found = robust_mean(name, np.concatenate([attackers, honest]), 10)
    assert np.abs(found - 1.0).max() < 0.3


@pytest.mark.parametrize("name", ROBUST_MEANS)
def test_one_user_is_enough_and_order_does_not_matter(name):
    assert robust_mean(name, ROWS[:1], 0).tolist() == [1.0, 2.0]
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(11, 5))
    found = robust_mean(name, rows, 2)
    for _ in range(5):
        assert np.allclose(robust_mean(name, rng.permutation(rows), 2), found, atol=1e-5)


def test_all_users_cannot_be_attackers():
    for attackers in (-1, 4, True):
        with pytest.raises(InvalidInput):
            robust_mean("multi-krum", ROWS, attackers)
