"""Timed rounds of Flower's Ray simulation with a client that does nothing; see peers.py.

python flower_worker.py USERS ROUNDS   ->   one JSON line

The client returns the 7 850 numbers that it receives, and the server averages them, so that the
time is that of the simulation itself.
"""

import importlib.metadata
import json
import os
import sys
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from processes import cpu_seconds

DIM = 7850
marks: list[tuple[float, float]] = []


def client() -> ClientApp:
    """The trivial client."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 5})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def server(users: int, rounds: int) -> ServerApp:
    """Plain averaging; records the time after every round."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        first = ArrayRecord({"weights": Array(np.zeros(DIM, dtype=np.float32))})
        strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=users,
            min_available_nodes=users,
        )
        strategy.start(
            grid,
            first,
            num_rounds=rounds + 1,
            evaluate_fn=lambda number, arrays: marks.append(
                (time.perf_counter(), cpu_seconds(os.getpid()))
            ),
        )

    return app


if __name__ == "__main__":
    # Ray's workers import functions by module name, which __main__ has not.
    import flower_worker

    users, rounds = int(sys.argv[1]), int(sys.argv[2])
    run_simulation(
        flower_worker.server(users, rounds),
        flower_worker.client(),
        users,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    wall, cpu = np.diff(np.array(flower_worker.marks), axis=0)[1:].T
    print(
        json.dumps(
            {
                "users": users,
                "wall": float(wall.min()),
                "cpu": float(cpu.min()),
                "flwr": importlib.metadata.version("flwr"),
                "ray": importlib.metadata.version("ray"),
            }
        )
    )
