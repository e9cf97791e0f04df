"""Training adds a little to every weight; a file tells it to be slow."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hushbit.flower.client import HushbitMod
from hushbit.flower.node_policy import node_policy

app = ClientApp(mods=[HushbitMod(node_policy)])


@app.train()
def train(message: Message, context: Context) -> Message:
    folder = Path(str(context.node_config["hushbit-policy"])).parent
    (folder / "training").touch()
    while (folder / "wait").exists():
        time.sleep(0.1)
    model = {k: a.numpy() + np.float32(0.01) for k, a in message.content["arrays"].items()}
    arrays = ArrayRecord({k: Array(a) for k, a in model.items()})
    metrics = MetricRecord({"num-examples": 5})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
