"""EDEN, QSGD, UVeQFed and top-k: unbiased where claimed, with the error their papers state."""

import math
from typing import Any

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.field import eden, qsgd, quicfl, topk, uveqfed
from hushbit.field.carried import Carried, entropy
from hushbit.field.normal import best_levels, explained
from hushbit.field.turning import Turning
from hushbit.lattice import lattice


def relative_error(carried: Carried, rows: np.ndarray) -> float:
    """Squared error of the mean, times the number of users, over the users' mean power."""
    gap = float(((carried.mean - rows.mean(axis=0)) ** 2).sum())
    return gap * len(rows) / float((rows**2).sum(axis=1).mean())


@pytest.mark.parametrize(("bits", "error"), [(1, math.pi / 2 - 1), (2, 0.1331), (3, 0.0358)])
def test_eden_error_is_that_of_the_best_normal_levels(bits: int, error: float) -> None:
    assert eden.error(bits) == pytest.approx(error, rel=2e-3)
    rows = np.random.default_rng(1).lognormal(0, 1, (40, 4096))
    carried = eden.mean_estimate(rows, bits, np.random.default_rng(2))
    assert relative_error(carried, rows) == pytest.approx(error, rel=0.05)
    assert carried.bits_per_entry == bits + 32 / 4096


def test_best_levels_are_centres_of_their_cells_and_match_the_published_ones() -> None:
    # Max (1960): levels of the four-level quantizer and its distortion.
    assert best_levels(2)[2:] == pytest.approx([0.4528, 1.5104], abs=1e-4)
    assert 1 - explained(2) == pytest.approx(0.1175, abs=1e-4)
    assert 1 - explained(4) == pytest.approx(0.0095, abs=2e-5)


class Dense:
    """A dense orthogonal matrix in place of Hadamard's."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix

    def forward(self, vector: np.ndarray) -> np.ndarray:
        return np.asarray(vector @ self.matrix)

    def back(self, row: np.ndarray) -> np.ndarray:
        return np.asarray(self.matrix @ row)


def test_eden_is_unbiased_over_uniform_rotations() -> None:
    rng = np.random.default_rng(3)
    vector = rng.lognormal(0, 1, 6)
    matrices, upper = np.linalg.qr(rng.normal(size=(30_000, 6, 6)))
    matrices *= np.sign(np.diagonal(upper, axis1=1, axis2=2))[:, None, :]
    draws = []
    for matrix in matrices:
        turning: Any = Dense(matrix)
        draws.append(eden.decode(eden.encode(vector, 1, turning), 1, turning))
    deviation = np.std(draws, axis=0) / math.sqrt(len(draws))
    assert (np.abs(np.mean(draws, axis=0) - vector) < 4.5 * deviation).all()


def test_eden_scale_projects_exactly() -> None:
    rng = np.random.default_rng(5)
    vector, rotation = rng.normal(size=100), Turning(100, rng)
    decoded = eden.decode(eden.encode(vector, 2, rotation), 2, rotation)
    assert decoded @ vector == pytest.approx(vector @ vector, rel=1e-12)


def test_qsgd_expectation_is_exact_and_error_within_its_bound() -> None:
    rng = np.random.default_rng(6)
    vector, steps = rng.normal(size=50), 3
    norm = np.linalg.norm(vector)
    exact = np.abs(vector) * steps / norm
    part = exact - np.floor(exact)
    variance = (norm / steps) ** 2 * float((part * (1 - part)).sum())
    assert variance <= min(50 / steps**2, math.sqrt(50) / steps) * norm**2
    draws = np.array([qsgd.decode(qsgd.encode(vector, steps, rng), steps) for _ in range(4000)])
    assert np.abs(draws.mean(axis=0) - vector).max() < 4.5 * norm / steps / 2 / math.sqrt(4000)
    assert float(((draws - vector) ** 2).sum(axis=1).mean()) == pytest.approx(variance, rel=0.05)


def test_qsgd_takes_the_most_steps_that_fit() -> None:
    rows = np.random.default_rng(7).normal(size=(4, 2000))
    steps = qsgd.steps_for(rows, 2.0)
    assert qsgd.expected_entropy(rows, steps) <= 2.0 < qsgd.expected_entropy(rows, steps + 1)
    assert qsgd.mean_estimate(rows, steps, np.random.default_rng(8)).bits_per_entry < 2.05


@pytest.mark.parametrize("name", ["Z", "A2", "D4"])
def test_uveqfed_error_is_uniform_on_the_cell_whatever_the_vector(name: str) -> None:
    rng = np.random.default_rng(9)
    grid = lattice(name).scaled(0.05)
    rows = rng.lognormal(0, 1, (60, 801))
    carried = uveqfed.mean_estimate(rows, grid, rng)
    stated = 801 / grid.dim * grid.second_moment
    assert relative_error(carried, rows) == pytest.approx(stated, rel=0.1)


def test_uveqfed_takes_the_finest_lattice_that_fits() -> None:
    rows = np.random.default_rng(10).normal(size=(8, 2000))
    grid = uveqfed.grid_for(rows, 2.0, np.random.default_rng(11))
    spent = uveqfed.mean_estimate(rows, grid, np.random.default_rng(12)).bits_per_entry
    assert 1.97 < spent < 2.05
    # High-resolution theory for a normal law: 2 pi e G 2^(-2 bits), G of the hexagonal lattice.
    error = 1000 * grid.second_moment
    assert error == pytest.approx(2 * math.pi * math.e * 0.0801875 / 16, rel=0.25)


def test_topk_loses_exactly_what_it_drops() -> None:
    rows = np.array([[3.0, -4.0, 1.0, 0.5], [0.0, 0.0, 2.0, -1.0]])
    carried = topk.mean_estimate(rows, 2)
    assert carried.mean.tolist() == [1.5, -2.0, 1.0, -0.5]
    assert carried.bits_per_entry == pytest.approx((64 + math.log2(6)) / 4)
    kept = topk.kept_for(7850, 1.0)
    assert topk.cost(7850, kept) <= 7850 < topk.cost(7850, kept + 1)


def test_entropy_of_a_fair_die() -> None:
    assert entropy(np.ones(8)) == 3.0
    assert entropy(np.array([5.0, 0.0])) == 0.0


def test_zero_vectors_come_back_as_zero() -> None:
    rows, rng = np.zeros((2, 40)), np.random.default_rng(0)
    assert not eden.mean_estimate(rows, 1, rng).mean.any()
    assert not quicfl.mean_estimate(rows, 1, rng).mean.any()
    assert not qsgd.mean_estimate(rows, 2, rng).mean.any()
    assert not uveqfed.mean_estimate(rows, lattice("A2"), rng).mean.any()
    assert not topk.mean_estimate(rows, 1).mean.any()


@pytest.mark.parametrize("wrong", [np.ones(4), np.full((2, 3), np.nan), np.ones((0, 3)), "abc"])
def test_wrong_vectors_are_refused(wrong: object) -> None:
    rng = np.random.default_rng(0)
    for carry in (
        lambda: eden.mean_estimate(wrong, 1, rng),
        lambda: quicfl.mean_estimate(wrong, 1, rng),
        lambda: qsgd.mean_estimate(wrong, 2, rng),
        lambda: uveqfed.mean_estimate(wrong, lattice("Z"), rng),
        lambda: topk.mean_estimate(wrong, 1),
    ):
        with pytest.raises(InvalidInput):
            carry()


def test_wrong_bits_are_refused() -> None:
    rows, rng = np.ones((2, 8)), np.random.default_rng(0)
    for bits in (0, 5, True, 1.5):
        with pytest.raises(InvalidInput):
            quicfl.mean_estimate(rows, bits, rng)  # type: ignore[arg-type]
    for bits in (0, 7, "1"):
        with pytest.raises(InvalidInput):
            eden.mean_estimate(rows, bits, rng)  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [1, 2, 3, 100, 1000])
def test_turning_keeps_norms_and_is_undone(dim: int) -> None:
    rng = np.random.default_rng(dim)
    vector, turning = rng.normal(size=dim), Turning(dim, rng)
    turned = turning.forward(vector)
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(vector), rel=1e-12)
    assert turning.back(turned) == pytest.approx(vector, abs=1e-12)


def test_turning_spreads_a_lopsided_vector_evenly() -> None:
    rng = np.random.default_rng(14)
    vector = np.zeros(7850)
    vector[:1000] = rng.normal(size=1000)
    turned = Turning(7850, rng).forward(vector)
    parts = [float((part**2).mean()) for part in np.array_split(turned, 8)]
    assert max(parts) < 1.25 * min(parts)
