"""Nearest points equal brute force, constants equal quadrature, wrong input is refused."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbit.errors import InvalidInput
from hushbit.kernels.lattice import nearest_coordinates
from hushbit.lattice.lattice import Lattice, lattice

NAMES = ["Z", "A2", "D4", "E8"]
SKEWED = [[1.0, 0.3], [5.2, 1.9]]
LONG = [[1.0, 0.0, 0.0], [7.3, 1.1, 0.0], [-12.4, 3.7, 0.9]]


def matrices() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [np.array(SKEWED), np.array(LONG), *(rng.normal(size=(n, n)) for n in (1, 2, 3, 4))]


def distances(shape: Lattice, x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x - shape.nearest(x) @ shape.generator, axis=-1)


def brute_force_distances(generator: np.ndarray, x: np.ndarray, reach: int) -> np.ndarray:
    """Least distance over all integer points in a cube around the rounded coordinates.

    `reach` must be at least the covering radius times the longest row of the dual basis.
    """
    dim = len(generator)
    offsets = np.array(list(product(range(-reach, reach + 1), repeat=dim)))
    rounded = np.rint(x @ np.linalg.inv(generator))
    points = (rounded[:, None, :] + offsets[None]) @ generator
    return np.linalg.norm(x[:, None, :] - points, axis=2).min(axis=1)


def enough_reach(shape: Lattice) -> int:
    dual_rows = np.linalg.norm(np.linalg.inv(shape.generator), axis=0)
    return int(np.ceil(shape.covering_radius * dual_rows.max() + 0.5))


@pytest.mark.parametrize("name", ["Z", "A2", "D4"])
def test_named_nearest_is_the_brute_force_nearest(name: str) -> None:
    shape = lattice(name)
    x = np.random.default_rng(1).uniform(-3, 3, (60, shape.dim))
    expected = brute_force_distances(shape.generator, x, enough_reach(shape))
    assert np.allclose(distances(shape, x), expected, atol=1e-12)


def test_e8_nearest_beats_every_short_vector() -> None:
    # The Voronoi cell of E8 is cut out by its 240 + 2160 shortest vectors alone.
    shape = lattice("E8")
    short = shape.within(2.0001, np.zeros(8)) @ shape.generator
    assert len(short) == 1 + 240 + 2160
    x = np.random.default_rng(2).uniform(-3, 3, (300, 8))
    error = x - shape.nearest(x) @ shape.generator
    gaps = np.sum((error[:, None] - short[None]) ** 2, axis=2) - np.sum(error**2, axis=1)[:, None]
    assert gaps.min() >= -1e-12


@pytest.mark.parametrize("index", range(6))
def test_general_nearest_is_the_brute_force_nearest(index: int) -> None:
    shape = lattice(matrices()[index])
    assert shape.name == "matrix"
    reach = enough_reach(shape)
    rows = max(5, min(60, 2_000_000 // (2 * reach + 1) ** shape.dim))
    x = np.random.default_rng(index).uniform(-4, 4, (rows, shape.dim))
    assert np.allclose(
        distances(shape, x), brute_force_distances(shape.generator, x, reach), atol=1e-12
    )


def test_search_works_without_a_reduced_basis() -> None:
    """A basis so flat that the nearest point is many steps from the rounded coordinates."""
    upper = np.array([[1.0, 0.37], [0.0, 0.05]])
    targets = np.random.default_rng(8).uniform(-2, 2, (200, 2))
    found = np.zeros((200, 2), np.int64)
    nearest_coordinates(targets, upper, found)
    box = np.array(list(product(range(-40, 41), range(-70, 71)))) @ upper.T
    expected = np.linalg.norm(targets[:, None] - box[None], axis=2).min(axis=1)
    assert np.allclose(np.linalg.norm(targets - found @ upper.T, axis=1), expected, atol=1e-12)


@pytest.mark.parametrize("dim", [6, 8, 12])
def test_nearest_in_high_dimension_is_the_best_of_all_points_around(dim: int) -> None:
    rng = np.random.default_rng(dim)
    shape = lattice(rng.normal(size=(dim, dim)))
    x = rng.normal(size=(40, dim)) * 3
    for place, distance in zip(x, distances(shape, x), strict=True):
        around = shape.within(distance * (1 + 1e-9), -place) @ shape.generator
        assert np.linalg.norm(around - place, axis=1).min() == pytest.approx(distance, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_search_and_closed_form_agree(name: str) -> None:
    named = lattice(name).scaled(0.7)
    searched = lattice(named.generator)
    x = np.random.default_rng(3).normal(size=(300, named.dim)) * 2
    assert np.allclose(distances(named, x), distances(searched, x), atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.floats(-2, 2), min_size=3, max_size=3), min_size=3, max_size=3),
    st.lists(st.integers(-9, 9), min_size=3, max_size=3),
)
def test_a_lattice_point_is_its_own_nearest(rows: list[list[float]], z: list[int]) -> None:
    generator = np.array(rows) + 5 * np.eye(3)
    shape = lattice(generator)
    assert shape.nearest(np.array(z) @ generator).tolist() == z


@pytest.mark.parametrize("spec", [*NAMES, SKEWED, LONG])
def test_dither_lies_in_the_voronoi_cell(spec: object) -> None:
    shape = lattice(spec)
    uniform = np.random.default_rng(4).random((500, shape.dim))
    dither = shape.dither(uniform)
    assert (shape.nearest(dither) == 0).all()
    assert np.linalg.norm(dither, axis=1).max() <= shape.covering_radius
    moved = (uniform @ shape.generator - dither) @ np.linalg.inv(shape.generator)
    assert np.allclose(moved, np.rint(moved), atol=1e-9)


@pytest.mark.parametrize(
    ("name", "moment", "volume"),
    [
        ("Z", 1 / 12, 1.0),
        ("A2", 0.0801875, 3**0.5 / 2),
        ("D4", 0.0766032, 2.0),
        ("E8", 0.0716821, 1),
    ],
)
def test_second_moments_of_named_lattices(name: str, moment: float, volume: float) -> None:
    shape = lattice(name)
    assert shape.volume == pytest.approx(volume, rel=1e-12)
    printed = shape.dim * moment * volume ** (2 / shape.dim)
    assert shape.second_moment == pytest.approx(printed, rel=2e-6)
    quadrature = lattice(shape.generator).second_moment
    assert quadrature == pytest.approx(shape.second_moment, rel=1e-3)


def test_second_moment_of_a_rectangular_matrix_is_the_sum_of_its_sides() -> None:
    sides = np.diag([1.0, 2.0, 0.5])
    assert lattice(sides).second_moment == pytest.approx((1 + 4 + 0.25) / 12, rel=1e-3)


def test_error_of_the_dither_is_spherical_for_a2() -> None:
    """Covariance (D/2) I; 40 000 draws, 5 standard errors (chance of a false alarm < 1e-5)."""
    shape = lattice("A2")
    dither = shape.dither(np.random.default_rng(6).random((40_000, 2)))
    covariance = dither.T @ dither / len(dither)
    spread = 5 * shape.second_moment / np.sqrt(len(dither))
    assert np.abs(covariance - np.eye(2) * shape.second_moment / 2).max() < spread


@pytest.mark.parametrize(
    ("name", "hole"),
    [
        ("Z", [0.5]),
        ("A2", [0.5, 3**0.5 / 6]),
        ("D4", [1.0, 0, 0, 0]),
        ("D4", [0.5, 0.5, 0.5, 0.5]),
        ("E8", [1.0, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_covering_radius_is_reached_in_the_deep_holes(name: str, hole: list[float]) -> None:
    shape = lattice(name)
    assert distances(shape, np.array([hole]))[0] == pytest.approx(shape.covering_radius)
    assert lattice(shape.generator).covering_radius >= shape.covering_radius


def test_scaling() -> None:
    shape = lattice("D4").scaled(0.5)
    assert shape.volume == pytest.approx(2 / 16)
    assert shape.second_moment == pytest.approx(lattice("D4").second_moment / 4)
    assert shape.covering_radius == pytest.approx(0.5)
    x = np.random.default_rng(7).normal(size=(2, 5, 4))
    assert np.array_equal(shape.nearest(x), lattice("D4").nearest(2 * x))
    assert lattice(shape) is shape


def test_within_finds_every_point_of_a_shifted_ball() -> None:
    shape = lattice(SKEWED)
    shift = np.array([0.3, -0.2])
    found = shape.within(2.0, shift)
    box = np.array(list(product(range(-40, 41), repeat=2)))
    inside = box[np.linalg.norm(box @ shape.generator + shift, axis=1) <= 2.0]
    assert sorted(map(tuple, found)) == sorted(map(tuple, inside))


@pytest.mark.parametrize(
    "spec",
    [
        "E7",
        "",
        None,
        True,
        3.0,
        [[1.0, 2.0]],
        [[1.0, 2.0], [2.0, 4.0]],
        [[1.0, np.nan], [0.0, 1.0]],
        [[1.0, 0.0], [0.0, np.inf]],
        [["a", "b"], ["c", "d"]],
        [[1.0], [2.0, 3.0]],
        [],
        np.zeros((0, 0)),
        [[1.0, 0.0], [0.0, 1e-9]],
        np.eye(17),
        np.eye(2) * 1e200,
        [[True]],
    ],
)
def test_bad_generators_are_refused(spec: object) -> None:
    with pytest.raises(InvalidInput):
        lattice(spec)


@pytest.mark.parametrize("x", [[1.0], [[np.nan, 0]], "ab", [], 1.0, [[1, 2, 3]], [1e300, 0]])
def test_bad_positions_are_refused(x: object) -> None:
    with pytest.raises(InvalidInput):
        lattice("A2").nearest(x)


@pytest.mark.parametrize("uniform", [[1.0, 0.5], [-0.1, 0.5], [[0.5]]])
def test_bad_uniforms_are_refused(uniform: object) -> None:
    with pytest.raises(InvalidInput):
        lattice("A2").dither(uniform)


@pytest.mark.parametrize("factor", [0, -1.0, np.nan, np.inf, True, "2"])
def test_bad_factors_are_refused(factor: object) -> None:
    with pytest.raises(InvalidInput):
        lattice("A2").scaled(factor)  # type: ignore[arg-type]
