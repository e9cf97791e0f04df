"""Point sets: exact integer identities; hulls equal known polytopes and those of Qhull."""

from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull

from hushbit.errors import InvalidInput
from hushbit.lattice.lattice import lattice
from hushbit.lattice.points import (
    PointSet,
    hull_radius,
    lattice_ball,
    nested_point_sets,
    scalar_points,
    stage_indices,
    sum_of_stages,
)

MATRIX2 = [[1.0, 0.2], [-0.3, 0.8]]
MATRIX3 = [[1.0, 0.2, 0.1], [-0.3, 0.8, 0.0], [0.2, 0.4, 1.3]]
THIN = [[1.0, 0.0, 0.0], [0.1, 0.1, 0.0], [0.0, 0.3, 3.0]]


@given(st.integers(2, 40), st.floats(1e-6, 1e6), st.sampled_from(["point", "cell"]))
def test_scalar_points_are_equispaced_and_symmetric(
    count: int, radius: float, outermost: str
) -> None:
    points = scalar_points(count, radius, outermost)
    assert points.coords[:, 0].tolist() == [2 * j - (count - 1) for j in range(count)]
    spacing = 2 * radius / (count - 1 if outermost == "point" else count)
    assert np.diff(points.positions[:, 0]) == pytest.approx(np.full(count - 1, spacing))
    outer = radius if outermost == "point" else radius - spacing / 2
    assert points.radius == pytest.approx(outer)
    assert points.hull_radius == pytest.approx(outer)
    assert (points.positions == -points.positions[::-1]).all()


@pytest.mark.parametrize(
    ("shape", "count", "ratio"),
    [
        ("A2", 3, 1 / 2),  # triangle
        ("A2", 4, 1 / 2),  # rhombus
        ("A2", 6, 3**0.5 / 2),  # hexagon
        ("A2", 7, 3**0.5 / 2),
        ("D4", 8, 1 / 2),  # cross-polytope
        ("D4", 24, 0.5**0.5),  # 24-cell
        ("D4", 25, 0.5**0.5),
        ("E8", 16, 8**-0.5),  # cross-polytope
    ],
)
def test_sets_with_known_hulls(shape: str, count: int, ratio: float) -> None:
    points = lattice_ball(shape, count, 3.0)
    assert points.size == count
    assert points.radius == pytest.approx(3.0, rel=1e-14)
    assert points.hull_radius == pytest.approx(3 * ratio, rel=1e-12)
    assert (points.coords.sum(axis=0) == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("count", [240, 241])
def test_root_polytope_of_e8(count: int) -> None:
    assert lattice_ball("E8", count, 1.0).hull_radius == pytest.approx(0.5**0.5, rel=1e-12)


def test_e8_with_256_points() -> None:
    points = lattice_ball("E8", 256, 1.0)
    assert points.hull_radius > 0.4
    assert (points.coords.sum(axis=0) == 0).all()


@pytest.mark.parametrize(
    ("shape", "count"),
    [("A2", 8), ("A2", 16), ("A2", 64), ("D4", 16), ("D4", 64), (MATRIX2, 8), (MATRIX3, 8)],
)
def test_balls_are_symmetric_and_enclose_the_origin(shape: object, count: int) -> None:
    points = lattice_ball(shape, count, 1.0)
    assert points.size == count
    mirrored = {tuple(row) for row in -points.coords}
    assert mirrored == {tuple(row) for row in points.coords}
    facets = ConvexHull(points.positions).equations
    assert points.hull_radius == pytest.approx(-facets[:, -1].max(), rel=1e-9)
    again = lattice_ball(shape, count, 1.0)
    assert np.array_equal(again.coords, points.coords)


@pytest.mark.parametrize(("shape", "count"), [("A2", 3), ("A2", 8), ("D4", 8), ("E8", 16)])
def test_complete_shells_hold_every_point_up_to_the_radius(shape: str, count: int) -> None:
    points = lattice_ball(shape, count, 1.0)
    assert len(points.lattice.within(1 + 1e-9, points.positions[0])) == count


def test_a_thin_lattice_is_truncated_along_its_reduced_basis() -> None:
    points = lattice_ball(THIN, 8, 1.0)
    assert points.hull_radius > 0.01
    assert points.radius == pytest.approx(1.0)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(0, 30))
def test_hull_radius_of_random_points_is_that_of_qhull(seed: int, dim: int, extra: int) -> None:
    cloud = np.random.default_rng(seed).normal(size=(dim + 1 + extra, dim))
    expected = -ConvexHull(cloud).equations[:, -1].max()
    assert hull_radius(cloud) == pytest.approx(max(expected, 0.0), rel=1e-6, abs=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(1, 2))
def test_hull_radius_of_integer_points_is_that_of_qhull(seed: int, dim: int, size: int) -> None:
    """Many of these points are coplanar or repeated."""
    cloud = np.random.default_rng(seed).integers(-size, size + 1, (40, dim)).astype(float)
    expected = -ConvexHull(cloud).equations[:, -1].max()
    assert hull_radius(cloud) == pytest.approx(max(expected, 0.0), rel=1e-9, abs=1e-5)


def test_hull_radius_is_the_least_support() -> None:
    """No direction has a support below the hull radius, and some direction reaches it."""
    points = lattice_ball("A2", 16, 1.0)
    angles = np.linspace(0, 2 * np.pi, 20_001)
    support = (points.positions @ np.array([np.cos(angles), np.sin(angles)])).max(axis=0)
    assert support.min() >= points.hull_radius - 1e-12
    assert support.min() <= points.hull_radius + 1e-3


def test_hull_radius_is_zero_without_the_origin_inside() -> None:
    assert hull_radius(np.array([[1.0, 0], [2, 1], [2, -1]])) == 0.0
    assert hull_radius(np.array([[1.0, 1], [2, 2], [-3, -3]])) == 0.0
    assert hull_radius(np.array([[1.0], [2.0]])) == 0.0
    assert hull_radius(np.zeros((3, 2))) == 0.0


@pytest.mark.parametrize("counts", [(2, 8), (3, 3), (2, 2, 2), (4, 2), (5,), (3, 2, 4)])
@pytest.mark.parametrize("outermost", ["point", "cell"])
def test_scalar_stages_add_up_exactly(counts: tuple[int, ...], outermost: str) -> None:
    made = nested_point_sets(None, counts, 1.5, outermost)
    whole = sum_of_stages(made)
    flat = scalar_points(prod(counts), 1.5, outermost)
    assert np.array_equal(whole.coords, flat.coords)
    assert np.array_equal(whole.basis, flat.basis)
    for index, parts in enumerate(
        zip(*stage_indices(np.arange(prod(counts)), counts), strict=True)
    ):
        total = sum(int(stage.coords[part, 0]) for stage, part in zip(made, parts, strict=True))
        assert total == int(flat.coords[index, 0])
    unit = Fraction(float(flat.basis[0, 0]))
    assert all(Fraction(float(stage.basis[0, 0])) == unit for stage in made)
    assert all(stage.coords.sum() == 0 for stage in made)


def test_scalar_spacing_is_that_of_the_spec() -> None:
    coarse, nested = nested_point_sets(None, (2, 8), 1.0)
    assert np.diff(coarse.coords[:, 0]) == 8 * np.diff(nested.coords[:, 0])[0]


@pytest.mark.parametrize(
    ("shape", "counts"),
    [("A2", (3, 4)), ("A2", (7, 9)), ("A2", (4, 9, 4)), ("D4", (8, 16)), (MATRIX2, (4, 4))],
)
def test_lattice_stages_add_up_exactly(shape: object, counts: tuple[int, ...]) -> None:
    made = nested_point_sets(shape, counts, 2.0)
    whole = sum_of_stages(made)
    assert whole.size == prod(counts)
    assert len({tuple(row) for row in whole.coords}) == whole.size
    assert whole.radius == pytest.approx(2.0, rel=1e-12)
    assert whole.hull_radius > 0
    parts = stage_indices(np.arange(whole.size), counts)
    total = sum(stage.coords[part] for stage, part in zip(made, parts, strict=True))
    assert np.array_equal(total, whole.coords)
    assert all((stage.coords.sum(axis=0) == 0).all() for stage in made)
    assert all(np.array_equal(stage.basis, whole.basis) for stage in made)


@pytest.mark.parametrize(("shape", "ratio"), [("A2", 2), ("A2", 3), ("D4", 2)])
def test_nested_points_are_one_per_class_and_of_least_norm(shape: str, ratio: int) -> None:
    dim = lattice(shape).dim
    coarse, nested = nested_point_sets(shape, (2 * dim, ratio**dim), 1.0)
    coarse_lattice = nested.lattice.scaled(float(ratio))
    assert np.allclose(coarse.lattice.generator, coarse_lattice.generator)
    classes = (nested.coords - nested.coords[0]) // nested.modulus % ratio
    assert len({tuple(row) for row in classes}) == ratio**dim
    # Of least norm: no coarse lattice point is nearer to a nested point than the origin.
    moved = nested.positions - coarse_lattice.nearest(nested.positions) @ coarse_lattice.generator
    assert np.allclose(np.sum(moved**2, 1), np.sum(nested.positions**2, 1))


def test_e8_stages() -> None:
    made = nested_point_sets("E8", (16, 256), 1.0)
    assert [stage.size for stage in made] == [16, 256]
    whole = sum_of_stages(made)
    assert whole.size == 4096
    assert whole.radius == pytest.approx(1.0)
    assert (whole.coords.sum(axis=0) == 0).all()


def test_scaled_keeps_integers_and_hull() -> None:
    points = lattice_ball("D4", 8, 1.0)
    smaller = points.scaled(0.25)
    assert np.array_equal(points.coords, smaller.coords)
    assert smaller.radius == pytest.approx(0.25)
    assert smaller.hull_radius == pytest.approx(points.hull_radius / 4)
    assert smaller.lattice.volume == pytest.approx(points.lattice.volume / 256)


def test_points_are_read_only() -> None:
    points = scalar_points(2, 1.0)
    for array in (points.coords, points.basis, points.positions):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize("count", [1, 0, -3, True, 2.0, "4", None, 2**21])
@pytest.mark.parametrize(
    "make", [lambda n: scalar_points(n, 1.0), lambda n: lattice_ball("A2", n, 1.0)]
)
def test_bad_counts_are_refused(make, count: object) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput):
        make(count)


@pytest.mark.parametrize("radius", [0, -1.0, np.nan, np.inf, True, "1", None])
def test_bad_radii_are_refused(radius: object) -> None:
    for make in (lambda: scalar_points(4, radius), lambda: lattice_ball("A2", 7, radius)):  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            make()


@pytest.mark.parametrize(("shape", "count"), [("A2", 2), ("D4", 5), ("E8", 9)])
def test_the_error_for_too_few_points_names_a_count_that_works(shape: str, count: int) -> None:
    with pytest.raises(InvalidInput, match="do not enclose") as refusal:
        lattice_ball(shape, count, 1.0)
    named = int(str(refusal.value).split("use ")[1].split()[0])
    assert lattice_ball(shape, named, 1.0).hull_radius > 0


@pytest.mark.parametrize(
    "arguments",
    [
        (None, (), 1.0),
        (None, (2, 1), 1.0),
        (None, 4, 1.0),
        (None, (2, True), 1.0),
        (None, (2, 2), 0.0),
        (None, (2, 2), 1.0, "middle"),
        (None, (2048, 1024), 1.0),
        ("A2", (4, 3), 1.0),
        ("A2", (2, 4), 1.0),
        ("A2", (4, 4), 1.0, "cell"),
    ],
)
def test_bad_stages_are_refused(arguments: tuple) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidInput):
        nested_point_sets(*arguments)


def test_other_wrong_arguments_are_refused() -> None:
    with pytest.raises(InvalidInput):
        lattice_ball("Z", 4, 1.0)
    with pytest.raises(InvalidInput):
        lattice_ball(np.eye(9), 18, 1.0)
    with pytest.raises(InvalidInput):
        sum_of_stages(())
    with pytest.raises(InvalidInput):
        sum_of_stages((scalar_points(2, 1.0), scalar_points(2, 0.3)))
    for index in (-1, 16, 0.5, "a"):
        with pytest.raises(InvalidInput):
            stage_indices(index, (2, 8))


@pytest.mark.parametrize(
    ("coords", "basis", "modulus"),
    [
        ([[0.5], [1.0]], [[1.0]], 1),
        ([[1]], [[1.0]], 1),
        ([1, 2], [[1.0]], 1),
        ([[1], [2]], [[1.0, 0.0]], 1),
        ([[1], [2]], [[np.nan]], 1),
        ([[1], [1]], [[1.0]], 1),
        ([[1], [2]], [[1.0]], 2),
        ([[1], [2]], [[1.0]], 0),
    ],
)
def test_bad_points_are_refused(coords: list, basis: list, modulus: int) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidInput):
        PointSet(np.array(coords), np.array(basis), modulus)
    with pytest.raises(InvalidInput):
        PointSet(np.array([[0], [1]]), np.eye(1), 1, lattice("Z").scaled(2.0))
