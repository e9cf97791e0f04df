"""hushbit reproduce: list, errors, results, and how to resume."""

import json

import pytest

from hushbit.lab.experiments import experiment
from hushbit.lab.experiments.claims import claims, paper_items
from hushbit.lab.experiments.reproduce import EXPERIMENTS
from hushbit.lab.experiments.results import read_result


def test_list_has_every_item_claim_and_experiment(hushbit, tmp_path):
    answer = hushbit("reproduce", "--list", "--out", tmp_path)
    assert answer.code == 0
    assert all(name in answer.out for name in EXPERIMENTS)
    assert all(f"{item.number}: " in answer.out for item in paper_items())
    assert all(claim.text in answer.out for claim in claims())
    made = json.loads(hushbit("reproduce", "--list", "--json", "--out", tmp_path).out)
    assert [row["name"] for row in made["experiments"]] == list(EXPERIMENTS)
    listed = [claim for item in made["items"] for claim in item["claims"]]
    assert len(listed) == len(claims())
    undecided = [one for one in listed if not one["evidence"]]
    assert {one["state"] for one in undecided} == {"not run"}
    assert {one["state"] for one in listed if one["evidence"]} == {"reproduced", "refuted"}


def test_a_run_writes_its_result(hushbit, tmp_path):
    out = tmp_path / "out"
    answer = hushbit("reproduce", "theorem2", "--quick", "--rounds", 30, "--out", out)
    assert answer.code == 0
    assert "theorem2 (quick form):" in answer.out
    made = read_result(out / "theorem2")
    assert made.command == f"hushbit reproduce theorem2 --quick --rounds 30 --out {out}"
    assert made.quick
    assert made.seeds == (1, 2)


def test_json_has_the_checks(hushbit, tmp_path):
    answer = hushbit(
        "reproduce", "bit-allocations", "--rounds", 20, "--seeds", 1, "--out", tmp_path, "--json"
    )
    (made,) = json.loads(answer.out)
    assert made["name"] == "bit-allocations"
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
def test_wrong_options_give_one_line_and_write_nothing(hushbit, tmp_path, words, word):
    out = tmp_path / "out"
    answer = hushbit("reproduce", *words, "--out", out)
    assert answer.code == 2
    assert word in answer.err
    assert len(answer.lines) == 1
    assert not out.exists()


def test_an_interrupt_prints_the_command_that_resumes(hushbit, tmp_path, monkeypatch):
    def run_cells(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run_cells", run_cells)
    answer = hushbit("reproduce", "nested", "--quick", "--out", tmp_path)
    assert answer.code == 130
    assert f"resume with hushbit reproduce nested --quick --out {tmp_path}" in " ".join(
        answer.lines
    )
