"""The client: Flower code with a mod that sends private ballots instead of models."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hushbit.flower import HushbitMod
from hushbitexample.task import Net, load_part, random_part, train

RATE = 0.3


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


app = ClientApp(mods=[HushbitMod(dry_run=dry_run)])


@app.train()
def train_user(message: Message, context: Context) -> Message:
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    return train_on(message, *load_part(int(part), int(parts)))
