"""A Ray simulation of the federation of `hushbit.lab.sim`, for comparison with `run_rounds`.

Run as a program: simulated.py FOLDER USERS ROUNDS coins|none
"""

import math
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from hushbit.flower.client import HushbitMod
from hushbit.flower.policy import Policy
from hushbit.flower.records import array_record, numpy_arrays
from hushbit.flower.server_round import users_by_partition
from hushbit.flower.strategy import HushbitStrategy
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import Setup, build_setup
from hushbit.lab.sim.training import local_updates


def settings_of(users: int, rounds: int, coins: bool) -> Settings:
    """The settings of both runs."""
    return Settings(
        users=users,
        rounds=rounds,
        mechanism="cpa",
        radius=0.05,
        seed=5,
        epsilon_per_bit=1.0 if coins else math.inf,
        rounding=None if coins else "nearest",
    )


@lru_cache(maxsize=1)
def set_up(users: int, rounds: int, coins: bool) -> Setup:
    return build_setup(settings_of(users, rounds, coins))


def as_model(setup: Setup, params: np.ndarray) -> dict[str, np.ndarray]:
    return {s.name: params[s.start : s.stop].reshape(s.shape) for s in setup.task.model.shapes}


def as_vector(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([array.ravel() for array in numpy_arrays(arrays).values()])


def client(folder: Path, users: int, rounds: int, coins: bool) -> ClientApp:
    def policy(context: Context) -> Policy:
        # Without coins epsilon is infinite, and the policy has to allow it.
        largest = 1.0 if coins else math.inf
        return Policy(
            epsilon_per_bit=largest,
            epsilon_per_message=math.inf,
            budget=math.inf,
            delta=1e-5,
            l2_clip=math.inf,
            mechanisms=("CPA",),
            roundings=("stochastic",) if coins else ("nearest",),
            allow_unproven=not coins,
            metrics=("partition-id",),
            metric_replies_per_day=10,
            simulation=True,
            ledger=folder / f"user-{context.node_config['partition-id']}.db",
        )

    app = ClientApp(mods=[HushbitMod(policy)])

    @app.query()
    def query(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"partition-id": int(context.node_config["partition-id"])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        setup = set_up(users, rounds, coins)
        before = as_vector(message.content["arrays"])
        chunk = next(
            local_updates(
                setup.task.model,
                before,
                setup.task.federation,
                np.array([int(context.node_config["partition-id"])]),
                setup.local,
                round_number=int(message.content["config"]["server-round"]) - 1,
                seed=setup.settings.seed,
            )
        )
        model = array_record(as_model(setup, before + chunk.updates[0]))
        return Message(RecordDict({"arrays": model}), reply_to=message)

    return app


def server(folder: Path, users: int, rounds: int, coins: bool) -> ServerApp:
    app = ServerApp()

    def keep(number: int, arrays: ArrayRecord) -> None:
        np.save(folder / f"round-{number}.npy", as_vector(arrays))

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        setup = set_up(users, rounds, coins)
        strategy = HushbitStrategy(
            setup.mechanism,
            secret=setup.secret,
            delta=1e-5,
            quorum=users,
            deadline_seconds=300,
            folder=folder / "run",
            users=users_by_partition(grid, users, seconds=300),
        )
        first = array_record(as_model(setup, setup.task.model.init(setup.settings.seed)))
        strategy.start(grid, first, num_rounds=rounds, evaluate_fn=keep)

    return app


if __name__ == "__main__":
    # Ray's workers look functions up by module, which __main__ is not for them.
    from flower import simulated

    job = (Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "coins")
    run_simulation(
        simulated.server(*job),
        simulated.client(*job),
        job[1],
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
