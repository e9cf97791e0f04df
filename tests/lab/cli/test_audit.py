"""hushbit audit: attacks, exit codes, ledgers."""

import json
from pathlib import Path
from typing import Any

import pytest

import hushbit as hb
from hushbit.lab.attacks.audit import AuditFinding
from hushbit.lab.cli import main


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["audit", *arguments])
    code = stopped.value.code
    return code if isinstance(code, int) else 0


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    made = hb.Ledger.open(path)
    made.set_limit("ada", epsilon=100.0, delta=1e-5)
    made.charge("ada", 3, hb.Cost(((0.5, 10),)), mechanism="CPA")
    made.record(17, 4, hb.Cost(((1.0, 2),)), mechanism="CPA")
    return path


def test_a_correct_encoder_ends_with_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--epsilon-per-bit", "1", "--trials", "2000"]) == 0
    printed = capsys.readouterr().out
    for words in ("one bit", "whole message", "within the claim"):
        assert words in printed


@pytest.mark.parametrize("points", ["2", "4"])
def test_json_holds_claims_and_bounds(points: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--epsilon-per-bit", "1", "--trials", "1000", "--dim", "3", "--points", points]
    assert run([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"]
    assert [row["claim"] for row in found["findings"]] == [1.0] * 5 + [3.0]
    assert all(row["lower_bound"] <= row["claim"] for row in found["findings"])


def test_an_exceeded_claim_ends_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> list[AuditFinding]:
        return [AuditFinding("one bit", 0.5, 0.0, 0.6, 1000, 0.9999)]

    monkeypatch.setattr("hushbit.lab.cli.audit.attack", broken)
    assert run(["--epsilon-per-bit", "0.5"]) == 1
    printed = capsys.readouterr()
    assert "CLAIM EXCEEDED" in printed.out
    assert "at least 0.6" in printed.err
    assert run(["--epsilon-per-bit", "0.5", "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["passed"]


def test_the_summary_of_a_ledger(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--ledger", str(ledger), "--json"]) == 0
    rows = {row["user"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["ada"]["pure_epsilon"] == 5.0
    assert rows["ada"]["limit"] == 100.0
    assert rows["ada"]["last_round"] == 3
    assert rows["17"]["bits"] == 2
    assert rows["17"]["limit"] is None
    assert rows["17"]["against"] == "server"
    assert run(["--ledger", str(ledger)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "ada" in printed
    assert "per user over all ballots, against the server, which sees ballots" in printed


def test_a_file_that_is_not_a_ledger_ends_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("not a ledger " * 100)
    for path in (other, tmp_path / "missing.db", tmp_path):
        before = other.read_bytes()
        assert run(["--ledger", str(path)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert len(printed.err.splitlines()) == 1
        assert other.read_bytes() == before
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--epsilon-per-bit", "0"],
        ["--epsilon-per-bit", "-1"],
        ["--epsilon-per-bit", "nan"],
        ["--epsilon-per-bit", "inf"],
        ["--epsilon-per-bit", "x"],
        ["--epsilon-per-bit", "1", "--trials", "5"],
        ["--epsilon-per-bit", "1", "--points", "1"],
        ["--epsilon-per-bit", "1", "--dim", "0"],
        ["--epsilon-per-bit", "1", "--ledger", "x"],
    ],
)
def test_wrong_arguments_end_with_exit_code_2(wrong: list[str]) -> None:
    assert run(wrong) == 2


TALLY = ["--tally", "--epsilon-per-bit", "1", "--trials", "1200", "--seed", "3"]


def test_the_audit_of_tallies_states_the_answer_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*TALLY, "--clip", "1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("lower bound ")
    assert printed[0].endswith("the claim was not broken")
    assert "(99 % confidence)" in printed[0]


def test_the_audit_of_tallies_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*TALLY, "--clip", "2", "--users", "4", "--rounds", "2", "--delta", "1e-4"]
    assert run([*asked, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    few, many = first["findings"]
    claims = [
        hb.CPA(dim, 1.0, 1.0, clip=2.0).guarantee.of_tally(4, 2, delta=1e-4).epsilon
        for dim in (4, 128)
    ]
    assert [few["claim"], many["claim"]] == claims
    assert (few["attack"], many["attack"]) == (
        "2 tallies, 4 of 4 entries differ",
        "2 tallies, 128 of 128 entries differ",
    )
    assert few["confidence"] == 0.995
    assert (first["honest"], first["rounds"], first["relation"]) == (4, 2, "replace")
    assert first["passed"]
    assert run([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_a_broken_claim_of_tallies_ends_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> AuditFinding:
        return AuditFinding("one tally", 0.5, 1e-5, 0.6, 1000, 0.995)

    monkeypatch.setattr("hushbit.lab.cli.audit.audit_tally", broken)
    assert run([*TALLY, "--clip", "1"]) == 1
    printed = capsys.readouterr()
    assert "THE CLAIM IS BROKEN" in printed.out
    assert "at least 0.6" in printed.err


def test_the_membership_attack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--membership", "--users", "6", "--rounds", "1", "--trials", "4"]
    assert run(asked) == 0
    assert capsys.readouterr().out.startswith("AUC 0.")
    assert run([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == 4
    assert found["passed"]
    monkeypatch.setattr("hushbit.lab.attacks.membership.MembershipResult.passed", False)
    assert run(asked) == 1
    assert "exceeds the claim" in capsys.readouterr().err


def test_two_attacks_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--tally", "--membership"], [], ["--tally", "--ledger", "x.db"]):
        assert run(arguments) == 2
        assert "give one of --tally" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("--tally", "--dim", 30), "--dim"),
        (("--tally", "--dataset", "mnist"), "--dataset"),
        (("--membership", "--clip", 3), "--clip"),
        (("--epsilon-per-bit", 1, "--users", 5), "--users"),
        (("--ledger", "ledger.db", "--delta", 1e-6), "--delta"),
        (("--inversion", "out.png", "--seed", 1), "--seed"),
    ],
)
def test_options_without_an_effect_are_refused(hushbit, words, name):
    answer = hushbit("audit", *words)
    assert answer.code == 2
    assert f"{name} has no effect on" in " ".join(answer.err.split())
