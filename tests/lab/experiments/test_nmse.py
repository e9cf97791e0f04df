"""The experiment `nmse` on short vectors."""

from pathlib import Path

import numpy as np
import pytest

from hushbit.checks import Floats
from hushbit.lab.experiments import nmse
from hushbit.lab.experiments.experiment import ExperimentRunner
from hushbit.lab.experiments.nmse import VectorFamily
from hushbit.lab.experiments.reproduce import EXPERIMENTS
from hushbit.lab.experiments.results import Cell


def short_vectors(users: int, seed: int, data: str | None) -> Floats:
    """Short vectors with a common part."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=64) + rng.normal(size=(users, 64)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmse, "FAMILIES", (VectorFamily("gaussian", "short", short_vectors),))
    monkeypatch.setattr(nmse, "SIZES", (1.0, 3.0))
    monkeypatch.setattr(nmse, "AUTO_ROUNDS", 2)


def test_every_scheme_of_every_track_is_measured(small: None, tmp_path: Path) -> None:
    runner = ExperimentRunner(tmp_path, (1, 2), quick=True)
    found = EXPERIMENTS["nmse"].find(runner)
    places = {
        (cell.where["promise"], cell.scheme) for cell in found.cells if cell.variant == "corrected"
    }
    for promise, scheme in [
        ("per bit", "CPA"),
        ("per bit", "CPA auto"),
        ("per bit", "MVU"),
        ("per bit", "JoPEQ"),
        ("per bit", "Laplace"),
        ("per bit", "signSGD + RR"),
        ("none", "EDEN"),
        ("none", "QUIC-FL"),
        ("none", "QSGD"),
        ("none", "UVeQFed"),
        ("none", "top-k"),
        ("none", "CPA w/o RR"),
        ("whole message", "PrivUnitG"),
        ("whole message", "PrivHS"),
        ("whole message", "SQKR"),
        ("whole message", "CPA subset"),
    ]:
        assert (promise, scheme) in places
    assert any(cell.scheme == "CPA" and cell.variant == "authors" for cell in found.cells)
    measured = [cell for cell in found.cells if cell.metric == "nmse" and cell.seeds]
    assert all(len(cell.seeds) == 2 and cell.mean >= 0 for cell in measured)


def test_every_scheme_of_the_central_track_is_measured(small: None, tmp_path: Path) -> None:
    runner = ExperimentRunner(tmp_path, (1, 2), quick=True)
    found = EXPERIMENTS["nmse-central"].find(runner)
    assert {cell.where["promise"] for cell in found.cells} == {"central"}
    bits = {cell.scheme: cell.mean for cell in found.cells if cell.metric == "bits"}
    assert bits == {
        "Gaussian": 32,
        "CPA": 1,
        "CPA, secure sum": 5,
        "CPA, 3 spreads": 1,
        "CPA, 3 spreads, secure sum": 5,
        "discrete Gaussian, 12 bits": 12,
        "Skellam, 12 bits": 12,
        "discrete Gaussian, 16 bits": 16,
        "Skellam, 16 bits": 16,
        "Poisson-binomial": 20,
    }
    error = {cell.scheme: cell.mean for cell in found.cells if cell.metric == "nmse"}
    assert error["CPA"] == error["CPA, secure sum"] > error["Gaussian"]
    assert error["Poisson-binomial"] > error["Skellam, 16 bits"] > 0.8 * error["Gaussian"]
    assert nmse.find_central(runner).cells == found.cells
    assert len(found.checks) == 3


def test_central_claims_compare_the_same_places() -> None:
    where = {"promise": "central", "epsilon": 4.0, "users": 20, "vectors": "gaussian"}
    values = {
        "CPA, 3 spreads": 3.0,
        "Gaussian": 2.0,
        "Poisson-binomial": 3.1,
        "Skellam, 12 bits": 2.9,
    }
    cells = [
        Cell(scheme, "corrected", where, "nmse", value, value, value, (value,))
        for scheme, value in values.items()
    ]
    checks = nmse.central_checks(cells)
    assert [check.holds for check in checks] == [True, True, False]
    assert "largest ratio 1.5:" in checks[0].figure


def test_the_same_seeds_give_the_same_cells(small: None, tmp_path: Path) -> None:
    runner = ExperimentRunner(tmp_path, (5,), quick=True)
    assert nmse.find(runner).cells == nmse.find(runner).cells


def test_figures_follow_their_definitions() -> None:
    vectors = np.array([[2.0, 0.0], [0.0, 2.0]])
    estimate = nmse.MeanEstimate(np.array([1.0, 3.0]), 1.5)
    error, slope, bits = nmse._figures(estimate, vectors)
    assert (error, slope, bits) == (4 / 4, 2.0, 1.5)


def test_vectors_have_a_common_part() -> None:
    for family in nmse.FAMILIES[:3]:
        rows = family.draw(50, 1, None)
        share = (rows.mean(axis=0) ** 2).sum() / (rows**2).sum(axis=1).mean()
        assert rows.shape == (50, nmse.SYNTHETIC_DIM)
        assert 0.3 < share < 0.6
