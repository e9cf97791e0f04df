"""The strategy: decoding, counting, refused replies and the quorum."""

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.serverapp.strategy import FedAvgM, Strategy

import hushbit as hb
from flower.parts import (
    MODEL,
    OPEN,
    SECRET,
    LocalGrid,
    add,
    federation,
    record,
    run,
    run_unchanged,
    strategy,
    values,
)
from hushbit.errors import InvalidInput
from hushbit.flower.records import ballot_record, read_ballot
from hushbit.flower.strategy import HushbitStrategy
from hushbit.wire.keys import UserKey


def test_the_model_changes_by_the_mean_of_the_ballots(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(0.25), add(0.5), add(0.0)], **OPEN))
    result = run(grid, strategy(), rounds=2)
    assert np.allclose(values(result)["w"], 1.0)
    assert values(result)["w"].dtype == np.float32
    metrics = result.train_metrics_clientapp[2]
    assert (metrics["asked"], metrics["accepted"], metrics["refused"]) == (3, 3, 0)
    assert metrics["epsilon_bit"] == math.inf


def test_a_model_that_is_no_longer_finite_ends_the_run(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(0.25)] * 3, **OPEN))
    made = strategy(optimizer=FedAvgM(server_learning_rate=1e39))
    with pytest.raises(InvalidInput, match="'w' of the model has NaN or infinity after round 1"):
        run(grid, made, rounds=2)


def test_cpa_by_name_decodes_an_unbiased_mean(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(0.02)] * 8, **OPEN))
    made = strategy("cpa", epsilon_per_bit=6.0, radius=0.05, rotate=True)
    model = {"w": np.zeros(4000, np.float32)}
    metrics = (result := run(grid, made, model=model)).train_metrics_clientapp[1]
    # 4000 entries of standard deviation 0.05 / sqrt(8): five of them are 0.0014.
    assert abs(float(values(result)["w"].mean()) - 0.02) < 0.0014
    assert metrics["bytes_up"] == 8 * (40 + 16 + 500)
    assert metrics["pure_epsilon_message_server"] == 24_000


def test_replies_are_pulled_a_few_at_a_time(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(0.1)] * 20, **OPEN))
    run(grid, strategy())
    assert max(grid.pulled) <= 8


def changed(asked: Message, reply: Message, **changes: Any) -> RecordDict:
    """The ballot of a reply with other header fields and a MAC for them under the user's key."""
    ballot = dataclasses.replace(read_ballot(reply.content, 10_000), mac=None, **changes)
    key = UserKey.from_bytes(asked.content["config"]["hushbit-key"])
    own = dataclasses.replace(key, round=ballot.round, user=ballot.user)
    return RecordDict({"ballot": ballot_record(ballot, own)})


def other_key(asked: Message, reply: Message) -> RecordDict:
    ballot = dataclasses.replace(read_ballot(reply.content, 10_000), mac=None)
    key = hb.RoundKey(SECRET, ballot.round, b"another run").user(ballot.user)
    return RecordDict({"ballot": ballot_record(ballot, key)})


def without_mac(asked: Message, reply: Message) -> RecordDict:
    return raw(dataclasses.replace(read_ballot(reply.content, 10_000), mac=None).to_bytes())


def raw(data: bytes, stype: str = "hushbit.ballot", name: str = "bits") -> RecordDict:
    return RecordDict({"ballot": ArrayRecord({name: Array("uint8", (len(data),), stype, data)})})


def damaged(asked: Message, reply: Message) -> RecordDict:
    data = bytearray(reply.content["ballot"]["bits"].data)
    data[-1] ^= 1
    return raw(bytes(data))


BAD = [
    (partial(changed, user=100), "forged"),
    (partial(changed, round=5), "round"),
    (partial(changed, fingerprint=bytes(8)), "mechanism"),
    (other_key, "forged"),
    (without_mac, "unauthenticated"),
    (damaged, "damaged"),
    (lambda a, r: raw(b""), "damaged"),
    (lambda a, r: raw(bytes(10_000)), "length"),
    (lambda a, r: RecordDict(), "damaged"),
    (lambda a, r: raw(r.content["ballot"]["bits"].data, "numpy.ndarray"), "damaged"),
    (lambda a, r: raw(r.content["ballot"]["bits"].data, name="model"), "damaged"),
    (lambda a, r: RecordDict({"arrays": record(MODEL)}), "damaged"),
    (lambda a, r: RecordDict({"x": ArrayRecord(), **r.content}), "damaged"),
]


@pytest.mark.parametrize(("change", "reason"), BAD, ids=[f"{i}-{b[1]}" for i, b in enumerate(BAD)])
def test_bad_ballots_are_refused_and_counted(tmp_path: Path, change: Any, reason: str) -> None:
    def tamper(asked: Message, reply: Message) -> list[Message]:
        if asked.metadata.dst_node_id != 101:
            return [reply]
        return [Message(change(asked, reply), reply_to=asked)]

    grid = LocalGrid(federation(tmp_path, [add(0.5), add(9.0), add(1.0)], **OPEN), tamper)
    result = run(grid, strategy())
    metrics = result.train_metrics_clientapp[1]
    assert (metrics["accepted"], metrics[f"refused_{reason}"]) == (2, 1)
    assert np.allclose(values(result)["w"], 0.5 + 0.75)


def test_duplicate_and_unrequested_replies_are_refused(tmp_path: Path) -> None:
    replies: list[Message] = []

    def tamper(asked: Message, reply: Message) -> list[Message]:
        replies.append(reply)
        return [reply, reply]

    grid = LocalGrid(federation(tmp_path, [add(0.5), add(1.0)], **OPEN), tamper)
    metrics = run(grid, strategy()).train_metrics_clientapp[1]
    assert (metrics["accepted"], metrics["duplicate"]) == (2, 2)
    # A reply of an earlier run is a valid ballot of this round, but of no message of it.
    late = replies[0]
    again = LocalGrid(federation(tmp_path, [add(0.5), add(1.0)], **OPEN), lambda a, r: [r, late])
    metrics = run(again, strategy()).train_metrics_clientapp[1]
    assert (metrics["accepted"], metrics["late"]) == (2, 2)


def test_errors_and_missing_replies_are_counted_separately(tmp_path: Path) -> None:
    def tamper(asked: Message, reply: Message) -> list[Message]:
        node = asked.metadata.dst_node_id
        if node == 100:
            return [Message(Error(5, "node is gone"), reply_to=asked)]
        return [] if node == 101 else [reply]

    grid = LocalGrid(federation(tmp_path, [add(1.0)] * 4, **OPEN), tamper)
    metrics = run(grid, strategy(deadline_seconds=2.0)).train_metrics_clientapp[1]
    assert (metrics["accepted"], metrics["lost"], metrics["unanswered"]) == (2, 1, 1)


def test_only_the_first_reply_to_a_message_counts(tmp_path: Path) -> None:
    def tamper(asked: Message, reply: Message) -> list[Message]:
        return [Message(Error(2, "failed"), reply_to=asked), reply]

    grid = LocalGrid(federation(tmp_path, [add(1.0)] * 2, **OPEN), tamper)
    metrics = run_unchanged(grid, strategy()).train_metrics_clientapp[1]
    assert (metrics["accepted"], metrics["lost"], metrics["duplicate"]) == (0, 2, 2)


def test_every_start_has_a_run_of_its_own(tmp_path: Path) -> None:
    keys: list[UserKey] = []

    def tamper(asked: Message, reply: Message) -> list[Message]:
        keys.append(UserKey.from_bytes(asked.content["config"]["hushbit-key"]))
        return [reply]

    grid, made = LocalGrid(federation(tmp_path, [add(0.1)], **OPEN), tamper), strategy()
    for _ in range(2):  # a client answers a round of a run once
        assert run(grid, made).train_metrics_clientapp[1]["accepted"] == 1
    assert [len(key.run) for key in keys] == [16, 16]
    assert keys[0].run != keys[1].run
    assert keys[0].key != keys[1].key


def test_ledger_rounds_are_counted_from_zero(tmp_path: Path) -> None:
    run(LocalGrid(federation(tmp_path, [add(0.1)], **OPEN)), strategy(), rounds=3)
    entries = hb.Ledger.open(tmp_path / "0" / "ledger.db").entries()
    assert [entry.round for entry in entries] == [0, 1, 2]


def test_one_ballot_short_of_the_quorum_does_not_move_the_model(tmp_path: Path) -> None:
    apps = federation(tmp_path, [add(1.0)] * 3, **OPEN)
    grid = LocalGrid(apps, lambda a, r: [] if a.metadata.dst_node_id == 101 else [r])
    result = run_unchanged(grid, strategy(quorum=3, deadline_seconds=2.0))
    assert result.train_metrics_clientapp[1]["accepted"] == 2
    assert np.array_equal(values(result)["w"], MODEL["w"])


def test_the_model_does_not_change_below_the_quorum(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(1.0)] * 2, **OPEN), lambda a, r: [])
    result = run_unchanged(grid, strategy(quorum=2, deadline_seconds=0.3), rounds=2)
    assert np.array_equal(values(result)["w"], MODEL["w"])
    assert result.train_metrics_clientapp[2]["model_updated"] == 0
    nobody = run_unchanged(LocalGrid({}), strategy(quorum=2, deadline_seconds=0.3))
    assert nobody.train_metrics_clientapp[1]["asked"] == 0


def test_a_client_over_budget_refuses_and_others_are_counted(tmp_path: Path) -> None:
    apps = federation(tmp_path / ".", [add(0.02)] * 2, epsilon_per_bit=1.0)
    (tmp_path / "poor").mkdir()
    poor = federation(tmp_path / "poor", [add(0.02)], budget=50.0, delta=0.0)
    grid = LocalGrid({**apps, 102: poor[100]})
    result = run(grid, strategy("cpa", epsilon_per_bit=1.0, radius=0.05), rounds=2)
    accepted = [result.train_metrics_clientapp[n]["accepted"] for n in (1, 2)]
    assert accepted == [3, 2]
    assert result.train_metrics_clientapp[2]["refused_budget"] == 1


def test_the_snr_needs_two_ballots(tmp_path: Path) -> None:
    for users in (1, 2):
        grid = LocalGrid(federation(tmp_path, [add(0.02)] * users))
        made = strategy("cpa", epsilon_per_bit=1.0, radius=0.05)
        metrics = run(grid, made).train_metrics_clientapp[1]
        assert ("snr_estimate_db" in metrics) == (users == 2)


def test_error_texts_of_users_are_logged_on_one_line(tmp_path: Path, caplog: Any) -> None:
    false = Error(6, "policy: no\nINFO :      all users accepted")
    grid = LocalGrid(
        federation(tmp_path, [add(1.0)], **OPEN), lambda a, r: [Message(false, reply_to=a)]
    )
    run_unchanged(grid, strategy())
    [line] = [
        one.getMessage() for one in caplog.records if "without a counted ballot" in one.getMessage()
    ]
    assert "\n" not in line
    assert "1 x policy: no\\nINFO" in line


def test_it_is_a_flower_strategy() -> None:
    assert issubclass(HushbitStrategy, Strategy)
