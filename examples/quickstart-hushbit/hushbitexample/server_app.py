"""The server: Flower code with a strategy that decodes private ballots."""

import secrets
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from hushbit.flower.strategy import HushbitStrategy
from hushbit.wire.keys import load_secret
from hushbitexample.task import Net, load_test, test

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy and loss of the model on the test samples of the server."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    accuracy, loss = test(net, *load_test())
    return MetricRecord({"accuracy": accuracy, "loss": loss})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    folder = Path(str(config["run-folder"])) if config["run-folder"] else None
    strategy = HushbitStrategy(
        str(config["mechanism"]),
        epsilon_per_bit=float(config["epsilon-per-bit"]),
        radius=float(config["radius"]),
        secret=secrets.token_bytes(32) if folder is None else load_secret(folder / "secret.key"),
        delta=1e-5,
        quorum=int(config["quorum"]),
        deadline_seconds=float(config["deadline-seconds"]),
        optimizer=FedAvg(),
        folder=None if folder is None else folder / "run",
    )
    torch.manual_seed(0)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
