"""The quickstart example in a Ray simulation, with the configuration of its pyproject.toml.

Run as a program, with the example on the path: simulated_example.py FOLDER USERS
"""

import sys
import tomllib
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation


def simulate(folder: Path, users: int) -> None:
    from hushbitexample import client_app, server_app

    project = Path(server_app.__file__).parents[1] / "pyproject.toml"
    config = tomllib.loads(project.read_text())["tool"]["flwr"]["app"]["config"]
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        context.run_config = config | {"run-folder": str(folder), "quorum": users}
        server_app.main(grid, context)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(app, client_app.app, users, backend_config=resources)


if __name__ == "__main__":
    simulate(Path(sys.argv[1]), int(sys.argv[2]))
