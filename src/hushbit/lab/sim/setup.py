"""Builds everything that a run needs from its settings: task, mechanism, server."""

import dataclasses
import hashlib
import inspect
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines import WholeLaplace
from hushbit.budget import Budget
from hushbit.checks import check_int
from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.lab.attacks.ballots import choose_attackers
from hushbit.lab.sim import partition
from hushbit.lab.sim.clip_and_rate import noise_norm, private_clip, private_server_rate
from hushbit.lab.sim.datasets import Dataset, load_dataset
from hushbit.lab.sim.defences import check_defence
from hushbit.lab.sim.image_task import ImageTask
from hushbit.lab.sim.learning_task import LearningTask
from hushbit.lab.sim.models import build_model
from hushbit.lab.sim.optimizers import ConstantRate, DecayingRate, Optimizer, Rate
from hushbit.lab.sim.partition import Federation, Parts
from hushbit.lab.sim.privacy import check_model_budget, honest_in_round, users_in_round
from hushbit.lab.sim.server_steps import ServerStep, server_step
from hushbit.lab.sim.settings import FIELDS, PAPER_TRAINING, Settings, mechanism_name
from hushbit.lab.sim.task import load_task
from hushbit.lab.sim.training import LocalSettings
from hushbit.mechanism import Mechanism
from hushbit.registry import BY_NAME
from hushbit.tuning.auto import AutoCPA
from hushbit.tuning.calibrate import calibrate, calibrate_gaussian
from hushbit.wrappers import Rotated


def public_clip(settings: Settings, task: LearningTask, local: LocalSettings) -> float:
    """An l2 clip that is computed from the norm of updates on public data."""
    return private_clip(_public_norm(settings, task, local))


def _public_norm(settings: Settings, task: LearningTask, local: LocalSettings) -> float:
    return task.public_norm(local, samples_per_step(settings, local), settings.seed)


def samples_per_step(settings: Settings, local: LocalSettings) -> int:
    """The most samples of a user in one local step."""
    fewer = settings.partition == "per-user" and settings.task is None
    return min(local.batch_size, settings.samples_per_user) if fewer else local.batch_size


RADIUS = 0.05
FIRST_LOG2_SPREAD = 0.5  # half of the prior mass lies within so many octaves of the simulated norm
OPTION_OF = {"epsilon_per_entry": "epsilon_per_bit", "scale": "radius", "step": "sign_step"}
"""Options whose name differs from the parameter of the mechanism."""

NOT_OFFERED = {"dim", "layers", "gamma", "overload", "vote", "stochastic"}
WITHOUT_EFFECT = {"nested": {"clip"}, "jopeq": {"lattice"}}
AUTO_OPTIONS = {"epsilon_per_bit", "k", "bits_per_weight"}


def _options(kind: type[Mechanism]) -> set[str]:
    """The options of a mechanism: its parameters under their option names, and the rotation."""
    parameters = set(kind.parameters()) - NOT_OFFERED
    parameters -= WITHOUT_EFFECT.get(str(kind.name), set())
    return {OPTION_OF.get(name, name) for name in parameters} | {"rotate"}


def _required(kind: type[Mechanism]) -> set[str]:
    """The options without which a mechanism cannot be built."""
    signature = inspect.signature(kind).parameters.values()
    names = {one.name for one in signature if one.default is one.empty} - {"dim"}
    return {OPTION_OF.get(name, name) for name in names}


ACCEPTED_OPTIONS: dict[str, set[str]] = {
    "fedavg": set(),
    "gaussian": {"noise_multiplier", "clip"},
    "cpa": _options(CPA),
    "cpa-auto": AUTO_OPTIONS,
    "cpa-no-rr": _options(CPA) - {"epsilon_per_bit", "clip"},
    **{
        name: _options(kind)
        for name, kind in BY_NAME.items()
        if name not in ("fedavg", "gaussian", "cpa") and _required(kind) <= set(FIELDS)
    },
}
OPTIONS = sorted(set().union(*ACCEPTED_OPTIONS.values()))


def accepted_options(name: str, per: str | None) -> set[str]:
    """The options of a mechanism, for a budget per bit, message or run, or without a budget (None).

    A budget determines the points of cpa and the noise of gaussian.
    """
    known = mechanism_name(name)
    if per is None:
        return ACCEPTED_OPTIONS[known]
    if known == "cpa":
        return {"radius", "clip", "rotate"}
    if known == "gaussian" or (known == "laplace" and per == "message"):
        return {"clip"}
    return ACCEPTED_OPTIONS[known] - {"epsilon_per_bit"}


def build_mechanism(settings: Settings, task: LearningTask, local: LocalSettings) -> Mechanism:
    """The mechanism of the settings, for the size of a task and the training of its users."""
    name, budget = mechanism_name(settings.mechanism), settings.budget
    options = {key: getattr(settings, key) for key in OPTIONS}
    given = {key: value for key, value in options.items() if value is not None}
    rotate = given.pop("rotate", False)
    accepted = accepted_options(name, settings.per)
    wrong = sorted(set(given) - accepted | ({"rotate"} - accepted if rotate else set()))
    if wrong:
        listed = ", ".join("--" + key.replace("_", "-") for key in wrong)
        under = f" under a budget per {settings.per}" if budget else ""
        raise InvalidInput(f"mechanism {name} does not take {listed}{under}; leave it out")
    if budget is not None:
        check_model_budget(settings)
        made = _within(budget, name, settings, task, local)
        if made is not None:
            return made
        given["epsilon_per_bit"] = budget.epsilon
    if "epsilon_per_bit" in ACCEPTED_OPTIONS[name] and "epsilon_per_bit" not in given:
        raise InvalidInput(
            f"mechanism {name} needs --epsilon-per-bit, or a budget such as "
            "--epsilon 4 --delta 1e-5 --per run --against model: privacy has no default"
        )
    if name == "gaussian" and not accepted <= set(given):
        raise InvalidInput(
            "mechanism gaussian needs --noise-multiplier and --clip, or a budget such as "
            "--epsilon 4 --delta 1e-5 --per run --against model: privacy has no default"
        )
    if name == "cpa-auto":
        return _auto(settings, task, local)
    if name == "cpa-no-rr":
        name, given = "cpa", given | {"epsilon_per_bit": math.inf}
    made = _build(name, task, given)
    return Rotated(made) if rotate else made


def _within(
    budget: Budget, name: str, settings: Settings, task: LearningTask, local: LocalSettings
) -> Mechanism | None:
    """The mechanism that spends a budget; None if the budget is just its epsilon per bit."""
    rounds = settings.rounds if budget.per == "run" else None
    honest = honest_in_round(settings) if budget.against == "model" else None
    if name == "cpa-auto":
        return _auto(settings, task, local, rounds, honest)
    clip = settings.clip or public_clip(settings, task, local)
    if name == "cpa":
        return calibrate(
            task.dim,
            budget,
            rounds=rounds,
            honest=honest,
            clip=clip,
            radius=settings.radius,
            rotate=settings.rotate is not False,
        )
    if name == "gaussian":
        return calibrate_gaussian(task.dim, budget, clip=clip, rounds=rounds)
    if budget.per == "bit" and name != "cpa-no-rr":
        return None
    if name == "laplace" and budget.per == "message" and budget.delta == 0:
        # An update of l2 norm up to the clip has at most this l1 norm.
        return WholeLaplace(task.dim, budget.epsilon, clip * math.sqrt(task.dim))
    units = {"cpa-no-rr": "no budget", "laplace": "a budget per bit or message with --delta 0"}
    raise InvalidInput(
        f"mechanism {name} takes {units.get(name, 'a budget per bit with --delta 0')}; got "
        f"{budget}. cpa and cpa-auto take every budget"
    )


def _build(name: str, task: LearningTask, given: dict[str, Any]) -> Mechanism:
    """A mechanism of the registry, with the defaults of the simulator."""
    kind: Any = BY_NAME[name]
    given, authors = dict(given), given.get("preset") == "authors"
    if name == "laplace" and authors:
        _refuse(given, "radius")
        given["layers"] = tuple(slot.stop - slot.start for slot in task.slots)
    elif {"radius", "scale"} & set(kind.parameters()):
        given.setdefault("radius", RADIUS)
    if name == "signsgd":
        if authors:
            _refuse(given, "sign_step")
        elif "sign_step" not in given:
            raise InvalidInput(
                "signsgd needs --sign-step: signs do not carry the size of an update"
            )
    if name == "nested":
        if "stages" in given:
            given["stages"] = parse_ints(given["stages"])
        elif not authors:
            given["stages"] = (2, 2)
    parameters = {name: OPTION_OF.get(name, name) for name in kind.parameters()}
    made: Mechanism = kind(
        dim=task.dim, **{name: given[key] for name, key in parameters.items() if key in given}
    )
    if "clip" in given and name != "gaussian" and made.guarantee.rho is None:
        raise InvalidInput("--clip gives a guarantee for two points on Z with stochastic rounding")
    return made


def _refuse(given: dict[str, Any], option: str) -> None:
    """Refuse an option that the published variant of a baseline fixes."""
    if option in given:
        listed = "--" + option.replace("_", "-")
        raise InvalidInput(f"preset authors sets {listed} itself; leave it out")


def _auto(
    settings: Settings,
    task: LearningTask,
    local: LocalSettings,
    rounds: int | None = None,
    honest: int | None = None,
) -> Mechanism:
    return AutoCPA(
        task.dim,
        users_in_round(settings),
        budget=settings.budget,
        epsilon_per_bit=settings.epsilon_per_bit,
        rounds=rounds,
        honest=honest,
        k=settings.k,
        bits_per_weight=settings.bits_per_weight,
        first_norm=_public_norm(settings, task, local),
        first_octaves=FIRST_LOG2_SPREAD,
    )


def parse_ints(text: str) -> tuple[int, ...]:
    """Integers from a text such as 2,8."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(f"stages must look like 2,8; got {text!r}") from None


def simulation_secret(seed: int) -> bytes:
    """The 32 bytes that server and simulated users share in a run of this seed."""
    return hashlib.sha256(f"hushbit simulation {check_int('seed', seed, 0)}".encode()).digest()


DECAY_ROUNDS = 10
MAX_STATE_BYTES = 4 << 30


@dataclass(frozen=True, eq=False)
class Setup:
    """A run that is ready to start; its ballots are stored if `ballots` names a folder.

    `run` is the run of all keys. It is empty unless ballots are stored: see `run_identifier`.
    """

    settings: Settings
    task: LearningTask
    mechanism: Mechanism
    local: LocalSettings
    server: ServerStep
    attackers: NDArray[np.bool_]
    secret: bytes
    ballots: Path | None = None
    run: bytes = b""


def run_identifier(settings: Settings) -> bytes:
    """The run under which ballots are stored: 16 bytes that depend on the settings alone.

    Settings at their default are left out, so that a new setting changes no stored run. The first
    stored runs had the inputs and batches of the paper, a server rate of 1 and no rotation as
    defaults.
    """
    chosen = dataclasses.asdict(settings.resolved())
    defaults = {name: option.default for name, option in FIELDS.items()}
    defaults |= PAPER_TRAINING | {"server_rate": 1.0, "rotate": False}
    named = {name: value for name, value in chosen.items() if value != defaults[name]}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).digest()[:16]


def build_setup(
    settings: Settings,
    folder: str | Path | None = None,
    data: Dataset | None = None,
    task: LearningTask | None = None,
) -> Setup:
    """Load task or data unless they are given, and build everything that the settings name.

    No file is written except in the data cache.
    """
    if task is None and settings.task is not None:
        task = load_task(settings.task)
    if task is None:
        task = _image_task(settings, folder, data)
    else:
        settings = settings_of_task(settings, task)
    optimizer = Optimizer(settings.optimizer, settings.momentum, keep_state=settings.keep_momentum)
    batch = settings.batch_size or task.largest
    local = LocalSettings(_rate(settings), settings.steps, batch, optimizer, settings.memory_mb)
    mechanism = build_mechanism(settings, task, local)
    check_defence(settings, mechanism)
    attackers = choose_attackers(task.users, settings.attackers, settings.seed)
    if settings.attack != "none" and not attackers.any():
        raise InvalidInput(
            f"a share of {settings.attackers} of {task.users} users is less than one "
            "attacker: raise --attackers or --users"
        )
    _check_state(optimizer, task.users, task.dim)
    return Setup(
        settings=settings,
        task=task.poisoned(attackers, settings.attack),
        mechanism=mechanism,
        local=local,
        server=server_step(
            settings.server_name, _server_rate(settings, mechanism, local), settings.server_momentum
        ),
        attackers=attackers,
        secret=simulation_secret(settings.seed),
    )


def settings_of_task(settings: Settings, task: LearningTask) -> Settings:
    """The settings with the names and the number of users of a given task."""
    defined: dict[str, Any] = {"dataset": task.name, "model": task.model_name, "users": task.users}
    for name, own in defined.items():
        if getattr(settings, name) not in (own, FIELDS[name].default):
            raise InvalidInput(
                f"the task has {name} {own}; got {getattr(settings, name)}: leave --{name} out"
            )
    return dataclasses.replace(settings, task=settings.task or task.name, **defined)


def _image_task(settings: Settings, folder: str | Path | None, data: Dataset | None) -> ImageTask:
    """The built-in task that the settings name."""
    if data is None:
        data = load_dataset(settings.dataset, folder, writers=settings.partition == "writer")
    model = build_model(settings.model, data.input_shape, data.classes, settings.weights_file)
    model = dataclasses.replace(model, pixels=settings.pixels)
    rng = np.random.default_rng([settings.seed, 0xDA7A])
    training, validation = partition.hold_out(len(data.train_y), settings.validation, rng)
    parts = _parts(settings, data, training, rng)
    return ImageTask(model, data, Federation.of(data.train_x, data.train_y, parts), validation)


def _server_rate(settings: Settings, mechanism: Mechanism, local: LocalSettings) -> float:
    """The server rate: given, or by the rule of `clip_and_rate` under a budget, or 1."""
    if settings.server_rate is not None:
        return settings.server_rate
    by_rule = settings.budget is not None and settings.server_name in ("plain", "filter")
    if not by_rule or mechanism.clip is None:
        return 1.0
    noise, samples = (
        noise_norm(mechanism, users_in_round(settings)),
        samples_per_step(settings, local),
    )
    return private_server_rate(mechanism.clip, noise, settings.rounds, samples)


def _check_state(optimizer: Optimizer, users: int, dim: int) -> None:
    """Refuse optimizer state that does not fit in memory: it grows with users times weights."""
    kept = 4 * users * sum(optimizer.widths(dim).values()) if optimizer.keep_state else 0
    if kept > MAX_STATE_BYTES:
        raise InvalidInput(
            f"--keep-momentum would keep {kept / 2**30:.0f} GiB for {users} users, at most "
            f"{MAX_STATE_BYTES >> 30} are allowed: leave it out, or take fewer users"
        )


def _parts(
    settings: Settings, data: Dataset, training: NDArray[np.int64], rng: np.random.Generator
) -> Parts:
    labels, users = data.train_y[training], settings.users
    parts: Parts
    if settings.partition == "per-user":
        table = partition.same_size_parts(
            labels, users, rng, settings.samples_per_user, settings.replace
        )
        return partition.narrow_dtype(training)[table]
    if settings.partition == "iid":
        parts = partition.iid(labels, users, rng)
    elif settings.partition == "dirichlet":
        parts = partition.dirichlet(labels, users, rng, settings.alpha)
    elif settings.partition == "shards":
        parts = partition.shards(labels, users, rng, settings.shards_per_user)
    else:
        assert data.train_writers is not None
        parts = partition.by_writer(data.train_writers[training], users, rng)
    return [training[part] for part in parts]


def _rate(settings: Settings) -> Rate:
    if settings.schedule == "constant":
        return ConstantRate(settings.local_rate)
    offset = float(DECAY_ROUNDS * settings.steps)
    return DecayingRate(settings.local_rate * offset, offset)
