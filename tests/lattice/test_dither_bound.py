"""Dithers lie in the Voronoi cell: longer ones are refused, those at its corners are accepted."""

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.lattice.points import lattice_ball, scalar_points
from hushbit.lattice.quantizer import Quantizer

SCALES = (0.01, 1.0, 50.0)  # covering radii below and above 1
SETS = {
    "Z": lambda radius: scalar_points(4, radius, "cell"),
    "A2": lambda radius: lattice_ball("A2", 7, radius),
    "D4": lambda radius: lattice_ball("D4", 24, radius),
}


@pytest.mark.parametrize("radius", SCALES)
@pytest.mark.parametrize("rounding", ["dithered", "subtractive"])
@pytest.mark.parametrize("name", SETS)
def test_a_dither_is_at_most_the_covering_radius_long(
    name: str, rounding: str, radius: float
) -> None:
    points = SETS[name](radius)
    quantizer = Quantizer(points, rounding)
    longest = points.lattice.covering_radius
    zero = np.zeros((3, points.dim))
    direction = np.ones(points.dim) / np.sqrt(points.dim)
    for factor, row in ((1 - 1e-6, 0), (1.0, 1), (1 - 1e-6, 2)):
        dither = zero.copy()
        dither[row] = direction * longest * factor
        quantizer.soft_assign(zero, dither)
        dither[row] = -direction * longest * (1 + 1e-6)
        with pytest.raises(InvalidInput, match="Voronoi cell"):
            quantizer.soft_assign(zero, dither)


@pytest.mark.parametrize("radius", SCALES)
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_the_unbiased_radius_of_scalar_dither_is_the_outermost_point(
    count: int, radius: float
) -> None:
    points = scalar_points(count, radius, "cell")
    quantizer = Quantizer(points, "dithered")
    edge = quantizer.unbiased_radius
    assert edge == pytest.approx(points.positions.max())
    longest = points.lattice.covering_radius
    for sign in (1.0, -1.0):
        inside = quantizer.soft_assign([[sign * edge * (1 - 1e-6)]], [[sign * longest]])
        beyond = quantizer.soft_assign([[sign * edge * (1 + 1e-6)]], [[sign * longest]])
        assert (inside.overloaded, beyond.overloaded) == (0, 1)
