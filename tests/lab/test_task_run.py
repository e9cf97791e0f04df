"""Whole runs of own tasks: mechanisms, budgets, attacks, defence, engines, checkpoints, weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import hushbit as hb
from hushbit import lab
from hushbit.errors import InvalidInput
from hushbit.lab.report.sources import read_run
from hushbit.lab.sim import rounds
from hushbit.lab.sim.optimizers import ConstantRate
from hushbit.lab.sim.training import LocalSettings
from plain_fedavg import (
    CNN,
    BatchNormCNN,
    Regression,
    TextLSTM,
    TextTransformer,
    fedavg,
    images,
    table,
    text,
)

RUN_BUDGET = hb.Budget(8, 1e-5, per="run", against="model")


def clients_of(draw: Any, count: int = 8) -> list[Any]:
    torch.manual_seed(1)
    return [draw(4) for _ in range(count)]


def classes(count: int = 40) -> lab.Task:
    return lab.Task(CNN, F.cross_entropy, clients_of(images, count), images(30))


@pytest.mark.parametrize(
    ("make", "draw", "loss"),
    [
        (TextLSTM, text, F.cross_entropy),
        (TextTransformer, text, F.cross_entropy),
        (Regression, table, F.mse_loss),
        (BatchNormCNN, images, F.cross_entropy),
    ],
    ids=["LSTM on text", "transformer", "tabular regression", "BatchNorm CNN"],
)
def test_fedavg_equals_a_plain_loop(make: Any, draw: Any, loss: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, clients = make(), clients_of(draw)
    result = lab.run(
        lab.Task(model, loss, clients, draw(30)), "fedavg", rounds=3, rate=0.1, steps=2
    )
    expected = fedavg(model, loss, clients, rounds=3, steps=2, rate=0.1)
    result.save(tmp_path / "model.safetensors")
    for found in (result.state_dict(), load_file(tmp_path / "model.safetensors")):
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert torch.allclose(found[name].double(), value.double(), atol=1e-6), name
    fresh = make()
    fresh.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert [row["round"] for row in result.history] == [1, 2, 3]
    assert result.metrics["loss"] == result["test_loss"] == result.history[-1]["test_loss"]


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        ("cpa-auto", {"budget": RUN_BUDGET}),
        ("cpa", {"budget": RUN_BUDGET}),
        ("gaussian", {"budget": RUN_BUDGET}),
        ("cpa", {"epsilon_per_bit": 2.0, "radius": 0.01}),
        ("nested", {"epsilon_per_bit": 2.0}),
        ("laplace", {"epsilon_per_bit": 2.0}),
        ("laplace", {"epsilon_per_bit": 2.0, "preset": "authors"}),
        ("signsgd", {"epsilon_per_bit": 2.0, "sign_step": 0.01}),
        ("jopeq", {"epsilon_per_bit": 2.0}),
        ("mvu", {"epsilon_per_bit": 2.0}),
        ("cpa", {"epsilon_per_bit": 2.0, "attack": "ones", "attackers": 0.2}),
        ("cpa", {"epsilon_per_bit": 2.0, "attack": "directed", "attackers": 0.2}),
        ("fedavg", {"attack": "label-flip", "attackers": 0.2}),
        ("fedavg", {"defence": "geometric-median", "attack": "scaled", "attackers": 0.2}),
        ("cpa-auto", {"epsilon_per_bit": 2.0, "defence": "scores"}),
        ("fedavg", {"momentum": 0.5, "keep_momentum": True, "participation": 0.5}),
        ("fedavg", {"average_weights": True, "server": "adam"}),
    ],
)
def test_every_mechanism_attack_and_defence_takes_a_task(mechanism: str, options: Any) -> None:
    result = lab.run(classes(), mechanism, rounds=2, rate=0.1, **options)
    assert 0 <= result["test_accuracy"] <= 1
    assert result["users"] == result.statement.users == 40
    assert (result["dataset"], result["model"]) == ("own data", "CNN")
    assert "Own data, CNN" in result.privacy_note()


def test_a_budget_is_kept() -> None:
    result = lab.run(classes(), "cpa-auto", budget=RUN_BUDGET, rounds=2)
    assert result["epsilon_spent"] <= RUN_BUDGET.epsilon
    assert result["epsilon_spent"] > 0.5 * RUN_BUDGET.epsilon


def test_label_flip_changes_the_labels_of_attackers_alone() -> None:
    task = classes(4)
    attackers = np.array([True, False, False, True])
    changed = task.poisoned(attackers, "label-flip")
    before, after = (one.samples.targets.reshape(4, -1) for one in (task, changed))
    assert np.array_equal(after[attackers], 2 - before[attackers])
    assert np.array_equal(after[~attackers], before[~attackers])


@pytest.mark.parametrize("attack", ["label-flip", "backdoor"])
def test_attacks_that_need_classes_or_images_say_so(attack: str) -> None:
    task = lab.Task(Regression, F.mse_loss, clients_of(table), table(5))
    with pytest.raises(InvalidInput, match=f"{attack} changes"):
        lab.run(task, "fedavg", attack=attack, attackers=0.5)


def test_regression_reports_own_metrics(tmp_path: Path) -> None:
    task = lab.Task(
        Regression, F.mse_loss, clients_of(table), table(30), metrics={"mae": F.l1_loss}
    )
    result = lab.run(task, "fedavg", rounds=3, rate=0.1, evaluate_every=2, out=tmp_path / "run")
    assert set(result.metrics) == {"loss", "mae"}
    assert [row["test_mae"] is None for row in result.history] == [True, False, False]
    assert "Test mae" in result.privacy_note()
    assert "ccuracy" not in result.privacy_note()
    assert "test_mae" in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_noise_does_not_make_running_variances_negative() -> None:
    task = lab.Task(BatchNormCNN, F.cross_entropy, clients_of(images), images(30))
    result = lab.run(task, "laplace", epsilon_per_bit=0.1, radius=1.0, rounds=1)
    assert (result.state_dict()["norm.running_var"] >= 0).all()


def test_the_first_norm_comes_from_the_test_set_alone() -> None:
    torch.manual_seed(0)
    test = table(50)
    tasks = [
        lab.Task(Regression, F.mse_loss, [(size * x, y) for x, y in clients_of(table)], test)
        for size in (1.0, 100.0)
    ]
    norms = [task.public_norm(LocalSettings(ConstantRate(0.1)), 4, 0) for task in tasks]
    assert norms[0] == norms[1] > 0


@pytest.mark.slow
def test_workers_give_the_same_bits(monkeypatch: Any) -> None:
    monkeypatch.setattr(rounds, "BATCH_USERS", 16)
    one, two = (
        lab.run(classes(), "cpa", epsilon_per_bit=2.0, rounds=2, steps=2, workers=workers)
        for workers in (1, 2)
    )
    assert np.array_equal(one.params, two.params)
    losses = ([row["training_loss"] for row in made.history] for made in (one, two))
    assert next(losses) == next(losses)


@pytest.mark.parametrize("part", ["loss", "model", "metric"])
def test_what_cannot_be_pickled_is_named(part: str) -> None:
    class Local(Regression):
        pass

    task = lab.Task(
        Local if part == "model" else Regression,
        (lambda out, y: F.mse_loss(out, y)) if part == "loss" else F.mse_loss,
        clients_of(table),
        table(5),
        metrics={"mae": (lambda out, y: (out - y).abs().mean())} if part == "metric" else None,
    )
    names = {"loss": r"task\.loss \(.*<lambda>\)", "model": "Local", "metric": r"metrics\.mae"}
    with pytest.raises(InvalidInput, match=names[part]):
        lab.run(task, "fedavg", rounds=1, workers=2)


class Stopped(Exception):
    pass


class StopAfter(lab.Callback):
    def __init__(self, number: int) -> None:
        self.number = number

    def on_round(self, row: Any) -> None:
        if row["round"] == self.number:
            raise Stopped


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    options = {"epsilon_per_bit": 2.0, "rounds": 4, "steps": 2, "rate": 0.1}
    whole = lab.run(classes(), "cpa", **options)
    with pytest.raises(Stopped):
        lab.run(classes(), "cpa", **options, out=tmp_path, callbacks=[StopAfter(2)])
    resumed = lab.run(classes(), "cpa", **options, out=tmp_path, resume=True)
    assert np.array_equal(whole.params, resumed.params)
    assert len(resumed.history) == 4
    stored = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in whole.state_dict().items())


def test_a_run_does_not_continue_with_other_data(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        lab.run(classes(), "fedavg", rounds=3, out=tmp_path, callbacks=[StopAfter(1)])
    torch.manual_seed(9)
    other = lab.Task(CNN, F.cross_entropy, [images(4) for _ in range(40)], images(30))
    with pytest.raises(InvalidInput, match="other data"):
        lab.run(other, "fedavg", rounds=3, out=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"round": 3}, "did you mean rounds"),
        ({"users": 7}, "users 8"),
        ({"dataset": "mnist"}, "leave dataset out"),
        ({"partition": "iid"}, "leave partition out"),
        ({"validation": 5}, "leave validation out"),
        (
            {"mechanism": "cpa"},
            r"needs epsilon_per_bit, or a budget such as budget=Budget\(4, 1e-5",
        ),
        ({"mechanism": "laplace", "budget": RUN_BUDGET}, "bit or message with delta=0; got"),
        ({"budget": RUN_BUDGET}, r"leave out the budget \(epsilon, delta, per, against\)"),
        ({"server_momentum": 0.5}, "^server_momentum applies to server momentum only"),
        ({"engine": "rays"}, "engine must be one of local, ray"),
        ({"callbacks": [print]}, "list of objects of type hushbit.lab.Callback"),
        ({"callbacks": print}, "list of objects of type hushbit.lab.Callback"),
        (
            {"mechanism": "cpa", "budget": RUN_BUDGET, "epsilon": 3},
            "epsilon is a part of the budget",
        ),
        ({"mechanism": "cpa", "budget": RUN_BUDGET, "clip": 0}, "clip must be above 0"),
        ({"resume": True}, "needs out"),
        ({"mechanism": "cpa-auto", "rotate": False}, "always rotates .* leave rotate=False out"),
        ({"rate": 1e30, "rounds": 3}, "round 1: an update is too large .*: lower rate or"),
    ],
)
def test_wrong_options_are_refused(options: Any, message: str) -> None:
    task = lab.Task(Regression, F.mse_loss, clients_of(table), table(5))
    with pytest.raises(InvalidInput, match=message):
        lab.run(task, **({"mechanism": "fedavg"} | options))


def test_run_takes_tasks_only() -> None:
    with pytest.raises(InvalidInput, match=r"takes a hushbit\.lab\.Task; got Linear"):
        lab.run(torch.nn.Linear(2, 2), "fedavg")  # type: ignore[arg-type]


def test_a_report_shows_how_to_repeat_a_run_of_python(tmp_path: Path) -> None:
    lab.run(classes(), "cpa", epsilon_per_bit=2.0, rounds=1, out=tmp_path / "run")
    command = read_run(tmp_path / "run", "run").command
    assert command.startswith("hushbit.lab.run(task, rounds=1, epsilon_per_bit=2.0, ")


def test_unknown_names_of_the_lab() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Tusk'"):
        _ = lab.Tusk


def test_a_folder_with_a_run_names_the_parameter_that_continues_it(tmp_path: Path) -> None:
    lab.run(classes(4), "fedavg", rounds=1, out=tmp_path / "run")
    with pytest.raises(InvalidInput, match="continue it with resume=True"):
        lab.run(classes(4), "fedavg", rounds=1, out=tmp_path / "run")
