"""hushbit demo prints a table and the plot file on the last line."""

from pathlib import Path

import pytest

from hushbit.errors import HushbitError
from hushbit.lab.cli import compare


@pytest.fixture
def _offline(monkeypatch):
    def fail(*_, **__):
        raise HushbitError("no network")

    monkeypatch.setattr("hushbit.lab.sim.datasets.fetch_dataset", fail)
    monkeypatch.setitem(compare.DIGITS, "rounds", 2)


@pytest.mark.usefixtures("_offline")
def test_demo_uses_digits_when_mnist_is_unavailable(hushbit, tmp_path):
    answer = hushbit("demo", "--folder", tmp_path / "demo")
    assert answer.code == 0
    last = answer.out.splitlines()[-1]
    assert last == f"plot: {tmp_path / 'demo' / 'compare.png'}"
    assert Path(last.removeprefix("plot: ")).read_bytes().startswith(b"\x89PNG")
    assert "embedded digits" in answer.err
    assert "1,000 users" in answer.out
