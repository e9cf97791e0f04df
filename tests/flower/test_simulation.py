"""Flower's Ray simulation beside hushbit's own loop, on the same keys and data."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.flower

PROGRAM = Path(__file__).with_name("simulated.py")
QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}  # fmt: skip
USERS, ROUNDS = 100, 3


def without_network(command: list[object]) -> list[object]:
    """The command in a network namespace that has loopback only, where the system allows it.

    Ray asks the link-local address of cloud metadata at start, whatever its usage settings say.
    """
    alone = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    try:
        allowed = subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        allowed = False
    return [*alone, *command] if allowed else command


def simulate(folder: Path, coins: bool) -> list[np.ndarray]:
    """The models after each round, the first one included."""
    command = [sys.executable, PROGRAM, folder, str(USERS), str(ROUNDS), "coins" if coins else ""]
    paths = os.pathsep.join([str(PROGRAM.parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, **QUIET, "FLWR_HOME": str(folder), "PYTHONPATH": paths}
    command = without_network(command)
    done = subprocess.run(command, env=env, timeout=500, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [np.load(folder / f"round-{number}.npy") for number in range(ROUNDS + 1)]


def test_without_coins_flower_equals_the_own_loop_to_the_bit(tmp_path: Path) -> None:
    from flower.simulated import set_up
    from hushbit.fl.rounds import run_rounds, start

    models = simulate(tmp_path, coins=False)
    setup = set_up(USERS, ROUNDS, False)
    progress = start(setup)
    assert models[0].tobytes() == progress.params.tobytes()
    for model, _ in zip(models[1:], run_rounds(setup, progress), strict=True):
        assert model.tobytes() == progress.params.tobytes()


def test_with_coins_the_error_is_what_the_variance_says(tmp_path: Path) -> None:
    from flower.simulated import set_up
    from hushbit.fl.training import local_updates

    models = simulate(tmp_path, coins=True)
    setup = set_up(USERS, ROUNDS, True)
    beta = float(setup.mechanism.stages[0].response.beta)
    errors, predicted = 0.0, 0.0
    for number in range(ROUNDS):
        chunks = local_updates(
            setup.model, models[number], setup.federation, np.arange(USERS), setup.local,
            round_number=number, seed=setup.settings.seed,
        )  # fmt: skip
        updates = np.concatenate([chunk.updates for chunk in chunks]).astype(np.float64)
        updates = np.clip(updates, -0.05, 0.05)
        decoded = models[number + 1].astype(np.float64) - models[number]
        errors += float(((decoded - updates.mean(axis=0)) ** 2).sum())
        # Var of an entry of the mean: (r² / beta² - h²) / K, averaged over users.
        predicted += float(((0.05 / beta) ** 2 - (updates**2).mean(axis=0)).sum()) / USERS
    # 1950 nearly independent squares: five standard deviations are 5 sqrt(2 / 1950) = 0.16.
    assert abs(errors / predicted - 1) < 0.16
