"""Spans of users as jobs: the same run in any number of processes; what is kept of ballots."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushbit.engine import Alone, Local
from hushbit.errors import InvalidInput
from hushbit.fl import rounds, votes
from hushbit.fl.rounds import one_round, run_rounds, start
from hushbit.fl.settings import Settings
from hushbit.fl.setup import prepare
from hushbit.fl.votes import SPAN, Span, cast_votes, merged_votes, spans_of

LARGE = Settings(users=2 * SPAN + 100, samples_per_user=1, replace=True, rounds=2, seed=6,
                 mechanism="cpa", epsilon_per_bit=0.5, evaluate_every=2)  # fmt: skip


def whole(setup: Any) -> Span:
    return Span(0, np.arange(setup.federation.users), start(setup).params, setup.mechanism)


def test_processes_run_the_same_rounds() -> None:
    setup = prepare(LARGE)
    seen = []
    with Local(2) as processes:
        for engine in (None, Alone(), processes):
            progress = start(setup)
            rows = [made.row() for made in run_rounds(setup, progress, engine)]
            plain = [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]
            seen.append((progress.params.tobytes(), plain))
    assert seen[0] == seen[1] == seen[2]


def test_spans_hold_every_user_once_and_do_not_depend_on_memory() -> None:
    setup = prepare(LARGE)
    spans = list(spans_of(setup, whole(setup)))
    assert [span.users.size for span in spans] == [SPAN, SPAN, 100]
    assert (np.concatenate([span.users for span in spans]) == np.arange(LARGE.users)).all()
    poor = prepare(dataclasses.replace(LARGE, memory_mb=0.5))
    one, two = cast_votes(setup, spans[2]), cast_votes(poor, spans[2])
    assert one.total.tobytes() == two.total.tobytes()
    assert one.loss == two.loss
    assert one.bytes_up == two.bytes_up


def test_everyone_is_one_span_where_somebody_looks_at_all() -> None:
    setup = prepare(dataclasses.replace(LARGE, defence="spectral"))
    assert [span.users.size for span in spans_of(setup, whole(setup))] == [LARGE.users]


def test_merging_changes_neither_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(votes, "SPAN", 20)
    setup = prepare(Settings(users=40, mechanism="cpa", epsilon_per_bit=0.5))
    left, right = (cast_votes(setup, span) for span in spans_of(setup, whole(setup)))
    before = left.tally.counters["stage 0"].copy()
    both = merged_votes(left, right)
    assert (left.tally.counters["stage 0"] == before).all()
    assert (left.tally.count, right.tally.count, both.tally.count) == (20, 20, 40)
    assert both.honest == 40
    assert both.bytes_up == left.bytes_up + right.bytes_up
    assert both.clock.wall["train"] == left.clock.wall["train"] + right.clock.wall["train"]


def test_a_rounds_ballots_appear_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(votes, "SPAN", 20)
    settings = Settings(users=60, rounds=2, mechanism="cpa", epsilon_per_bit=0.5)
    setup = dataclasses.replace(prepare(settings), ballots=tmp_path / "b")
    progress = start(setup)
    one_round(setup, progress)
    files = {path: path.read_bytes() for path in (tmp_path / "b").rglob("*.parquet")}
    assert {path.parent.name for path in files} == {"round=0"}
    assert len(files) == 3

    def failing(setup: Any, span: Span) -> Any:
        if span.users[0] == 40:
            assert len(list((tmp_path / "b").rglob("*.parquet"))) == 5
            raise InvalidInput("no more")
        return cast_votes(setup, span)

    monkeypatch.setattr(rounds, "cast_votes", failing)
    with pytest.raises(InvalidInput, match="no more"):
        one_round(setup, progress)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["round=0"]
    monkeypatch.undo()
    monkeypatch.setattr(votes, "SPAN", 20)
    one_round(setup, start(setup))  # as a resumed run does whose checkpoint was not yet written
    assert {path: path.read_bytes() for path in (tmp_path / "b").rglob("*.parquet")} == files


def test_state_of_a_million_users_is_refused() -> None:
    with pytest.raises(InvalidInput, match="GiB"):
        prepare(Settings(users=1_000_000, samples_per_user=1, replace=True, mechanism="fedavg",
                         momentum=0.9, keep_momentum=True, model="mlp"))  # fmt: skip
