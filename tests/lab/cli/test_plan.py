"""hushbit plan: the same figures as the library, in a table or as JSON."""

import json

import pytest

from hushbit.lab.cli import main
from hushbit.tuning.plan import plan

SIZE = ["--dim", "1000", "--users", "100"]


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *arguments])
    code = stopped.value.code
    return code if isinstance(code, int) else 0


def test_json_equals_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--epsilon-per-bit", "0.5", "--k", "4", "--snr-db", "3", "--rounds", "9", "--json"]
    assert run([*SIZE, *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    made = plan(1000, 100, epsilon_per_bit=0.5, k=4, snr_db=3.0, rounds=9)
    assert found["options"] == json.loads(json.dumps(made.rows()))
    assert found["assumptions"]["signal"] == 0.1


def test_a_message_budget_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SIZE, "--epsilon", "4", "--delta", "1e-5", "--snr-db", "0"]) == 0
    printed = capsys.readouterr().out
    for words in ("pure subset", "l2 clip", "users for 0 dB", "assumed:", "one message", "run of"):
        assert words in printed


def test_the_guarantee_is_printed_in_every_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SIZE, "--epsilon-per-bit", "0.5", "--rounds", "30"]) == 0
    printed = capsys.readouterr().out
    for words in ("one bit", "one message of 1000 bits", "run of 30 rounds", "k = 1"):
        assert words in printed


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--epsilon", "4"],
        ["--epsilon-per-bit", "0.5", "--epsilon", "4", "--delta", "0"],
        ["--epsilon-per-bit", "-1"],
        ["--epsilon-per-bit", "0.5", "--signal", "2"],
        ["--epsilon", "4", "--delta", "1"],
        ["--epsilon-per-bit", "1", "--k", "0"],
        ["--epsilon-per-bit", "1", "--bits-per-entry", "1.5"],
    ],
)
def test_wrong_arguments_end_with_exit_code_2(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*SIZE, *wrong]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
