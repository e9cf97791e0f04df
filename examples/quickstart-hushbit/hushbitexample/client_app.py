"""The client: Flower code with a mod that sends private ballots instead of models."""

import math
import os
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hushbit.flower.client import HushbitMod
from hushbit.flower.policy import POLICY_KEY, Policy, RequestRefused, node_policy
from hushbitexample.task import Net, load_part, train

RATE = 0.3


def my_policy(context: Context) -> Policy:
    """The policy file of the node, or the policy below for simulated users.

    A node with a policy file uses it, for any configuration of the run. `ledgers` is the folder of
    the ledgers in a simulation: from the configuration of the run, else from HUSHBIT_LEDGERS.
    """
    ledgers = str(context.run_config.get("ledgers") or os.environ.get("HUSHBIT_LEDGERS") or "")
    if POLICY_KEY in context.node_config or not ledgers:
        return node_policy(context)
    if not Path(ledgers).is_absolute():  # `flwr run` has another working folder than the client
        raise RequestRefused(f"ledgers must be an absolute path; got {ledgers!r}")
    Path(ledgers).mkdir(parents=True, exist_ok=True)
    return Policy(
        epsilon_per_bit=2.0,
        epsilon_per_message=math.inf,
        budget=10_000.0,
        delta=1e-5,
        l2_clip=1.0,
        mechanisms=("CPA",),
        ledger=Path(ledgers) / f"user-{context.node_config['partition-id']}.db",
    )


app = ClientApp(mods=[HushbitMod(my_policy)])


@app.train()
def train_user(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    images, labels = load_part(int(part), int(parts))
    loss = train(net, images, labels, RATE)
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
