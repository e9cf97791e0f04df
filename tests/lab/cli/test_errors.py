"""A wrong input ends with exit code 2, one line and no file; --debug adds the traceback."""

import errno
import importlib
import os
import sys

import pytest

from hushbit.lab.sim import datasets
from hushbit.store.run_folder import CHECKPOINT

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
    (("--mechanism", "cpa-auto", "--epsilon-per-bit", 1, "--no-rotate"), "always rotates"),
    ((*CPA, "--config", "absent.toml"), "absent.toml"),
    ((*CPA, "--unknown", 3), "--unknown"),
    ((*CPA, "--seed", "x"), "--seed"),
    (("--resume",), "holds no run"),
    ((*CPA, "--resume"), "leave the others out"),
]


@pytest.mark.parametrize(("words", "word"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_input_takes_one_line_and_writes_nothing(hushbit, tmp_path, words, word):
    fast = (
        ()
        if "--resume" in words
        else tuple(
            part
            for name, value in zip(FAST[::2], FAST[1::2], strict=True)
            if name not in words
            for part in (name, value)
        )
    )
    answer = hushbit("run", "--out", tmp_path / "deep" / "run", *fast, *words)
    assert answer.code == 2
    assert answer.out == ""
    assert len(answer.lines) == 1
    assert answer.err.startswith("hushbit: ")
    assert word in answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("run", "--resume"), ("run", "--tensorboard", *CPA)])
def test_options_that_need_out(hushbit, words):
    answer = hushbit(*words)
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "needs --out" in answer.err


@pytest.mark.parametrize(
    ("text", "word"),
    [("users = ", "TOML"), ("user = 3", "user"), ("users = 3.5", "int"), ("users = 0", "least 1")],
)
def test_invalid_configuration_files(hushbit, tmp_path, text, word):
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


def test_an_existing_run_is_not_overwritten(hushbit, tmp_path):
    words = ("run", *CPA, *FAST, "--out", tmp_path / "run")
    assert hushbit(*words).code == 0
    before = contents(tmp_path / "run")
    answer = hushbit(*words)
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "--resume" in answer.err
    assert contents(tmp_path / "run") == before


def test_a_damaged_checkpoint_is_an_error(hushbit, tmp_path):
    folder = tmp_path / "run"
    hushbit("run", *CPA, *FAST, "--out", folder)
    (folder / CHECKPOINT).write_bytes(b"PK half")
    before = contents(folder)
    answer = hushbit("run", "--resume", "--out", folder)
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "damaged" in answer.err
    assert contents(folder) == before


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing(hushbit, tmp_path, monkeypatch, call):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    answer = hushbit("run", *CPA, *FAST, "--out", tmp_path / "deep" / "run")
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "No space left" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_of_the_lab_is_named(hushbit, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    answer = hushbit("run", *CPA)
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "pip install 'hushbit[lab]'" in answer.err


@pytest.mark.parametrize("debug", [False, True])
def test_a_package_that_an_import_misses_is_named(hushbit, monkeypatch, debug):
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setattr(datasets, "verify_dataset", lambda *_: importlib.import_module("pooch"))
    answer = hushbit("data", "verify", "mnist", *["--debug"] * debug)
    assert answer.code == 2
    assert answer.lines[-1] == "hushbit: this command needs pooch: pip install 'hushbit[lab]'"
    assert ("Traceback" in answer.err) == debug


def test_a_missing_package_of_the_command_line_is_named(hushbit, monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    answer = hushbit("--help")
    assert (answer.code, answer.out) == (2, "")
    assert answer.lines == ["hushbit: the command line needs typer: pip install 'hushbit[cli]'"]


def test_unknown_commands_are_refused(hushbit):
    answer = hushbit("rnu")
    assert (answer.code, len(answer.lines)) == (2, 1)
    assert "No such command 'rnu'" in answer.err


def test_no_words_show_the_help(hushbit):
    assert hushbit().code == 0
    assert "Usage" in hushbit().out
    answer = hushbit("data")
    assert "Usage" in answer.out + answer.err
    assert "hushbit: ;" not in answer.err
