"""The mean over seeds and its interval."""

import pytest

from hushbit.lab.intervals import interval


def test_interval_uses_students_t() -> None:
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert high - mean == pytest.approx(mean - low)
    assert high - mean == pytest.approx(4.302653 / 3**0.5, rel=1e-6)


@pytest.mark.parametrize("values", [[3.0], [2.0, 4.0]])
def test_fewer_than_three_seeds_have_no_interval(values: list[float]) -> None:
    assert interval(values) == (3.0, 3.0, 3.0)
