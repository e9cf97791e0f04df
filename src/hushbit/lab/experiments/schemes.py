"""The schemes of the paper as settings: as published, and corrected with what tuning may move."""

import math
from typing import Any

from hushbit.fl.settings import Settings
from hushbit.lab.tuning import Grid

SCHEMES = ("vanilla FL", "Laplace", "signSGD + RR", "JoPEQ", "CPA w/o RR", "CPA")
PUBLISHED_RADIUS = 0.05
EPSILON = 0.5
RATES = (0.1, 0.3)
# Twice a model's typical entry of a rotated update at rate 1 (momentum doubles the gradient's).
REACH = {"linear": 0.15, "mlp": 0.02, "cnn2": 0.02, "cnn3": 0.02, "resnet18": 0.02}
CODE_RATES = (1.0, 0.1)  # default of the published code, and of its earlier revision
MANY_USERS = 1000

_AUTHORS: dict[str, dict[str, Any]] = {
    "vanilla FL": {"mechanism": "fedavg"},
    "Laplace": {"mechanism": "laplace", "preset": "authors"},
    "signSGD + RR": {"mechanism": "signsgd", "preset": "authors"},
    "JoPEQ": {"mechanism": "jopeq", "preset": "authors", "radius": PUBLISHED_RADIUS},
    "CPA w/o RR": {"mechanism": "cpa-no-rr", "preset": "authors", "radius": PUBLISHED_RADIUS},
    "CPA": {"mechanism": "cpa", "preset": "authors", "radius": PUBLISHED_RADIUS},
    "nested CPA": {"mechanism": "nested", "preset": "authors", "radius": PUBLISHED_RADIUS},
    "nested CPA w/o RR": {"mechanism": "nested", "preset": "authors", "radius": PUBLISHED_RADIUS},
}
# Without randomized response there is no privacy for a shared dither to cost.
_HONEST: dict[str, dict[str, Any]] = {
    "vanilla FL": {"mechanism": "fedavg"},
    "Laplace": {"mechanism": "laplace", "rotate": True},
    "signSGD + RR": {"mechanism": "signsgd", "sign_step": 0.01},
    "JoPEQ": {"mechanism": "jopeq", "rotate": True},
    "MVU": {"mechanism": "mvu", "bits": 1, "rotate": True},
    "CPA w/o RR": {"mechanism": "cpa-no-rr", "rotate": True, "rounding": "subtractive"},
    "CPA": {"mechanism": "cpa", "rotate": True},
    "nested CPA": {"mechanism": "nested", "stages": "2,2", "rotate": True},
    "nested CPA w/o RR": {
        "mechanism": "nested",
        "stages": "2,2",
        "rotate": True,
        "rounding": "subtractive",
    },
}


def federation(rounds: int, **options: Any) -> dict[str, Any]:
    """Training as in the published code: 5 samples a user, one step a round, momentum kept."""
    return {
        "dataset": "mnist", "model": "linear", "samples_per_user": 5, "validation": 10_000,
        "rounds": rounds, "momentum": 0.5, "keep_momentum": True, "batch_size": 16,
        "evaluate_every": rounds, **options,
    }  # fmt: skip


def authors(scheme: str, epsilon: float = EPSILON, **options: Any) -> Settings:
    """A scheme as published: decoder, radius and steps of the code."""
    return Settings(**(_AUTHORS[scheme] | _privacy(scheme, epsilon) | options))


def corrected(scheme: str, epsilon: float = EPSILON, **options: Any) -> Settings:
    """A scheme on honest terms, at the same bits and epsilon; tuning sets rate and size."""
    return Settings(**(_HONEST[scheme] | _privacy(scheme, epsilon) | options))


def grid_of(scheme: str, model: str = "linear", users: int = 1000, *, small: bool = False) -> Grid:
    """What tuning may move for a scheme; `small` for what takes long.

    Many users average the noise away, and without randomized response there is less of it: then
    points may reach further and cut less. On larger models what is cut keeps training stable.
    """
    if scheme == "vanilla FL":
        return {"rate": RATES if small else (0.03, *RATES, 1.0)}
    if scheme == "signSGD + RR":
        return {"rate": (0.1,), "sign_step": (0.003, 0.01) if small else (0.001, 0.003, 0.01, 0.03)}
    reach = REACH[model] * (2 if users >= MANY_USERS else 1)
    if "w/o RR" in scheme and model == "linear":
        reach *= 2
    return {"rate": RATES, "reach": (reach,)}


def _privacy(scheme: str, epsilon: float) -> dict[str, Any]:
    if scheme in ("vanilla FL", "CPA w/o RR"):
        return {}
    if scheme == "nested CPA w/o RR":
        return {"epsilon_per_bit": math.inf}
    return {"epsilon_per_bit": epsilon}
