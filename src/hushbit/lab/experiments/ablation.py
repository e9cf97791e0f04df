"""What each ingredient of CPA.auto is worth: all of them, then one left out or added."""

from typing import Any

from hushbit.fl.settings import Settings
from hushbit.lab.experiments.base import Lab, Series, Where, cells_of
from hushbit.lab.results import Cell
from hushbit.lab.tuning import candidates

ROUNDS = 150
RATES = (0.05, 0.1, 0.2)
REACHES = (0.05, 0.1, 0.2, 0.4)
PRIVATE = {"epsilon_per_bit": 0.5}
BY_HAND = PRIVATE | {"mechanism": "cpa", "server": "filter"}
"""A fixed radius, tuned on validation data: what the vote does without."""

VARIANTS: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "all of auto": (PRIVATE | {"mechanism": "cpa-auto"}, {"rate": RATES}),
    "without filter": (PRIVATE | {"mechanism": "cpa-auto", "server": "plain"}, {"rate": RATES}),
    "without vote: fixed radius tuned by hand": (
        BY_HAND | {"rotate": True}, {"rate": RATES, "reach": REACHES},
    ),
    "without vote and rotation": (BY_HAND, {"rate": RATES, "reach": REACHES}),
    "without vote, rotation and filter": (
        BY_HAND | {"server": "plain"}, {"rate": RATES, "reach": REACHES},
    ),
    "with weights averaged": (
        PRIVATE | {"mechanism": "cpa-auto", "average_weights": True}, {"rate": RATES},
    ),
    "with k = 2 (four points)": (PRIVATE | {"mechanism": "cpa-auto", "k": 2}, {"rate": RATES}),
}  # fmt: skip


def ablation(lab: Lab) -> tuple[list[Cell], tuple[str, ...]]:
    """Linear model on MNIST, 100 users: every variant tuned by the same rule."""
    rounds = lab.rounds_of(ROUNDS)
    series = []
    for name, (options, grid) in VARIANTS.items():
        start = Settings(
            dataset="mnist", model="linear", users=100, validation=10_000, rounds=rounds,
            evaluate_every=rounds, **options,
        )  # fmt: skip
        tried = candidates(start, grid)
        outcomes = lab.run(tried, "tuning")
        best = max(range(len(tried)), key=lambda n: outcomes[n].validation)
        where: Where = {"ablation": name, "model": "linear", "users": 100}
        series.append(Series("CPA auto", "corrected", tried[best], where))
    cells: list[Cell] = []
    for one, outcomes in zip(series, lab.measure(series), strict=True):
        cells += cells_of(one, outcomes, ("accuracy", "snr_median_db"))
    chosen = tuple(
        f"{one.where['ablation']}: rate {one.settings.local_rate:g}"
        + (f", radius {one.settings.radius:g}" if one.settings.radius else "")
        for one in series
    )
    return cells, chosen
