"""hushbit export: files of a stored run."""

import json

import pytest
from safetensors.torch import load_file


@pytest.fixture
def stored(hushbit, tmp_path):
    words = ("--users", 6, "--rounds", 2, "--mechanism", "fedavg", "--out", tmp_path / "run")
    assert hushbit("run", *words).code == 0
    return tmp_path / "run"


def test_export_writes_the_named_files_and_prints_them(hushbit, tmp_path, stored):
    weights, metrics = tmp_path / "model.safetensors", tmp_path / "metrics.csv"
    answer = hushbit("export", stored, "--weights", weights, "--metrics", metrics)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        f"weights after 2 rounds: {weights}",
        f"metrics after 2 rounds: {metrics}",
    ]
    assert load_file(weights)["fc1.weight"].shape == (10, 64)
    assert len(metrics.read_text().splitlines()) == 3
    again = hushbit("export", stored, "--metrics", metrics, "--json")
    assert json.loads(again.out) == {"rounds": 2, "metrics": str(metrics)}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), "name a file: --weights"),
        (("--weights", "m.onnx"), "m.onnx must end in one of .safetensors, .pt"),
        (("--metrics", "m.xlsx"), "m.xlsx must end in one of .jsonl, .csv, .parquet"),
        (("--metrics", "m.csv"), "holds no run"),
    ],
)
def test_wrong_requests_are_refused_in_one_line(hushbit, tmp_path, monkeypatch, words, wanted):
    monkeypatch.chdir(tmp_path)
    answer = hushbit("export", tmp_path / "absent", *words)
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert wanted in answer.lines[0]
    assert list(tmp_path.iterdir()) == []
