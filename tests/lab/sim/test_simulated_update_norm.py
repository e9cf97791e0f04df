"""The simulated norm of an update: near the real one, computed without real data."""

import numpy as np
import pytest

from hushbit.lab.sim.image_task import simulated_update_norm
from hushbit.lab.sim.models import build_model
from hushbit.lab.sim.optimizers import ConstantRate, Optimizer
from hushbit.lab.sim.rounds import initial_state
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import build_setup
from hushbit.lab.sim.training import LARGEST_NORM, SMALLEST_NORM, LocalSettings, local_updates

MODEL = build_model("linear", (1, 8, 8), 10)


def norm(rate=0.1, samples=5, seed=1, **more):
    return simulated_update_norm(MODEL, LocalSettings(ConstantRate(rate), **more), samples, seed)


def test_it_is_deterministic_and_follows_local_settings():
    assert norm() == norm()
    assert norm(rate=0.2) == pytest.approx(2 * norm(), rel=1e-3)
    assert norm(steps=4) > 2 * norm()
    assert norm(samples=1) > 1.5 * norm(samples=16)
    kept = LocalSettings(ConstantRate(0.1), optimizer=Optimizer("sgd", 0.5, keep_state=True))
    assert simulated_update_norm(MODEL, kept, 5, 1) > 0


@pytest.mark.parametrize(
    ("rate", "found"), [(1e-30, SMALLEST_NORM), (1e20, LARGEST_NORM), (1e38, LARGEST_NORM)]
)
def test_extreme_rates_are_clamped(rate, found):
    assert norm(rate=rate, steps=3) == found


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_it_is_near_the_norm_of_real_updates(model):
    setup = build_setup(
        Settings(dataset="digits", model=model, mechanism="cpa-auto", epsilon_per_bit=0.5, users=40)
    )
    chunks = local_updates(
        setup.task.model,
        initial_state(setup).params,
        setup.task.federation,
        np.arange(40),
        setup.local,
        round_number=0,
        seed=1,
    )
    true = np.median([np.linalg.norm(row) for chunk in chunks for row in chunk.updates])
    assert 0.4 < setup.mechanism.belief.quantile(0.5) / true < 2.5
