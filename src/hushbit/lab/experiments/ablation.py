"""What each ingredient of CPA.auto is worth: all of them, then one left out or added."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from hushbit.fl.settings import Settings
from hushbit.lab.cells import Outcome
from hushbit.lab.experiments.base import Lab, Series, Where, cell_of, cells_of
from hushbit.lab.results import Cell
from hushbit.lab.tuning import Grid, candidates

SEEDS = 20
REACHES = (0.05, 0.1, 0.2, 0.4)
PRIVATE = {"epsilon_per_bit": 0.5}
AUTO = PRIVATE | {"mechanism": "cpa-auto"}
BY_HAND = PRIVATE | {"mechanism": "cpa", "server": "filter"}
"""A fixed radius, tuned on validation data: what the vote does without."""

WHOLE = "all of auto"
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    WHOLE: (AUTO, {}),
    "without filter": (AUTO | {"server": "plain"}, {}),
    "without vote: fixed radius tuned by hand": (BY_HAND | {"rotate": True}, {"reach": REACHES}),
    "without vote and rotation": (BY_HAND, {"reach": REACHES}),
    "without vote, rotation and filter": (BY_HAND | {"server": "plain"}, {"reach": REACHES}),
    "with weights averaged": (AUTO | {"average_weights": True}, {}),
    "with k = 2 (four points)": (AUTO | {"k": 2}, {}),
}


@dataclass(frozen=True)
class Ground:
    """Where ingredients are compared: users, rounds, and the rates that all may choose from."""

    users: int
    rounds: int
    rates: tuple[float, ...]


GROUNDS = (Ground(100, 150, (0.05, 0.1, 0.2)), Ground(10, 150, (0.03, 0.06, 0.1)))


def ablation(lab: Lab) -> tuple[list[Cell], tuple[str, ...]]:
    """Linear model on MNIST: every variant tuned by the same rule, compared seed by seed."""
    seeds = lab.seeds if lab.quick else tuple(range(1, SEEDS + 1))
    many = dataclasses.replace(lab, seeds=seeds)
    cells: list[Cell] = []
    chosen: list[str] = []
    for ground in GROUNDS[:1] if lab.quick else GROUNDS:
        series = [_tuned(many, ground, name) for name in VARIANTS]
        found = many.measure(series)
        for one, outcomes in zip(series, found, strict=True):
            cells += cells_of(one, outcomes, ("accuracy", "snr_median_db"))
            if one is not series[0]:
                cells.append(cell_of(one, "change", changes(found[0], outcomes)))
        chosen += [_told(one) for one in series]
    return cells, tuple(chosen)


def changes(whole: list[Outcome], variant: list[Outcome]) -> list[float]:
    """Accuracy of a variant less that of all of auto, seed by seed: same users, same data."""
    return [b.accuracy - a.accuracy for a, b in zip(whole, variant, strict=True)]


def _tuned(lab: Lab, ground: Ground, name: str) -> Series:
    options, own = VARIANTS[name]
    rounds = lab.rounds_of(ground.rounds)
    start = Settings(
        dataset="mnist", model="linear", users=ground.users, validation=10_000, rounds=rounds,
        evaluate_every=rounds, **options,
    )  # fmt: skip
    grid: Grid = {"rate": ground.rates, **own}
    tried = candidates(start, grid)
    outcomes = lab.run(tried, "tuning")
    best = max(range(len(tried)), key=lambda n: outcomes[n].validation)
    where: Where = {"ablation": name, "model": "linear", "users": ground.users}
    return Series("CPA auto", "corrected", tried[best], where)


def _told(one: Series) -> str:
    radius = f", radius {one.settings.radius:g}" if one.settings.radius else ""
    return (
        f"{one.where['ablation']}, K = {one.where['users']}: rate {one.settings.local_rate:g}"
        f"{radius}"
    )
