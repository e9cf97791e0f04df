"""A short simulated run of a plan beside FedAvg: what was predicted, and what is measured."""

import dataclasses
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hushbit.errors import InvalidInput
from hushbit.lab.sim.rounds import RoundResult
from hushbit.lab.sim.run import run
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import Setup, build_setup
from hushbit.tuning.plan import PlanOption

MAX_ROUNDS = 5
"""Rounds of a rehearsal, unless the plan has fewer."""


@dataclass(frozen=True)
class Rehearsal:
    """What a short run measures beside the prediction of a plan.

    rounds         rounds of the two runs
    metric         test_accuracy, or test_loss for a task without classes
    fedavg_score   the metric of FedAvg on the same users and data
    score          the metric of the planned mechanism
    predicted_db   SNR of a round that the plan predicts, for its assumed signal
    snr_db         measured SNR, the median over rounds
    signal         measured rms of the entries of the mean update, in units of radius; its median
    overload_rate  share of entries beyond the radius
    """

    rounds: int
    metric: str
    fedavg_score: float
    score: float
    predicted_db: float
    snr_db: float
    signal: float
    overload_rate: float


def rehearse(
    option: PlanOption,
    dataset: str,
    model: str,
    folder: Path | None = None,
    task: str | None = None,
) -> Rehearsal:
    """Run the first rounds of FedAvg and of the planned mechanism.

    Data, model and users are those of `task` (my_task.py:task). Without it, the users of the plan
    draw samples of the built-in data set with replacement, so that any number can be simulated.
    """
    assumed = option.assumptions
    rounds = min(assumed.rounds, MAX_ROUNDS)
    settings = Settings(task=task, rounds=rounds, mechanism="fedavg", evaluate_every=rounds)
    if task is None:
        settings = dataclasses.replace(
            settings, dataset=dataset, model=model, users=assumed.users, replace=True
        )
    setup = build_setup(settings, folder)
    for name, found, planned in (
        ("dim", setup.task.dim, assumed.dim),
        ("users", setup.task.users, assumed.users),
    ):
        if found != planned:
            source = f"model {model} on {dataset}" if task is None else task
            unit = "weights" if name == "dim" else "users"
            raise InvalidInput(
                f"{source} has {found} {unit}, but the plan is for {planned}: set --{name} {found}"
            )
    powers: list[float] = []
    clipped: list[float] = []

    def note(_: Setup, made: RoundResult) -> None:
        powers.append(float(np.mean(made.true_mean**2)))
        clipped.append(made.overload_rate)

    plain = run(settings, data=folder)
    private = run(settings, data=folder, mechanism=option.mechanism, watch=note)
    metric = "test_loss" if math.isnan(plain["test_accuracy"]) else "test_accuracy"
    return Rehearsal(
        rounds=rounds,
        metric=metric,
        fedavg_score=plain[metric],
        score=private[metric],
        predicted_db=option.snr_db,
        snr_db=private["snr_db"],
        signal=statistics.median(powers) ** 0.5 / assumed.radius,
        overload_rate=max(clipped),
    )
