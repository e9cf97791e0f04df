"""Options of the strategy: sampling, deadlines, frozen arrays, evaluation, invalid options."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hushbit as hb
from flower.parts import (
    DIM,
    OPEN,
    LocalGrid,
    add,
    federation,
    run,
    run_unchanged,
    strategy,
    values,
)
from hushbit.errors import HushbitError, InvalidInput
from hushbit.flower.records import PULL_SECONDS
from hushbit.flower.server_round import users_by_partition


def test_user_numbers_come_from_the_table_of_the_server(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(1.0), add(2.0), add(4.0)], **OPEN))
    result = run(grid, strategy(users={100: 7, 102: 8}))
    assert result.train_metrics_clientapp[1]["asked"] == 2
    assert np.allclose(values(result)["w"], 0.5 + 2.5)
    limits = {"metrics": ("partition-id",), "metric_replies_per_day": 1}
    listed = federation(tmp_path, [add(1.0)] * 3, **limits)
    assert users_by_partition(LocalGrid(listed), 3, seconds=1) == {100: 0, 101: 1, 102: 2}
    with pytest.raises(HushbitError):
        users_by_partition(grid, 3, seconds=0.1)


def test_the_number_of_sampled_users_is_users_per_round(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(1.0)] * 6, **OPEN))
    result = run(grid, strategy(users_per_round=4), rounds=3)
    assert [result.train_metrics_clientapp[n]["accepted"] for n in (1, 2, 3)] == [4, 4, 4]


def test_sampling_and_voting_share_one_deadline(tmp_path: Path, monkeypatch: Any) -> None:
    now = [0.0]
    ttls: list[float] = []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    class LateNodes(LocalGrid):
        def get_node_ids(self) -> list[int]:
            return list(self.apps) if now[0] >= 80 else []

        def push_messages(self, messages: Any) -> Any:
            kept = list(messages)
            ttls.extend(message.metadata.ttl for message in kept)
            return super().push_messages(kept)

    grid = LateNodes(federation(tmp_path, [add(1.0)] * 2, **OPEN), lambda a, r: [])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    lines: list[Any] = []
    monkeypatch.setattr("hushbit.flower.server_round.log", lambda _, *line: lines.append(line))
    metrics = run_unchanged(grid, strategy(deadline_seconds=100.0)).train_metrics_clientapp[1]
    [(text, *numbers)] = lines  # one line for 80 seconds without a node
    assert text % tuple(numbers) == (
        "hushbit: 0 nodes are online, waiting for 1 (quorum 1) for at most 100 s; if there are no "
        "more nodes, lower honest, quorum or users_per_round"
    )
    assert metrics["asked"] == 2
    assert metrics["seconds"] == pytest.approx(100.0)
    assert len(ttls) == 2
    assert max(ttls) <= 20.0 + PULL_SECONDS


def test_no_requests_are_sent_below_the_quorum(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(1.0)], **OPEN))
    made = strategy(quorum=2, deadline_seconds=0.3)
    metrics = run_unchanged(grid, made).train_metrics_clientapp[1]
    assert (metrics["asked"], metrics["accepted"]) == (0, 0)
    assert not (tmp_path / "0" / "ledger.db").exists()


def test_buffers_keep_their_dtype_and_frozen_arrays_their_value(tmp_path: Path) -> None:
    model = {
        "fc": np.ones((2, 3), np.float32),
        "bn.running_var": np.full(3, 0.1, np.float32),
        "bn.num_batches_tracked": np.array(4),
        "bn.running_mean": np.zeros(3, np.float64),
    }
    grid = LocalGrid(federation(tmp_path, [add(-0.5)], **OPEN))
    got = values(run(grid, strategy(frozen=["*running_mean"]), model=model))
    assert got["bn.num_batches_tracked"] == 4
    assert np.array_equal(got["bn.running_mean"], np.zeros(3))
    assert np.array_equal(got["bn.running_var"], np.zeros(3, np.float32))
    assert np.allclose(got["fc"], 0.5)
    assert {k: v.dtype for k, v in got.items()} == {k: v.dtype for k, v in model.items()}


def test_users_evaluate_on_request_and_send_listed_metrics(tmp_path: Path) -> None:
    limits = OPEN | {"metrics": ("accuracy", "loss"), "metric_replies_per_day": 9}
    grid = LocalGrid(federation(tmp_path, [add(0.1)] * 2, **limits))
    result = run(grid, strategy(evaluate_users=True))
    assert dict(result.evaluate_metrics_clientapp[1]) == {"accuracy": 0.5}
    assert result.train_metrics_clientapp[1]["users_loss"] == 0.25
    assert not run(grid, strategy()).evaluate_metrics_clientapp


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": 3},
        {"mechanism": hb.CPA(DIM, 1.0, 0.1), "radius": 1.0},
        {"secret": b"x"},
        {"delta": 0.0},
        {"quorum": 0},
        {"deadline_seconds": -1},
        {"users_per_round": 0},
        {"users": {1: 5, 2: 5}},
        {"optimizer": object()},
        {"frozen": "fc.bias"},
        {"frozen": [3]},
    ],
)
def test_invalid_options_are_refused(changes: Any) -> None:
    with pytest.raises(InvalidInput):
        strategy(**({"mechanism": "fedavg"} | changes))


def test_a_mechanism_of_another_size_is_refused(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(0.1)]))
    with pytest.raises(InvalidInput, match="40"):
        run(grid, strategy(hb.CPA(41, 1.0, 0.1)))
    with pytest.raises(InvalidInput):
        run(grid, strategy("cpa", radius=0.1))


@pytest.mark.parametrize("rounds", [-1, "3"])
def test_a_wrong_number_of_rounds_is_refused(tmp_path: Path, rounds: Any) -> None:
    with pytest.raises(InvalidInput, match="num_rounds"):
        run(LocalGrid(federation(tmp_path, [add(0.1)])), strategy(), rounds=rounds)


def test_an_initial_model_with_nan_is_refused(tmp_path: Path) -> None:
    """Every update would be NaN, which clients replace by zeros: a run without any effect."""
    model = {"w": np.full(40, np.nan, np.float32), "b": np.zeros(3, np.float32)}
    with pytest.raises(InvalidInput, match=r"'w' of the model has NaN .* before the first"):
        run(LocalGrid(federation(tmp_path, [add(0.1)])), strategy(), model=model)
