"""Flower's optimizers around the decoded mean, and servers that are killed and go on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedYogi,
    Krum,
)  # fmt: skip

import hushbit.flower.optimizer as optimizer_module
from flower.parts import LocalGrid, federation, record
from flower.test_strategy import MODEL, OPEN, add, run, strategy, values
from hushbit.errors import HushbitError, InvalidInput


@pytest.mark.parametrize(
    "make",
    [
        FedAvg,
        lambda: FedAvgM(server_learning_rate=0.5, server_momentum=0.9),
        lambda: FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99),
        lambda: FedYogi(eta=0.1, beta_1=0.9, beta_2=0.99),
        lambda: FedAdagrad(eta=0.1),
    ],
)
def test_flowers_optimizers_do_what_they_do_without_us(tmp_path: Path, make: Any) -> None:
    """The same optimizer, fed with whole models by Flower's own code."""
    shifts = [0.25, 0.5]
    grid = LocalGrid(federation(tmp_path, [add(s) for s in shifts], **OPEN))
    result = run(grid, strategy(optimizer=make()), rounds=3)
    plain = make()
    plain.fraction_train = 0.0
    arrays = record(MODEL)
    for number in (1, 2, 3):
        plain.configure_train(number, arrays, {}, grid)
        mean = {k: a.numpy() + np.float32(0.375) for k, a in arrays.items()}
        content = RecordDict({"a": record(mean), "m": MetricRecord({"num-examples": 1})})
        arrays, _ = plain.aggregate_train(number, [Message(content, 1, "train")])
    for name, array in arrays.items():
        assert np.allclose(values(result)[name], array.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "make", [FedAvg, lambda: FedAvgM(server_momentum=0.9), FedAdam, FedYogi, FedAdagrad]
)
def test_a_killed_server_goes_on_to_the_same_model(tmp_path: Path, make: Any) -> None:
    apps = federation(tmp_path, [add(0.25), add(0.5)], **OPEN)
    whole = run(LocalGrid(apps), strategy(optimizer=make()), rounds=4)
    place = tmp_path / "run"
    run(LocalGrid(apps), strategy(optimizer=make(), folder=place), rounds=2)
    calls = 0

    def dies(asked: Message, reply: Message) -> list[Message]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return [reply]

    with pytest.raises(KeyboardInterrupt):
        run(LocalGrid(apps, dies), strategy(optimizer=make(), folder=place), rounds=4)
    grid = LocalGrid(apps)
    seen: list[int] = []
    rest = run(
        grid, strategy(optimizer=make(), folder=place), rounds=4,
        evaluate_fn=lambda n, a: (seen.append(n), MetricRecord({"accuracy": 0.5}))[1],
    )  # fmt: skip
    assert seen == [3, 4]
    for name, array in values(whole).items():
        assert values(rest)[name].tobytes() == array.tobytes()
    lines = (place / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert '"test_accuracy": 0.5' in lines[3]


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    apps = federation(tmp_path, [add(0.25)], **OPEN)
    run(LocalGrid(apps), strategy(folder=tmp_path / "run"))
    other = strategy("cpa", epsilon_per_bit=1.0, radius=0.1, folder=tmp_path / "run")
    with pytest.raises(InvalidInput, match="another"):
        run(LocalGrid(apps), other)
    with pytest.raises(InvalidInput, match="another"):
        run(LocalGrid(apps), strategy(folder=tmp_path / "run", secret=bytes(32)))
    (tmp_path / "run" / "checkpoint.npz").write_bytes(b"PK broken")
    with pytest.raises(HushbitError, match="damaged"):
        run(LocalGrid(apps), strategy(folder=tmp_path / "run"))


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (FedAdam(eta=0.01), FedAdam(eta=5.0)), (FedAdam(beta_1=0.9), FedAdam(beta_1=0.5)),
        (FedAvgM(server_momentum=0.9), FedAvgM(server_momentum=0.1)), (FedAdam(), FedYogi()),
    ],
)  # fmt: skip
def test_an_optimizer_with_other_settings_is_refused(
    tmp_path: Path, first: FedAvg, then: FedAvg
) -> None:
    apps, place = federation(tmp_path, [add(0.25)], **OPEN), tmp_path / "run"
    run(LocalGrid(apps), strategy(optimizer=first, folder=place))
    with pytest.raises(InvalidInput, match="another optimizer"):
        run(LocalGrid(apps), strategy(optimizer=then, folder=place), rounds=2)
    run(LocalGrid(apps), strategy(optimizer=first, folder=place), rounds=2)


class OwnFedAvg(FedAvg):
    """What it overrides would be lost."""


@pytest.mark.parametrize(
    "optimizer",
    [
        FedProx(proximal_mu=0.1), FedMedian(), Krum(), OwnFedAvg(),
        FedAvg(train_metrics_aggr_fn=lambda replies, key: MetricRecord()),
        FedAdam(evaluate_metrics_aggr_fn=lambda replies, key: MetricRecord()),
    ],
)  # fmt: skip
def test_what_would_be_lost_of_an_optimizer_is_refused(optimizer: FedAvg) -> None:
    with pytest.raises(InvalidInput, match=r"optimizer must be|leave it out"):
        strategy(optimizer=optimizer)


def test_sampling_of_an_optimizer_has_no_effect_and_that_is_said(monkeypatch: Any) -> None:
    said: list[str] = []
    monkeypatch.setattr(optimizer_module, "log", lambda _, text, *more: said.append(text % more))
    given = FedAvg(fraction_train=0.5, min_available_nodes=7)
    strategy(optimizer=given)
    assert "fraction_train, min_available_nodes" in said[0]
    assert given.fraction_train == 0.5
    strategy(optimizer=FedAvg())
    assert len(said) == 1


def test_record_keys_of_an_optimizer_are_used(tmp_path: Path) -> None:
    seen: list[set[str]] = []

    class Looking(LocalGrid):
        def push_messages(self, messages: Any) -> Any:
            kept = list(messages)
            seen.extend(set(message.content) for message in kept)
            return super().push_messages(kept)

    apps = federation(tmp_path, [add(0.25)], **OPEN)
    keys = FedAvg(arrayrecord_key="weights", configrecord_key="settings")
    run(Looking(apps), strategy(optimizer=keys, evaluate_users=True))
    assert seen == [{"weights", "settings"}] * 2
