"""Rounding is unbiased within the stated radius, saturates outside and refuses wrong input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hushbit.errors import InvalidInput
from hushbit.lattice.points import (
    PointSet,
    lattice_ball,
    nested_point_sets,
    scalar_points,
    sum_of_stages,
)
from hushbit.lattice.quantizer import Quantizer, SoftAssignment

SKEWED = [[1.0, 0.3], [5.2, 1.9]]
SETS = {
    "scalar 2": scalar_points(2, 0.7),
    "scalar 5": scalar_points(5, 0.7, "cell"),
    "A2": lattice_ball("A2", 7, 0.7),
    "A2 shifted": lattice_ball("A2", 16, 0.7),
    "D4": lattice_ball("D4", 8, 0.7),
    "E8": lattice_ball("E8", 16, 0.7),
    "skewed": lattice_ball(SKEWED, 16, 0.7),
    "nested scalar": sum_of_stages(nested_point_sets(None, (2, 4), 0.7)),
    "nested A2": sum_of_stages(nested_point_sets("A2", (4, 4), 0.7)),
}
each_set = pytest.mark.parametrize("points", SETS.values(), ids=SETS.keys())


def directions(dim: int, count: int, seed: int) -> NDArray[np.float64]:
    rows = np.random.default_rng(seed).normal(size=(count, dim))
    unit: NDArray[np.float64] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def mean_position(points: PointSet, assigned: SoftAssignment) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = np.einsum(
        "mc,mcl->ml", assigned.weight, points.positions[assigned.index]
    )
    return mean


def brute_force(points: PointSet, blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance to the nearest point of the set."""
    gaps = np.linalg.norm(blocks[:, None] - points.positions[None], axis=2)
    least: NDArray[np.float64] = gaps.min(axis=1)
    return least


@each_set
def test_stochastic_rounding_is_unbiased_up_to_the_stated_radius(points: PointSet) -> None:
    quantizer = Quantizer(points, "stochastic")
    shares = np.random.default_rng(1).random((200, 1))
    blocks = directions(points.dim, 200, 2) * shares * quantizer.unbiased_radius
    blocks[:20] *= quantizer.unbiased_radius / np.linalg.norm(blocks[:20], axis=1, keepdims=True)
    assigned = quantizer.soft_assign(blocks)
    assert assigned.overloaded == 0
    assert assigned.index.shape == assigned.weight.shape == (200, points.dim + 1)
    assert assigned.index.dtype == np.int32
    assert (assigned.weight >= 0).all()
    assert np.allclose(assigned.weight.sum(axis=1), 1, atol=1e-14)
    # Weights of blocks on the sphere of the hull radius itself may be clipped by the tolerance.
    assert np.allclose(mean_position(points, assigned), blocks, atol=1e-10 * points.radius)
    assert np.allclose(mean_position(points, assigned)[20:], blocks[20:], atol=1e-14)


@each_set
def test_blocks_beyond_the_stated_radius_overload(points: PointSet) -> None:
    """Somewhere just beyond the hull radius a block is overloaded."""
    quantizer = Quantizer(points, "stochastic")
    normals = directions(points.dim, 4000, 3)
    if points.dim > 2:
        # Normals of the nearest facets of a cross-polytope are sums of orthogonal corners.
        signs = np.sign(normals)
        frame = points.positions[np.abs(points.positions @ points.positions[0]) < 1e-9]
        base = [points.positions[0]]
        for row in frame:
            if all(abs(row @ other) < 1e-9 for other in base):
                base.append(row)
        normals = signs @ np.array(base)
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    beyond = quantizer.soft_assign(normals * quantizer.unbiased_radius * 1.001)
    assert beyond.overloaded > 0


@each_set
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_points_of_the_set_are_rounded_to_themselves(points: PointSet, rounding: str) -> None:
    assigned = Quantizer(points, rounding).soft_assign(points.positions)
    assert assigned.overloaded == 0
    heaviest = assigned.weight.argmax(axis=1)
    assert (assigned.index[np.arange(points.size), heaviest] == np.arange(points.size)).all()
    assert assigned.weight.max(axis=1) == pytest.approx(np.ones(points.size), abs=1e-12)


@each_set
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_overload_saturates_to_the_nearest_point(points: PointSet, rounding: str) -> None:
    blocks = directions(points.dim, 100, 4) * points.radius * 5
    assigned = Quantizer(points, rounding).soft_assign(blocks)
    assert assigned.overloaded == 100
    assert (assigned.weight[:, 0] == 1).all()
    assert (assigned.weight[:, 1:] == 0).all()
    chosen = points.positions[assigned.index[:, 0]]
    assert np.allclose(np.linalg.norm(chosen - blocks, axis=1), brute_force(points, blocks))


@pytest.mark.parametrize("size", [1e10, 1e150, 1e308])
def test_huge_blocks_saturate_too(size: float) -> None:
    for points in (SETS["scalar 5"], SETS["A2"].scaled(1e-9), SETS["E8"]):
        blocks = points.positions[-1:] / points.radius * size
        for rounding in ("stochastic", "nearest"):
            assigned = Quantizer(points, rounding).soft_assign(blocks)
            assert assigned.overloaded == 1
            assert assigned.index[0, 0] == points.size - 1


@each_set
def test_nearest_is_the_nearest_of_the_set(points: PointSet) -> None:
    blocks = np.random.default_rng(5).normal(size=(400, points.dim)) * points.radius / 2
    assigned = Quantizer(points, "nearest").soft_assign(blocks)
    chosen = points.positions[assigned.index[:, 0]]
    assert np.allclose(np.linalg.norm(chosen - blocks, axis=1), brute_force(points, blocks))


@pytest.mark.parametrize(
    "points", [scalar_points(4, 1.0), scalar_points(5, 1.0, "cell"), lattice_ball("A2", 64, 1.0)]
)
def test_dither_never_overloads_up_to_the_stated_radius(points: PointSet) -> None:
    quantizer = Quantizer(points, "dithered")
    rng = np.random.default_rng(6)
    blocks = directions(points.dim, 3000, 7) * quantizer.unbiased_radius * (1 - 1e-12)
    dither = quantizer.dither(rng.random(blocks.shape))
    assigned = quantizer.soft_assign(blocks, dither)
    assert quantizer.unbiased_radius > 0
    assert assigned.overloaded == 0
    error = points.positions[assigned.index[:, 0]] - dither - blocks
    # The subtractive error is again in the (symmetric) Voronoi cell.
    assert (points.lattice.nearest(error) == 0).all()
    same = Quantizer(points, "subtractive").soft_assign(blocks, dither)
    assert np.array_equal(same.index, assigned.index)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_dithered_scalar_rounding_is_unbiased(count: int) -> None:
    """The mean over equally spaced dithers of one period is exact for scalars."""
    points = scalar_points(count, 1.0)
    quantizer = Quantizer(points, "dithered")
    assert quantizer.unbiased_radius == pytest.approx(points.radius)
    dither = quantizer.dither(((np.arange(1000) + 0.5) / 1000)[:, None])
    spacing = points.lattice.volume
    for x in (0.0, 0.25, -0.813, 0.5, 0.9):
        assigned = quantizer.soft_assign(np.full((1000, 1), x), dither)
        assert assigned.overloaded == 0
        assert points.positions[assigned.index[:, 0]].mean() == pytest.approx(x, abs=spacing / 1000)


def test_scalar_stochastic_weights_are_the_fractional_position() -> None:
    quantizer = Quantizer(scalar_points(3, 1.0), "stochastic")
    assigned = quantizer.soft_assign([[0.25], [-1.0], [1.0], [0.0], [-0.5]])
    chances = np.zeros((5, 3))
    np.add.at(chances, (np.arange(5)[:, None], assigned.index), assigned.weight)
    assert chances.tolist() == [[0, 0.75, 0.25], [1, 0, 0], [0, 0, 1], [0, 1, 0], [0.5, 0.5, 0]]


def test_nearest_scalar_index_of_the_cell_convention_is_the_clipped_floor() -> None:
    """clip(floor(y / Delta + N / 2), 0, N - 1), away from ties."""
    for count in (2, 3, 4, 5, 9):
        y = np.random.default_rng(count).uniform(-1.4, 1.4, 500)
        expected = np.clip(np.floor(y * count / 2 + count / 2), 0, count - 1)
        assigned = Quantizer(scalar_points(count, 1.0, "cell"), "nearest").soft_assign(y[:, None])
        assert (assigned.index[:, 0] == expected).all()
        assert assigned.overloaded == np.sum(np.abs(y) > 1)


@settings(deadline=None, max_examples=100)
@given(
    st.integers(2, 33),
    st.floats(1e-3, 1e3),
    st.lists(st.floats(-1, 1), min_size=1, max_size=20),
)
def test_scalar_unbiasedness_everywhere(count: int, radius: float, shares: list[float]) -> None:
    points = scalar_points(count, radius)
    blocks = np.array(shares)[:, None] * radius
    assigned = Quantizer(points, "stochastic").soft_assign(blocks)
    assert assigned.overloaded == 0
    assert np.abs(mean_position(points, assigned) - blocks).max() <= 4e-16 * radius * count
    assert (np.abs(np.diff(assigned.index, axis=1)) == 1).all()


def test_unbiased_radii_of_known_sets() -> None:
    points = lattice_ball("A2", 7, 1.0)
    assert Quantizer(points, "stochastic").unbiased_radius == points.hull_radius
    assert Quantizer(points, "nearest").unbiased_radius == 0.0
    # The next shell of the hexagonal lattice is at sqrt(3), the covering radius 1/sqrt(3).
    granular = Quantizer(points, "subtractive").unbiased_radius
    assert granular == pytest.approx(3**0.5 - 2 / 3**0.5)
    assert Quantizer(lattice_ball("D4", 24, 1.0), "dithered").unbiased_radius == 0.0


def test_custom_points() -> None:
    square = PointSet(np.array([[1, 1], [-1, 1], [1, -1], [-1, -1]]), np.eye(2) / 2, 2)
    assigned = Quantizer(square, "stochastic").soft_assign([[0.1, -0.2]])
    assert np.allclose(mean_position(square, assigned), [[0.1, -0.2]])
    downward = PointSet(np.array([[0], [1], [-1]]), np.array([[-1.0]]))
    assigned = Quantizer(downward, "stochastic").soft_assign([[0.25], [-0.75]])
    assert np.allclose(mean_position(downward, assigned), [[0.25], [-0.75]])
    away = PointSet(np.array([[1, 0], [2, 1], [2, -1]]), np.eye(2))
    flat = PointSet(np.array([[1, 1], [0, 0], [-1, -1]]), np.eye(2))
    for bad in (away, flat):
        with pytest.raises(InvalidInput):
            Quantizer(bad, "stochastic").soft_assign([[0.0, 0.0]])


@pytest.mark.parametrize(
    "blocks",
    [
        [],
        [[]],
        [0.1, 0.2],
        [[0.1]],
        [[np.nan, 0]],
        [[np.inf, 0]],
        "ab",
        [["a", "b"]],
        [[True, False]],
    ],
)
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_bad_blocks_are_refused(blocks: object, rounding: str) -> None:
    with pytest.raises(InvalidInput):
        Quantizer(SETS["A2"], rounding).soft_assign(blocks)


@pytest.mark.parametrize("dither", [None, [[0.0]], [[np.nan, 0.0]], [[9.0, 0.0]], np.zeros((2, 2))])
def test_bad_dithers_are_refused(dither: object) -> None:
    with pytest.raises(InvalidInput):
        Quantizer(SETS["A2"], "dithered").soft_assign([[0.0, 0.0]], dither)


def test_other_wrong_arguments_are_refused() -> None:
    with pytest.raises(InvalidInput):
        Quantizer(SETS["A2"], "random")
    with pytest.raises(InvalidInput):
        Quantizer([[1.0]], "nearest")  # type: ignore[arg-type]
    for rounding in ("stochastic", "nearest"):
        with pytest.raises(InvalidInput):
            Quantizer(SETS["A2"], rounding).soft_assign([[0.0, 0.0]], [[0.0, 0.0]])
    with pytest.raises(InvalidInput):
        Quantizer(SETS["A2"], "dithered").dither([[1.0, 0.0]])
