"""The paper: its schemes as settings, as published and corrected, and its numbers as printed.

SNRs are in the paper's decibels (20 log10). Every option of a run is stated here, so that a changed
default of the simulator does not change a reproduction.
"""

import math
from typing import Any

from hushbit.lab.sim.settings import Settings

PUBLISHED_RADIUS = 0.05
EPSILON = 0.5
MANY_USERS = 1000

STATED: dict[str, Any] = {
    # data and model
    "task": None,
    "dataset": "mnist",
    "pixels": "symmetric",
    "model": "linear",
    "weights_file": None,
    "users": 100,
    "copies": 1,
    "partition": "per-user",
    "samples_per_user": 5,
    "replace": False,
    "alpha": 0.5,
    "shards_per_user": 2,
    "validation": 10_000,
    # rounds and local training: one step per round, momentum kept
    "rounds": 30,
    "participation": 1.0,
    "rate": 0.1,
    "schedule": "constant",
    "steps": 1,
    "batch_size": 16,
    "optimizer": "sgd",
    "momentum": 0.5,
    "keep_momentum": True,
    "evaluate_every": 30,
    "patience": None,
    "memory_mb": 16.0,
    "seed": 0,
    # server
    "server": "plain",
    "server_rate": 1.0,
    "server_momentum": None,
    "average_weights": False,
    "attack": "none",
    "attackers": 0.0,
    "defence": "none",
    # mechanism and privacy
    "mechanism": "fedavg",
    "epsilon_per_bit": None,
    "epsilon": None,
    "delta": None,
    "per": None,
    "against": None,
    "accountant": None,
    "honest": None,
    "k": None,
    "bits_per_weight": None,
    "radius": None,
    "points": None,
    "stages": None,
    "lattice": None,
    "rounding": None,
    "words": None,
    "preset": None,
    "rotate": False,
    "clip": None,
    "noise_multiplier": None,
    "sign_step": None,
    "mode": None,
    "levels": None,
}

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
_ROTATED: dict[str, Any] = {"rotate": True, "words": "hadamard", "lattice": "Z"}
_PRIVATE = {**_ROTATED, "rounding": "stochastic"}
# A shared dither costs privacy, so only schemes without randomized response use it.
_NOT_PRIVATE = {**_ROTATED, "rounding": "subtractive"}
_CORRECTED: dict[str, dict[str, Any]] = {
    "vanilla FL": {"mechanism": "fedavg"},
    "Laplace": {"mechanism": "laplace", "rotate": True},
    "signSGD + RR": {"mechanism": "signsgd"},
    "JoPEQ": {"mechanism": "jopeq", "rotate": True},
    "MVU": {"mechanism": "mvu", "rotate": True},
    "CPA w/o RR": {"mechanism": "cpa-no-rr", "points": 2, **_NOT_PRIVATE},
    "CPA": {"mechanism": "cpa", "points": 2, **_PRIVATE},
    "nested CPA": {"mechanism": "nested", "stages": "2,2", **_PRIVATE},
    "nested CPA w/o RR": {"mechanism": "nested", "stages": "2,2", **_NOT_PRIVATE},
    "nested CPA, 3 bits": {"mechanism": "nested", "stages": "2,2,2", **_PRIVATE},
}


def scheme_settings(scheme: str, variant: str, **options: Any) -> Settings:
    """A scheme as published ("authors") or corrected, with the training of the published code.

    `epsilon` is per bit, or per entry where a scheme sends no bits.
    """
    own = (_AUTHORS if variant == "authors" else _CORRECTED)[scheme]
    epsilon = options.pop("epsilon", EPSILON)
    privacy: dict[str, Any] = {"epsilon_per_bit": epsilon}
    if scheme in ("vanilla FL", "CPA w/o RR"):
        privacy = {}
    elif scheme == "nested CPA w/o RR":
        privacy = {"epsilon_per_bit": math.inf}
    return Settings(**(STATED | own | privacy | options))


SNR_EPSILONS = (0.5, 1.0, 1.5, 2.0, 2.5)
SNR_BY_EPSILON = {  # plot script of the figure; scheme, users
    ("CPA", 1000): (3.128, 11.338, 14.132, 17.875, 18.838),
    ("CPA", 100): (-5.236, 2.274, 6.49, 8.726, 9.409),
    ("Laplace", 1000): (-4.442, 6.712, 16.119, 20.928, 23.284),
    ("Laplace", 100): (-24.77, -13.641, -5.227, -0.547, 3.109),
    ("signSGD + RR", 1000): (-30.176, -39.552, -45.359, -47.131, -50.543),
    ("signSGD + RR", 100): (-39.036, -40.637, -46.903, -47.455, -48.909),
}

FEW_USERS = (10, 50)  # of the figure of accuracy against epsilon, which has no numbers
ROUNDS = {"linear": 30, "mlp": 100, "cnn2": 150, "cnn3": 150}  # known for the linear model only
READINGS = ("5 samples a user", "training set divided")
"""What a user holds in the tables over users and epsilon: the paper does not state it for them."""

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
