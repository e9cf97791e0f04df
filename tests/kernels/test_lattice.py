"""Delaunay weights equal those of a linear-programming solver and Qhull; scalar ones exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial import Delaunay

from hushbit.kernels.lattice import (
    INSIDE,
    OUTSIDE,
    basis_inverse,
    delaunay_corners,
    first_simplex,
    perturbed_costs,
    reference_scalar_corners,
    refresh_inverse,
    scalar_corners,
)
from hushbit.lattice.points import lattice_ball, scalar_points


def solve(points: np.ndarray, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    costs = perturbed_costs(points)
    start = first_simplex(points, costs)
    shape = (len(blocks), points.shape[1] + 1)
    index, weight = np.empty(shape, np.int32), np.empty(shape)
    status = np.empty(len(blocks), np.uint8)
    inverse = basis_inverse(points, start)
    delaunay_corners(points, costs, start, inverse, blocks, index, weight, status)
    return index, weight, status


def least_cost(points: np.ndarray, block: np.ndarray) -> float | None:
    """Optimal value of the linear program of the module's docstring; None if infeasible."""
    equalities = np.vstack([points.T, np.ones(len(points))])
    answer = linprog(np.sum(points**2, axis=1), A_eq=equalities, b_eq=np.append(block, 1.0))
    return float(answer.fun) if answer.status == 0 else None


def in_hull(points: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Random convex combinations of a few random points each."""
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=(count, len(points))) * (rng.random((count, len(points))) < 0.2)
    weights[:, 0] += 1e-3
    return weights / weights.sum(axis=1, keepdims=True) @ points


@pytest.mark.parametrize(
    ("shape", "count"),
    [("A2", 3), ("A2", 7), ("A2", 64), ("D4", 8), ("D4", 25), ("D4", 64), ("E8", 16), ("E8", 32)],
)
def test_weights_are_optimal_and_reproduce_the_block(shape: str, count: int) -> None:
    points = lattice_ball(shape, count, 1.0).positions
    blocks = in_hull(points, 40, seed=count)
    index, weight, status = solve(points, blocks)
    assert (status == INSIDE).all()
    assert (weight >= 0).all()
    assert np.allclose(weight.sum(axis=1), 1, atol=1e-14)
    assert np.allclose(np.einsum("mc,mcl->ml", weight, points[index]), blocks, atol=1e-13)
    cost = np.sum(weight * np.sum(points[index] ** 2, axis=2), axis=1)
    for block, reached in zip(blocks, cost, strict=True):
        best = least_cost(points, block)
        assert best is not None
        assert reached == pytest.approx(best, abs=3e-8)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(0, 40))
def test_random_points_agree_with_qhull(seed: int, dim: int, extra: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(dim + 2 + extra, dim))
    blocks = rng.normal(size=(20, dim))
    index, weight, status = solve(points, blocks)
    cells = Delaunay(points)
    found = cells.find_simplex(blocks)
    assert ((status == INSIDE) == (found >= 0)).all()
    for m in np.flatnonzero(status == INSIDE):
        assert set(index[m]) == set(cells.simplices[found[m]])
        assert np.allclose(weight[m] @ points[index[m]], blocks[m], atol=1e-9)


def test_no_point_lies_inside_the_circumscribed_sphere() -> None:
    points = lattice_ball("D4", 64, 1.0).positions
    index, _, _ = solve(points, in_hull(points, 200, seed=1))
    for simplex in np.unique(np.sort(index, axis=1), axis=0):
        corners = points[simplex]
        centre = np.linalg.solve(
            2 * (corners[1:] - corners[0]), np.sum(corners[1:] ** 2 - corners[0] ** 2, axis=1)
        )
        radius = np.linalg.norm(corners[0] - centre)
        assert np.linalg.norm(points - centre, axis=1).min() >= radius - 1e-7


@pytest.mark.parametrize(("shape", "count"), [("A2", 16), ("D4", 24), ("E8", 16)])
def test_vertices_faces_and_origin(shape: str, count: int) -> None:
    points = lattice_ball(shape, count, 1.0).positions
    index, weight, status = solve(points, points)
    assert (status == INSIDE).all()
    picked = index[np.arange(count), weight.argmax(axis=1)]
    assert picked.tolist() == list(range(count))
    assert weight.max(axis=1) == pytest.approx(np.ones(count), abs=1e-12)
    edges = (points[:, None] + points[None]).reshape(-1, points.shape[1]) / 2
    index, weight, status = solve(points, edges)
    assert (status == INSIDE).all()
    assert np.allclose(np.einsum("mc,mcl->ml", weight, points[index]), edges, atol=1e-13)


@pytest.mark.parametrize(("shape", "count"), [("A2", 16), ("D4", 24), ("E8", 16)])
def test_just_inside_and_just_outside_the_hull(shape: str, count: int) -> None:
    points = lattice_ball(shape, count, 1.0).positions
    outermost = points[np.linalg.norm(points, axis=1) > 1 - 1e-9]
    assert (solve(points, outermost * (1 - 1e-9))[2] == INSIDE).all()
    assert (solve(points, outermost * (1 + 1e-8))[2] == OUTSIDE).all()
    assert (solve(points, outermost * 1e6)[2] == OUTSIDE).all()


def test_many_pivots_stay_accurate() -> None:
    """There are more pivots than between two corrections of the inverse."""
    points = lattice_ball("A2", 4096, 1.0).positions
    blocks = points[-200:] * 0.97
    index, weight, status = solve(points, blocks)
    assert (status == INSIDE).all()
    assert np.allclose(np.einsum("mc,mcl->ml", weight, points[index]), blocks, atol=1e-14)
    spread = points[index].max(axis=1) - points[index].min(axis=1)
    assert spread.max() < 3 * np.sqrt(np.pi / 4096)


def test_a_correction_of_the_inverse_squares_its_error() -> None:
    points = lattice_ball("E8", 16, 1.0).positions
    simplex = first_simplex(points, perturbed_costs(points))
    exact = basis_inverse(points, simplex)
    inverse = exact * (1 + 1e-5 * np.random.default_rng(9).uniform(-1, 1, exact.shape))
    refresh_inverse(points, simplex, inverse)
    assert np.abs(inverse - exact).max() < 1e-8


def test_the_weights_of_a_block_do_not_depend_on_other_blocks() -> None:
    points = lattice_ball("E8", 16, 1.0).positions
    blocks = in_hull(points, 50, seed=2)
    together = solve(points, blocks)
    for m in range(50):
        alone = solve(points, blocks[m : m + 1])
        assert all(np.array_equal(a[m : m + 1], b) for a, b in zip(together, alone, strict=True))


@pytest.mark.parametrize("points", [2, 3, 4, 7, 16, 100])
def test_scalar_corners_equal_the_definition(points: int) -> None:
    positions = scalar_points(points, 0.7).positions[:, 0]
    rng = np.random.default_rng(points)
    x = np.concatenate(
        [
            rng.uniform(-1, 1, 5000),
            positions,
            np.nextafter(positions, 9),
            np.nextafter(positions, -9),
            [-1e300, 1e300, 0.0, -0.0],
        ]
    )
    slack = 7e-13
    left, right_weight, outside = reference_scalar_corners(x, positions, slack)
    index = np.empty((x.size, 2), np.int32)
    weight = np.empty((x.size, 2))
    order = np.arange(points, dtype=np.int64)
    count = scalar_corners(x, positions, order, slack, index, weight)
    assert count == outside.sum() > 0
    assert np.array_equal(index[~outside, 0], left[~outside])
    assert np.array_equal(index[~outside, 1], left[~outside] + 1)
    assert np.array_equal(weight[~outside, 1], right_weight[~outside])
    assert (weight[outside, 0] == 1).all()
    assert np.array_equal(index[outside, 0], np.where(x[outside] < 0, 0, points - 1))
    assert np.array_equal(weight.sum(axis=1), np.ones(x.size))
