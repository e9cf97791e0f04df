"""Digests of small runs: these tests fail if any step of a run changes its results.

Linear algebra and training round differently on other processors, so floats are compared to four
digits and integers exactly. With HUSHBIT_EXACT=1 every bit must be equal; this holds for any number
of threads, on processors like the one that wrote the file.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import digests

pytest.importorskip("torch")
KEPT = json.loads(digests.FILE.read_text())


def check(made: Any, kept: Any, place: str) -> None:
    """Compare dicts and lists part by part; digests of figures only with HUSHBIT_EXACT=1."""
    if isinstance(kept, dict):
        assert isinstance(made, dict), place
        assert set(made) == set(kept), place
        for name in sorted(kept):
            by_bits = os.environ.get("HUSHBIT_EXACT") == "1"
            if by_bits or name != "sha256" or "figures" not in kept:
                check(made[name], kept[name], f"{place}, {name}")
    elif isinstance(kept, list):
        assert isinstance(made, list), place
        assert len(made) == len(kept), place
        for number, (new, old) in enumerate(zip(made, kept, strict=True), 1):
            check(new, old, f"{place}, {number}")
    elif isinstance(kept, float):
        assert made == pytest.approx(kept, rel=1e-4, abs=0), place
    else:
        assert made == kept, place


def test_all_runs_have_golden_digests() -> None:
    assert set(KEPT) == {*digests.RUNS, *digests.CELLS, "recount"}


@pytest.mark.parametrize("name", digests.RUNS)
def test_runs(name: str, tmp_path: Path) -> None:
    check(digests.with_digest(digests.run(name, tmp_path)), KEPT[name], name)


@pytest.mark.parametrize("name", digests.CELLS)
def test_cells(name: str, tmp_path: Path) -> None:
    check(digests.with_digest(digests.cell(name, tmp_path)), KEPT[name], name)


def test_recount(tmp_path: Path) -> None:
    check(digests.recount(tmp_path), KEPT["recount"], "recount")


def test_the_defence_removes_attackers_in_the_golden_runs() -> None:
    for name in ("constant bits and defence", "attack and defence"):
        assert max(row["removed_attackers"] for row in KEPT[name]["figures"]) > 0


def test_times_are_not_part_of_digests() -> None:
    row = {"round": 1, "seconds_train": 0.5, "cpu_seconds_step": 0.1, "seconds": 2.0, "mse": 0.25}
    assert digests.timeless(row) == {"round": 1, "mse": 0.25}


def test_small_differences_are_found() -> None:
    check({"a": [1.0, 2]}, {"a": [1.00001, 2]}, "close")
    with pytest.raises(AssertionError, match="far, a, 1"):
        check({"a": [1.0, 2]}, {"a": [1.001, 2]}, "far")
    with pytest.raises(AssertionError, match="other, a, 2"):
        check({"a": [1.0, 2]}, {"a": [1.0, 3]}, "other")
