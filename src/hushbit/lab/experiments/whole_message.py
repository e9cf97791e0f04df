"""A million users, the whole update of each protected: what only scale makes possible."""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from hushbit.engine import chosen_engine
from hushbit.field.privunit import optimal_mse
from hushbit.fl.rounds import run_rounds, start
from hushbit.fl.settings import Settings
from hushbit.fl.setup import prepare
from hushbit.fl.votes import SPAN
from hushbit.lab.experiments.base import Experiment, Findings, Lab, interval
from hushbit.lab.experiments.message_tuning import MOMENTA, RATES, Choice, Limits, best_choice
from hushbit.lab.record import CONFIG, Record
from hushbit.lab.results import Axes, Cell, Check, Metric, PrivacyLine
from hushbit.lab.tuning import TUNING_SEED
from hushbit.privacy.calibration import calibrate

USERS, QUICK_USERS, ROUNDS = 1_000_000, 20_000, 10
EPSILON, DELTA = 2.6, 1e-5
VALIDATION = 10_000
NORM = 12.0  # l2 norm of a first gradient of five samples: 11.5 for half of the users
# Pixels lie in [-1, 1], so no entry of a gradient exceeds 1, and hardly one of five samples 0.5.
CLIPPED, SUBSET = "CPA, clip and radius", "CPA, seeded subset"
REACH = {CLIPPED: 1.0, SUBSET: 0.5}
ACCURACY, AGREEMENT_DB = 0.80, 0.5
AXES = Axes(
    "lines", "round", "round", False,
    (Metric("accuracy", "test accuracy (%)"), Metric("snr_db", "SNR (dB)")),
)  # fmt: skip


@dataclass(frozen=True)
class Scheme:
    """A way to protect whole messages, and the rounds that it gave, a list for each seed."""

    name: str
    limits: Limits
    choice: Choice
    runs: list[list[dict[str, Any]]]


def limits_of(name: str, dim: int, rate: float) -> Limits:
    """The budget spent on all bits under an l2 clip, or on one bit; lengths go with the rate."""
    clip, radius = NORM * rate, REACH[name] * rate
    delta = DELTA if name == CLIPPED else 0.0
    return Limits(calibrate(dim, EPSILON, delta, clip=clip, radius=radius), clip, radius)


def settings_of(lab: Lab, seed: int) -> Settings:
    """The run before it is tuned, and without its mechanism, which no option of a run can name."""
    return Settings(
        dataset="mnist", model="linear", users=QUICK_USERS if lab.quick else USERS, replace=True,
        rounds=lab.rounds_of(ROUNDS), mechanism="fedavg", server="momentum", seed=seed,
        validation=VALIDATION,
    )  # fmt: skip


def find(lab: Lab) -> Findings:
    """Tune and run both schemes, and set them beside the planner and PrivUnitG."""
    rehearsal = prepare(settings_of(lab, TUNING_SEED), lab.data)
    users, dim = rehearsal.settings.users, rehearsal.model.dim
    made = []
    for name in REACH:
        choice = best_choice(rehearsal, partial(limits_of, name, dim))
        one = Scheme(name, limits_of(name, dim, choice.rate), choice, [])
        one.runs.extend(_rounds(lab, one, seed) for seed in lab.seeds)
        made.append(one)
    return Findings(
        axes=AXES,
        cells=tuple(cell for one in made for cell in _cells(one, users)),
        checks=tuple(check for one in made for check in _checks(one, users)),
        choices=(
            "Users draw their 5 samples with replacement, from 50 000 of MNIST's 60 000.",
            f"Rate and server momentum: the best of rates {_listed(RATES)} with momenta "
            f"{_listed(MOMENTA)} by accuracy on the {VALIDATION} other samples, in a rehearsal "
            "with another seed: 2 000 users a round and Gaussian noise of the size predicted for "
            "all. The test set decides nothing.",
            *(f"{one.name}: rate {one.choice.rate:g}, momentum {one.choice.momentum:g} "
              f"({one.choice.accuracy:.1%} in the rehearsal)." for one in made),
            f"Clip {NORM:g} rates. Radius {REACH[CLIPPED]:g} rate under the clip, which no entry "
            f"exceeds, and {REACH[SUBSET]:g} rate for the subset. No rotation: under a clip the "
            "noise does not depend on the radius, and a subset needs a small one.",
        ),
        privacy=tuple(_privacy(one, len(one.runs[0])) for one in made),
        notes=(
            "The planner is told the power of each round's true mean, and nothing of the ballots.",
            "PrivUnitG sends floats and is the optimum of pure epsilon for unit vectors; its line "
            "is its published error for vectors of the clip's norm.",
            "Every user takes part in every round here; per run the budget composes.",
        ),
    )  # fmt: skip


def _listed(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _rounds(lab: Lab, one: Scheme, seed: int) -> list[dict[str, Any]]:
    """The rounds of one run, gone on with where an interrupted one left off."""
    settings = dataclasses.replace(
        settings_of(lab, seed), rate=one.choice.rate, server_momentum=one.choice.momentum
    )
    setup = dataclasses.replace(prepare(settings, lab.data), mechanism=one.limits.mechanism)
    kept = f"whole-message-{settings.users}-{settings.rounds}-{settings.seed}"
    record = Record(lab.folder / "cells" / kept / setup.mechanism.fingerprint.hex())
    progress, notes = start(setup), {"mechanism": setup.mechanism.description}
    try:
        if (record.folder / CONFIG).exists():
            progress = record.resume(settings, progress, notes)
        else:
            record.begin(settings, notes)
        with chosen_engine("local", lab.workers, math.ceil(settings.users / SPAN)) as engine:
            for made in run_rounds(setup, progress, engine):
                record.save(progress, made)
                if lab.watch is not None:
                    lab.watch(one.name, made.number, settings.rounds)
        rows = record.rows()
        lab.spent[record.folder.name] = sum(
            float(spent) for row in rows for name, spent in row.items()
            if name.startswith("cpu_seconds_")
        )  # fmt: skip
        return rows
    finally:
        record.release()


def predicted_db(row: dict[str, Any], noise: float) -> float:
    """SNR of a round whose true mean is as strong as it was, for so much noise an entry."""
    signal = float(row["mse"]) * 10 ** (float(row["snr_db"]) / 10)
    return 10 * math.log10(signal / noise)


def _cells(one: Scheme, users: int) -> list[Cell]:
    dim = one.limits.mechanism.dim
    ideal = optimal_mse(dim, EPSILON) * one.limits.clip**2 / (dim * users)
    planned = one.limits.noise(users)
    made = []
    for number, rows in enumerate(zip(*one.runs, strict=True), 1):
        lines = [
            (one.name, "corrected", "accuracy", [100 * row["test_accuracy"] for row in rows]),
            (one.name, "corrected", "snr_db", [float(row["snr_db"]) for row in rows]),
            (one.name, "bound", "snr_db",
             [predicted_db(row, planned) for row in rows]),
            (f"PrivUnitG on the updates of {one.name}", "bound", "snr_db",
             [predicted_db(row, ideal) for row in rows]),
        ]  # fmt: skip
        for scheme, variant, metric, values in lines:
            mean, low, high = interval(values)
            where: dict[str, str | int | float] = {"users": users}
            made.append(
                Cell(scheme, variant, where, metric, mean, low, high, tuple(values), float(number))
            )
    return made


def _checks(one: Scheme, users: int) -> list[Check]:
    noise = one.limits.noise(users)
    gaps = [float(row["snr_db"]) - predicted_db(row, noise) for run in one.runs for row in run]
    worst = max(gaps, key=abs)
    last = [float(run[-1]["test_accuracy"]) for run in one.runs]
    return [
        Check(f"{one.name}: at least {ACCURACY:.0%} test accuracy", min(last) >= ACCURACY,
              f"{min(last):.2%} after {len(one.runs[0])} rounds"),
        Check(f"{one.name}: SNR of every round within {AGREEMENT_DB} dB of the planner",
              abs(worst) <= AGREEMENT_DB, f"at most {worst:+.2f} dB from it"),
    ]  # fmt: skip


def _privacy(one: Scheme, rounds: int) -> PrivacyLine:
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


WHOLE_MESSAGE = Experiment(
    name="whole-message",
    title="Whole-message privacy with a million users",
    paper="beyond the paper",
    about=(
        "The whole update of each user is protected at epsilon 2.6 per participation: by an l2 "
        "clip and a radius (delta 1e-5), and purely by one bit of a weight that the user's key "
        "chooses. Linear model on MNIST, 1 000 000 users of five samples."
    ),
    group="scale",
    find=find,
    seeds=1,
)
