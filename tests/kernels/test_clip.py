"""The clip of rows equals its definition bit for bit, for every length and number of threads."""

import numpy as np
import pytest

from hushbit.encoding.clip_and_rotate import clip_l2
from hushbit.kernels.clip import clip_rows, reference_clip_row, row_norm
from hushbit.kernels.threads import set_threads


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 1000])
def test_clipped_rows_equal_their_definition(length: int, kind: type[np.floating]) -> None:
    rows = np.random.default_rng(length).normal(size=(6, length)).astype(kind)
    rows[1] *= 1e-3  # short enough
    rows[2] = 0
    if kind is np.float64:
        rows[3] *= 1e300  # its square overflows
    out = np.full_like(rows, 9.0)
    assert clip_rows(rows, 0.05, 1, 5, out) == 2
    assert (out[[0, 5]] == 9.0).all()
    assert (out[1:5] == [reference_clip_row(row, 0.05) for row in rows[1:5]]).all()


@pytest.mark.parametrize("length", [1, 8, 30])
def test_the_norm_counts_every_entry(length: int) -> None:
    for place in range(length):
        row = np.zeros(length)
        row[place] = -3.0
        assert row_norm(row) == 3.0
    assert row_norm(np.full(length, 2.0)) == pytest.approx(2 * length**0.5, rel=1e-15)


def test_threads_do_not_change_the_result() -> None:
    rows = np.random.default_rng(0).normal(size=(7, 50)).astype(np.float32)
    found = []
    for threads in (1, 2, 5):
        set_threads(threads)
        found.append(clip_l2(rows, 7.2))
    set_threads(0)
    assert all((one == found[0]).all() for one in found)
    assert 0 < (found[0] != rows).any(axis=1).sum() < 7
