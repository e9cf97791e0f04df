"""Attack: a malicious server tells two data sets apart by anything but the bits of ballots.

Two clients that differ only in their data answer the same stream of hostile requests. Their app
trains a linear model, or fails in one of many ways, which depends on the data and on the request.
The replies must be equal in kind, error text, records, sizes and ballot headers, and so must the
rows of the ledgers. Only the checksum, the MAC and the payload of a ballot may differ, and the
values of metrics that the policy lists.
"""

import hashlib
import inspect
import itertools
import logging
import math
import os
import sqlite3
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict

from attacks.hostile_requests import (
    CLASSES,
    DIM,
    PIXELS,
    HostileRequest,
    mechanisms,
    stream,
)
from flower.parts import context, policy, record, serialized
from hushbit.flower import client
from hushbit.flower.client import HushbitMod
from hushbit.flower.description_limits import nested_name
from hushbit.flower.policy import LATTICES, PRESETS, Policy
from hushbit.flower.records import BALLOT_RECORD, MECHANISM_KEY, read_ballot
from hushbit.lattice.quantizer import ROUNDINGS
from hushbit.wire.ballot import CHECKSUM_START

IMAGES = np.random.default_rng(3).random((2, PIXELS)).astype(np.float32)
LABELS = {image.tobytes(): label for label, image in enumerate(IMAGES)}
METRIC_REPLIES = 8
ERA = 40  # requests under one policy, with new ledgers

OPEN: dict[str, Any] = {
    "epsilon_per_bit": math.inf,
    "mechanisms": tuple(sorted({nested_name(made.description) for made in mechanisms(DIM)})),
    "presets": PRESETS,
    "roundings": ROUNDINGS,
    "lattices": LATTICES,
    "max_points": 16,
    "allow_unproven": True,
    "l2_clip": 1.0,
}
METRICS = {"metrics": ("loss", "accuracy"), "metric_replies_per_day": METRIC_REPLIES}
POLICIES: dict[str, dict[str, Any]] = {
    "open": OPEN,
    "metrics": OPEN | METRICS,
    "no clip": OPEN | {"l2_clip": math.inf},
    "small budget": OPEN
    | {"budget": 40.0, "epsilon_per_bit": 2.0, "allow_unproven": False}
    | {"presets": ("corrected", "honest")},
    "fixed time": OPEN | METRICS | {"answer_after_seconds": 0.01},
    "few requests": OPEN | {"requests_per_day": 8},
    "smallest clip": OPEN | {"l2_clip": 1e-30},
    "pure epsilon": OPEN | {"delta": 0.0, "epsilon_per_message": 100.0},
    "defaults": {"epsilon_per_bit": 1.0, "budget": 300.0, "l2_clip": 1.0}
    | {"mechanisms": client.Policy.__dataclass_fields__["mechanisms"].default},
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The log of thousands of refusals takes longer than the refusals."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: most of the time would be spent on flushing files."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as made:
        yield Path(made)


# The app


def trained(image: np.ndarray, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One step of logistic regression; arrays of another model are moved towards the image."""
    with np.errstate(all="ignore"):
        w, b = weights.get("w"), weights.get("b")
        if w is None or b is None or w.shape != (CLASSES, PIXELS) or b.shape != (CLASSES,):
            return {
                name: array + (array.dtype.type(image[0]) if array.dtype.kind == "f" else 0)
                for name, array in weights.items()
            }
        logits = w @ image + b
        odds = np.exp(logits - logits.max())
        slope = odds / odds.sum() - np.eye(CLASSES, dtype=w.dtype)[LABELS[image.tobytes()]]
        steps = {"w": np.outer(slope, image), "b": slope}
        return weights | {
            name: (weights[name] - 0.5 * step).astype(weights[name].dtype)
            for name, step in steps.items()
        }


Behaviour = Callable[[Message, Context, np.ndarray], Any]


def reply(message: Message, arrays: dict[str, Any], **metrics: Any) -> Message:
    content = {"arrays": record(arrays), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


def received(message: Message) -> dict[str, np.ndarray]:
    return {name: np.array(a.numpy()) for name, a in message.content["arrays"].items()}


def train(message: Message, _: Context, image: np.ndarray) -> Message:
    loss = float(image.sum())
    accuracy = (1, 0.5)[LABELS[image.tobytes()]]  # also the type depends on data
    arrays = trained(image, received(message))
    return reply(message, arrays, loss=loss, accuracy=accuracy, secret=loss)


def fail(message: Message, _: Context, image: np.ndarray) -> Any:
    raise ValueError(f"the image is {image}")


def leave(message: Message, _: Context, image: np.ndarray) -> Any:
    raise SystemExit(f"the image is {image}")


def reply_with_error(message: Message, _: Context, image: np.ndarray) -> Message:
    return Message(Error(2, f"the image is {image}"), reply_to=message)


def filled(value: float, kind: Any = None) -> Behaviour:
    """Training that returns one value in all entries."""

    def behave(message: Message, _: Context, image: np.ndarray) -> Message:
        arrays = received(message)
        with np.errstate(all="ignore"):
            made = {k: np.full(a.shape, value, kind or a.dtype) for k, a in arrays.items()}
        return reply(message, made, loss=math.nan, accuracy=math.inf)

    return behave


def transpose(message: Message, _: Context, image: np.ndarray) -> Message:
    return reply(message, {k: a.T[None] for k, a in received(message).items()}, loss=3)


def drop_an_array(message: Message, _: Context, image: np.ndarray) -> Message:
    return reply(message, dict(list(received(message).items())[1:]), loss=[0.5, 0.25])


def add_records(message: Message, _: Context, image: np.ndarray) -> Message:
    made = reply(message, received(message), loss=0.5)
    made.content["image"] = record({"image": image})
    return made


def add_an_array(message: Message, _: Context, image: np.ndarray) -> Message:
    return reply(message, trained(image, received(message)) | {"image": image}, accuracy=1)


def damage(message: Message, _: Context, image: np.ndarray) -> Message:
    made = reply(message, received(message))
    broken = {k: Array("float32", (3,), "numpy.ndarray", b"image") for k in made.content["arrays"]}
    made.content["arrays"] = ArrayRecord(broken)
    return made


def change_the_message(message: Message, kept: Context, image: np.ndarray) -> Message:
    """Training that overwrites what it got, as if the request had expired meanwhile."""
    made = train(message, kept, image)
    message.metadata.ttl, message.metadata.group_id = 1e-9, f"{image}"
    message.metadata.created_at = 1.0
    for name in list(message.content):
        del message.content[name]
    kept.state["image"] = record({"image": image})
    return made


def return_nothing(message: Message, _: Context, image: np.ndarray) -> Any:
    return None


def return_the_request(message: Message, _: Context, image: np.ndarray) -> Any:
    return message


BEHAVIOURS: tuple[Behaviour, ...] = (
    *(train,) * 12,
    *(fail, leave, reply_with_error, transpose, drop_an_array, add_records, add_an_array, damage),
    *(filled(math.nan), filled(math.inf), filled(1e30), filled(1e308, np.float64), filled(1, int)),
    *(change_the_message, return_nothing, return_the_request),
)


class DataNode:
    """A client with one image; its app behaves as the image and the request determine."""

    def __init__(self, folder: Path, image: np.ndarray, mod: Any, limits: dict[str, Any]) -> None:
        folder.mkdir(parents=True)
        self.image, self.ledger = image, folder / "ledger.db"
        self.policy: Policy = policy(folder, **limits)
        self.mod, self.context = mod(self.policy), context()
        self.rows = self.runs = self.real_metrics = 0
        self.behaviour: Behaviour = train

    def app(self, message: Message, kept: Context) -> Any:
        self.runs += 1
        return self.behaviour(message, kept, self.image)

    def observed(self, request: HostileRequest) -> Any:
        """All that may not depend on data: the form of the reply, new rows, runs of the app."""
        draw = hashlib.sha256(self.image.tobytes() + request.number.to_bytes(8)).digest()
        self.behaviour = BEHAVIOURS[draw[0] % len(BEHAVIOURS)]
        message = request.build()
        before, ends = self.runs, message.metadata.created_at + message.metadata.ttl
        try:
            answer = self.mod(message, self.context, self.app)
            seen = self.form(answer, ends)
        except BaseException as error:
            seen = "raised", type(error).__name__
        return seen, self.new_rows(), self.runs - before

    def form(self, answer: Message, ends: float) -> Any:
        """What the server sees of a reply, except bits of the ballot and values of metrics."""
        head = answer.metadata
        left = head.created_at + head.ttl - ends
        about = (head.message_type, head.group_id, head.src_node_id, head.dst_node_id)
        about += (head.reply_to_message_id, abs(left) < 1e-3 or math.isnan(left))
        size = serialized(answer)[1]
        if answer.has_error():
            return "error", about, size, answer.error.code, answer.error.reason
        return (
            "content",
            about,
            size,
            [self.form_of_record(*item) for item in answer.content.items()],
        )

    def form_of_record(self, name: str, found: Any) -> Any:
        if isinstance(found, ArrayRecord):
            arrays = [
                (key, a.dtype, a.shape, a.stype, len(a.data), a.data[:CHECKSUM_START])
                for key, a in found.items()
            ]
            if name == BALLOT_RECORD:
                assert read_ballot(RecordDict({name: found}), 10**6).mac is not None
            return name, "arrays", arrays
        self.real_metrics += any(not math.isnan(value) for value in found.values())
        return name, type(found).__name__, [(key, type(value)) for key, value in found.items()]

    def new_rows(self) -> list[Any]:
        """The rows of the ledger since the last call, without times and digests."""
        if not self.ledger.exists():
            return []
        with closing(sqlite3.connect(self.ledger)) as connection:
            columns = "kind, user, run, round, mechanism, cost, ballots, epsilon, delta"
            query = f"SELECT {columns} FROM rows WHERE id > ? ORDER BY id"
            found = connection.execute(query, (self.rows,)).fetchall()
        self.rows += len(found)
        return found


def eras(
    folder: Path, requests: Iterable[HostileRequest], mod: Any
) -> Iterator[tuple[str, Any, Any]]:
    """The requests, each with the name of its policy and with the two clients that answer it."""
    policies = itertools.cycle(POLICIES.items())
    for at, request in enumerate(requests):
        if at % ERA == 0:
            name, limits = next(policies)
            both = [DataNode(folder / f"{at}-{n}", IMAGES[n], mod, limits) for n in (0, 1)]
        yield name, request, both


def observations(folder: Path, requests: Iterable[HostileRequest], mod: Any) -> Iterator[Any]:
    """Each request with its policy and clients, and what was observed of each client."""
    for name, request, nodes in eras(folder, requests, mod):
        mine, other = (node.observed(request) for node in nodes)
        for node in nodes:
            assert node.real_metrics <= (METRIC_REPLIES if node.policy.metrics else 0)
        yield name, request, nodes, mine, other


def compare(folder: Path, count: int, seed: int) -> Counter[str]:
    """Ask both clients, compare what they show, and count what happened."""
    counts: Counter[str] = Counter()
    for name, request, nodes, mine, other in observations(folder, stream(seed, count), HushbitMod):
        assert mine == other, f"request {request.number} ({request.kind}) under the policy {name!r}"
        (kind, *_, last), rows, runs = mine
        assert kind in ("content", "error")
        if MECHANISM_KEY in request.entries and kind == "content" and rows:
            assert [row[0] for row in rows][-1] == "ballot"
        counts["requests"] += 1
        counts["trained"] += runs and bool(rows)
        counts["different behaviour"] += runs and nodes[0].behaviour is not nodes[1].behaviour
        counts[f"{request.kind}: {kind}"] += 1
        if kind == "error":
            counts[last.partition(":")[0]] += 1
    return counts


REFUSALS = ("policy", "budget", "expired", "version", "configuration")


def check_counts(counts: Counter[str], requests: int, trained: int) -> None:
    """The stream is hostile enough: requests reach training, and every refusal happens."""
    assert counts["requests"] == requests
    assert counts["trained"] >= trained
    assert counts["different behaviour"] >= trained / 2
    for name in (*REFUSALS, "weights: content", "type: content"):
        assert counts[name] > 0, name


def test_replies_to_hostile_requests_do_not_depend_on_data(folder: Path) -> None:
    check_counts(compare(folder, 400, seed=1), 400, trained=80)


@pytest.mark.slow
def test_replies_to_thousands_of_hostile_requests_do_not_depend_on_data(folder: Path) -> None:
    check_counts(compare(folder, 8000, seed=2), 8000, trained=2000)


# The test notices a client whose replies depend on data

SEND = "        reply.content = made.content\n        return reply\n"
FALLBACK = "        fallback[BALLOT_RECORD] = ballot_record(zero_ballot, request.key)\n"
CHARGE = "        policy.charge(mechanism, request.key)\n"
UPDATE = "            update = _clipped("
COUNT_METRICS = "bool(policy.metrics) and _metric_reply_allowed(policy)"
FAILED = "        return Answer(error.outcome, job.fallback, one_line(error))\n"
MUTANTS: dict[str, dict[str, str]] = {
    "an error reply if training failed": {"if policy.simulation and made": "if made"},
    "an error reply if the update is not finite": {
        "if policy.simulation and made.outcome != TRAINED": "if made.outcome == NOT_FINITE"
    },
    "the exception in the error text": {
        "if policy.simulation and made.outcome != TRAINED": "if 'the image' in made.error",
    },
    "no ballot for a wrong answer": {
        FAILED: "        wrong = error.outcome == WRONG_ANSWER\n"
        "        return Answer(error.outcome, RecordDict() if wrong else job.fallback)\n"
    },
    "no metrics if training failed": {
        "fallback = _listed_metrics(policy, RecordDict())": "fallback = RecordDict()"
    },
    "only metrics that the app returned": {
        "{name: found.get(name, nan) for name in policy.metrics}": (
            "{name: found[name] for name in policy.metrics if name in found}"
        )
    },
    "metrics in the type of the app": {"name: float(value)": "name: value"},
    "metrics that are not listed": {
        "RecordDict({METRICS_RECORD: MetricRecord(sent)})": (
            "RecordDict({METRICS_RECORD: MetricRecord(sent), **content})"
        )
    },
    "metric replies counted after training": {
        COUNT_METRICS: "bool(policy.metrics)",
        "if send_metrics else": "if send_metrics and _metric_reply_allowed(policy) else",
    },
    "a charge after training": {
        CHARGE: "",
        UPDATE: "    " + CHARGE + UPDATE,
    },
    "a second charge after training": {
        UPDATE: "            other = dataclasses.replace(request.key, run=b'other')\n"
        "            policy.charge(mechanism, other)\n" + UPDATE,
        "import copy\n": "import copy\nimport dataclasses\n",
    },
    "a ballot without a MAC if training failed": {
        FALLBACK: "        data = zero_ballot.to_bytes()\n"
        "        fallback[BALLOT_RECORD] = type(ballot_record(zero_ballot, request.key))(\n"
        "            {'bits': Array('uint8', (len(data),), 'hushbit.ballot', data)}\n"
        "        )\n",
        "from flwr.app import ConfigRecord": "from flwr.app import Array, ConfigRecord",
    },
    "another ballot header if training failed": {
        FALLBACK: "        key = dataclasses.replace(request.key, user=7)\n"
        "        zero_ballot = dataclasses.replace(zero_ballot, user=7)\n"
        "        fallback[BALLOT_RECORD] = ballot_record(zero_ballot, key)\n",
        "import copy\n": "import copy\nimport dataclasses\n",
    },
    "a second look at the time after training": {
        SEND: "        try:\n"
        "            _refuse_expired(message, 0.0)\n"
        "        except RequestExpired as error:\n"
        "            return _refusal(message, error)\n" + SEND
    },
    "an address that the app can change": {
        SEND: "        return Message(made.content, reply_to=message)\n"
    },
    "an exit of the app": {"except BaseException as error": "except Exception as error"},
    "an exception if the app returns no message": {
        '        raise AppFailed(WRONG_ANSWER, f"it returned': (
            '        raise KeyboardInterrupt(f"it returned'
        )
    },
}


def mutated(changes: dict[str, str]) -> Any:
    """HushbitMod with changed source."""
    source = inspect.getsource(client)
    for old, new in changes.items():
        assert source.count(old) == 1, f"{old!r} is not in the source once: adapt the mutant"
        source = source.replace(old, new)
    module = types.ModuleType("mutated_client")
    exec(compile(source, "mutated_client.py", "exec"), module.__dict__)
    return module.HushbitMod


def first_difference(folder: Path, mod: Any, count: int) -> int | None:
    """The number of requests until the clients differ; None if they do not."""
    for at, (_, _, _, mine, other) in enumerate(observations(folder, stream(4, count), mod)):
        if mine != other or mine[0][0] == "raised":
            return at + 1
    return None


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_differential_test_notices(folder: Path, mutant: str) -> None:
    assert first_difference(folder, mutated(MUTANTS[mutant]), 400) is not None
