"""hushbit run --task: own tasks from a Python file."""

import json
import textwrap
from pathlib import Path

import pytest
from safetensors.numpy import load_file

SOURCE = """
    import torch
    import torch.nn.functional as F
    from hushbit.lab import Task

    def make():
        torch.manual_seed(0)
        clients = [(torch.randn(3, 4), torch.randn(3, 1)) for _ in range(12)]
        test = (torch.randn(9, 4), torch.randn(9, 1))
        return Task(torch.nn.Linear(4, 1), F.mse_loss, clients, test, metrics={"mae": F.l1_loss})

    task = make()
    nothing = 3
"""
SMALL = ("--rounds", 2, "--mechanism", "cpa", "--epsilon-per-bit", 2, "--rate", 0.1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / f"task_of_{tmp_path.name}.py"
    path.write_text(textwrap.dedent(SOURCE))
    return path


def test_a_task_from_a_file(hushbit, source, tmp_path):
    answer = hushbit("run", "--task", f"{source}:task", *SMALL, "--out", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    figures = json.loads(answer.out)
    assert (figures["users"], figures["dim"]) == (12, 5)
    assert (figures["dataset"], figures["model"]) == ("own data", "Linear")
    assert figures["test_mae"] > 0
    assert set(load_file(tmp_path / "run" / "model.safetensors")) == {"weight", "bias"}
    again = hushbit("run", "--task", f"{source}:make", *SMALL, "--json")
    assert json.loads(again.out)["test_mae"] == figures["test_mae"]
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["training"] == "many users at once"


def test_figures_of_a_regression_are_printed(hushbit, source):
    answer = hushbit("run", "--task", f"{source}:task", *SMALL)
    assert answer.code == 0, answer.err
    assert "test mae" in answer.out
    assert "accuracy" not in answer.out
    assert "nan" not in answer.out


def test_a_run_of_a_task_resumes(hushbit, source, tmp_path):
    folder = tmp_path / "run"
    assert hushbit("run", "--task", f"{source}:task", *SMALL, "--out", folder).code == 0
    assert hushbit("run", "--out", folder, "--resume").code == 0


def test_tasks_are_compared_and_reported(hushbit, source, tmp_path):
    words = ("--task", f"{source}:task", "--rounds", 2, "--epsilon-per-bit", 2, "--rate", 0.1)
    answer = hushbit("compare", "--mechanisms", "fedavg,cpa", *words, "--out", tmp_path / "both")
    assert answer.code == 0, answer.err
    assert "loss" in answer.out
    report = hushbit("report", tmp_path / "both", "--out", tmp_path / "page.html")
    assert report.code == 0, report.err
    page = (tmp_path / "page.html").read_text()
    assert "own data, Linear" in page
    assert "All finished runs by test loss." in page
    assert f"hushbit run --task {source}:task --rounds 2" in page


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("{source}", "my_task.py:task"),
        ("{source}:", "my_task.py:task"),
        ("absent.py:task", "absent.py is not a file"),
        ("{source}:nothing", "got int"),
        ("{source}:other", "has no name other"),
    ],
)
def test_wrong_places_are_refused(hushbit, source, place, message):
    answer = hushbit("run", "--task", place.format(source=source), *SMALL)
    assert answer.code == 2
    assert message in " ".join(answer.err.split())


def test_a_function_with_arguments_is_refused(hushbit, tmp_path):
    path = tmp_path / "needs_argument.py"
    path.write_text("def make(users):\n    return users\n")
    answer = hushbit("run", "--task", f"{path}:make", *SMALL)
    assert answer.code == 2
    assert "must return a task without arguments: missing a required argument: 'users'" in " ".join(
        answer.err.split()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n1 / 0\n", ", line 2: ZeroDivisionError: division by zero (--debug shows"),
        ("x = (\n", ", line 1: SyntaxError: '(' was never closed"),
        ("import not_there\n", " imports not_there, which is not installed"),
        ("def task():\n    raise KeyError('a')\n", ", line 2: KeyError: 'a'"),
    ],
)
def test_an_error_in_a_task_file_takes_one_line(hushbit, tmp_path, text, message):
    path = tmp_path / f"wrong_task_{abs(hash(text))}.py"
    path.write_text(text)
    answer = hushbit("run", "--task", f"{path}:task", *SMALL)
    assert answer.code == 2
    assert message in " ".join(answer.err.split())
    assert "Traceback" not in answer.err


def test_a_file_must_not_have_the_name_of_another_module(hushbit, tmp_path):
    path = tmp_path / "json.py"
    path.write_text("task = 3")
    answer = hushbit("run", "--task", f"{path}:task", *SMALL)
    assert answer.code == 2
    assert "rename the file" in " ".join(answer.err.split())


def test_options_of_built_in_data_are_refused(hushbit, source):
    for words in (("--dataset", "mnist"), ("--users", 5), ("--partition", "iid")):
        answer = hushbit("run", "--task", f"{source}:task", *SMALL, *words)
        assert answer.code == 2
        assert f"leave {words[0]} out" in " ".join(answer.err.split())
