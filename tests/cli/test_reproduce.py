"""hushbit reproduce: lists, refuses, runs, and says how to go on."""

import json

import pytest

from hushbit.lab.experiments import EXPERIMENTS, base
from hushbit.lab.results import read_result


def test_list(hushbit):
    answer = hushbit("reproduce", "--list")
    assert answer.code == 0
    assert all(name in answer.out for name in EXPERIMENTS)
    rows = json.loads(hushbit("reproduce", "--list", "--json").out)
    assert [row["name"] for row in rows] == list(EXPERIMENTS)


def test_run_and_result(hushbit, tmp_path):
    out = tmp_path / "out"
    answer = hushbit("reproduce", "theorem2", "--quick", "--rounds", 30, "--out", out)
    assert answer.code == 0
    assert "theorem2 (quick form):" in answer.out
    made = read_result(out / "theorem2")
    assert made.command == f"hushbit reproduce theorem2 --quick --rounds 30 --out {out}"
    assert made.quick
    assert made.seeds == (1, 2)


def test_json(hushbit, tmp_path):
    answer = hushbit("reproduce", "theorem2", "--rounds", 20, "--seeds", 1, "--out", tmp_path,
                     "--json")  # fmt: skip
    (made,) = json.loads(answer.out)
    assert made["name"] == "theorem2"
    assert {"claim", "holds", "figure"} == set(made["checks"][0])


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ((), "name an experiment"),
        (("magic",), "unknown experiment 'magic'"),
        (("theorem2", "--rounds", 0), "rounds must be"),
        (("theorem2", "--seeds", 0), "seeds must be"),
        (("theorem2", "--workers", 0), "workers must be"),
        (("theorem2", "--seeds", "x"), "--seeds"),
    ],
)
def test_refusals_take_one_line_and_leave_nothing(hushbit, tmp_path, words, word):
    out = tmp_path / "out"
    answer = hushbit("reproduce", *words, "--out", out)
    assert answer.code == 2
    assert word in answer.err
    assert len(answer.lines) == 1
    assert not out.exists()


def test_an_interrupt_tells_how_to_go_on(hushbit, tmp_path, monkeypatch):
    def run_cells(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(base, "run_cells", run_cells)
    answer = hushbit("reproduce", "nested", "--quick", "--out", tmp_path)
    assert answer.code == 130
    assert f"go on with hushbit reproduce nested --quick --out {tmp_path}" in " ".join(answer.lines)
