"""A short simulated run of a plan beside FedAvg: what was predicted, and what is measured."""

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

    rounds           rounds of the two runs
    fedavg_accuracy  test accuracy of FedAvg on the same users and data
    accuracy         test accuracy of the planned mechanism
    predicted_db     SNR of a round that the plan predicts, for its assumed signal
    snr_db           measured SNR, the median over rounds
    signal           measured rms of the entries of the mean update, in units of radius; its median
    overload_rate    share of entries beyond the radius
    """

    rounds: int
    fedavg_accuracy: float
    accuracy: float
    predicted_db: float
    snr_db: float
    signal: float
    overload_rate: float


def rehearse(
    option: PlanOption,
    dataset: str,
    model: str,
    folder: Path | None = None,
) -> Rehearsal:
    """Run the first rounds of FedAvg and of the planned mechanism on built-in data and model.

    Users draw their samples with replacement, so that any number of users can be simulated.
    """
    assumed = option.assumptions
    rounds = min(assumed.rounds, MAX_ROUNDS)
    settings = Settings(
        dataset=dataset,
        model=model,
        users=assumed.users,
        rounds=rounds,
        mechanism="fedavg",
        replace=True,
        evaluate_every=rounds,
    )
    dim = build_setup(settings, folder).task.dim
    if dim != assumed.dim:
        raise InvalidInput(
            f"model {model} has {dim} weights on {dataset}, but the plan is for {assumed.dim}: "
            f"set --dim {dim}"
        )
    powers: list[float] = []
    clipped: list[float] = []

    def note(_: Setup, made: RoundResult) -> None:
        powers.append(float(np.mean(made.true_mean**2)))
        clipped.append(made.overload_rate)

    plain = run(settings, data=folder)
    private = run(settings, data=folder, mechanism=option.mechanism, watch=note)
    return Rehearsal(
        rounds=rounds,
        fedavg_accuracy=plain["test_accuracy"],
        accuracy=private["test_accuracy"],
        predicted_db=option.snr_db,
        snr_db=private["snr_db"],
        signal=statistics.median(powers) ** 0.5 / assumed.radius,
        overload_rate=max(clipped),
    )
