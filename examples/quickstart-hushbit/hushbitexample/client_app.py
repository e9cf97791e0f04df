"""The client: ordinary Flower code, and a mod that lets only private bits out."""

import math
import os
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hushbit.flower import HushbitMod, Policy, RequestRefused, node_policy
from hushbit.flower.policy import POLICY_KEY
from hushbitexample.task import Net, load_part, train

RATE = 0.3


def my_policy(context: Context) -> Policy:
    """The policy that this node's operator names; a simulated user has one of its own.

    A node with a policy keeps to it, whatever the run's configuration says. `ledgers` is the
    folder of a simulation's ledgers: from the run's configuration, else from HUSHBIT_LEDGERS.
    """
    ledgers = str(context.run_config.get("ledgers") or os.environ.get("HUSHBIT_LEDGERS") or "")
    if POLICY_KEY in context.node_config or not ledgers:
        return node_policy(context)
    if not Path(ledgers).is_absolute():  # the client's working folder is not that of `flwr run`
        raise RequestRefused(f"ledgers is {ledgers!r}; name the folder by its whole path")
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
