"""The server: Flower code with a strategy that decodes private ballots."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from hushbit.flower import Budget, HushbitStrategy, load_secret
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
    rounds = int(config["num-server-rounds"])
    folder = Path(str(config["run-folder"])) if config["run-folder"] else None
    strategy = HushbitStrategy(
        budget=Budget(float(config["epsilon"]), 1e-5, per="run", against="model"),
        rounds=rounds,
        honest=int(config["honest"]),
        deadline_seconds=float(config["deadline-seconds"]),
        folder=None if folder is None else folder / "run",
        secret=None if folder is None else load_secret(folder / "secret.key"),
    )
    torch.manual_seed(0)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=rounds,
        evaluate_fn=evaluate,
    )
