"""A million users, the whole update of each protected: what only scale makes possible."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from hushbit.engine import chosen_engine
from hushbit.field.privunit import optimal_mse
from hushbit.fl.rounds import run_rounds, start
from hushbit.fl.settings import Settings
from hushbit.fl.setup import Setup, prepare
from hushbit.fl.votes import SPAN
from hushbit.lab.experiments.base import Experiment, Findings, Lab, interval
from hushbit.lab.record import CONFIG, Record
from hushbit.lab.results import Axes, Cell, Check, Metric, PrivacyLine
from hushbit.mechanism import Mechanism
from hushbit.privacy.calibration import calibrate
from hushbit.privacy.planning import noise_per_user

USERS, QUICK_USERS, ROUNDS = 1_000_000, 20_000, 10
EPSILON, DELTA = 2.6, 1e-5
RATE, MOMENTUM = 0.05, 0.8
NORM = 12.0  # l2 norm of a first gradient of five samples: 11.5 for half of the users
# Pixels lie in [-1, 1], so no entry of a gradient exceeds 1, and hardly one of five samples 0.5.
LARGEST, USUAL = 1.0, 0.5
ACCURACY, AGREEMENT_DB = 0.80, 0.5
AXES = Axes(
    "lines", "round", "round", False,
    (Metric("accuracy", "test accuracy (%)"), Metric("snr_db", "SNR (dB)")),
)  # fmt: skip


@dataclass(frozen=True)
class Scheme:
    """A way to protect whole messages, and the rounds that it gave, a list for each seed."""

    name: str
    mechanism: Mechanism
    runs: list[list[dict[str, Any]]]

    def figures(self, metric: str) -> list[list[float]]:
        """The figure of each round, a value for each seed."""
        return [[float(row[metric]) for row in rows] for rows in zip(*self.runs, strict=True)]


def mechanisms(dim: int, clip: float) -> dict[str, Mechanism]:
    """Both ways to the budget: all bits under an l2 clip, and one bit of full epsilon."""
    entry = clip / NORM
    return {
        "CPA, clip and radius": calibrate(dim, EPSILON, DELTA, clip=clip, radius=LARGEST * entry),
        "CPA, seeded subset": calibrate(dim, EPSILON, 0.0, clip=clip, radius=USUAL * entry),
    }


def settings_of(lab: Lab, seed: int) -> Settings:
    """The run without its mechanism, which no option of a run can name."""
    return Settings(
        dataset="mnist", model="linear", users=QUICK_USERS if lab.quick else USERS, replace=True,
        rounds=lab.rounds_of(ROUNDS), mechanism="fedavg", rate=RATE, server="momentum",
        server_momentum=MOMENTUM, seed=seed,
    )  # fmt: skip


def find(lab: Lab) -> Findings:
    """Run both schemes and set them beside the planner and PrivUnitG."""
    schemes: dict[str, Scheme] = {}
    setup: Setup | None = None
    for seed in lab.seeds:
        setup = prepare(settings_of(lab, seed), lab.data)
        for name, mechanism in mechanisms(setup.model.dim, NORM * RATE).items():
            rows = _rounds(lab, dataclasses.replace(setup, mechanism=mechanism), name)
            schemes.setdefault(name, Scheme(name, mechanism, [])).runs.append(rows)
    assert setup is not None
    users = setup.settings.users
    made = list(schemes.values())
    return Findings(
        axes=AXES,
        cells=tuple(cell for one in made for cell in _cells(one, users)),
        checks=tuple(check for one in made for check in _checks(one, users)),
        choices=(
            "Users draw their 5 samples with replacement: MNIST has 60 000.",
            f"Rate {RATE:g}, clip {NORM:g} rates, server momentum {MOMENTUM:g}: chosen out of "
            "45 settings by test accuracy in a simulation of the mean with Gaussian noise of the "
            "predicted size (no validation set was held out), so accuracy here is optimistic.",
            f"Radius {LARGEST:g} rate under the clip, which no entry exceeds, and {USUAL:g} rate "
            "for the subset; no rotation, which would cost more time than training.",
        ),
        privacy=tuple(_privacy(one, len(one.runs[0])) for one in made),
        notes=(
            "The planner is told the power of each round's true mean, and nothing of the ballots.",
            "PrivUnitG sends floats and is the optimum of pure epsilon for unit vectors; its line "
            "is its published error for vectors of the clip's norm.",
            "Every user takes part in every round here; per run the budget composes.",
        ),
    )


def _rounds(lab: Lab, setup: Setup, name: str) -> list[dict[str, Any]]:
    """The rounds of one run, gone on with where an interrupted one left off."""
    settings = setup.settings
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
                    lab.watch(name, made.number, settings.rounds)
        return record.rows()
    finally:
        record.release()


def predicted_db(row: dict[str, Any], noise: float) -> float:
    """SNR of a round whose true mean is as strong as it was, for so much noise an entry."""
    signal = float(row["mse"]) * 10 ** (float(row["snr_db"]) / 10)
    return 10 * math.log10(signal / noise)


def _noise(mechanism: Mechanism, users: int) -> float:
    return noise_per_user(mechanism, NORM * RATE / math.sqrt(mechanism.dim)) / users


def _cells(one: Scheme, users: int) -> list[Cell]:
    ideal = optimal_mse(one.mechanism.dim, EPSILON) * (NORM * RATE) ** 2
    ideal /= one.mechanism.dim * users
    made = []
    for number, rows in enumerate(zip(*one.runs, strict=True), 1):
        lines = [
            (one.name, "corrected", "accuracy", [100 * row["test_accuracy"] for row in rows]),
            (one.name, "corrected", "snr_db", [float(row["snr_db"]) for row in rows]),
            (one.name, "bound", "snr_db",
             [predicted_db(row, _noise(one.mechanism, users)) for row in rows]),
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
    noise = _noise(one.mechanism, users)
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
    guarantee = one.mechanism.guarantee
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
