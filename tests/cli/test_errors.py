"""Every wrong input: exit code 2, one line, nothing written; the traceback with --debug."""

import errno
import os

import pytest

from hushbit.lab.record import CHECKPOINT

CPA = ("--mechanism", "cpa", "--epsilon-per-bit", 1)
FAST = ("--users", 8, "--rounds", 2)
WRONG = [
    (("--dataset", "imagenet", *CPA), "imagenet"),
    (("--model", "transformer", *CPA), "transformer"),
    (("--mechanism", "magic"), "unknown mechanism 'magic'"),
    (("--mechanism", "cpa"), "cpa needs --epsilon-per-bit"),
    (("--mechanism", "fedavg", "--epsilon-per-bit", 1), "fedavg does not take --epsilon-per-bit"),
    (("--mechanism", "fedavg", "--points", 4, "--clip", 1), "--clip, --points"),
    ((*CPA, "--stages", "2,8"), "cpa does not take --stages"),
    ((*CPA, "--sign-step", 1), "cpa does not take --sign-step"),
    (("--mechanism", "cpa", "--epsilon-per-bit", 0), "epsilon_per_bit must be above 0"),
    (("--mechanism", "cpa", "--epsilon-per-bit", "nan"), "NaN"),
    ((*CPA, "--users", 288), "1437"),
    ((*CPA, "--users", 1438, "--partition", "iid"), "more than the 1437 samples"),
    ((*CPA, "--users", 0), "users must be at least 1"),
    ((*CPA, "--rate", "inf"), "rate must be above 0 and finite"),
    ((*CPA, "--partition", "writer"), "mnist"),
    ((*CPA, "--attack", "ones"), "--attackers"),
    ((*CPA, "--points", 0), "points"),
    ((*CPA, "--radius", 0), "radius"),
    (("--mechanism", "fedavg", "--rate", "1e38", "--steps", 3), "rate"),
    (("--mechanism", "fedavg", "--rate", "1e30"), "clip or rescale"),
    ((*CPA, "--config", "absent.toml"), "absent.toml"),
    ((*CPA, "--unknown", 3), "--unknown"),
    ((*CPA, "--seed", "x"), "--seed"),
    (("--resume",), "holds no run"),
    ((*CPA, "--resume"), "leave the others out"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "word"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_input(hushbit, tmp_path, words, word):
    fast = () if "--resume" in words else tuple(
        part for name, value in zip(FAST[::2], FAST[1::2], strict=True) if name not in words
        for part in (name, value)
    )  # fmt: skip
    answer = hushbit("run", "--out", tmp_path / "deep" / "run", *fast, *words)
    assert answer.code == 2
    assert answer.out == ""
    assert len(answer.lines) == 1
    assert answer.err.startswith("hushbit: ")
    assert word in answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("run", "--resume"), ("run", "--tensorboard", *CPA)])
def test_options_that_need_a_folder(hushbit, words):
    answer = hushbit(*words)
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "needs --out" in answer.err


@pytest.mark.parametrize(
    ("text", "word"),
    [("users = ", "TOML"), ("user = 3", "user"), ("users = 3.5", "int"), ("users = 0", "least 1")],
)
def test_bad_configuration_files(hushbit, tmp_path, text, word):
    config = tmp_path / "run.toml"
    config.write_text(text)
    answer = hushbit("run", "--config", config, "--out", tmp_path / "run")
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert word in answer.err
    assert list(tmp_path.iterdir()) == [config]


def test_debug_shows_the_traceback(hushbit):
    for words in (("--debug", "run"), ("run", "--debug")):
        answer = hushbit(*words, "--mechanism", "magic")
        assert answer.code == 2
        assert "Traceback" in answer.err
        assert answer.lines[-1].startswith("hushbit: unknown mechanism 'magic'")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_that_holds_a_run_stays_as_it_is(hushbit, tmp_path):
    words = ("run", *CPA, *FAST, "--out", tmp_path / "run")
    assert hushbit(*words).code == 0
    before = contents(tmp_path / "run")
    answer = hushbit(*words)
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "--resume" in answer.err
    assert contents(tmp_path / "run") == before


def test_a_damaged_checkpoint(hushbit, tmp_path):
    folder = tmp_path / "run"
    hushbit("run", *CPA, *FAST, "--out", folder)
    (folder / CHECKPOINT).write_bytes(b"PK half")
    before = contents(folder)
    answer = hushbit("run", "--resume", "--out", folder)
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "damaged" in answer.err
    assert contents(folder) == before


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk(hushbit, tmp_path, monkeypatch, call):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    answer = hushbit("run", *CPA, *FAST, "--out", tmp_path / "deep" / "run")
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "No space left" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_says_what_to_install(hushbit, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    answer = hushbit("run", *CPA)
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "pip install 'hushbit[lab]'" in answer.err


def test_no_words_show_the_help(hushbit):
    assert hushbit().code == 0
    assert "Usage" in hushbit().out
    answer = hushbit("data")
    assert "Usage" in answer.out + answer.err
    assert "hushbit: ;" not in answer.err
