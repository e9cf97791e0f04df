"""The experiment `nmse` in miniature, and the page that is made from its result."""

from pathlib import Path

import numpy as np
import pytest

from hushbit.arrays import Floats
from hushbit.lab.experiments import EXPERIMENTS, nmse, nmse_schemes, nmse_vectors
from hushbit.lab.experiments.base import Lab
from hushbit.lab.experiments.nmse_page import BEGIN, END, with_tables
from hushbit.lab.experiments.nmse_vectors import Family
from hushbit.lab.results import Result, read_result

ROOT = Path(__file__).parents[2]


def few(users: int, seed: int, data: str | None) -> Floats:
    """Short vectors with a common part."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=64) + rng.normal(size=(users, 64)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmse, "FAMILIES", (Family("gaussian", "short", few),))
    monkeypatch.setattr(nmse_schemes, "SIZES", (1.0, 3.0))
    monkeypatch.setattr(nmse_schemes, "AUTO_ROUNDS", 2)


def test_every_scheme_is_measured_at_every_place(small: None, tmp_path: Path) -> None:
    lab = Lab(tmp_path, (1, 2), quick=True)
    found = EXPERIMENTS["nmse"].find(lab)
    places = {
        (cell.where["promise"], cell.scheme) for cell in found.cells if cell.variant == "corrected"
    }
    for promise, scheme in [
        ("per bit", "CPA"), ("per bit", "CPA auto"), ("per bit", "MVU"), ("per bit", "JoPEQ"),
        ("per bit", "Laplace"), ("per bit", "signSGD + RR"), ("none", "EDEN"), ("none", "QUIC-FL"),
        ("none", "QSGD"), ("none", "UVeQFed"), ("none", "top-k"), ("none", "CPA w/o RR"),
        ("whole message", "PrivUnitG"), ("whole message", "PrivHS"), ("whole message", "SQKR"),
        ("whole message", "CPA subset"),
    ]:  # fmt: skip
        assert (promise, scheme) in places
    assert any(cell.scheme == "CPA" and cell.variant == "authors" for cell in found.cells)
    measured = [cell for cell in found.cells if cell.metric == "nmse" and cell.seeds]
    assert all(len(cell.seeds) == 2 and cell.mean >= 0 for cell in measured)


def test_the_same_seeds_give_the_same_cells(small: None, tmp_path: Path) -> None:
    lab = Lab(tmp_path, (5,), quick=True)
    assert nmse.find(lab).cells == nmse.find(lab).cells


def test_figures_are_the_definition() -> None:
    vectors = np.array([[2.0, 0.0], [0.0, 2.0]])
    carried = nmse.Carried(np.array([1.0, 3.0]), 1.5)
    error, slope, bits = nmse._figures(carried, vectors)
    assert (error, slope, bits) == (4 / 4, 2.0, 1.5)


def test_vectors_have_a_common_part() -> None:
    for family in nmse_vectors.FAMILIES[:3]:
        rows = family.draw(50, 1, None)
        share = (rows.mean(axis=0) ** 2).sum() / (rows**2).sum(axis=1).mean()
        assert rows.shape == (50, nmse_vectors.SYNTHETIC_DIM)
        assert 0.3 < share < 0.6


@pytest.mark.skipif(not (ROOT / "results" / "nmse").is_dir(), reason="no result is kept")
def test_page_is_made_from_the_kept_result() -> None:
    page = (ROOT / "docs" / "field.md").read_text(encoding="utf-8")
    result = read_result(ROOT / "results" / "nmse")
    assert isinstance(result, Result)
    assert BEGIN in page
    assert END in page
    assert with_tables(page, result) == page
