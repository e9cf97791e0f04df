"""In-process Flower for tests: a grid that runs client apps on serialized messages."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from hushbit.flower.client import HushbitMod
from hushbit.flower.policy import Policy
from hushbit.flower.strategy import HushbitStrategy, ModelUnchanged

# Flower sets these ids in its processes; messages cannot be built without them.
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
SECRET = bytes(range(32))


def policy(folder: Path, **changes: Any) -> Policy:
    """A policy that allows the requests of most tests."""
    options: dict[str, Any] = {
        "epsilon_per_bit": 1.0,
        "epsilon_per_message": math.inf,
        "budget": math.inf,
        "delta": 1e-5,
        "l2_clip": math.inf,
        "mechanisms": ("CPA",),
        "ledger": folder / "ledger.db",
    }
    return Policy(**(options | changes))


def context(**node_config: Any) -> Context:
    return Context(run_id=1, node_id=1, node_config=node_config, state=RecordDict(), run_config={})


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def shifting_app(shift: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], mods: list[Any]):
    """A client app whose training applies `shift`, and which sends its loss."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, _: Context) -> Message:
        before = {k: np.array(a.numpy()) for k, a in message.content["arrays"].items()}
        after = shift(before)
        metrics = MetricRecord({"num-examples": 7, "loss": 0.25})
        content = RecordDict({"arrays": record(after), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, _: Context) -> Message:
        metrics = MetricRecord({"num-examples": 7, "accuracy": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"partition-id": int(context.node_config["partition-id"])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def serialized(message: Message) -> tuple[Message, int]:
    """The message after serialization, and the number of bytes of its objects."""
    contents = {key: one.deflate() for key, one in get_all_nested_objects(message).items()}
    copy = inflate_object_from_contents(message.object_id, dict(contents))
    return copy, sum(len(content) for content in contents.values())


Tamper = Callable[[Message, Message], Iterable[Message]]


class LocalGrid(Grid):
    """Nodes are client apps in this process; `tamper` may change, drop or add replies."""

    def __init__(self, apps: dict[int, ClientApp], tamper: Tamper | None = None) -> None:
        self.apps, self.tamper = apps, tamper
        self.waiting: dict[str, Message] = {}
        self.bytes_up: list[int] = []
        self.pulled: list[int] = []

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.apps)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            name = message.object_id
            message.metadata.__dict__["_message_id"] = name
            self.waiting[name] = message
            ids.append(name)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = list(message_ids)
        self.pulled.append(len(wanted))
        found: list[Message] = []
        for name in wanted:
            if name not in self.waiting:
                continue
            message = self.waiting.pop(name)
            node = message.metadata.dst_node_id
            came, _ = serialized(message)
            came.metadata.__dict__["_message_id"] = name
            reply = self.apps[node](came, context(**{"partition-id": node - 100}))
            found += self.tamper(message, reply) if self.tamper else [reply]
        arrived = []
        for reply in found:
            copy, size = serialized(reply)
            self.bytes_up.append(size)
            arrived.append(copy)
        return arrived

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None):
        raise NotImplementedError


def train_message(arrays: dict[str, np.ndarray], entries: dict[str, Any]) -> Message:
    content = RecordDict({"arrays": record(arrays), "config": ConfigRecord(entries)})
    return Message(content, 1, MessageType.TRAIN)


def federation(folder: Path, shifts: list[Any], **changes: Any) -> dict[int, ClientApp]:
    """One node for each shift, numbered from 100, each with a ledger of its own."""
    apps = {}
    for at, shift in enumerate(shifts):
        place = folder / str(at)
        place.mkdir(exist_ok=True)
        apps[100 + at] = shifting_app(shift, [HushbitMod(policy(place, **changes))])
    return apps


DIM = 40
OPEN = {
    "epsilon_per_bit": math.inf,
    "mechanisms": ("CPA", "FedAvg", "Rotated/CPA"),
    "allow_unproven": True,
}
MODEL = {"w": np.full((4, 9), 0.5, np.float32), "b": np.zeros(4, np.float32)}


def add(amount: float) -> Callable[[Any], Any]:
    """Training that adds the amount to every float."""
    return lambda arrays: {
        k: v + v.dtype.type(amount) if v.dtype.kind == "f" else v + 1 for k, v in arrays.items()
    }


def strategy(mechanism: Any = "fedavg", **changes: Any) -> HushbitStrategy:
    """A strategy with options that suit most tests."""
    options: dict[str, Any] = {
        "secret": SECRET,
        "delta": 1e-5,
        "quorum": 1,
        "deadline_seconds": 30.0,
    }
    return HushbitStrategy(mechanism, **(options | changes))


def run(grid: Grid, made: HushbitStrategy, rounds: int = 1, model: Any = MODEL, **more: Any) -> Any:
    """Run a strategy over some rounds."""
    return made.start(grid, record(model), num_rounds=rounds, **more)


def run_unchanged(grid: Grid, made: HushbitStrategy, rounds: int = 1) -> Any:
    """Run a strategy of which no round changes the model; its result."""
    with pytest.raises(ModelUnchanged) as error:
        run(grid, made, rounds)
    assert error.value.result is not None
    return error.value.result


def values(result: Any) -> dict[str, np.ndarray]:
    """The arrays of the final model."""
    return {name: array.numpy() for name, array in result.arrays.items()}
