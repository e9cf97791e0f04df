"""The vectors that mean estimators are compared on: three laws, and updates of real training."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hushbit.arrays import Floats
from hushbit.fl.rounds import run_rounds, start
from hushbit.fl.settings import Settings
from hushbit.fl.setup import prepare
from hushbit.fl.training import local_updates

SYNTHETIC_DIM = 7850
SPARSE_SHARE = 0.01


@dataclass(frozen=True)
class Family:
    """A kind of vectors: `draw(users, seed, data)` gives (users, dim) of them."""

    name: str
    about: str
    draw: Callable[[int, int, str | None], Floats]


def gaussian(users: int, seed: int, data: str | None) -> Floats:
    """Half of the power common to all users, half their own, all of it normal."""
    rng = np.random.default_rng([seed, 1])
    common, own = rng.standard_normal(SYNTHETIC_DIM), rng.standard_normal((users, SYNTHETIC_DIM))
    return np.asarray((common + own) / np.sqrt(2))


def log_normal(users: int, seed: int, data: str | None) -> Floats:
    """exp of a standard normal: positive, a common mean, a heavy tail."""
    return np.random.default_rng([seed, 2]).lognormal(0.0, 1.0, (users, SYNTHETIC_DIM))


def sparse(users: int, seed: int, data: str | None) -> Floats:
    """Normal vectors with all but one entry in a hundred set to zero, the same ones for all."""
    rng = np.random.default_rng([seed, 3])
    kept = rng.random(SYNTHETIC_DIM) < SPARSE_SHARE
    return gaussian(users, seed, data) * kept


def mnist_updates(users: int, seed: int, data: str | None) -> Floats:
    """Updates of a linear model in its tenth round."""
    settings = Settings(
        dataset="mnist", model="linear", users=users, mechanism="fedavg", rate=0.1, rounds=9,
        evaluate_every=9, seed=seed,
    )  # fmt: skip
    return trained_updates(settings, data)


def cifar_updates(users: int, seed: int, data: str | None) -> Floats:
    """Updates of a small convolutional network in its fifth round."""
    settings = Settings(
        dataset="cifar10", model="cnn2", users=users, mechanism="fedavg", rate=0.1, rounds=4,
        samples_per_user=40, batch_size=40, evaluate_every=4, seed=seed,
    )  # fmt: skip
    return trained_updates(settings, data)


def trained_updates(settings: Settings, data: str | None) -> Floats:
    """What all users' training changes in the round after the last one of these settings."""
    setup = prepare(settings, data)
    progress = start(setup)
    for _ in run_rounds(setup, progress):
        pass
    chunks = local_updates(
        setup.model, progress.params, setup.federation, np.arange(settings.users), setup.local,
        round_number=progress.round, seed=settings.seed,
    )  # fmt: skip
    return np.concatenate([chunk.updates.astype(np.float64) for chunk in chunks])


FAMILIES = (
    Family("gaussian", "normal, half of the power common to all users", gaussian),
    Family("log-normal", "exp of a normal variable", log_normal),
    Family("sparse", "one entry in a hundred, normal, the same ones for all", sparse),
    Family("MNIST updates", "linear model, round 10, 5 samples a user", mnist_updates),
    Family("CIFAR-10 updates", "CNN2, round 5, 40 samples a user", cifar_updates),
)
