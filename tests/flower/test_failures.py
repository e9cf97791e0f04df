"""No silent failure: causes of refusals, reports of rounds, and a run that changes nothing."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message

import hushbit as hb
from flower.parts import MODEL, OPEN, LocalGrid, add, federation, run, run_unchanged, strategy
from hushbit.flower.refusals import CAUSES, cause_of
from hushbit.flower.strategy import ModelUnchanged

CPA = {"mechanism": "cpa", "epsilon_per_bit": 1.0, "radius": 0.05}


def warnings_of(caplog: Any) -> str:
    return "\n".join(r.getMessage() for r in caplog.records if r.levelname == "WARNING")


def test_a_round_without_ballots_states_the_causes(tmp_path: Path, caplog: Any) -> None:
    apps = federation(tmp_path, [add(0.1)] * 2, epsilon_per_bit=0.5)
    (tmp_path / "more").mkdir()
    apps |= {200: federation(tmp_path / "more", [add(0.1)], budget=1.0, delta=0.0)[100]}
    with pytest.raises(ModelUnchanged) as error:
        run(LocalGrid(apps), strategy(**CPA), rounds=2)
    found = error.value.result.train_metrics_clientapp[1]
    assert (found["asked"], found["accepted"], found["refused"]) == (3, 0, 3)
    assert (found["refused_policy"], found["refused_budget"]) == (2, 1)
    assert "2 x policy: the client's policy does not allow this request" in warnings_of(caplog)
    assert "1 x budget: the client's budget is spent" in warnings_of(caplog)
    # The error of the run adds up its rounds.
    assert "never changed in 2 rounds" in str(error.value)
    assert "4 x policy" in str(error.value)


def test_a_developer_sees_why_the_configuration_is_wrong(tmp_path: Path, caplog: Any) -> None:
    class WithoutModel(LocalGrid):
        def push_messages(self, messages: Any) -> Any:
            kept = list(messages)
            for message in kept:
                del message.content["arrays"]
            return super().push_messages(kept)

    run_unchanged(WithoutModel(federation(tmp_path, [add(0.1)], **OPEN)), strategy())
    expected = "1 x configuration: a message must have exactly one ArrayRecord, the model; got 0"
    assert expected in warnings_of(caplog)


def test_a_run_that_changed_the_model_once_does_not_raise(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(0.02)], budget=60.0, delta=0.0))
    result = run(grid, strategy(**CPA), rounds=3)
    assert [result.train_metrics_clientapp[n]["model_updated"] for n in (1, 2, 3)] == [1, 0, 0]


def test_a_resumed_run_counts_its_earlier_rounds(tmp_path: Path) -> None:
    folder = {"folder": tmp_path / "run"}
    run(LocalGrid(federation(tmp_path, [add(0.1)], **OPEN)), strategy(**folder))
    dropping = LocalGrid(federation(tmp_path, [add(0.1)], **OPEN), lambda a, r: [])
    result = run(dropping, strategy(**folder, deadline_seconds=0.3), rounds=2)
    assert result.train_metrics_clientapp[2]["model_updated"] == 0


def test_every_request_is_accounted_for(tmp_path: Path) -> None:
    """asked = accepted + refused + lost + unanswered, and the ledgers agree."""

    def tamper(asked: Message, reply: Message) -> list[Message]:
        node = asked.metadata.dst_node_id
        if node == 100:
            return [Message(Error(5, "node is gone"), reply_to=asked)]
        if node == 101:
            return []
        if node == 102:
            return [Message(Error(6, "policy: no"), reply_to=asked)]
        return [reply, reply] if node == 103 else [reply]

    grid = LocalGrid(federation(tmp_path, [add(0.1)] * 6, **OPEN), tamper)
    result = run(grid, strategy(deadline_seconds=3.0), rounds=2)
    for number in (1, 2):
        row = result.train_metrics_clientapp[number]
        assert row["asked"] == 6
        counts = [row[k] for k in ("accepted", "refused", "lost", "unanswered", "duplicate")]
        assert counts == [3, 1, 1, 1, 1]
    charged = [len(hb.Ledger.open(tmp_path / str(n) / "ledger.db").entries()) for n in range(6)]
    assert charged == [2] * 6


class SlowGrid(LocalGrid):
    """Node 100 trains in time, but its reply arrives after the round."""

    def __init__(self, apps: Any) -> None:
        super().__init__(apps)
        self.round = 0
        self.held: dict[str, tuple[int, Any]] = {}

    def push_messages(self, messages: Any) -> Any:
        kept = list(messages)
        self.round = kept[0].content["config"]["server-round"]
        return super().push_messages(kept)

    def pull_messages(self, message_ids: Any) -> Any:
        found = []
        for name in message_ids:
            message = self.waiting.get(name)
            made = list(super().pull_messages([name]))
            if message is not None and message.metadata.dst_node_id == 100:
                self.held[name] = self.round, made
            elif name not in self.held:
                found += made
            elif self.held[name][0] < self.round:
                found += self.held.pop(name)[1]
        return found


def test_late_ballots_are_listed_in_the_round_in_which_they_arrive(tmp_path: Path) -> None:
    grid = SlowGrid(federation(tmp_path, [add(0.5), add(0.25)], **OPEN))
    result = run(grid, strategy(deadline_seconds=0.5), rounds=2)
    first, second = (result.train_metrics_clientapp[n] for n in (1, 2))
    assert (first["accepted"], first["unanswered"], first["late"]) == (1, 1, 0)
    assert (second["accepted"], second["unanswered"], second["late"]) == (1, 1, 1)
    # A late ballot does not count.
    assert np.allclose(result.arrays["w"].numpy(), MODEL["w"] + 2 * 0.25)


class ExpiringGrid(LocalGrid):
    """Replies arrive just before the deadline, after the last regular poll.

    As in Flower, a request that has expired yields an error even if its reply has arrived.
    """

    def __init__(self, apps: Any, arrival: float) -> None:
        super().__init__(apps)
        self.arrival = time.time() + arrival

    def push_messages(self, messages: Any) -> Any:
        kept = list(messages)
        ids = super().push_messages(kept)
        self.asked = dict(zip(ids, kept, strict=True))
        self.replies = {name: list(super(ExpiringGrid, self).pull_messages([name])) for name in ids}
        return ids

    def pull_messages(self, message_ids: Any) -> Any:
        found = []
        for name in message_ids if time.time() >= self.arrival else ():
            head = self.asked[name].metadata
            expired = head.created_at + head.ttl < time.time()
            error = Message(Error(3, "expired"), reply_to=self.asked[name])
            found += [error] if expired else self.replies[name]
        return found


def test_a_ballot_that_arrives_after_the_last_poll_is_counted(tmp_path: Path) -> None:
    grid = ExpiringGrid(federation(tmp_path, [add(0.1)], **OPEN), arrival=0.5)
    found = run(grid, strategy(deadline_seconds=0.5)).train_metrics_clientapp[1]
    assert (found["accepted"], found["lost"]) == (1, 0)


def test_a_cause_is_read_only_from_replies_of_the_mod() -> None:
    for cause in CAUSES:
        assert cause_of(Error(6, f"{cause}: text")) == cause
        assert cause_of(Error(2, f"{cause}: text")) is None
    assert cause_of(Error(6, "made up: text")) is None


def test_texts_of_clients_are_limited(tmp_path: Path) -> None:
    texts = iter(range(10**6))

    def tamper(asked: Message, reply: Message) -> list[Message]:
        return [Message(Error(6, f"policy: {next(texts)} " + "x" * 10**5), reply_to=asked)]

    apps = federation(tmp_path, [add(0.1)] * 50, **OPEN)
    with pytest.raises(ModelUnchanged) as error:
        run(LocalGrid(apps, tamper), strategy())
    assert len(str(error.value)) < 4000
