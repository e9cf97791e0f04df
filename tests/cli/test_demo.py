"""hushbit demo: a table, and the plot file on the last line, with or without MNIST."""

from pathlib import Path

import pytest

from hushbit.cli import demo
from hushbit.errors import HushbitError


@pytest.fixture
def _offline(monkeypatch):
    def nowhere(*_):
        raise HushbitError("no network")

    monkeypatch.setattr("hushbit.fl.data.fetch_dataset", nowhere)
    monkeypatch.setitem(demo.DIGITS, "rounds", 2)


@pytest.mark.usefixtures("_offline")
def test_without_mnist_the_digits_serve(hushbit, tmp_path):
    answer = hushbit("demo", "--folder", tmp_path / "demo")
    assert answer.code == 0
    last = answer.out.splitlines()[-1]
    assert last == f"plot: {tmp_path / 'demo' / 'compare.png'}"
    assert Path(last.removeprefix("plot: ")).read_bytes().startswith(b"\x89PNG")
    assert "embedded digits" in answer.err
    assert "1,000 users" in answer.out
