"""Robust means: exact on small rows, and robust where the mean is not."""

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.sim.robust_means import ROBUST_MEANS, robust_mean

ROWS = np.array([[1.0, 2.0], [2.0, 3.0], [3.0, 1.0], [100.0, -100.0]])


def test_robust_means_of_four_rows():
    assert robust_mean("median", ROWS, 1).tolist() == [2.5, 1.5]
    assert robust_mean("trimmed-mean", ROWS, 1).tolist() == [2.5, 1.5]
    assert robust_mean("krum", ROWS, 1).tolist() == [1.0, 2.0]
    assert robust_mean("multi-krum", ROWS, 1).tolist() == [2.0, 2.0]
    assert robust_mean("sign-majority", ROWS, 1).tolist() == [2.5, 2.5]
    norms = np.linalg.norm(ROWS, axis=1)
    clipped = ROWS * np.minimum(1, np.median(norms) / norms)[:, None]
    assert np.allclose(robust_mean("norm-clipping", ROWS, 1), clipped.mean(axis=0))


@pytest.mark.parametrize("name", sorted(set(ROBUST_MEANS) - {"sign-majority"}))
def test_a_fifth_of_distant_attackers_shift_it_little(name):
    rng = np.random.default_rng(0)
    honest = rng.normal(1.0, 0.1, (40, 30)).astype(np.float32)
    attackers = np.full((10, 30), -50.0, dtype=np.float32)
    found = robust_mean(name, np.concatenate([attackers, honest]), 10)
    assert np.abs(found - 1.0).max() < (0.5 if name == "norm-clipping" else 0.3)


@pytest.mark.parametrize("name", ROBUST_MEANS)
def test_one_user_is_enough_and_order_does_not_matter(name):
    alone = [1.5, 1.5] if name == "sign-majority" else [1.0, 2.0]
    assert robust_mean(name, ROWS[:1], 0).tolist() == alone
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(11, 5))
    found = robust_mean(name, rows, 2)
    for _ in range(5):
        assert np.allclose(robust_mean(name, rng.permutation(rows), 2), found)


def test_all_users_cannot_be_attackers():
    for attackers in (-1, 4, True):
        with pytest.raises(InvalidInput):
            robust_mean("krum", ROWS, attackers)
