"""Flower's optimizers around the decoded mean, and servers that are killed and go on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedYogi

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


@pytest.mark.parametrize("make", [FedAvg, lambda: FedAvgM(server_momentum=0.9), FedAdam, FedYogi])
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
