"""Accuracy at one budget for the whole run, against those who see only the model.

CPA with one bit per weight, the Gaussian mechanism with exact updates and a trusted server, and
FedAvg without privacy. Epsilon of the Gaussian mechanism is exact, that of CPA the tightest proved
bound. Clip and server rate of both private schemes follow the rule of `lab.sim.clip_and_rate`;
nothing else is tuned for them. FedAvg has no clip and no noise: it gets the server rate with the
highest validation accuracy on three seeds that are not reported.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hushbit.lab.experiments.experiment import (
    Coordinates,
    ExperimentRunner,
    Findings,
    Series,
    experiment,
    line_axes,
    listed,
    place_text,
    select,
)
from hushbit.lab.experiments.results import Cell, Check
from hushbit.lab.sim.clip_and_rate import noise_norm, private_server_rate
from hushbit.lab.sim.image_task import task_without_data
from hushbit.lab.sim.models import build_model
from hushbit.lab.sim.optimizers import ConstantRate
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import build_mechanism, public_clip
from hushbit.lab.sim.training import LocalSettings

CPA, GAUSSIAN, FEDAVG = (
    "CPA, 1 bit per weight",
    "Gaussian mechanism, 32 bits per weight",
    "FedAvg without privacy, 32 bits per weight",
)
MECHANISMS = {CPA: "cpa", GAUSSIAN: "gaussian"}
EPSILONS, DELTA = (1.0, 2.0, 4.0, 8.0), 1e-5
ROUNDS, RATE = 60, 0.5
FEDAVG_RATES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
TUNING_USERS, TUNING_SEEDS, VALIDATION = 1000, 3, 10_000
TRAINING_SAMPLES = 60_000  # of MNIST and of Fashion-MNIST
NEAR, FAR, NEAR_SHARE = 0.5, 1.5, 14 / 16  # points of accuracy below the Gaussian mechanism
AXES = line_axes("epsilon", "epsilon of the run at delta 1e-5", "accuracy", log=True)
SIGNIFICANT_DIGITS = 4


@dataclass(frozen=True)
class BudgetPlace:
    """Data, model and users of one comparison; `max_seeds` limits the seeds where runs are long."""

    data: str
    model: str
    users: int
    samples: int
    max_seeds: int | None = None

    @property
    def where(self) -> Coordinates:
        """The coordinates of its cells."""
        return {
            "data": self.data,
            "model": self.model,
            "users": self.users,
            "samples": self.samples,
        }


MNIST, FASHION = "MNIST", "Fashion-MNIST"
FEW_USERS, MANY_USERS = 1000, 10_000
SEEDS: dict[tuple[str, str, int], int | None] = {
    (MNIST, "linear", FEW_USERS): None,
    (MNIST, "linear", MANY_USERS): 3,
    (FASHION, "linear", FEW_USERS): None,
    (FASHION, "linear", MANY_USERS): 1,
    (MNIST, "mlp", FEW_USERS): 2,
    (MNIST, "mlp", MANY_USERS): 1,
}
PLACES = tuple(
    BudgetPlace(*kind, samples, seeds) for kind, seeds in SEEDS.items() for samples in (5, 60)
)
QUICK_PLACES, QUICK_EPSILONS = PLACES[:1], (1.0, 4.0)


def settings_at(place: BudgetPlace, rounds: int, **options: Any) -> Settings:
    """The settings at one place; `options` adds the mechanism and its budget."""
    return Settings(
        dataset=place.data.lower(),
        model=place.model,
        pixels="unit",
        users=place.users,
        samples_per_user=place.samples,
        replace=place.users * place.samples > TRAINING_SAMPLES,
        rounds=rounds,
        rate=RATE,
        server="plain",
        evaluate_every=rounds,
        **options,
    )


@cache
def with_rule(settings: Settings) -> Settings:
    """The settings with clip and server rate from the rule of `lab.sim.clip_and_rate`.

    They are the same for all seeds, and rounded so that every machine computes the same cells.
    """
    model = dataclasses.replace(build_model(settings.model, (1, 28, 28), 10), pixels="unit")
    local = LocalSettings(ConstantRate(RATE), batch_size=settings.samples_per_user)
    task = task_without_data(model)
    clip = _rounded(public_clip(settings, task, local))
    clipped = dataclasses.replace(settings, clip=clip)
    noise = noise_norm(build_mechanism(clipped, task, local), settings.users)
    rate = private_server_rate(clip, noise, settings.rounds, settings.samples_per_user)
    return dataclasses.replace(clipped, server_rate=_rounded(rate))


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def private_series(
    places: Sequence[BudgetPlace], epsilons: Sequence[float], rounds: int
) -> list[Series]:
    """Both private schemes at every place and epsilon."""
    return [
        Series(
            scheme,
            "corrected",
            with_rule(
                settings_at(
                    place,
                    rounds,
                    mechanism=mechanism,
                    epsilon=epsilon,
                    delta=DELTA,
                    per="run",
                    against="model",
                    accountant="tightest" if scheme == CPA else None,
                )
            ),
            place.where,
            epsilon,
            place.max_seeds,
        )
        for place in places
        for scheme, mechanism in MECHANISMS.items()
        for epsilon in epsilons
    ]


def fedavg_series(
    runner: ExperimentRunner,
    places: Sequence[BudgetPlace],
    epsilons: Sequence[float],
    rounds: int,
) -> list[Series]:
    """FedAvg at every place with its tuned server rate, shown at every epsilon."""
    kinds = list(dict.fromkeys((place.data, place.model, place.samples) for place in places))
    starts = []
    for data, model, samples in kinds:
        place = BudgetPlace(data, model, TUNING_USERS, samples)
        start = settings_at(place, rounds, mechanism="fedavg", validation=VALIDATION)
        starts.append(dataclasses.replace(start, replace=True))
    grid = {"server_rate": FEDAVG_RATES}
    tuned = runner.tune([(start, grid) for start in starts], TUNING_SEEDS)
    rates = {kind: best.server_rate for kind, best in zip(kinds, tuned, strict=True)}
    made = []
    for place in places:
        rate = rates[place.data, place.model, place.samples]
        settings = settings_at(place, rounds, mechanism="fedavg", server_rate=rate)
        made += [
            Series(FEDAVG, "corrected", settings, place.where, epsilon, place.max_seeds)
            for epsilon in epsilons
        ]
    return made


def find(runner: ExperimentRunner) -> Findings:
    """All places and budgets; the quick form has one place and two budgets."""
    places = QUICK_PLACES if runner.quick else PLACES
    epsilons = QUICK_EPSILONS if runner.quick else EPSILONS
    rounds = runner.rounds_of(ROUNDS)
    fedavg = fedavg_series(runner, places, epsilons, rounds)
    private = private_series(places, epsilons, rounds)
    found = runner.measure([*fedavg, *private])
    cells = tuple(found.cells(("accuracy",)))
    choices = tuple(chosen_rates(place, [*private, *fedavg]) for place in places)
    return Findings(AXES, cells, compare_with_gaussian(cells), choices, found.privacy)


def chosen_rates(place: BudgetPlace, series: Sequence[Series]) -> str:
    """The clip and the server rates of a place as text."""
    here = [one for one in series if one.where == place.where]
    texts = []
    for scheme in (CPA, GAUSSIAN, FEDAVG):
        rates = [one.settings.server_rate or 1.0 for one in here if one.scheme == scheme]
        texts.append(f"{scheme.partition(',')[0]} {listed(dict.fromkeys(rates))}")
    return (
        f"{place_text(place.where)}: clip {here[0].settings.clip:g}; server rates in the order of "
        f"epsilon: {'; '.join(texts)}."
    )


def compare_with_gaussian(cells: Sequence[Cell]) -> tuple[Check, ...]:
    """The claims about the linear model on MNIST: CPA against the Gaussian mechanism."""
    gaps = {}
    for cell in select(cells, scheme=CPA, metric="accuracy"):
        if (cell.where["data"], cell.where["model"]) == (MNIST, "linear"):
            (peer,) = select(cells, scheme=GAUSSIAN, where=cell.where, x=cell.x, metric="accuracy")
            gaps[f"{place_text(cell.where)}, epsilon {cell.x:g}"] = cell.mean - peer.mean
    near = [place for place, gap in gaps.items() if gap >= -NEAR]
    worst = min(gaps, key=lambda place: gaps[place])
    needed = round(NEAR_SHARE * len(gaps))
    return (
        Check(
            f"CPA at most {NEAR:g} points below the Gaussian mechanism at equal epsilon and delta "
            f"in at least {needed} of {len(gaps)} cells of the linear model on MNIST",
            len(near) >= needed,
            f"{len(near)} of {len(gaps)}; differences {listed(round(g, 2) for g in gaps.values())}",
        ),
        Check(
            f"CPA never more than {FAR:g} points below it",
            gaps[worst] >= -FAR,
            f"{gaps[worst]:+.2f} points at the least ({worst})",
        ),
    )


EXPERIMENTS = (
    experiment(
        "central",
        find,
        fedavg_rates=listed(FEDAVG_RATES),
        tuning_users=TUNING_USERS,
        tuning_seeds=TUNING_SEEDS,
    ),
)
