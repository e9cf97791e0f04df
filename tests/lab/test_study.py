"""Studies: several mechanisms and seeds on one task, with one server step."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import hushbit as hb
from hushbit.errors import InvalidInput, MissingExtra
from hushbit.lab import Study, Task
from hushbit.lab import run as run_task
from hushbit.lab.intervals import interval
from plain_fedavg import CNN, Regression, images, table

BUDGET = hb.Budget(8, 1e-5, per="run", against="model")


@pytest.fixture(scope="module")
def task() -> Task:
    torch.manual_seed(1)
    return Task(CNN, F.cross_entropy, [images(4) for _ in range(30)], images(30))


@pytest.fixture(scope="module")
def result(task: Task) -> Any:
    return Study(task, budget=BUDGET, rounds=2, seeds=3, rate=0.1).compare(
        ["fedavg", "cpa-auto", "laplace", "gaussian"]
    )


def test_every_mechanism_is_run_with_every_seed(result: Any) -> None:
    assert set(result.runs) == {"fedavg", "cpa-auto", "gaussian"}
    for runs in result.runs.values():
        assert [one["seed"] for one in runs] == [0, 1, 2]
        assert len({one["test_loss"] for one in runs}) == 3
    scores = [run.score[0] for run in result.card.runs]
    assert scores == sorted(scores, reverse=True)
    for run in result.card.runs:
        values = [100 * one["test_accuracy"] for one in result.runs[run.name]]
        assert run.score == interval(values)
        assert run.seeds == 3


def test_all_mechanisms_have_the_same_server_step(result: Any) -> None:
    assert {run.server_step.split(",")[0] for run in result.card.runs} == {"plain"}
    assert "plain 1 " in str(result)


def test_a_mechanism_that_the_budget_does_not_suit_is_left_out(result: Any) -> None:
    assert list(result.refused) == ["laplace"]
    assert "laplace takes a budget per bit" in str(result)
    assert "laplace takes a budget per bit" in result._repr_html_()


def test_the_answer_comes_first(result: Any) -> None:
    assert result.best in ("cpa-auto", "gaussian")
    first, *lines = str(result).splitlines()
    assert first.startswith("Best private run")
    assert first.endswith(f": {result.best}")
    assert lines[0].split()[:2] == ["test", "accuracy"]
    assert "FedAvg" in lines[0]
    assert result.verdict in " ".join(str(result).split())
    assert result._repr_html_().index(result.best) < result._repr_html_().index("<table ")
    one = result.run_of()
    assert result.card.best.message_bytes == one["bytes_up"] / (30 * 2)
    assert one.card.text().startswith(f"Run: {result.best}\n")
    assert one.card.verdict.replace(" %", "&nbsp;%") in one._repr_html_()


def test_what_a_study_gives_away(result: Any, tmp_path: Path) -> None:
    result.save(tmp_path / "model.safetensors")
    stored = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in result.state_dict().items())
    note = " ".join(result.privacy_note().split())
    assert f"run with {result.best}" in note
    scores = ", ".join(f"{one['test_accuracy']:.2%}" for one in result.runs[result.best])
    assert f"figures of seed 0; test accuracy of all 3 seeds: {scores}" in note
    assert "- No privacy: users send messages without noise" in result.privacy_note("fedavg")
    assert result.report(tmp_path / "page.html").read_text().count("cpa-auto-seed-2") > 0
    records = result.to_records()
    assert len(records) == 3 * 3 * 2
    assert {"mechanism", "seed", "round", "test_accuracy"} <= set(records[0])
    with pytest.raises(InvalidInput, match="runs of fedavg, cpa-auto, gaussian"):
        result.state_dict("mvu")


def test_to_pandas(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match="pip install pandas"):
        result.to_pandas()
    monkeypatch.undo()
    pytest.importorskip("pandas")
    assert list(result.to_pandas()["mechanism"].unique()) == ["fedavg", "cpa-auto", "gaussian"]


def test_few_seeds_have_no_range_and_a_loss_is_ranked_upwards(tmp_path: Path) -> None:
    torch.manual_seed(1)
    task = Task(Regression, F.mse_loss, [table(4) for _ in range(8)], table(30))
    told: list[str] = []
    made = Study(task, rounds=2, seeds=[5], rate=0.1, epsilon_per_bit=0.1, radius=1.0).compare(
        ["fedavg", "cpa"], out=tmp_path, on_run=lambda name, _: told.append(name)
    )
    assert made.card.metric == "test_loss"
    assert told == [run.name for run in made.card.runs] == ["fedavg", "cpa"]
    mean, low, high = made.card.runs[0].score
    assert mean == low == high
    assert made.best == "cpa"
    assert (tmp_path / "cpa-seed-5" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "mechanisms", "message"),
    [
        ({"seeds": 0}, ["fedavg"], "seeds"),
        ({"seeds": [1, 1]}, ["fedavg"], "different"),
        ({"seeds": None}, ["fedavg"], "seeds must be a number, or a list of numbers; got None"),
        ({"mechanism": "cpa"}, ["fedavg"], "name them in compare"),
        ({}, ["cpa"], "epsilon"),
        ({}, ["magic"], "unknown mechanism"),
        ({}, [], "none was given"),
        ({}, None, "takes the names of mechanisms, .* got NoneType"),
        ({}, [None], "unknown mechanism None"),
    ],
)
def test_wrong_studies_are_refused(
    task: Task, options: Any, mechanisms: list[str], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Study(task, rounds=1, **options).compare(mechanisms)


def test_wrong_arguments_are_explained(task: Task) -> None:
    with pytest.raises(InvalidInput, match="write seeds=3"):
        Study(task, rounds=1, seed=1)
    with pytest.raises(InvalidInput, match=r"Study takes a hushbit\.lab\.Task; got NoneType"):
        Study(None, rounds=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="seed must be a whole number"):
        Study(task, rounds=1, seeds=[0.5])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="budget must be a Budget"):
        run_task(task, "cpa", budget=4, rounds=1)  # type: ignore[arg-type]
    for model in ("linear", None):
        with pytest.raises(InvalidInput, match="a function that returns one; got"):
            Task(model, F.cross_entropy, [images(4)], images(4))  # type: ignore[arg-type]


def test_a_study_continues_in_its_folder(task: Task, tmp_path: Path) -> None:
    study = Study(task, rounds=2, seeds=2, rate=0.1)
    first = study.compare(["fedavg"], out=tmp_path)
    shutil.rmtree(tmp_path / "fedavg-seed-1")
    with pytest.raises(InvalidInput, match="continue it with resume=True"):
        study.compare(["fedavg"], out=tmp_path)
    again = study.compare(["fedavg"], out=tmp_path, resume=True)
    assert [one.metrics for one in again.runs["fedavg"]] == [
        one.metrics for one in first.runs["fedavg"]
    ]
    with pytest.raises(InvalidInput, match="resume=True needs out"):
        study.compare(["fedavg"], resume=True)
    with pytest.raises(InvalidInput, match="on_run must be a function"):
        study.compare(["fedavg"], on_run=3)  # type: ignore[arg-type]


def test_weights_are_saved_under_their_own_suffix(result: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"such as model\.safetensors; got .*m\.pt"):
        result.save(tmp_path / "m.pt")


def test_one_mechanism_is_compared_by_its_name(task: Task) -> None:
    assert list(Study(task, rounds=1, seeds=1, rate=0.1).compare("fedavg").runs) == ["fedavg"]
