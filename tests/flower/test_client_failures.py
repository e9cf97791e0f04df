"""Failures after the charge: every reply is a ballot, and failures are only counted locally."""

import math
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

import hushbit as hb
from flower.parts import context, policy, record, serialized, train_message
from hushbit import baselines
from hushbit.errors import InvalidInput
from hushbit.flower import client
from hushbit.flower.client import HushbitMod
from hushbit.flower.local_counts import DAY_SECONDS, LocalCounts
from hushbit.flower.records import read_ballot, request_entries
from hushbit.registry import description_text
from hushbit.wrappers import NormVote

MODEL = {"w": np.zeros((3, 4), np.float32), "b": np.ones(2, np.float32)}
DIM = 14
CPA = hb.CPA(DIM, 1.0, 0.05)
FEDAVG = {"mechanisms": ("FedAvg",), "epsilon_per_bit": math.inf, "allow_unproven": True}
METRICS = {"metrics": ("loss", "accuracy"), "metric_replies_per_day": 5}
Train = Callable[[Message], Any]


class Node:
    """A client whose training is a function of the message that returns the reply."""

    def __init__(self, folder: Path, train: Train, dry_run: Any = None, **limits: Any) -> None:
        self.ledger = folder / "ledger.db"
        self.app = ClientApp(mods=[HushbitMod(policy(folder, **limits), dry_run)])
        self.context = context()

        @self.app.train()
        def train_user(message: Message, _: Context) -> Any:
            return train(message)

        @self.app.evaluate()
        def evaluate_user(message: Message, _: Context) -> Any:
            return train(message)

    def ask(
        self,
        mechanism: hb.Mechanism = CPA,
        model: dict[str, np.ndarray] = MODEL,
        key: Any = None,
        entries: Any = None,
    ) -> Message:
        key = key or hb.RoundKey(bytes(32), 2, secrets.token_bytes(16)).user(9)
        asked = request_entries(description_text(mechanism), key, ())
        return self.app(train_message(model, asked | (entries or {})), self.context)

    def evaluate(self) -> Message:
        content = RecordDict({"arrays": record(MODEL), "config": ConfigRecord()})
        return self.app(Message(content, 1, MessageType.EVALUATE), self.context)

    @property
    def charges(self) -> int:
        return len(hb.Ledger.open(self.ledger).entries()) if self.ledger.exists() else 0

    @property
    def outcomes(self) -> dict[str, int]:
        return LocalCounts(self.ledger).outcomes()


def reply_with(arrays: Any, **metrics: Any) -> Train:
    """Training that returns these arrays and metrics."""

    def train(message: Message) -> Message:
        content = RecordDict({"arrays": record(arrays), "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    return train


def trained(message: Message) -> Message:
    arrays = {
        k: a.numpy() + a.numpy().dtype.type(0.01) for k, a in message.content["arrays"].items()
    }
    return reply_with(arrays, loss=0.25)(message)


def raising(error: BaseException) -> Train:
    def train(_: Message) -> Message:
        raise error

    return train


def content_of(content: Callable[[], RecordDict]) -> Train:
    return lambda message: Message(content(), reply_to=message)


def with_array(array: Array) -> Train:
    return content_of(
        lambda: RecordDict({"arrays": ArrayRecord({"w": array, "b": Array(MODEL["b"])})})
    )


def filled(value: float, kind: Any = np.float32) -> dict[str, np.ndarray]:
    return {name: np.full(array.shape, value, kind) for name, array in MODEL.items()}


FAILURES: dict[str, tuple[Train, str]] = {
    "exception": (raising(ValueError("patient 17")), client.APP_RAISED),
    "memory": (raising(MemoryError()), client.APP_RAISED),
    "exit": (raising(SystemExit(3)), client.APP_RAISED),
    "base exception": (raising(GeneratorExit()), client.APP_RAISED),
    "error reply": (lambda m: Message(Error(2, "patient 17"), reply_to=m), client.ERROR_REPLY),
    "no reply": (lambda m: None, client.WRONG_ANSWER),
    "content only": (lambda m: RecordDict(), client.WRONG_ANSWER),
    "no arrays": (content_of(RecordDict), client.WRONG_ANSWER),
    "two records": (
        content_of(lambda: RecordDict({"a": record(MODEL), "b": record(MODEL)})),
        client.WRONG_ANSWER,
    ),
    "array missing": (reply_with({"w": MODEL["w"]}), client.WRONG_ANSWER),
    "other names": (reply_with({"w": MODEL["w"], "c": MODEL["b"]}), client.WRONG_ANSWER),
    "other shape": (reply_with(MODEL | {"w": MODEL["w"].T}), client.WRONG_ANSWER),
    "integers": (reply_with(filled(1, np.int64)), client.WRONG_ANSWER),
    "complex": (reply_with(filled(1, np.complex64)), client.WRONG_ANSWER),
    "damaged": (with_array(Array("float32", (3, 4), "numpy.ndarray", b"x")), client.WRONG_ANSWER),
    "other stype": (with_array(Array("float32", (3, 4), "other", b"x")), client.WRONG_ANSWER),
    "NaN": (reply_with(filled(math.nan)), client.NOT_FINITE),
    "infinite": (reply_with(filled(-math.inf)), client.NOT_FINITE),
    "float16 overflow": (reply_with(filled(math.inf, np.float16)), client.NOT_FINITE),
}


def form(reply: Message) -> Any:
    """What the server sees of a reply, except the bits of the ballot."""
    ballot = read_ballot(reply.content, 10_000)
    header = (ballot.fingerprint, ballot.round, ballot.user, ballot.bits, ballot.mac is None)
    metrics = reply.content.get("metrics", {})
    kinds = [(name, type(value)) for name, value in metrics.items()]
    return list(reply.content), header, len(ballot.payload), kinds, serialized(reply)[1]


@pytest.mark.parametrize("metrics", [{}, METRICS], ids=["", "metrics"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_looks_like_training_and_is_charged(
    tmp_path: Path, failure: str, metrics: Any
) -> None:
    train, outcome = FAILURES[failure]
    nodes = []
    for name, function in (("good", trained), ("bad", train)):
        (tmp_path / name).mkdir()
        nodes.append(Node(tmp_path / name, function, **metrics))
    key = hb.RoundKey(bytes(32), 2, b"run").user(9)
    good, bad = (form(node.ask(key=key)) for node in nodes)
    assert good == bad
    assert [node.charges for node in nodes] == [1, 1]
    assert [node.outcomes for node in nodes] == [{client.TRAINED: 1}, {outcome: 1}]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_encodes_the_zero_update(tmp_path: Path, failure: str) -> None:
    fedavg, round_key = baselines.FedAvg(DIM), hb.RoundKey(bytes(32), 2, b"run")
    for at, train in enumerate((FAILURES[failure][0], trained)):
        (tmp_path / str(at)).mkdir()
        reply = Node(tmp_path / str(at), train, **FEDAVG).ask(fedavg, key=round_key.user(9))
        tally = fedavg.tally(round_key, require_mac=True)
        tally.add(read_ballot(reply.content, 1000))
        assert np.allclose(fedavg.estimate(tally).mean, 0.01 if train is trained else 0.0)


def test_an_update_that_overflows_is_a_failure(tmp_path: Path) -> None:
    node = Node(tmp_path, reply_with(filled(3e38)))
    assert not node.ask(model=filled(-3e38)).has_error()
    assert node.outcomes == {client.NOT_FINITE: 1}


@pytest.mark.parametrize("value", [1e308, -1e300, 1e154, 5e-324, 1e-310, 3e38, 1e-45, 0.0])
@pytest.mark.parametrize("l2_clip", [math.inf, 1.0, 1e-30])
def test_every_finite_update_is_encoded(tmp_path: Path, value: float, l2_clip: float) -> None:
    names = ("CPA", "Rotated/CPA", "NormVote/Rotated/CPA", "Subset/CPA", "NestedCPA")
    limits = {"mechanisms": names, "l2_clip": l2_clip, "max_points": 4}
    kind = np.float32 if 1e-45 <= abs(value) <= 3e38 or value == 0 else np.float64
    clipped = hb.CPA(DIM, 1.0, 0.05, clip=0.5)
    requested = [
        CPA,
        clipped,
        hb.Rotated(CPA),
        hb.Rotated(clipped),
        NormVote(hb.Rotated(CPA), 1.0, 0.5),
        hb.Subset(clipped, 3),
        hb.NestedCPA(DIM, 1.0, 0.05, stages=(2, 2)),
    ]
    after = filled(value, kind)
    node = Node(tmp_path, reply_with(after), **limits)
    before = {name: np.zeros_like(array) for name, array in after.items()}
    for mechanism in requested:
        assert not node.ask(mechanism, before).has_error()
    assert node.outcomes == {client.TRAINED: len(requested)}


def test_an_update_that_cannot_be_encoded_is_a_failure(tmp_path: Path) -> None:
    node = Node(tmp_path, reply_with(filled(1e6)), **FEDAVG)
    assert not node.ask(baselines.FedAvg(DIM)).has_error()
    assert node.outcomes == {client.NOT_ENCODED: 1}


def test_the_charge_precedes_training(tmp_path: Path) -> None:
    seen: list[int] = []
    node = Node(tmp_path, lambda m: (seen.append(node.charges), trained(m))[1])
    node.ask()
    assert seen == [1]


def test_an_interrupt_of_the_operator_passes(tmp_path: Path) -> None:
    node = Node(tmp_path, raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        node.ask()
    assert node.charges == 1


@pytest.mark.parametrize("when", ["before", "while"])
def test_only_a_request_that_expired_before_training_is_refused(
    tmp_path: Path, monkeypatch: Any, when: str
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])

    def late(message: Message) -> Message:
        now[0] += 60.0
        return trained(message)

    node = Node(tmp_path, late)
    key = hb.RoundKey(bytes(32), 2, b"run").user(9)
    message = train_message(MODEL, request_entries(description_text(CPA), key, ()))
    message.metadata.created_at, message.metadata.ttl = (1000.0 if when == "while" else 900.0), 50.0
    reply = node.app(message, node.context)
    if when == "while":
        assert form(reply)[0] == ["ballot"]
    else:
        assert reply.error.reason == "expired: the request has expired"
    assert node.charges == (when == "while")


def test_a_simulation_shows_why_training_failed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(client, "in_simulation", lambda: True)
    node = Node(tmp_path, raising(ValueError("shapes differ")), simulation=True)
    text = "simulation: the app raised an error: ValueError('shapes differ')"
    assert node.ask().error.reason == text
    assert not Node(tmp_path, trained, simulation=True).ask().has_error()


def test_a_simulation_policy_is_refused_in_a_deployment(tmp_path: Path) -> None:
    node = Node(tmp_path, lambda m: pytest.fail("must not train"), simulation=True)
    reason = node.ask().error.reason
    assert reason.startswith("configuration: the policy of this node has simulation = true")
    assert node.charges == 0


# Refusals before training


def refused(tmp_path: Path, *, key: Any = None, message: Message | None = None, **more: Any) -> str:
    node = Node(tmp_path, lambda m: pytest.fail("a refused request must not train"))
    reply = node.ask(key=key, **more) if message is None else node.app(message, node.context)
    assert node.charges == 0
    return str(reply.error.reason)


def test_a_second_answer_to_a_round_is_refused(tmp_path: Path) -> None:
    node, key = Node(tmp_path, trained), hb.RoundKey(bytes(32), 2, b"run").user(9)
    assert not node.ask(key=key).has_error()
    text = "policy: the client's policy does not allow this request"
    assert node.ask(key=key).error.reason == text
    assert node.charges == 1


def test_requests_are_limited_per_day(tmp_path: Path) -> None:
    node = Node(tmp_path, trained, requests_per_day=2)
    assert [node.ask().has_error() for _ in range(3)] == [False, False, True]


def test_refusals_name_their_class(tmp_path: Path) -> None:
    text = refused(tmp_path, key=hb.RoundKey(bytes(32), 2).user(9))
    assert text.startswith("version: the key of the request has no run")
    far = hb.RoundKey(bytes(32), 2**63, b"run").user(9)
    assert refused(tmp_path, key=far).startswith("configuration: a round must be at most")
    other = description_text(CPA).replace('"radius":0.05', '"radius":1')
    text = refused(tmp_path, entries={"hushbit-mechanism": other})
    assert text.startswith("version: no mechanism of this version")
    many = {"hushbit-frozen": str(["x"] * 257).replace("'", '"')}
    assert refused(tmp_path, entries=many).startswith("configuration: frozen must be")
    long = {"hushbit-mechanism": " " * 10_001}
    assert refused(tmp_path, entries=long).startswith("configuration: a mechanism must be")
    nested = {"hushbit-mechanism": '{"inner":' * 1000 + "1" + "}" * 1000}
    assert refused(tmp_path, entries=nested).startswith(("configuration", "policy"))


def test_a_request_beyond_the_limits_is_not_built(tmp_path: Path, monkeypatch: Any) -> None:
    build = lambda _: pytest.fail("a refused mechanism must not be built")  # noqa: E731
    monkeypatch.setattr(client, "mechanism_from_description", build)
    text = description_text(CPA).replace('"points":[2]', '"points":[4096]').replace('"Z"', '"E8"')
    for other in (text, description_text(hb.CPA(DIM + 1, 1.0, 0.05))):
        found = refused(tmp_path, entries={"hushbit-mechanism": other})
        assert found.startswith(("policy: ", "configuration: the server's mechanism encodes 15"))


def test_messages_with_other_records_are_refused(tmp_path: Path) -> None:
    key = hb.RoundKey(bytes(32), 2, b"run").user(9)
    asked = ConfigRecord(request_entries(description_text(CPA), key, ()))
    model = record(MODEL)
    broken = {"w": Array(MODEL["w"]), "b": Array("float32", (2,), "numpy.ndarray", b"\x93NUMPY")}
    words = {**broken, "b": Array(np.array(["a", "b"]))}
    for content in (
        {"arrays": model},
        {"arrays": model, "config": ConfigRecord({"lr": 0.1})},
        {"arrays": model, "config": asked, "more": asked},
        {"config": asked},
        {"arrays": model, "more": model, "config": asked},
        {"arrays": ArrayRecord(broken), "config": asked},
        {"arrays": ArrayRecord(words), "config": asked},
    ):
        message = Message(RecordDict(content), 1, MessageType.TRAIN)
        text = refused(tmp_path, message=message)
        assert text.startswith("configuration: ")
    assert "array 'b' has no numbers" in text


def test_a_policy_that_cannot_be_read_is_not_described(tmp_path: Path) -> None:
    app = ClientApp(mods=[HushbitMod(lambda _: policy(tmp_path, budget=-1))])
    app.train()(lambda message, _: pytest.fail("a refused request must not train"))
    message = train_message(MODEL, {})
    text = "configuration: the client cannot answer; its log has the reason"
    assert app(message, context()).error.reason == text


# Dry run


def test_the_dry_run_happens_once_before_the_first_charge(tmp_path: Path) -> None:
    runs: list[int] = []

    def dry_run(message: Message, _: Context) -> Message:
        runs.append(node.charges)
        message.content["config"]["lr"] = 3.0
        return trained(message)

    def train(message: Message) -> Message:
        assert "lr" not in message.content["config"]
        return trained(message)

    node = Node(tmp_path, train, dry_run)
    for _ in range(3):
        node.ask()
    assert runs == [0]
    assert node.outcomes == {client.TRAINED: 3}


@pytest.mark.parametrize("failure", ["exception", "error reply", "no arrays", "other shape"])
def test_a_dry_run_that_fails_refuses_the_request(tmp_path: Path, failure: str) -> None:
    working = [False]

    def dry_run(message: Message, _: Context) -> Message:
        return trained(message) if working[0] else FAILURES[failure][0](message)

    node = Node(tmp_path, trained, dry_run)
    for _ in range(2):
        reply = node.ask()
        text = "configuration: the dry run of the app failed on synthetic data"
        assert reply.error.reason == text
    assert node.charges == 0
    working[0] = True
    assert not node.ask().has_error()
    with pytest.raises(InvalidInput, match="dry_run"):
        HushbitMod(policy(tmp_path), dry_run=3)


def test_a_client_without_a_dry_run_warns_once(tmp_path: Path, monkeypatch: Any) -> None:
    logged: list[str] = []
    monkeypatch.setattr(client, "log", lambda _, text, *more, **__: logged.append(text))
    node = Node(tmp_path, trained)
    for _ in range(2):
        node.ask()
    assert len([text for text in logged if "no dry_run is set" in text]) == 1


# Time of the reply

SECONDS = 30.0


class FakeClock:
    """Stands for `time` in the client: to sleep is to let training finish, or to abandon it."""

    def __init__(self) -> None:
        self.now, self.training_finishes = 100.0, True

    time = staticmethod(time.time)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        for thread in threading.enumerate():
            if thread.name == client.THREAD and self.training_finishes:
                thread.join(60)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: Any) -> FakeClock:
    made = FakeClock()
    monkeypatch.setattr(client, "time", made)
    return made


@pytest.mark.parametrize("failure", [None, "exception", "NaN"])
def test_a_reply_is_sent_at_its_time(tmp_path: Path, clock: FakeClock, failure: str | None) -> None:
    train = trained if failure is None else FAILURES[failure][0]
    node = Node(tmp_path, train, answer_after_seconds=SECONDS)
    assert form(node.ask())[0] == ["ballot"]
    assert clock.now == 100.0 + SECONDS
    assert node.outcomes == {client.TRAINED if failure is None else FAILURES[failure][1]: 1}


def test_the_real_clock_is_used(tmp_path: Path) -> None:
    begun = time.monotonic()
    Node(tmp_path, trained, answer_after_seconds=0.5).ask()
    assert time.monotonic() - begun >= 0.5


def test_training_that_takes_longer_is_abandoned(tmp_path: Path, clock: FakeClock) -> None:
    go, ended = threading.Event(), threading.Event()
    clock.training_finishes = False

    def train(message: Message) -> Message:
        go.wait(60)
        ended.set()
        return trained(message)

    node = Node(tmp_path, train, answer_after_seconds=SECONDS)
    reply = node.ask()
    assert clock.now == 100.0 + SECONDS
    assert not ended.is_set()
    go.set()
    assert ended.wait(60)
    other = Node(tmp_path, trained)
    assert form(reply)[2:] == form(other.ask())[2:]
    assert node.outcomes == {client.TOO_SLOW: 1, client.TRAINED: 1}


def test_an_interrupt_raised_in_the_thread_is_a_failure(tmp_path: Path, clock: FakeClock) -> None:
    node = Node(tmp_path, raising(KeyboardInterrupt()), answer_after_seconds=SECONDS)
    assert not node.ask().has_error()
    assert node.outcomes == {client.APP_RAISED: 1}


def test_a_thread_that_cannot_be_started_is_a_failure(
    tmp_path: Path, clock: FakeClock, monkeypatch: Any
) -> None:
    def start(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    node = Node(tmp_path, trained, answer_after_seconds=SECONDS)
    assert form(node.ask())[0] == ["ballot"]
    assert clock.now == 100.0 + SECONDS
    assert node.outcomes == {client.NOT_RUN: 1}


def test_the_state_of_an_app_that_finished_is_kept(tmp_path: Path, clock: FakeClock) -> None:
    app = ClientApp(mods=[HushbitMod(policy(tmp_path, answer_after_seconds=SECONDS))])
    go, ended = threading.Event(), threading.Event()

    @app.train()
    def train(message: Message, given: Context) -> Message:
        if clock.training_finishes:
            given.state["rounds"] = ConfigRecord({"seen": 1})
        else:
            go.wait(60)
            given.state["rounds"] = ConfigRecord({"seen": 2})
            ended.set()
        return trained(message)

    own = context()
    for number in (1, 2):
        key = hb.RoundKey(bytes(32), number, b"run").user(9)
        app(train_message(MODEL, request_entries(description_text(CPA), key, ())), own)
        clock.training_finishes = False
    go.set()
    assert ended.wait(60)
    assert dict(own.state["rounds"]) == {"seen": 1}


# Metrics


def test_listed_metrics_are_always_present_as_floats(tmp_path: Path) -> None:
    sent = {"loss": 3, "accuracy": [0.5, 0.25], "num-examples": 7}
    node = Node(tmp_path, reply_with(MODEL, **sent), **METRICS)
    for reply in (node.ask(), node.evaluate()):
        metrics = reply.content["metrics"]
        assert list(metrics) == ["loss", "accuracy"]
        assert metrics["loss"] == 3.0
        assert isinstance(metrics["loss"], float)
        assert math.isnan(metrics["accuracy"])
    failing = Node(tmp_path, FAILURES["exception"][0], **METRICS)
    assert all(math.isnan(value) for value in failing.evaluate().content["metrics"].values())
    assert "metrics" not in Node(tmp_path, trained).ask().content


def test_replies_with_metrics_are_limited_per_day(tmp_path: Path, monkeypatch: Any) -> None:
    train = reply_with(MODEL, loss=0.5, accuracy=0.5)
    node = Node(tmp_path, train, **(METRICS | {"metric_replies_per_day": 2}))
    assert node.ask().content["metrics"]["loss"] == 0.5
    assert not node.evaluate().has_error()
    text = "policy: the client's policy does not allow this request"
    assert node.evaluate().error.reason == text
    # A ballot is still sent, with metrics of the same form and no information.
    metrics = node.ask().content["metrics"]
    assert list(metrics) == ["loss", "accuracy"]
    assert all(math.isnan(value) for value in metrics.values())
    counts, now = LocalCounts(node.ledger), time.time()
    monkeypatch.setattr(time, "time", lambda: now - 10.0)
    assert not counts.add_metric_reply(2)
    monkeypatch.setattr(time, "time", lambda: now + DAY_SECONDS + 60)
    assert counts.add_metric_reply(1)
    assert not counts.add_metric_reply(1)


def test_evaluation_without_listed_metrics_does_not_run_the_app(tmp_path: Path) -> None:
    app = lambda m: pytest.fail("the app must not run")  # noqa: E731
    node = Node(tmp_path, app, metric_replies_per_day=5)
    text = "policy: the client's policy does not allow this request"
    assert node.evaluate().error.reason == text


# Local counts


def test_the_file_of_counts_is_private(tmp_path: Path) -> None:
    node = Node(tmp_path, trained)
    node.ask()
    assert (tmp_path / "ledger.db.counts").stat().st_mode & 0o777 == 0o600


def test_counts_that_cannot_be_written_do_not_change_a_ballot(tmp_path: Path) -> None:
    (tmp_path / "ledger.db.counts").write_bytes(b"not a database at all, but long enough" * 10)
    node = Node(tmp_path, trained, **METRICS)
    reply = node.ask()
    assert list(reply.content) == ["metrics", "ballot"]
    assert all(math.isnan(value) for value in reply.content["metrics"].values())
    assert node.evaluate().has_error()
