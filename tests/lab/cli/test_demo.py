"""hushbit demo: three mechanisms at one budget, and the report on the last line."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from hushbit.errors import HushbitError


@pytest.fixture
def _offline(monkeypatch, tmp_path):
    def fail(*_, **__):
        raise HushbitError("no network")

    training = import_module("hushbit.lab.cli.demo").TRAINING
    monkeypatch.setattr("hushbit.lab.sim.datasets.fetch_dataset", fail)
    monkeypatch.setitem(training, "rounds", 2)
    monkeypatch.setitem(training, "users", 100)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_offline")
def test_demo_compares_three_mechanisms_and_writes_into_a_new_folder(hushbit):
    Path("demo").mkdir()
    answer = hushbit("demo")
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == f"report: {Path('demo-2', 'report.html')}"
    assert "Best private run: " in Path("demo-2", "report.html").read_text()
    assert Path("demo-2", "compare.png").read_bytes().startswith(b"\x89PNG")
    names = {path.name for path in Path("demo-2").iterdir() if path.is_dir()}
    assert names == {"fedavg", "gaussian", "cpa"}
    assert answer.out.splitlines()[2].startswith("Best private run: ")
    assert "embedded digits" in answer.err


@pytest.mark.usefixtures("_offline")
def test_the_budget_of_the_demo_is_4_per_run_against_the_model(hushbit):
    answer = hushbit("demo", "--out", "elsewhere")
    assert answer.code == 0
    assert "of 4 at delta 1e-5 per run, against those who" in answer.out
    assert answer.out.splitlines()[-1] == f"report: {Path('elsewhere', 'report.html')}"


@pytest.mark.usefixtures("_offline")
def test_demo_prints_its_summaries_as_json(hushbit):
    found = json.loads(hushbit("demo", "--json").out)
    assert [one["mechanism"] for one in found] == ["fedavg", "gaussian", "cpa"]
    assert "history" not in found[0]
