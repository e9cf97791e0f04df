"""ResNet-18 on CIFAR-100 with ten users, for several rates R and epsilons."""

from typing import Any

from hushbit.fl.settings import Settings
from hushbit.lab.experiments.base import Experiment, Findings, Lab, Series
from hushbit.lab.experiments.sides import measure
from hushbit.lab.results import Axes, Metric

ROUNDS = 200
AXES = Axes("lines", "round", "round", False, (Metric("validation", "validation accuracy (%)"),))
COMBINATIONS = ((1, 1.0), (1, 5.0), (2, 5.0))  # R, epsilon per bit


def find(lab: Lab) -> Findings:
    """Learning curves of vanilla training and of CPA."""
    rounds = lab.rounds or (2 if lab.quick else ROUNDS)
    base: dict[str, Any] = {
        "dataset": "cifar100", "model": "resnet18", "users": 10, "partition": "iid",
        "validation": 1000 if lab.quick else 5000, "rounds": rounds, "steps": 3,
        "batch_size": 4 if lab.quick else 16, "optimizer": "adam", "rate": 1e-3,
        "evaluate_every": rounds if lab.quick else max(1, rounds // 5),
    }  # fmt: skip
    series = [Series("vanilla FL", "corrected", Settings(mechanism="fedavg", **base), {}, None, 1)]
    for rate, epsilon in COMBINATIONS:
        settings = Settings(
            mechanism="cpa", epsilon_per_bit=epsilon, points=2**rate, radius=3e-3, rotate=True,
            **base,
        )  # fmt: skip
        series.append(
            Series(f"CPA R = {rate}", "corrected", settings, {"epsilon_per_bit": epsilon}, None, 1)
        )
    found = measure(lab, series)
    notes = (QUICK_NOTE, *NOTES) if lab.quick and rounds == 2 else NOTES
    return Findings(AXES, tuple(found.curves()), (), CHOICES, found.privacy, notes)


CHOICES = (
    f"The paper runs 10 000 rounds: --rounds 10000 does; the full form here has {ROUNDS}.",
    "Rate 0.001 of Adam, batch 16 (quick form: 4), radius 0.003 of rotated updates: the paper does "
    "not say them.",
    "Random first weights: the pretrained ones are not part of this package.",
)
QUICK_NOTE = (
    "Two rounds from random weights teach nothing: all accuracies are those of guessing among 100 "
    "classes. The quick form shows that it runs, and how long."
)
NOTES = ("The paper gives this figure without numbers, and no code.",)
RESNET = Experiment(
    "resnet", "ResNet-18 with ten users", "Fig. 10",
    "Validation accuracy by round of ResNet-18 on CIFAR-100 for several (R, epsilon).", "cifar",
    find, seeds=1, by_cells=True,
)  # fmt: skip
