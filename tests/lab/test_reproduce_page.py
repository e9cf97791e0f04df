"""The committed results: the page is made from them, and a part of them is computed again."""

import os
from pathlib import Path

import pytest

from hushbit.lab.experiments.schemes import authors, federation
from hushbit.lab.experiments.theorem1 import THEOREM1, Spot, _spot_cells
from hushbit.lab.outcomes import run_outcome
from hushbit.lab.pages import ELSEWHERE, page_text
from hushbit.lab.results import find_results, read_result

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "reproduction.md"


def test_the_page_is_made_from_the_results():
    found = find_results(RESULTS)
    assert PAGE.read_text(encoding="utf-8") == page_text(found)
    for one in found:
        page = ELSEWHERE.get(one.name)
        assert (PAGE.parent / (page or f"figures/{one.name}.svg")).exists()


def test_formulas_of_theorem_1_come_out_again():
    kept = {(c.scheme, str(c.where), c.x): c for c in read_result(RESULTS / THEOREM1.name).cells}
    spot = Spot(10, 0.5, "Z", 1, 1)
    for cell in _spot_cells(spot, 1):
        if cell.variant in ("exact", "bound", "published"):
            old = kept[cell.scheme, str(cell.where), cell.x]
            assert cell.mean == pytest.approx(old.mean, rel=1e-9)


@pytest.mark.skipif("HUSHBIT_DATA" not in os.environ, reason="needs MNIST: set HUSHBIT_DATA")
def test_a_cell_of_the_nested_table_comes_out_again():
    """CPA as published, 10 users, first seed; half a point for other versions of libraries."""
    kept = read_result(RESULTS / "nested")
    place = ("CPA", "authors", {"users": 10}, "accuracy")
    old = next(c for c in kept.cells if (c.scheme, c.variant, c.where, c.metric) == place)
    note = next(note for note in kept.notes if note.startswith("CPA, users = 10:"))
    rate = float(note.rpartition("shown is rate ")[2])
    made = run_outcome(authors("CPA", **federation(30, users=10, rate=rate, seed=1)))
    assert made.accuracy == pytest.approx(old.seeds[0], abs=0.5)
