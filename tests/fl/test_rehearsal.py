"""The first guess of an update's norm: near the truth, and from no data of anyone's."""

import numpy as np
import pytest

from hushbit.fl.models import build_model
from hushbit.fl.optimizers import ConstantRate, Optimizer
from hushbit.fl.rehearsal import LARGEST, SMALLEST, rehearsed_norm
from hushbit.fl.rounds import start
from hushbit.fl.settings import Settings
from hushbit.fl.setup import prepare
from hushbit.fl.training import LocalSettings, local_updates

MODEL = build_model("linear", (1, 8, 8), 10)


def norm(rate=0.1, samples=5, seed=1, **more):
    return rehearsed_norm(MODEL, LocalSettings(ConstantRate(rate), **more), samples, seed)


def test_it_is_repeatable_and_follows_how_users_train():
    assert norm() == norm()
    assert norm(rate=0.2) == pytest.approx(2 * norm(), rel=1e-3)
    assert norm(steps=4) > 2 * norm()
    assert norm(samples=1) > 1.5 * norm(samples=16)
    kept = LocalSettings(ConstantRate(0.1), optimizer=Optimizer("sgd", 0.5, keep_state=True))
    assert rehearsed_norm(MODEL, kept, 5, 1) > 0


@pytest.mark.parametrize(("rate", "found"), [(1e-30, SMALLEST), (1e20, LARGEST), (1e38, LARGEST)])
def test_senseless_rates_are_left_to_the_run(rate, found):
    assert norm(rate=rate, steps=3) == found


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_it_is_near_the_first_real_updates(model):
    setup = prepare(
        Settings(dataset="digits", model=model, mechanism="cpa-auto", epsilon_per_bit=0.5, users=40)
    )
    chunks = local_updates(
        setup.model, start(setup).params, setup.federation, np.arange(40), setup.local,
        round_number=0, seed=1,
    )  # fmt: skip
    true = np.median([np.linalg.norm(row) for chunk in chunks for row in chunk.updates])
    assert 0.4 < setup.mechanism.belief.quantile(0.5) / true < 2.5
