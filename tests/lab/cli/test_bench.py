"""hushbit bench measures every operation and peer; sizes are small here."""

import json

import pytest

from hushbit.lab.cli import bench, main


def test_bench_measures_every_operation_and_peer(monkeypatch, capsys):
    monkeypatch.setattr(bench, "PAUSE", 0.0)
    monkeypatch.setattr(bench, "REPEATS", 1)
    with pytest.raises(SystemExit) as done:
        main(["bench", "--dim", "4000", "--points", "2", "--points", "4", "--json"])
    assert done.value.code == 0
    rows = json.loads(capsys.readouterr().out)
    asked = [("encode", 2), ("tally", 2), ("encode", 4), ("tally", 4)]
    assert [(row["operation"], row["points"]) for row in rows] == asked
    for row in rows:
        assert row["times_numpy"] == pytest.approx(row["hushbit"] / row["numpy"])
        assert row["times_torch"] == pytest.approx(row["hushbit"] / row["torch"])
