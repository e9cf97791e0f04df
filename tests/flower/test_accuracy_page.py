"""The figures of docs/flower.md are those that benchmarks/flower_accuracy.py printed."""

import importlib.util
import json
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "benchmarks" / "flower_accuracy.jsonl"


def test_the_table_is_made_from_the_runs() -> None:
    place = ROOT / "benchmarks" / "flower_table.py"
    spec = importlib.util.spec_from_file_location("flower_table", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.table(RUNS.read_text().splitlines()) in (ROOT / "docs" / "flower.md").read_text()


def test_1000_users_are_within_two_points_of_fedavg() -> None:
    rows = [json.loads(line) for line in RUNS.read_text().splitlines()]
    found = {
        name: mean(r["accuracy"] for r in rows if (r["users"], r["method"]) == (1000, name))
        for name in ("FedAvg", "hushbit, clip by norm votes")
    }
    assert found["hushbit, clip by norm votes"] > found["FedAvg"] - 2
