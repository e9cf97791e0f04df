"""From settings to everything a run needs: data, users, model, mechanism, server."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import InvalidInput
from hushbit.fl import partition
from hushbit.fl.attacks import choose_attackers
from hushbit.fl.data import Dataset, load
from hushbit.fl.mechanisms import build_mechanism
from hushbit.fl.models import Model, build_model
from hushbit.fl.optimizers import ConstantRate, DecayingRate, Optimizer, Rate
from hushbit.fl.partition import Federation, Parts
from hushbit.fl.secret import simulation_secret
from hushbit.fl.server import ServerStep, WeightAverage, server_step
from hushbit.fl.settings import Settings
from hushbit.fl.training import LocalSettings
from hushbit.mechanism import Mechanism
from hushbit.robust.poison import poisoned
from hushbit.robust.round import check_defence

DECAY_ROUNDS = 10
MOST_STATE = 4 << 30  # bytes


@dataclass(frozen=True, eq=False)
class Setup:
    """A run, ready to start; ballots are kept where `ballots` names a folder."""

    settings: Settings
    data: Dataset
    federation: Federation
    validation: NDArray[np.int64]
    model: Model
    mechanism: Mechanism
    local: LocalSettings
    server: ServerStep
    average: WeightAverage | None
    attackers: NDArray[np.bool_]
    secret: bytes
    ballots: Path | None = None


def prepare(
    settings: Settings, folder: str | Path | None = None, data: Dataset | None = None
) -> Setup:
    """Load the data unless they are given, and build what the settings name.

    Nothing is written but the data cache.
    """
    if data is None:
        data = load(settings.dataset, folder, writers=settings.partition == "writer")
    model = build_model(settings.model, data.input_shape, data.classes, settings.weights_file)
    optimizer = Optimizer(settings.optimizer, settings.momentum, keep_state=settings.keep_momentum)
    local = LocalSettings(
        _rate(settings), settings.steps, settings.batch_size, optimizer, settings.memory_mb
    )
    mechanism = build_mechanism(settings, model, local)
    check_defence(settings, mechanism)
    rng = np.random.default_rng([settings.seed, 0xDA7A])
    training, validation = partition.hold_out(len(data.train_y), settings.validation, rng)
    parts = _parts(settings, data, training, rng)
    federation = Federation.of(data.train_x, data.train_y, parts)
    attackers = choose_attackers(federation.users, settings.attackers, settings.seed)
    if settings.attack != "none" and not attackers.any():
        raise InvalidInput(
            f"a share of {settings.attackers} of {federation.users} users is no attacker at all: "
            "raise --attackers or --users"
        )
    _check_state(optimizer, federation.users, model.dim)
    federation = poisoned(federation, attackers, settings.attack, data.classes)
    return Setup(
        settings=settings,
        data=data,
        federation=federation,
        validation=validation,
        model=model,
        mechanism=mechanism,
        local=local,
        server=_server(settings),
        average=WeightAverage() if settings.average_weights else None,
        attackers=attackers,
        secret=simulation_secret(settings.seed),
    )  # fmt: skip


def _check_state(optimizer: Optimizer, users: int, dim: int) -> None:
    """Refuse state of each user that no memory holds: it alone grows with users times weights."""
    kept = 4 * users * sum(optimizer.widths(dim).values()) if optimizer.keep_state else 0
    if kept > MOST_STATE:
        raise InvalidInput(
            f"--keep-momentum would keep {kept / 2**30:.0f} GiB for {users} users, at most "
            f"{MOST_STATE >> 30} are allowed: leave it out, or take fewer users"
        )


def _parts(
    settings: Settings, data: Dataset, training: NDArray[np.int64], rng: np.random.Generator
) -> Parts:
    labels, users = data.train_y[training], settings.users
    if settings.partition == "per-user":
        parts: Parts = partition.per_user(
            labels, users, rng, settings.samples_per_user, settings.replace
        )
    elif settings.partition == "iid":
        parts = partition.iid(labels, users, rng)
    elif settings.partition == "dirichlet":
        parts = partition.dirichlet(labels, users, rng, settings.alpha)
    elif settings.partition == "shards":
        parts = partition.shards(labels, users, rng, settings.shards_per_user)
    else:
        assert data.train_writers is not None
        parts = partition.by_writer(data.train_writers[training], rng, users)
    if isinstance(parts, np.ndarray):
        return partition.compact(training)[parts]
    return [training[part] for part in parts]


def _rate(settings: Settings) -> Rate:
    if settings.schedule == "constant":
        return ConstantRate(settings.local_rate)
    offset = float(DECAY_ROUNDS * settings.steps)
    return DecayingRate(settings.local_rate * offset, offset)


def _server(settings: Settings) -> ServerStep:
    if settings.server_momentum is None:
        return server_step(settings.server_name, settings.server_rate)
    if settings.server_name != "momentum":
        raise InvalidInput("--server-momentum fits --server momentum only; leave it out")
    return server_step("momentum", settings.server_rate, momentum=settings.server_momentum)
