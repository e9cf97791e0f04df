"""A Ray simulation of Flower compared with `run_rounds`, on the same keys and data."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.flower

PROGRAM = Path(__file__).with_name("simulated.py")
QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
USERS, ROUNDS = 100, 3


def without_network(command: list[object]) -> list[object]:
    """The command in a network namespace with loopback only, if the system allows it.

    Ray contacts the link-local address of cloud metadata at start, for any usage settings.
    """
    isolated = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    try:
        allowed = (
            subprocess.run([*isolated, "true"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        allowed = False
    return [*isolated, *command] if allowed else command


def simulate(folder: Path, coins: bool) -> list[np.ndarray]:
    """The models after each round, the first one included."""
    command = [sys.executable, PROGRAM, folder, str(USERS), str(ROUNDS), "coins" if coins else ""]
    paths = os.pathsep.join([str(PROGRAM.parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, **QUIET, "FLWR_HOME": str(folder), "PYTHONPATH": paths}
    command = without_network(command)
    done = subprocess.run(command, env=env, timeout=500, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [np.load(folder / f"round-{number}.npy") for number in range(ROUNDS + 1)]


def test_without_noise_a_flower_simulation_equals_run_rounds(tmp_path: Path) -> None:
    from flower.simulated import set_up
    from hushbit.lab.sim.rounds import initial_state, run_rounds

    models = simulate(tmp_path, coins=False)
    setup = set_up(USERS, ROUNDS, False)
    progress = initial_state(setup)
    assert models[0].tobytes() == progress.params.tobytes()
    for model, _ in zip(models[1:], run_rounds(setup, progress), strict=True):
        assert model.tobytes() == progress.params.tobytes()


def test_the_error_of_a_simulation_has_the_predicted_variance(tmp_path: Path) -> None:
    from flower.simulated import set_up
    from hushbit.lab.sim.training import local_updates

    models = simulate(tmp_path, coins=True)
    setup = set_up(USERS, ROUNDS, True)
    beta = float(setup.mechanism.stage_encoders[0].response.beta)
    errors, predicted = 0.0, 0.0
    for number in range(ROUNDS):
        chunks = local_updates(
            setup.task.model,
            models[number],
            setup.task.federation,
            np.arange(USERS),
            setup.local,
            round_number=number,
            seed=setup.settings.seed,
        )
        updates = np.concatenate([chunk.updates for chunk in chunks]).astype(np.float64)
        updates = np.clip(updates, -0.05, 0.05)
        decoded = models[number + 1].astype(np.float64) - models[number]
        errors += float(((decoded - updates.mean(axis=0)) ** 2).sum())
        # Var of an entry of the mean: (r² / beta² - h²) / K, averaged over users.
        predicted += float(((0.05 / beta) ** 2 - (updates**2).mean(axis=0)).sum()) / USERS
    # 1950 nearly independent squares: five standard deviations are 5 sqrt(2 / 1950) = 0.16.
    assert abs(errors / predicted - 1) < 0.16
