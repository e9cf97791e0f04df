"""Flower's optimizers around the decoded mean, and servers that are killed and resumed."""

import json
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
)

from flower.parts import MODEL, OPEN, LocalGrid, add, federation, record, run, strategy, values
from hushbit.errors import DamagedFile, HushbitError, InvalidInput
from hushbit.flower import server_optimizer as optimizer_module
from hushbit.store import run_folder


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
def test_optimizers_step_as_in_flower_itself(tmp_path: Path, make: Any) -> None:
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
def test_a_killed_server_resumes_to_the_same_model(tmp_path: Path, make: Any) -> None:
    apps = federation(tmp_path, [add(0.25), add(0.5)], **OPEN)
    whole = run(LocalGrid(apps), strategy(optimizer=make()), rounds=4)
    place = tmp_path / "run"
    run(LocalGrid(apps), strategy(optimizer=make(), folder=place), rounds=2)
    calls = 0

    def killed(asked: Message, reply: Message) -> list[Message]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return [reply]

    with pytest.raises(KeyboardInterrupt):
        run(LocalGrid(apps, killed), strategy(optimizer=make(), folder=place), rounds=4)
    grid = LocalGrid(apps)
    seen: list[int] = []
    rest = run(
        grid,
        strategy(optimizer=make(), folder=place),
        rounds=4,
        evaluate_fn=lambda n, a: (seen.append(n), MetricRecord({"accuracy": 0.5}))[1],
    )
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
        (FedAdam(eta=0.01), FedAdam(eta=5.0)),
        (FedAdam(beta_1=0.9), FedAdam(beta_1=0.5)),
        (FedAvgM(server_momentum=0.9), FedAvgM(server_momentum=0.1)),
        (FedAdam(), FedYogi()),
    ],
)
def test_an_optimizer_with_other_settings_is_refused(
    tmp_path: Path, first: FedAvg, then: FedAvg
) -> None:
    apps, place = federation(tmp_path, [add(0.25)], **OPEN), tmp_path / "run"
    run(LocalGrid(apps), strategy(optimizer=first, folder=place))
    with pytest.raises(InvalidInput, match="another optimizer"):
        run(LocalGrid(apps), strategy(optimizer=then, folder=place), rounds=2)
    run(LocalGrid(apps), strategy(optimizer=first, folder=place), rounds=2)


class OwnFedAvg(FedAvg):
    """Its overrides would be ignored."""


@pytest.mark.parametrize(
    "optimizer",
    [
        FedProx(proximal_mu=0.1),
        FedMedian(),
        Krum(),
        OwnFedAvg(),
        FedAvg(train_metrics_aggr_fn=lambda replies, key: MetricRecord()),
        FedAdam(evaluate_metrics_aggr_fn=lambda replies, key: MetricRecord()),
    ],
)
def test_an_optimizer_whose_code_would_be_ignored_is_refused(optimizer: FedAvg) -> None:
    with pytest.raises(InvalidInput, match=r"optimizer must be|leave it out"):
        strategy(optimizer=optimizer)


def test_sampling_options_of_an_optimizer_are_ignored_with_a_warning(monkeypatch: Any) -> None:
    logged: list[str] = []
    monkeypatch.setattr(optimizer_module, "log", lambda _, text, *more: logged.append(text % more))
    given = FedAvg(fraction_train=0.5, min_available_nodes=7)
    strategy(optimizer=given)
    assert "fraction_train, min_available_nodes" in logged[0]
    assert given.fraction_train == 0.5
    strategy(optimizer=FedAvg())
    assert len(logged) == 1


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


def rounds(place: Path) -> list[int]:
    return [
        json.loads(line)["round"] for line in (place / "metrics.jsonl").read_text().splitlines()
    ]


def run_for(tmp_path: Path, count: int) -> Any:
    grid = LocalGrid(federation(tmp_path, [add(0.25)], **OPEN))
    return run(grid, strategy(folder=tmp_path / "run"), rounds=count)


def kill_before_the_first_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    def killed(target: Path, write: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_atomic", killed)
        with pytest.raises(KeyboardInterrupt):
            run_for(tmp_path, 3)


@pytest.mark.parametrize("lost", [0, 1, 20, None])
def test_a_run_killed_before_its_first_checkpoint_starts_again(
    tmp_path: Path, monkeypatch: Any, lost: int | None
) -> None:
    kill_before_the_first_checkpoint(tmp_path, monkeypatch)
    place = tmp_path / "run" / "metrics.jsonl"
    if lost is None:  # killed before the file was made
        place.unlink()
        (tmp_path / "run" / "environment.json").unlink()
    else:
        assert rounds(tmp_path / "run") == [1]
        place.write_text(place.read_text()[: -lost or None])
    run_for(tmp_path, 3)
    assert rounds(tmp_path / "run") == [1, 2, 3]
    assert (tmp_path / "run" / "environment.json").exists()


def test_a_row_that_a_kill_cut_short_is_written_again(tmp_path: Path) -> None:
    run_for(tmp_path, 2)
    place = tmp_path / "run" / "metrics.jsonl"
    place.write_text(place.read_text() + '{"round": 3, "asked"')
    run_for(tmp_path, 4)
    assert rounds(tmp_path / "run") == [1, 2, 3, 4]


@pytest.mark.parametrize("done", [1, 2])
def test_a_missing_checkpoint_is_refused(tmp_path: Path, done: int) -> None:
    run_for(tmp_path, done)
    (tmp_path / "run" / "checkpoint.npz").unlink()
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(DamagedFile, match=r"checkpoint\.npz"):
        run_for(tmp_path, 3)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        "[1]\n",
        "",
        '{"round": 1}\n',
        '{"round": 1}\n{"round": 1}\n',
        '{"round": 1}\nx\n{"round": 3}\n',
        '{"round": "1"}\n{"round": 2}\n',
    ],
)
def test_metrics_that_do_not_match_the_run_are_refused(tmp_path: Path, text: str) -> None:
    run_for(tmp_path, 2)
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    with pytest.raises(DamagedFile):
        run_for(tmp_path, 3)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == text


@pytest.mark.parametrize(
    "arrays",
    [
        {"round": 1},
        {},
        {"round": "many"},
        {"round": 9},
        {"round": -1},
        {"round": 1, "model w": np.zeros((4, 9), np.float32)},
        {"round": 1, "model w": np.zeros((4, 8), np.float32), "model b": np.zeros(4, np.float32)},
        {
            "round": 1,
            "model w": np.zeros((4, 9), np.float32),
            "model b": np.zeros(4, np.float32),
            "optimizer m_t": np.zeros(3),
        },
    ],
)
def test_a_checkpoint_without_the_model_is_refused(tmp_path: Path, arrays: Any) -> None:
    run_for(tmp_path, 1)
    np.savez(tmp_path / "run" / "checkpoint.npz", **arrays)
    with pytest.raises(DamagedFile):
        run_for(tmp_path, 2)


def test_a_second_server_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    def start_another(number: int, arrays: Any) -> MetricRecord:
        with pytest.raises(InvalidInput, match="another process"):
            run_for(tmp_path, 2)
        return MetricRecord({"accuracy": 0.5})

    grid = LocalGrid(federation(tmp_path, [add(0.25)], **OPEN))
    run(grid, strategy(folder=tmp_path / "run"), evaluate_fn=start_another)
    assert rounds(tmp_path / "run") == [1]
    run_for(tmp_path, 2)
    assert rounds(tmp_path / "run") == [1, 2]
