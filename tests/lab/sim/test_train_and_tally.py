"""Batches of users as jobs: equal bits in any number of processes; which ballots are stored."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushbit.engine import SerialEngine
from hushbit.errors import InvalidInput
from hushbit.lab.sim import rounds
from hushbit.lab.sim.engines import ProcessEngine
from hushbit.lab.sim.rounds import (
    BATCH_USERS,
    UserBatch,
    initial_state,
    merge_results,
    one_round,
    run_rounds,
    split_users,
    train_and_tally,
)
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import build_setup

LARGE = Settings(
    users=2 * BATCH_USERS + 100,
    samples_per_user=1,
    replace=True,
    rounds=2,
    seed=6,
    mechanism="cpa",
    epsilon_per_bit=0.5,
    evaluate_every=2,
)


def whole(setup: Any) -> UserBatch:
    return UserBatch(
        0, np.arange(setup.task.federation.users), initial_state(setup).params, setup.mechanism
    )


def test_processes_run_the_same_rounds() -> None:
    setup = build_setup(LARGE)
    seen = []
    with ProcessEngine(2) as processes:
        for engine in (None, SerialEngine(), processes):
            state = initial_state(setup)
            rows = [made.row() for made in run_rounds(setup, state, engine)]
            plain = [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]
            seen.append((state.params.tobytes(), plain))
    assert seen[0] == seen[1] == seen[2]


def test_batches_hold_every_user_once_and_do_not_depend_on_memory() -> None:
    setup = build_setup(LARGE)
    batches = list(split_users(setup, whole(setup)))
    assert [batch.users.size for batch in batches] == [BATCH_USERS, BATCH_USERS, 100]
    assert (np.concatenate([batch.users for batch in batches]) == np.arange(LARGE.users)).all()
    poor = build_setup(dataclasses.replace(LARGE, memory_mb=0.5))
    one, two = train_and_tally(setup, batches[2]), train_and_tally(poor, batches[2])
    assert one.total.tobytes() == two.total.tobytes()
    assert one.loss == two.loss
    assert one.bytes_up == two.bytes_up


def test_a_defence_gets_all_users_in_one_batch() -> None:
    setup = build_setup(dataclasses.replace(LARGE, defence="scores"))
    assert [batch.users.size for batch in split_users(setup, whole(setup))] == [LARGE.users]


def test_merging_changes_neither_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "BATCH_USERS", 20)
    setup = build_setup(Settings(users=40, mechanism="cpa", epsilon_per_bit=0.5))
    left, right = (train_and_tally(setup, batch) for batch in split_users(setup, whole(setup)))
    before = left.tally.counters["stage 0"].copy()
    both = merge_results(left, right)
    assert (left.tally.counters["stage 0"] == before).all()
    assert (left.tally.count, right.tally.count, both.tally.count) == (20, 20, 40)
    assert both.honest == 40
    assert both.bytes_up == left.bytes_up + right.bytes_up
    assert both.clock.wall["train"] == left.clock.wall["train"] + right.clock.wall["train"]


def test_the_ballots_of_a_round_appear_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "BATCH_USERS", 20)
    settings = Settings(users=60, rounds=2, mechanism="cpa", epsilon_per_bit=0.5)
    setup = dataclasses.replace(build_setup(settings), ballots=tmp_path / "b", run=b"run")
    state = initial_state(setup)
    one_round(setup, state)
    files = {path: path.read_bytes() for path in (tmp_path / "b").rglob("*.parquet")}
    assert {path.parent.name for path in files} == {"round=0"}
    assert len(files) == 3

    def failing(setup: Any, batch: UserBatch) -> Any:
        if batch.users[0] == 40:
            assert len(list((tmp_path / "b").rglob("*.parquet"))) == 5
            raise InvalidInput("no more")
        return train_and_tally(setup, batch)

    monkeypatch.setattr(rounds, "train_and_tally", failing)
    with pytest.raises(InvalidInput, match="no more"):
        one_round(setup, state)
    left = sorted(path.name for path in (tmp_path / "b").iterdir())
    assert left == ["ballots.json", "round=0"]
    monkeypatch.undo()
    monkeypatch.setattr(rounds, "BATCH_USERS", 20)
    one_round(setup, initial_state(setup))  # as a run resumed before its checkpoint was written
    assert {path: path.read_bytes() for path in (tmp_path / "b").rglob("*.parquet")} == files


def test_state_of_a_million_users_is_refused() -> None:
    with pytest.raises(InvalidInput, match="GiB"):
        build_setup(
            Settings(
                users=1_000_000,
                samples_per_user=1,
                replace=True,
                mechanism="fedavg",
                momentum=0.9,
                keep_momentum=True,
                model="mlp",
            )
        )
