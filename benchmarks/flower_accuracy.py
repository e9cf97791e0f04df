"""Accuracy of hushbit in Flower beside FedAvg and beside Flower's own differential privacy.

python flower_accuracy.py run 100 --seeds 5       budget (8, 1e-5) per run against the model
python flower_accuracy.py message 100 --seeds 5   equal epsilon per message, and equal run epsilon

The app is softmax regression on MNIST (7 850 weights, pixels in [0, 1]). In each round a user takes
one step of gradient descent on all of its samples. One process runs the real mods and strategies on
a Grid of its own instead of Ray or a network: the same bits are sent, without the time of the
transport. Everything that was chosen was chosen with seeds from 101. Prints one JSON line per run.
flower_accuracy.jsonl has the lines of docs/flower.md, and flower_table.py makes the table of them.

Flower's formulas for the noise are not used, because they do not hold for large epsilon: the noise
of LocalDpMod and of the server is calibrated exactly (hushbit.privacy.gaussian). All methods have
the same delta and the same relation: the update of one user is replaced by any other. A user has
the same weight in all of them. Against the model, all users are honest.

client_ms  CPU time of a client for one message, without training. For hushbit it includes the
           ledger, which is a file in memory (/dev/shm) here
server_ms  CPU time of the server for one reply
bytes_up   size of the records of one reply, as Flower counts it
"""

import argparse
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity

import hushbit as hb
from hushbit.flower.client import HushbitMod
from hushbit.flower.policy import Policy
from hushbit.flower.strategy import HushbitStrategy
from hushbit.lab.sim.datasets import load_dataset
from hushbit.privacy.gaussian import epsilon_of_gaussian
from hushbit.tuning.calibrate import calibrate_gaussian

# Flower sets these ids in its own processes and exports no function that does. Without them no
# Message can be built. The library itself imports no private module of Flower.
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

CLASSES, DELTA, DIM = 10, 1e-5, 7850
ROUNDS, RATE = 30, 1.0
# By number of users, the best clip for Flower's central DP (8, 1e-5) among 0.05, 0.1, 0.14, 0.2,
# 0.35, 0.5, 0.8 (100 users) and 0.4, 0.8 (1000 users).
CLIPS = {100: 0.2, 1000: 0.4}
MESSAGE_EPSILONS = (24.0, 50.0, 96.0)


class Users:
    """The samples of all users, their clip, and the accuracy of a model on the test images."""

    def __init__(self, count: int, seed: int) -> None:
        data = load_dataset("mnist")
        images = (data.train_x.reshape(-1, 784) / np.float32(255)).astype(np.float32)
        self.test = (data.test_x.reshape(-1, 784) / np.float32(255)), data.test_y
        order = np.random.default_rng(seed).permutation(len(images))
        self.parts = [(images[part], data.train_y[part]) for part in np.array_split(order, count)]
        self.clip = CLIPS[count]

    def trained(self, user: int, w: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The model after one step of gradient descent on the samples of a user."""
        images, labels = self.parts[user]
        scores = images @ w + b
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = odds / odds.sum(axis=1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        rate = np.float32(RATE / len(labels))
        return w - rate * (images.T @ error), b - rate * error.sum(axis=0)

    def accuracy(self, arrays: ArrayRecord) -> float:
        """The share of test images that a model classifies correctly."""
        w, b = (array.numpy() for array in arrays.values())
        return float(((self.test[0] @ w + b).argmax(axis=1) == self.test[1]).mean())


class LocalGrid(Grid):
    """Runs the client apps in this process; measures bytes up and CPU time of training and mods."""

    def __init__(self, users: Users, mods: list[list[Any]]) -> None:
        self.users = users
        self.apps = {100 + user: self.app(user, own) for user, own in enumerate(mods)}
        self.waiting: dict[str, Message] = {}
        self.reset()

    def reset(self) -> None:
        self.training = self.clients = 0.0
        self.bytes_up = self.replies = 0

    def app(self, user: int, mods: list[Any]) -> ClientApp:
        app = ClientApp(mods=mods)

        @app.train()
        def train(message: Message, _: Context) -> Message:
            begun = time.process_time()
            w, b = (array.numpy() for array in message.content["arrays"].values())
            trained = self.users.trained(user, w, b)
            self.training += time.process_time() - begun
            arrays = ArrayRecord({"w": Array(trained[0]), "b": Array(trained[1])})
            metrics = MetricRecord({"num-examples": 1})
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

        return app

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
        for number, message in enumerate(messages):
            name = f"{time.monotonic_ns()}-{number}-{message.metadata.dst_node_id}"
            message.metadata.__dict__["_message_id"] = name
            self.waiting[name] = message
            ids.append(name)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = []
        for name in message_ids:
            message = self.waiting.pop(name, None)
            if message is not None:
                found.append(self.reply(message))
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        return self.pull_messages(self.push_messages(messages))

    def reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(1, node, {"partition-id": node - 100}, RecordDict(), {})
        begun = time.process_time()
        reply = self.apps[node](message, context)
        self.clients += time.process_time() - begun
        self.bytes_up += sum(record.count_bytes() for record in reply.content.values())
        self.replies += 1
        return reply


def measured(name: str, strategy: Any, grid: LocalGrid, about: dict[str, Any]) -> None:
    """Run a strategy and print its accuracy and cost."""
    model = {"w": np.zeros((784, CLASSES), np.float32), "b": np.zeros(CLASSES, np.float32)}
    arrays = ArrayRecord({key: Array(value) for key, value in model.items()})
    # One round first: the time of compilers and of calibration is not counted.
    strategy.start(grid, arrays, num_rounds=1)
    grid.reset()
    begun = time.process_time()
    result = strategy.start(grid, arrays, num_rounds=ROUNDS)
    seconds = time.process_time() - begun
    row = about | {
        "method": name,
        "users": len(grid.apps),
        "rounds": ROUNDS,
        "rate": RATE,
        "accuracy": round(100 * grid.users.accuracy(result.arrays), 2),
        "bytes_up": grid.bytes_up // grid.replies,
        "client_ms": round(1000 * (grid.clients - grid.training) / grid.replies, 3),
        "server_ms": round(1000 * (seconds - grid.clients) / grid.replies, 3),
        "cpu_seconds": round(seconds, 1),
    }
    print(json.dumps(row), flush=True)


def policies(folder: Path, count: int) -> list[list[Any]]:
    """The mod of each user, with a ledger of its own; no limits, so that the budget decides."""
    limits = {"epsilon_per_bit": 64.0, "epsilon_per_message": math.inf, "budget": math.inf}
    made = []
    for user in range(count):
        policy = Policy(**limits, delta=DELTA, l2_clip=math.inf, ledger=folder / f"{user}.db")
        made.append([HushbitMod(policy)])
    return made


def fedavg() -> FedAvg:
    return FedAvg(fraction_train=1.0, fraction_evaluate=0.0)


def with_ledgers(users: Users, name: str, about: dict[str, Any], **options: Any) -> None:
    """A run of HushbitStrategy."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        grid = LocalGrid(users, policies(Path(folder), len(users.parts)))
        measured(name, HushbitStrategy(**options), grid, about)


def plain(users: Users, name: str, about: dict[str, Any], strategy: Any = None) -> None:
    measured(name, strategy or fedavg(), LocalGrid(users, [[] for _ in users.parts]), about)


def central(users: Users, about: dict[str, Any], epsilon: float) -> None:
    """Flower's noise of a trusted server, within the same budget against the model."""
    budget = hb.Budget(epsilon, DELTA, per="run", against="model")
    clip = users.clip
    multiplier = calibrate_gaussian(DIM, budget, clip=clip, rounds=ROUNDS).noise_multiplier
    wrapped = DifferentialPrivacyServerSideFixedClipping(
        fedavg(), multiplier, clip, len(users.parts)
    )
    plain(users, f"Flower central DP, clip {clip}", about | {"epsilon_run": epsilon}, wrapped)


def gaussian_deviation(epsilon: float, clip: float) -> float:
    """Standard deviation of local noise whose message is exactly (epsilon, DELTA)-private."""
    low, high = 1e-6, 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)
        spent = epsilon_of_gaussian(2 * clip / middle, DELTA)
        low, high = (middle, high) if spent > epsilon else (low, middle)
    return high


def compare_runs(users: Users, about: dict[str, Any], automatic_only: bool) -> None:
    """The documented budget: (8, 1e-5) per run against the model."""
    budget = hb.Budget(8, DELTA, per="run", against="model")
    options: dict[str, Any] = {"budget": budget, "rounds": ROUNDS, "honest": len(users.parts)}
    own = about | {"epsilon_run": 8.0}
    plain(users, "FedAvg", about)
    with_ledgers(users, "hushbit, clip by norm votes", own, **options)
    if not automatic_only:
        with_ledgers(users, f"hushbit, clip {users.clip}", own, clip=users.clip, **options)
    central(users, own, 8.0)


def compare_messages(users: Users, about: dict[str, Any]) -> None:
    """Equal epsilon per message beside LocalDpMod, and equal run epsilon beside central DP."""
    count, clip = len(users.parts), users.clip
    plain(users, "FedAvg", about)
    for epsilon in MESSAGE_EPSILONS:
        own = about | {"epsilon_message": epsilon}
        budget = hb.Budget(epsilon, DELTA, per="message", against="server")
        guarantee = hb.calibrate(DIM, budget, clip=clip).guarantee
        run = guarantee.of_tally(count, ROUNDS, delta=DELTA).epsilon
        options: dict[str, Any] = {"budget": budget, "clip": clip, "quorum": count}
        with_ledgers(users, f"hushbit, clip {clip}", own | {"epsilon_run": run}, **options)
        deviation = gaussian_deviation(epsilon, clip)
        of_noise = epsilon_of_gaussian(2 * clip * math.sqrt(ROUNDS / count) / deviation, DELTA)
        # The epsilon for which Flower's formula gives the exact deviation.
        formula = 2 * clip * math.sqrt(2 * math.log(1.25 / DELTA)) / deviation
        mods = [[LocalDpMod(clip, 2 * clip, formula, DELTA)] for _ in users.parts]
        grid = LocalGrid(users, mods)
        measured(f"LocalDpMod, clip {clip}", fedavg(), grid, own | {"epsilon_run": of_noise})
        central(users, about, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "message"))
    parser.add_argument("users", type=int, choices=CLIPS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--automatic-only", action="store_true", help="run: no fixed clip")
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        np.random.seed(seed)  # of Flower's noise; hushbit draws from the operating system
        users = Users(given.users, seed)
        about = {"seed": seed, "comparison": given.what}
        if given.what == "run":
            compare_runs(users, about, given.automatic_only)
        else:
            compare_messages(users, about)


if __name__ == "__main__":
    main()
