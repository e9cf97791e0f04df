"""The paper: its schemes as settings, as published and corrected, and its numbers as printed.

SNRs are in the paper's decibels (20 log10).
"""

import math
from typing import Any

from hushbit.lab.experiments.experiment import Grid
from hushbit.lab.sim.settings import PAPER_TRAINING, Settings

SCHEMES = ("vanilla FL", "Laplace", "signSGD + RR", "JoPEQ", "CPA w/o RR", "CPA")
PUBLISHED_RADIUS = 0.05
EPSILON = 0.5
RATES = (0.1, 0.3)
# Twice the typical entry of a model's rotated update at rate 1 (momentum doubles the gradient).
REACH = {"linear": 0.15, "mlp": 0.02, "cnn2": 0.02, "cnn3": 0.02, "resnet18": 0.02}
CODE_RATES = (1.0, 0.1)  # defaults of the published code and of its earlier revision
MANY_USERS = 1000

_AS_PUBLISHED = {"preset": "authors", "radius": PUBLISHED_RADIUS}
_AUTHORS: dict[str, dict[str, Any]] = {
    "vanilla FL": {"mechanism": "fedavg"},
    "Laplace": {"mechanism": "laplace", "preset": "authors"},
    "signSGD + RR": {"mechanism": "signsgd", "preset": "authors"},
    "JoPEQ": {"mechanism": "jopeq", **_AS_PUBLISHED},
    "CPA w/o RR": {"mechanism": "cpa-no-rr", **_AS_PUBLISHED},
    "CPA": {"mechanism": "cpa", **_AS_PUBLISHED},
    "nested CPA": {"mechanism": "nested", **_AS_PUBLISHED},
    "nested CPA w/o RR": {"mechanism": "nested", **_AS_PUBLISHED},
}
_NESTED = {"mechanism": "nested", "stages": "2,2", "rotate": True}
# A shared dither costs privacy, so only schemes without randomized response use it.
_CORRECTED: dict[str, dict[str, Any]] = {
    "vanilla FL": {"mechanism": "fedavg"},
    "Laplace": {"mechanism": "laplace", "rotate": True},
    "signSGD + RR": {"mechanism": "signsgd", "sign_step": 0.01},
    "JoPEQ": {"mechanism": "jopeq", "rotate": True},
    "MVU": {"mechanism": "mvu", "rotate": True},
    "CPA w/o RR": {"mechanism": "cpa-no-rr", "rotate": True, "rounding": "subtractive"},
    "CPA": {"mechanism": "cpa", "rotate": True},
    "nested CPA": _NESTED,
    "nested CPA w/o RR": {**_NESTED, "rounding": "subtractive"},
}


def federation(rounds: int, **options: Any) -> dict[str, Any]:
    """Training as in the published code: 5 samples per user, one step per round, momentum kept."""
    return {
        "dataset": "mnist",
        "model": "linear",
        "samples_per_user": 5,
        "validation": 10_000,
        "rounds": rounds,
        "momentum": 0.5,
        "keep_momentum": True,
        **PAPER_TRAINING,
        "evaluate_every": rounds,
        **options,
    }


def authors(scheme: str, epsilon: float = EPSILON, **options: Any) -> Settings:
    """A scheme as published: decoder, radius and steps of the published code."""
    return Settings(**(_AUTHORS[scheme] | _privacy(scheme, epsilon) | options))


def corrected(scheme: str, epsilon: float = EPSILON, **options: Any) -> Settings:
    """A corrected scheme at the same bits and epsilon; tuning sets its rate and size."""
    return Settings(**(_CORRECTED[scheme] | _privacy(scheme, epsilon) | options))


def grid_of(scheme: str, model: str, users: int, *, small: bool = False) -> Grid:
    """The tuning grid of a scheme; `small` for long runs.

    With many users, or without randomized response, the noise is small: the points may lie further
    out, so that they clip less. On larger models clipping keeps training stable.
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


SNR_EPSILONS = (0.5, 1.0, 1.5, 2.0, 2.5)
SNR_BY_EPSILON = {  # plot script of the figure; scheme, users
    ("CPA", 1000): (3.128, 11.338, 14.132, 17.875, 18.838),
    ("CPA", 100): (-5.236, 2.274, 6.49, 8.726, 9.409),
    ("Laplace", 1000): (-4.442, 6.712, 16.119, 20.928, 23.284),
    ("Laplace", 100): (-24.77, -13.641, -5.227, -0.547, 3.109),
    ("signSGD + RR", 1000): (-30.176, -39.552, -45.359, -47.131, -50.543),
    ("signSGD + RR", 100): (-39.036, -40.637, -46.903, -47.455, -48.909),
}

TABLE_USERS = (50, 100, 400, 700, 1000)
ACCURACY_BY_USERS = {
    "vanilla FL": (94, 94, 94, 95, 95),
    "CPA": (93, 96, 96, 96, 96),
}
ERROR_BY_USERS = (0.011, 0.007, 0.0036, 0.0029, 0.0031)

TABLE_EPSILONS = (0.1, 0.15, 0.2, 0.25, 0.3)
ACCURACY_BY_EPSILON = {
    "vanilla FL": (94, 94, 94, 94, 94),
    "CPA": (87, 89, 92, 92, 93),
}
ERROR_BY_EPSILON = (0.0068, 0.0065, 0.0063, 0.0062, 0.0062)

ARCHITECTURES = ("linear", "mlp", "cnn2", "cnn3")
ACCURACY_BY_ARCHITECTURE = {
    "vanilla FL": (87, 90, 48, 60),
    "Laplace": (86, 88, 45, 60),
    "signSGD + RR": (79, 10, 10, 10),
    "JoPEQ": (82, 78, 47, 66),
    "CPA w/o RR": (87, 80, 43, 47),
    "CPA": (85, 86, 50, 67),
}

NESTED_USERS = (10, 100, 1000)
NESTED = {  # accuracy, SNR for each number of users
    "CPA": ((49, -17.57), (81, -0.07), (85, 0.09)),
    "nested CPA": ((59, -6.16), (83, 0.08), (86, 0.17)),
    "JoPEQ": ((46, -31.45), (64, -19.35), (70, -4.45)),
    "CPA w/o RR": ((60, -5.09), (84, 10.10), (87, 15.51)),
    "nested CPA w/o RR": ((63, 3.23), (85, 12.92), (87, 24.18)),
}

ATTACKS = ("none", "ones", "flip")
MALICIOUS = {  # model, nominal share: accuracy for each attack
    ("linear", 0.2): (85, 85, 85),
    ("linear", 0.3): (85, 84, 84),
    ("mlp", 0.2): (86, 85, 84),
    ("mlp", 0.3): (86, 84, 84),
    ("cnn2", 0.2): (50, 48, 48),
    ("cnn2", 0.3): (50, 47, 48),
    ("cnn3", 0.2): (67, 68, 69),
    ("cnn3", 0.3): (67, 69, 66),
}
