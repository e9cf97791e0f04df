"""A server that counts private bits."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from hushbit.flower.strategy import HushbitStrategy
from hushbit.wire.keys import load_secret

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    folder = Path(str(config["folder"]))
    strategy = HushbitStrategy(
        "cpa",
        epsilon_per_bit=1.0,
        radius=0.05,
        secret=load_secret(folder / "secret.key"),
        delta=1e-5,
        quorum=2,
        users_per_round=3,
        deadline_seconds=float(config["deadline"]),
        folder=folder / "run",
    )
    model = ArrayRecord({"w": Array(np.zeros(int(config["dim"]), np.float32))})
    strategy.start(grid, model, num_rounds=int(config["rounds"]))
    (folder / "done").touch()
