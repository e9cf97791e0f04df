"""The hexagonal kernels against brute force and the core's lattice."""

import math

import numpy as np
import pytest

from hushbit.baselines.hexagonal import (
    add_hex_dither,
    codebook,
    lookup_table,
    nearest_hex,
    nearest_of,
)
from hushbit.kernels.chacha import keystream
from hushbit.lattice import lattice

BASIS = np.array([[1.0, 0.0], [0.5, math.sqrt(0.75)]])


def test_nearest_point_against_its_neighbours():
    rng = np.random.default_rng(0)
    around = np.array([(i, j) for i in range(-2, 3) for j in range(-2, 3)])
    for place in rng.uniform(-5, 5, (2000, 2)):
        found = np.array(nearest_hex(*place))
        gaps = np.linalg.norm(place - (found + around) @ BASIS, axis=1)
        assert np.linalg.norm(place - found @ BASIS) <= gaps.min() + 1e-12
        assert np.array_equal(found, lattice("A2").nearest(place))


def test_codebook_holds_the_points_of_least_norm():
    for levels in (2, 7, 13, 16, 37, 400):
        points = codebook(levels)
        norms = np.linalg.norm(points @ BASIS, axis=1)
        assert len(np.unique(points, axis=0)) == levels
        assert (np.diff(norms) > -1e-9).all()
        assert points[0].tolist() == [0, 0]
        wider = codebook(4 * levels)
        assert np.array_equal(wider[:levels], points)
        table, reach = lookup_table(points), np.abs(points).max()
        for number, (i, j) in enumerate(points):
            assert table[i + reach, j + reach] == number
        assert (table >= 0).sum() == levels
    assert np.linalg.norm(codebook(7) @ BASIS, axis=1).max() == pytest.approx(1)


def test_overload_goes_to_the_nearest_point():
    points = codebook(16)
    for place in np.random.default_rng(1).uniform(-20, 20, (200, 2)):
        gaps = np.linalg.norm(points @ BASIS - place, axis=1)
        assert gaps[nearest_of(points, *place)] == pytest.approx(gaps.min())


def test_dither_fills_the_voronoi_cell():
    size, key = 200_000, np.arange(8, dtype=np.uint32)[None]
    sums = np.zeros((2, size), dtype=np.int64)
    tiles = -(-size // 1024)
    add_hex_dither(key, 7, 1024, 0, tiles, sums)
    places = (sums.T * 2.0**-32) @ BASIS
    # Second moment 2 · 0.0801875 · V with V = sqrt(3)/2.
    wanted = 2 * 0.0801875 * math.sqrt(0.75)
    assert (places**2).sum(axis=1).mean() == pytest.approx(wanted, rel=0.01)
    assert np.abs(places.mean(axis=0)).max() < 5 * math.sqrt(wanted / 2 / size)
    for place, whole in zip(places[:300], sums.T[:300], strict=True):
        assert nearest_hex(*place) == (0, 0) or np.linalg.norm(place) > 0.4999
        assert np.linalg.norm(place) <= 3**-0.5 + 1e-9
        assert (whole % 2**32 < 2**32).all()
    words = np.empty(2 * size, dtype=np.uint32)
    keystream(key[0], 7, 0, 0, 0, words)
    assert np.array_equal(sums.T % 2**32, words.reshape(-1, 2))
