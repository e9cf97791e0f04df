import numpy as np
import pytest

from hushbit.kernels.line import line_corners, reference_line_corners
from hushbit.points import line


@pytest.mark.parametrize("points", [2, 3, 4, 7, 16, 100])
def test_kernel_equals_definition_everywhere(points: int) -> None:
    places = line(points, 0.7).positions[:, 0]
    rng = np.random.default_rng(points)
    x = np.concatenate([
        rng.uniform(-1, 1, 5000), places, np.nextafter(places, 9), np.nextafter(places, -9),
        [-1e300, 1e300, 0.0, -0.0],
    ])  # fmt: skip
    slack = 7e-13
    left, share, outside = reference_line_corners(x, places, slack)
    index = np.empty((x.size, 2), np.int32)
    weight = np.empty((x.size, 2))
    ladder = np.arange(points, dtype=np.int64)
    count = line_corners(x, places, ladder, slack, index, weight)
    assert count == outside.sum() > 0
    assert np.array_equal(index[~outside, 0], left[~outside])
    assert np.array_equal(index[~outside, 1], left[~outside] + 1)
    assert np.array_equal(weight[~outside, 1], share[~outside])
    assert (weight[outside, 0] == 1).all()
    assert np.array_equal(index[outside, 0], np.where(x[outside] < 0, 0, points - 1))
    assert np.array_equal(weight.sum(axis=1), np.ones(x.size))
