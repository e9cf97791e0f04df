"""The client: Flower code with a mod that sends private ballots instead of models."""

import math
import os
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hushbit.flower.client import HushbitMod
from hushbit.flower.policy import POLICY_KEY, Policy, node_policy
from hushbitexample.task import Net, load_part, random_part, train

RATE = 0.3


def my_policy(context: Context) -> Policy:
    """The policy file of the node, or the policy below for simulated users.

    Users are simulated if the environment of this machine sets HUSHBIT_LEDGERS, the folder of their
    ledgers. The configuration of the run is not used: whoever starts a run must not be able to
    start a new budget. A node with neither refuses.
    """
    ledgers = os.environ.get("HUSHBIT_LEDGERS")
    if POLICY_KEY in context.node_config or not ledgers:
        return node_policy(context)
    Path(ledgers).mkdir(parents=True, exist_ok=True)
    return Policy(
        epsilon_per_bit=2.0,
        epsilon_per_message=math.inf,
        budget=10_000.0,
        delta=1e-5,
        l2_clip=1.0,
        ledger=Path(ledgers) / f"user-{context.node_config['partition-id']}.db",
        simulation=True,
    )


def train_on(message: Message, images: torch.Tensor, labels: torch.Tensor) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = train(net, images, labels, RATE)
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


def dry_run(message: Message, context: Context) -> Message:
    """The training of one round on random images, to notice an app that fails."""
    return train_on(message, *random_part())


app = ClientApp(mods=[HushbitMod(my_policy, dry_run)])


@app.train()
def train_user(message: Message, context: Context) -> Message:
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    return train_on(message, *load_part(int(part), int(parts)))
