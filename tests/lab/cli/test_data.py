"""hushbit data: list, fetch and verify, with and without a network."""

import gzip
import json

import pytest

from hushbit.lab.sim import datasets
from hushbit.lab.sim.datasets import DATASETS, DataUnavailable


@pytest.fixture
def _offline(monkeypatch):
    def unreachable(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("requests.get", unreachable)
    monkeypatch.setattr("subprocess.run", unreachable)


def test_the_list_states_what_is_present(hushbit, tmp_path):
    answer = hushbit("data", "list", "--data", tmp_path, "--json")
    states = {row["name"]: row["state"] for row in json.loads(answer.out)}
    assert states["digits"] == "embedded"
    assert set(states.values()) == {"embedded", "absent"}
    shown = hushbit("data", "list", "--data", tmp_path)
    assert shown.code == 0
    assert "fashion-mnist" in shown.out


def test_verify_returns_an_exit_code(hushbit, tmp_path):
    assert hushbit("data", "verify", "digits").code == 0
    answer = hushbit("data", "verify", "mnist", "--data", tmp_path)
    assert answer.code == 1
    assert "absent" in answer.out
    assert hushbit("data", "verify", "letters").code == 2


@pytest.mark.usefixtures("_offline")
def test_without_a_network_nothing_is_written(hushbit, tmp_path):
    for words in (
        ("data", "fetch", "mnist", "--data", tmp_path / "data"),
        (
            "run",
            "--dataset",
            "mnist",
            "--mechanism",
            "fedavg",
            "--data",
            tmp_path / "data",
            "--out",
            tmp_path / "run",
        ),
    ):
        answer = hushbit(*words)
        assert answer.code == 2
        assert len(answer.lines) == 1
        assert "no source worked" in answer.err
        assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_named_and_not_overwritten(hushbit, tmp_path):
    for file in DATASETS["mnist"].files:
        place = tmp_path / "data" / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(gzip.compress(b"not the published bytes"))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.gz")}
    answer = hushbit(
        "run",
        "--dataset",
        "mnist",
        "--mechanism",
        "fedavg",
        "--data",
        tmp_path / "data",
        "--out",
        tmp_path / "run",
    )
    assert answer.code == 2
    assert len(answer.lines) == 1
    assert "not the published file" in answer.err
    assert not (tmp_path / "run").exists()
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*.gz")}
    verified = hushbit("data", "verify", "mnist", "--data", tmp_path / "data")
    assert (verified.code, "damaged" in verified.out) == (1, True)


def test_a_corrupted_download_is_not_stored(hushbit, tmp_path, monkeypatch):
    files = {file.path: b"corrupted" for file in DATASETS["mnist"].files}
    original = datasets.fetch_files
    monkeypatch.setattr(
        datasets,
        "fetch_files",
        lambda folder, absent, *_: original(folder, absent, {"mirror": lambda *_: files}),
    )
    answer = hushbit("data", "fetch", "mnist", "--data", tmp_path / "data")
    assert answer.code == 2
    assert "mirror: mnist/train-images-idx3-ubyte.gz is not the published file" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_fetch_and_verify_print_json(hushbit, tmp_path):
    fetched = hushbit("data", "fetch", "digits", "--json")
    assert json.loads(fetched.out) == [{"name": "digits", "source": "embedded in scikit-learn"}]
    verified = hushbit("data", "verify", "digits", "mnist", "--data", tmp_path, "--json")
    assert verified.code == 1
    assert [row["state"] for row in json.loads(verified.out)] == ["embedded", "absent"]


def test_fetch_prints_the_source(hushbit, monkeypatch):
    answer = hushbit("data", "fetch", "digits")
    assert (answer.code, answer.out) == (0, "digits: embedded in scikit-learn\n")

    def refuse(*_):
        raise DataUnavailable("no source worked")

    monkeypatch.setattr(datasets, "fetch_files", refuse)
    assert hushbit("data", "fetch", "cifar10", "--data", "nowhere").code == 2
