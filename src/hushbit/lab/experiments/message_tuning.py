"""Rate and momentum for noise of a known size, by a rehearsal on data that is not tested on.

A rehearsal trains a few users and adds to their mean Gaussian noise as strong as the planner
predicts for all of them: the noise of an estimate is a sum over users, so it is close to that.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.clipping import clipped
from hushbit.fl.optimizers import ConstantRate
from hushbit.fl.server import MomentumStep
from hushbit.fl.setup import Setup
from hushbit.fl.training import LocalSettings, evaluate, local_updates
from hushbit.lab.tuning import TUNING_SEED
from hushbit.mechanism import Mechanism
from hushbit.privacy.planning import noise_per_user

FEW = 2000  # users trained in a round of a rehearsal: their own spread is far below the noise
RATES, MOMENTA = (0.02, 0.03, 0.05, 0.08), (0.0, 0.5, 0.8, 0.9)


@dataclass(frozen=True)
class Limits:
    """A mechanism, the l2 clip it applies and the largest entry it can carry."""

    mechanism: Mechanism
    clip: float
    radius: float

    def applied(self, updates: NDArray[np.float32]) -> NDArray[np.floating]:
        """The updates as the mechanism reads them."""
        short = clipped(updates, self.clip)
        return np.asarray(np.clip(short, -self.radius, self.radius))

    def noise(self, users: int) -> float:
        """Predicted variance of an entry of the mean of so many users."""
        usual = self.clip / math.sqrt(self.mechanism.dim)
        return noise_per_user(self.mechanism, usual) / users


@dataclass(frozen=True)
class Choice:
    """What tuning decides, and the validation accuracy that it was decided by."""

    rate: float
    momentum: float
    accuracy: float


def best_choice(setup: Setup, limits_at: Callable[[float], Limits]) -> Choice:
    """The rate and momentum of the best validation accuracy; `limits_at` goes by the rate."""
    tried = [
        Choice(rate, momentum, rehearsed(setup, limits_at(rate), rate, momentum))
        for rate, momentum in itertools.product(RATES, MOMENTA)
    ]
    return max(tried, key=lambda choice: choice.accuracy)


def rehearsed(setup: Setup, limits: Limits, rate: float, momentum: float) -> float:
    """Validation accuracy after all rounds."""
    model, settings = setup.model, setup.settings
    local = LocalSettings(ConstantRate(rate), settings.steps, settings.batch_size)
    server, params = MomentumStep(1.0, momentum), model.init(settings.seed)
    state, rng = server.start(model.dim), np.random.default_rng([TUNING_SEED, 0x7E57])
    spread = math.sqrt(limits.noise(settings.users))
    few = min(FEW, settings.users)
    for number in range(settings.rounds):
        users = np.sort((number * few + np.arange(few)) % settings.users)
        chunks = local_updates(
            model, params, setup.federation, users, local, round_number=number, seed=settings.seed
        )
        total = sum(limits.applied(chunk.updates).sum(axis=0, dtype=np.float64) for chunk in chunks)
        estimate = total / few + spread * rng.standard_normal(model.dim)
        params, state = server.step(params, estimate, state)
    held = setup.validation
    return evaluate(model, params, setup.data.train_x[held], setup.data.train_y[held]).accuracy
