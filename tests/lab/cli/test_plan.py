"""hushbit plan: the same figures as the library, in a table or as JSON."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from hushbit.defence.shift_bound import defended_shift
from hushbit.lab.cli import main
from hushbit.tuning.plan import plan

SIZE = ["--dim", "1000", "--users", "100"]


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *arguments])
    code = stopped.value.code
    return code if isinstance(code, int) else 0


MODEL_RUN = ["--epsilon", "4", "--delta", "1e-5", "--per", "run", "--against", "model"]
KEYS = ["epsilon_bit", "epsilon_message_server", "epsilon_run_server", "epsilon_run_model"]
KEYS += ["delta", "honest", "relation"]


def test_json_equals_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--epsilon-per-bit", "0.5", "--honest", "20", "--snr-db", "3", "--rounds", "9"]
    assert run([*SIZE, *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    made = plan(1000, 100, epsilon_per_bit=0.5, honest=20, snr_db=3.0, rounds=9)
    assert found["options"] == json.loads(json.dumps(made.rows()))
    assert found["assumptions"]["signal"] == 0.1
    assert list(found)[:7] == KEYS
    assert {key: found[key] for key in KEYS} == made.best.statement.row()


def test_the_worst_shift_equals_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--dim", "7850", "--users", "1000", "--epsilon-per-bit", "0.5", "--rounds", "60"]
    assert run([*asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["worst_shift"]
    assert list(rows[0]) == ["attackers", "without_defence", "one_round", "every_round"]
    made = plan(7850, 1000, epsilon_per_bit=0.5, rounds=60)
    clip = made.assumptions.clip
    for row, share in zip(rows, (0.1, 0.2, 0.3, 0.4), strict=True):
        shift = defended_shift(made.best.mechanism, 1000, 60, share)
        assert shift is not None
        assert row == vars(shift)
        assert row["every_round"] <= row["one_round"] < row["without_defence"]
        assert (row["every_round"] < row["one_round"]) == (share > 0.11)  # more than `m` users
    assert run([*asked, "--details"]) == 0
    printed = capsys.readouterr().out
    assert f"{rows[2]['every_round'] / clip:.3g}" in printed
    for words in ("over rounds 6 to 60, proved", "along the direction", "take part in every"):
        assert words in printed


def test_json_writes_what_is_not_proved_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SIZE, "--epsilon-per-bit", "0.5", "--k", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon_run_model"] == "inf"
    assert found["honest"] is None
    assert found["options"][0]["k"] == 4


def test_a_message_budget_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    budget = ["--epsilon", "4", "--delta", "1e-5", "--per", "message", "--against", "server"]
    assert run([*SIZE, *budget, "--snr-db", "0", "--details"]) == 0
    printed = capsys.readouterr().out
    for words in ("pure subset", "l2 clip", "users for 0 dB", "assumed:", "one message", "run of"):
        assert words in printed


def test_the_budget_comes_first_then_a_row_for_each_observer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*SIZE, *MODEL_RUN, "--honest", "0.2", "--rounds", "5"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert re.fullmatch(r"within the budget: epsilon \S+ of 4 at delta 1e-5 per run, .*", lines[0])
    places = [printed.out.index(words) for words in ("Against the server", "Against those", "SNR")]
    assert places == sorted(places)
    assert "at least 20 voters" in " ".join(printed.out.split())
    assert "one message of 1000 bits" not in printed.out
    assert printed.err == ""


def test_details_state_every_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SIZE, "--epsilon-per-bit", "0.5", "--rounds", "30", "--details"]) == 0
    printed = capsys.readouterr().out
    for words in (
        "one bit",
        "one message of 1000 bits",
        "run of 30 rounds",
        "k = 1",
        "Worst shift",
    ):
        assert words in printed


def test_the_note_goes_to_a_file_or_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*SIZE, *MODEL_RUN, "--honest", "20", "--rounds", "5"]
    assert run([*asked, "--note", str(tmp_path / "note.md"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    note = (tmp_path / "note.md").read_text()
    assert note.startswith("# Privacy note of a plan\n")
    assert f"epsilon {found['epsilon_run_model']:.4g} of 4" in note
    assert run([*asked, "--note", "-"]) == 0
    assert capsys.readouterr().out == note


def test_the_page_is_written_beside_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "plan.html"
    assert run([*SIZE, "--epsilon-per-bit", "0.5", "--honest", "0.5", "--page", str(target)]) == 0
    assert "SNR" in capsys.readouterr().out
    text = target.read_text("utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert '"honest": {"number": 50, "share": 0.5}' in text


def test_a_rehearsal_measures_what_the_plan_predicts(capsys: pytest.CaptureFixture[str]) -> None:
    """With the measured signal, and no entry beyond the radius, the plan predicts the SNR."""
    asked = ["--dim", "650", "--users", "40", "--rounds", "3", "--epsilon-per-bit", "4"]
    asked += ["--radius", "0.5", "--signal", "0.02"]
    assert run([*asked, "--rehearse", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rehearsal = found["rehearsal"]
    assert rehearsal["rounds"] == 3
    assert rehearsal["overload_rate"] == 0
    assert rehearsal["predicted_db"] == found["options"][0]["snr_db"]
    expected = plan(
        650, 40, epsilon_per_bit=4.0, radius=0.5, signal=rehearsal["signal"], user_rms=0.1
    )
    assert rehearsal["snr_db"] == pytest.approx(expected.best.snr_db, abs=1.0)
    assert rehearsal["score"] != rehearsal["fedavg_score"] > 0.2
    assert rehearsal["metric"] == "test_accuracy"


def test_an_own_task_is_rehearsed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "regression.py"
    source.write_text(
        "import torch\n"
        "from hushbit.lab import Task\n"
        "x = torch.linspace(-1, 1, 60).reshape(6, 10, 1)\n"
        "clients = [(one, 2 * one) for one in x]\n"
        "model = torch.nn.Linear(1, 1)\n"
        "torch.nn.init.zeros_(model.weight)\n"
        "torch.nn.init.zeros_(model.bias)\n"
        "task = Task(model, torch.nn.functional.mse_loss, clients, clients[0])\n"
    )
    asked = ["--dim", "2", "--rounds", "2", "--epsilon-per-bit", "4", "--radius", "1"]
    asked += ["--rehearse", "--task", f"{source}:task"]
    assert run([*asked, "--users", "6", "--json"]) == 0
    rehearsal = json.loads(capsys.readouterr().out)["rehearsal"]
    assert rehearsal["metric"] == "test_loss"
    first_client = np.linspace(-1, 1, 60)[:10]
    loss_at_start = np.mean((2 * first_client) ** 2)  # all weights are 0
    assert 0 < rehearsal["fedavg_score"] < loss_at_start
    assert rehearsal["score"] != rehearsal["fedavg_score"]
    assert run([*asked, "--users", "7"]) == 2
    assert "regression.py:task has 6 users, but the plan is for 7: set --users 6" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_rehearsal_is_printed_beside_fedavg(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--dim", "650", "--users", "10", "--epsilon-per-bit", "4", "--radius", "0.001"]
    assert run([*asked, "--rehearse"]) == 0
    printed = capsys.readouterr().out
    for words in ("Rehearsal of 1 round\n", "fedavg", "predicted SNR dB", "a larger --radius"):
        assert words in printed
    assert "of the entries were beyond the radius" in printed


@pytest.mark.parametrize(("honest", "number"), [("1", 1), ("1.0", 100), ("0.5", 50), ("2", 2)])
def test_honest_voters_are_a_number_or_with_a_decimal_point_a_share(
    honest: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--dim", "10", "--users", "100", "--epsilon-per-bit", "0.1", "--json"]
    assert run([*asked, "--honest", honest]) == 0
    assert json.loads(capsys.readouterr().out)["honest"] == number


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["--epsilon", "4"],
        ["--epsilon", "4", "--delta", "0", "--per", "message"],
        ["--epsilon-per-bit", "0.5", *MODEL_RUN, "--rounds", "9"],
        [*MODEL_RUN, "--rounds", "9"],
        [*MODEL_RUN, "--honest", "20"],
        ["--epsilon-per-bit", "0.5", "--honest", "101"],
        ["--epsilon-per-bit", "0.5", "--honest", "2.5"],
        ["--epsilon-per-bit", "0.5", "--honest", "all"],
        ["--epsilon-per-bit", "0.5", "--note", "-", "--json"],
        ["--epsilon-per-bit", "0.5", "--note", "missing folder/note.md"],
        ["--epsilon-per-bit", "0.5", "--rehearse"],
        ["--epsilon-per-bit", "0.5", "--rehearse", "--dataset", "unknown"],
        ["--epsilon-per-bit", "0.5", "--page", "missing folder/plan.html"],
        ["--epsilon-per-bit", "-1"],
        ["--epsilon-per-bit", "0.5", "--signal", "2"],
        ["--epsilon", "4", "--delta", "1", "--per", "message", "--against", "server"],
        ["--epsilon-per-bit", "1", "--k", "0"],
        ["--epsilon-per-bit", "1", "--bits-per-weight", "1.5"],
    ],
)
def test_wrong_arguments_end_with_exit_code_2(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*SIZE, *wrong]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
