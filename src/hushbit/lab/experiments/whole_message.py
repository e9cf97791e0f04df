"""Whole-message privacy with a million users: the update of each user is protected as a whole.

Rate and momentum are tuned on data that is not tested on, by `simulated_accuracy`: a few users are
trained, and Gaussian noise of the variance that the planner predicts for all users is added.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.encoding.clip_and_rotate import clip_l2
from hushbit.lab.estimators.private_vectors import optimal_mse
from hushbit.lab.experiments.experiment import (
    TUNING_SEED,
    Coordinates,
    ExperimentRunner,
    Findings,
    experiment,
    listed,
)
from hushbit.lab.experiments.results import Axes, Cell, Check, Metric, PrivacyLine
from hushbit.lab.intervals import interval
from hushbit.lab.sim.aggregate_sampler import GaussianAggregator
from hushbit.lab.sim.engines import open_engine
from hushbit.lab.sim.optimizers import ConstantRate
from hushbit.lab.sim.rounds import BATCH_USERS, RoundResult, initial_state, run_rounds
from hushbit.lab.sim.run import RunRecord, run
from hushbit.lab.sim.server_steps import MomentumStep
from hushbit.lab.sim.settings import PAPER_TRAINING, Settings
from hushbit.lab.sim.setup import Setup, build_setup
from hushbit.mechanism import Mechanism
from hushbit.tuning.calibrate import calibrate_message

TUNING_USERS = 2000  # users per round of a tuning run; their own spread is far below the noise
RATES, MOMENTA = (0.02, 0.03, 0.05, 0.08), (0.0, 0.5, 0.8, 0.9)


@dataclass(frozen=True)
class MessageLimits:
    """A mechanism, the l2 clip it applies and the largest entry it can carry."""

    mechanism: Mechanism
    clip: float
    radius: float

    def applied(self, updates: NDArray[np.float32]) -> NDArray[np.floating]:
        """The updates as the mechanism encodes them."""
        short = clip_l2(updates, self.clip)
        return np.asarray(np.clip(short, -self.radius, self.radius))

    def noise(self, users: int) -> float:
        """Predicted variance of an entry of the mean over so many users."""
        user_rms = self.clip / math.sqrt(self.mechanism.dim)
        return self.mechanism.noise_per_user(user_rms) / users


@dataclass(frozen=True)
class MessageChoice:
    """The tuned rate and momentum, and their validation accuracy."""

    rate: float
    momentum: float
    accuracy: float


def best_choice(setup: Setup, limits_at: Callable[[float], MessageLimits]) -> MessageChoice:
    """The rate and momentum with the best validation accuracy; `limits_at` maps rates to limits."""
    tried = [
        MessageChoice(rate, momentum, simulated_accuracy(setup, limits_at(rate), rate, momentum))
        for rate, momentum in itertools.product(RATES, MOMENTA)
    ]
    return max(tried, key=lambda choice: choice.accuracy)


def simulated_accuracy(setup: Setup, limits: MessageLimits, rate: float, momentum: float) -> float:
    """Validation accuracy after all rounds of a simulation with the predicted noise."""
    settings = setup.settings
    tried = dataclasses.replace(
        setup,
        settings=dataclasses.replace(settings, evaluate_every=settings.rounds),
        local=dataclasses.replace(setup.local, rate=ConstantRate(rate)),
        server=MomentumStep(1.0, momentum),
    )
    aggregator = GaussianAggregator(
        limits.applied,
        limits.noise(settings.users),
        min(TUNING_USERS, settings.users),
        np.random.default_rng([TUNING_SEED, 0x7E57]),
    )
    *_, last = run_rounds(tried, initial_state(tried), aggregator=aggregator)
    assert last.validation_accuracy is not None
    return last.validation_accuracy


USERS, QUICK_USERS, ROUNDS = 1_000_000, 20_000, 10
EPSILON, DELTA = 2.6, 1e-5
VALIDATION = 10_000
NORM = 12.0  # l2 norm of a first gradient of five samples; its median over users is 11.5
# Pixels lie in [-1, 1], so no entry of a gradient exceeds 1; of five samples few exceed 0.5.
CLIPPED, SUBSET = "CPA, clip and radius", "CPA, seeded subset"
REACH = {CLIPPED: 1.0, SUBSET: 0.5}
ACCURACY, AGREEMENT_DB = 0.80, 0.5
Y_AXES = (Metric("accuracy", "test accuracy (%)"), Metric("snr_db", "SNR (dB)"))
AXES = Axes("lines", "round", "round", False, Y_AXES)


@dataclass(frozen=True)
class MessageScheme:
    """A way to protect whole messages, and the rounds of its runs, one list per seed."""

    name: str
    limits: MessageLimits
    choice: MessageChoice
    runs: list[list[dict[str, Any]]]


def limits_of(name: str, dim: int, rate: float) -> MessageLimits:
    """Limits that spend the budget on all bits under an l2 clip, or on one bit of a subset.

    Clip and radius scale with the rate.
    """
    clip, radius = NORM * rate, REACH[name] * rate
    delta = DELTA if name == CLIPPED else 0.0
    return MessageLimits(
        calibrate_message(dim, EPSILON, delta, clip=clip, radius=radius), clip, radius
    )


def settings_of(lab: ExperimentRunner, seed: int) -> Settings:
    """The settings before tuning, without the mechanism, which no option of a run can name."""
    return Settings(
        **PAPER_TRAINING,
        dataset="mnist",
        model="linear",
        users=QUICK_USERS if lab.quick else USERS,
        replace=True,
        rounds=lab.rounds_of(ROUNDS),
        mechanism="fedavg",
        server="momentum",
        seed=seed,
        validation=VALIDATION,
    )


def find_whole_message(lab: ExperimentRunner) -> Findings:
    """Tune and run both schemes, and compare them with the planner and PrivUnitG."""
    tuning = build_setup(settings_of(lab, TUNING_SEED), lab.data)
    users, dim = tuning.settings.users, tuning.task.dim
    made = []
    for name in REACH:
        choice = best_choice(tuning, partial(limits_of, name, dim))
        one = MessageScheme(name, limits_of(name, dim, choice.rate), choice, [])
        one.runs.extend(_rounds(lab, one, seed) for seed in lab.seeds)
        made.append(one)
    return Findings(
        axes=AXES,
        cells=tuple(cell for one in made for cell in _cells(one, users)),
        checks=tuple(check for one in made for check in _checks(one, users)),
        choices=(
            "Users draw their 5 samples with replacement, from 50 000 of MNIST's 60 000.",
            f"Rate and server momentum: the best of rates {listed(RATES)} with momenta "
            f"{listed(MOMENTA)} by accuracy on the {VALIDATION} other samples, in a rehearsal "
            "with another seed: 2 000 users a round and Gaussian noise of the size predicted for "
            "all. The test set decides nothing.",
            *(
                f"{one.name}: rate {one.choice.rate:g}, momentum {one.choice.momentum:g} "
                f"({one.choice.accuracy:.1%} in the rehearsal)."
                for one in made
            ),
            f"Clip {NORM:g} rates. Radius {REACH[CLIPPED]:g} rate under the clip, which no entry "
            f"exceeds, and {REACH[SUBSET]:g} rate for the subset. No rotation: under a clip the "
            "noise does not depend on the radius, and a subset needs a small one.",
        ),
        privacy=tuple(_privacy(one, len(one.runs[0])) for one in made),
    )


def _rounds(lab: ExperimentRunner, one: MessageScheme, seed: int) -> list[dict[str, Any]]:
    """The rounds of one run; an interrupted run is continued."""
    settings = dataclasses.replace(
        settings_of(lab, seed), rate=one.choice.rate, server_momentum=one.choice.momentum
    )
    mechanism = one.limits.mechanism
    kept = f"whole-message-{settings.users}-{settings.rounds}-{settings.seed}"
    folder = lab.folder / "cells" / kept / mechanism.fingerprint.hex()

    def watch(setup: Setup, made: RoundResult) -> None:
        lab.watch(one.name, made.number, settings.rounds)

    with open_engine("local", lab.workers, math.ceil(settings.users / BATCH_USERS)) as engine:
        resume = RunRecord(folder).holds_run
        summary = run(
            settings,
            folder,
            resume=resume,
            data=lab.data,
            watch=watch,
            engine=engine,
            mechanism=mechanism,
        )
    rows: list[dict[str, Any]] = summary["history"]
    lab.cpu_seconds[f"{kept} {folder.name}"] = sum(
        float(spent)
        for row in rows
        for name, spent in row.items()
        if name.startswith("cpu_seconds_")
    )
    return rows


def predicted_db(row: dict[str, Any], noise: float) -> float:
    """SNR of a round with the power of its true mean, for noise of this variance per entry."""
    signal = float(row["mse"]) * 10 ** (float(row["snr_db"]) / 10)
    return 10 * math.log10(signal / noise)


def _cells(one: MessageScheme, users: int) -> list[Cell]:
    dim = one.limits.mechanism.dim
    ideal = optimal_mse(dim, EPSILON) * one.limits.clip**2 / (dim * users)
    planned, best_known = one.limits.noise(users), f"PrivUnitG on the updates of {one.name}"
    made = []
    for number, rows in enumerate(zip(*one.runs, strict=True), 1):
        lines = [
            (one.name, "corrected", "accuracy", [100 * row["test_accuracy"] for row in rows]),
            (one.name, "corrected", "snr_db", [float(row["snr_db"]) for row in rows]),
            (one.name, "bound", "snr_db", [predicted_db(row, planned) for row in rows]),
            (best_known, "bound", "snr_db", [predicted_db(row, ideal) for row in rows]),
        ]
        for scheme, variant, metric, values in lines:
            where: Coordinates = {"users": users}
            place = scheme, variant, where, metric
            made.append(Cell(*place, *interval(values), tuple(values), float(number)))
    return made


def _checks(one: MessageScheme, users: int) -> list[Check]:
    noise = one.limits.noise(users)
    gaps = [float(row["snr_db"]) - predicted_db(row, noise) for run in one.runs for row in run]
    worst = max(gaps, key=abs)
    last = [float(run[-1]["test_accuracy"]) for run in one.runs]
    return [
        Check(
            f"{one.name}: at least {ACCURACY:.0%} test accuracy",
            min(last) >= ACCURACY,
            f"{min(last):.2%} after {len(one.runs[0])} rounds",
        ),
        Check(
            f"{one.name}: SNR of every round within {AGREEMENT_DB} dB of the planner",
            abs(worst) <= AGREEMENT_DB,
            f"at most {worst:+.2f} dB from it",
        ),
    ]


def _privacy(one: MessageScheme, rounds: int) -> PrivacyLine:
    guarantee = one.limits.mechanism.guarantee
    pure = guarantee.epsilon_per_message()
    return PrivacyLine(
        scheme=f"{one.name} (corrected)",
        per_bit=f"epsilon = {guarantee.epsilon_per_bit:.4g}, {guarantee.message_bits} bits",
        per_message=f"epsilon = {guarantee.epsilon_per_message(DELTA):.4g} at delta {DELTA:g}; "
        f"pure {pure:.4g}",
        per_run=f"{rounds} rounds taken part: epsilon = "
        f"{guarantee.epsilon_per_run(rounds, DELTA):.4g} at delta {DELTA:g}",
    )


EXPERIMENTS = (experiment("whole-message", find_whole_message),)
