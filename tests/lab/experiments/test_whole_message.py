"""The whole-message experiment: its budget is exact, and its checks can fail."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushbit.lab.experiments import whole_message
from hushbit.lab.experiments.experiment import ExperimentRunner
from hushbit.lab.experiments.reproduce import EXPERIMENTS
from hushbit.lab.experiments.whole_message import (
    CLIPPED,
    DELTA,
    EPSILON,
    SUBSET,
    MessageChoice,
    MessageLimits,
    MessageScheme,
    _checks,
    best_choice,
    find_whole_message,
    limits_of,
    predicted_db,
    simulated_accuracy,
)
from hushbit.lab.sim.optimizers import ConstantRate
from hushbit.lab.sim.server_steps import MomentumStep
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import Setup, build_setup
from hushbit.lab.sim.training import LocalSettings, evaluate, local_updates


def test_both_schemes_spend_the_budget_and_no_more() -> None:
    clip, subset = (limits_of(name, 7850, 0.05).mechanism for name in (CLIPPED, SUBSET))
    assert EPSILON - 1e-3 < clip.guarantee.epsilon_per_message(DELTA) <= EPSILON
    assert subset.guarantee.epsilon_per_message() == EPSILON
    assert subset.payload_bits == 1
    assert clip.payload_bits == 7850


def test_the_prediction_is_signal_over_noise() -> None:
    row = {"snr_db": 10.0, "mse": 0.5}
    assert predicted_db(row, 0.5) == pytest.approx(10.0)
    assert predicted_db(row, 5.0) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("accuracy", "gap", "holds"), [(0.81, 0.3, [True, True]), (0.79, -0.6, [False, False])]
)
def test_checks_can_fail(accuracy: float, gap: float, holds: list[bool]) -> None:
    limits = limits_of(CLIPPED, 100, 0.05)
    noise = limits.noise(1000) * 10 ** (-gap / 10)
    row: dict[str, Any] = {"snr_db": 3.0, "mse": noise, "test_accuracy": accuracy}
    checks = _checks(MessageScheme("x", limits, MessageChoice(0.05, 0.8, 0.9), [[row, row]]), 1000)
    assert [check.holds for check in checks] == holds


def test_the_experiment_runs_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_message, "QUICK_USERS", 40)
    usual = whole_message.settings_of
    monkeypatch.setattr(
        whole_message,
        "settings_of",
        lambda lab, seed: type(usual(lab, seed))(
            **{**vars(usual(lab, seed)), "dataset": "digits", "validation": 200}
        ),
    )
    seen: list[str] = []
    lab = ExperimentRunner(
        tmp_path, (1,), quick=True, rounds=2, watch=lambda name, *_: seen.append(name)
    )
    first = find_whole_message(lab)
    assert Counter(seen) == {"CPA, clip and radius": 2, "CPA, seeded subset": 2}
    again = find_whole_message(lab)
    assert again.cells == first.cells
    assert again.choices == first.choices
    assert len(seen) == 4
    assert len(lab.cpu_seconds) == 2
    assert all(spent > 0 for spent in lab.cpu_seconds.values())
    assert all(math.isfinite(cell.mean) for cell in first.cells)
    assert EXPERIMENTS["whole-message"].find is find_whole_message


class Noiseless(MessageLimits):
    """Clips as usual, without noise."""

    def noise(self, users: int) -> float:
        return 0.0


def tuning_setup(users: int) -> Setup:
    """Digits, three rounds, 300 samples held out."""
    settings = Settings(
        dataset="digits", users=users, replace=True, rounds=3, mechanism="fedavg", validation=300
    )
    return build_setup(settings)


def test_without_noise_the_simulation_follows_the_clipped_mean() -> None:
    setup = tuning_setup(50)
    task = setup.task
    limits = Noiseless(limits_of(CLIPPED, task.model.dim, 0.3).mechanism, 0.05, 0.01)
    found = simulated_accuracy(setup, limits, 0.3, 0.5)
    params, state = task.model.init(0), MomentumStep(1.0, 0.5).start(task.model.dim)
    for number in range(3):
        local = LocalSettings(ConstantRate(0.3))
        (chunk,) = local_updates(
            task.model,
            params,
            task.federation,
            np.arange(50),
            local,
            round_number=number,
            seed=0,
        )
        short = chunk.updates * np.minimum(1, 0.05 / np.linalg.norm(chunk.updates, axis=1))[:, None]
        mean = np.clip(short, -0.01, 0.01).mean(axis=0, dtype=np.float64)
        params, state = MomentumStep(1.0, 0.5).step(params, mean, state)
    held = task.validation
    wanted = evaluate(task.model, params, task.data.train_x[held], task.data.train_y[held])
    assert found == pytest.approx(wanted.accuracy, abs=1 / 300)


def test_noise_of_few_users_lowers_accuracy_and_the_best_choice_is_taken() -> None:
    many, few = tuning_setup(100_000), tuning_setup(20)
    limits = limits_of(CLIPPED, many.task.dim, 0.3)
    assert (
        simulated_accuracy(many, limits, 0.3, 0.5) > simulated_accuracy(few, limits, 0.3, 0.5) + 0.1
    )
    chosen = best_choice(many, lambda rate: limits_of(CLIPPED, many.task.dim, rate))
    assert chosen.accuracy >= simulated_accuracy(
        many, limits_of(CLIPPED, many.task.dim, 0.05), 0.05, 0.0
    )
    again = simulated_accuracy(
        many, limits_of(CLIPPED, many.task.dim, chosen.rate), chosen.rate, chosen.momentum
    )
    assert again == chosen.accuracy
