"""The malicious-users table: constant ones and random flips, two shares, four models."""

from collections.abc import Sequence
from dataclasses import replace

from hushbit.lab import published as paper
from hushbit.lab.experiments.architectures import CHOICES as TABLE_CHOICES
from hushbit.lab.experiments.architectures import grid, honest, place_of, quick_notes
from hushbit.lab.experiments.base import Experiment, Findings, Lab, Series, Where, published
from hushbit.lab.experiments.checks import at_least_authors, within_points
from hushbit.lab.experiments.schemes import authors
from hushbit.lab.experiments.sides import TUNING_CHOICE, measure, tuned_series
from hushbit.lab.results import Axes, Cell, Check, Metric

SHARES = (0.2, 0.3)
RATE = {"linear": 1.0, "mlp": 1.0, "cnn2": 0.1, "cnn3": 0.1}
AXES = Axes("table", None, "", False, (Metric("accuracy", "test accuracy (%)"),))


def find(lab: Lab, models: Sequence[str]) -> Findings:
    """CPA as published and corrected, without and with attackers."""
    places = [place_of(lab, model) for model in models]
    old = [
        Series("CPA", "authors", authors("CPA", **place.options, rate=RATE[model]), place.where,
               at_most=place.at_most)
        for model, place in zip(models, places, strict=True)
    ]  # fmt: skip
    new = tuned_series(lab, ("CPA",), places, honest, lambda s, p: grid(lab, s, p))
    # Corrected cells of larger models take long: one seed tells what an attack does.
    new = [one if one.settings.model == "linear" else replace(one, at_most=1) for one in new]
    found = measure(lab, [attacked for one in old + new for attacked in _attacked(one)])
    cells = _published(models) + found.cells(("accuracy",))
    chosen = tuple(line for line in found.tuned if "attack none" in line)
    return Findings(
        AXES, tuple(cells), _checks(cells, models, lab.quick),
        (*CHOICES, *TABLE_CHOICES[3:4], *chosen), found.privacy, (*quick_notes(lab), *NOTES),
    )  # fmt: skip


def _attacked(one: Series) -> list[Series]:
    made = []
    for share in SHARES:
        for attack in paper.ATTACKS:
            where: Where = {**one.where, "share": share, "attack": attack}
            settings = one.settings
            if attack != "none":
                settings = replace(settings, attack=attack, attackers=share)
            made.append(replace(one, settings=settings, where=where))
    return made


def _published(models: Sequence[str]) -> list[Cell]:
    return [
        published("CPA", {"model": model, "share": share, "attack": attack}, "accuracy", value)
        for (model, share), row in paper.MALICIOUS.items()
        if model in models
        for attack, value in zip(paper.ATTACKS, row, strict=True)
    ]


def _checks(cells: Sequence[Cell], models: Sequence[str], quick: bool) -> tuple[Check, ...]:
    made = []
    for model in models:
        for share in SHARES:
            for attack in paper.ATTACKS[1:]:
                where: Where = {"model": model, "share": share, "attack": attack}
                made += [] if quick else [within_points(cells, where)]
                made.append(at_least_authors(cells, where))
    return tuple(made)


CHOICES = (
    TUNING_CHOICE,
    "As published, attackers are drawn with replacement, so a nominal 20 % are 18 % and 30 % are "
    "26 %; corrected runs have exactly the named share. Both attacks ignore the attacker's word.",
    "Rates as in the architectures table: 1 on MNIST, 0.1 on CIFAR-10. Corrected runs on models "
    "beyond the linear one have one seed.",
)
NOTES = (
    "Neither attack pushes anywhere: a bit that ignores its word has mean zero. They remove the "
    "attackers' signal and nothing else, so this table says nothing on Byzantine robustness.",
)
MALICIOUS = Experiment(
    "malicious", "CPA with users who send ones or random bits", "Table VI (MNIST)",
    "Test accuracy of CPA with 1000 users of whom a share sends constant ones or random flips.",
    "mnist", lambda lab: find(lab, ("linear", "mlp")), by_cells=True,
)  # fmt: skip
MALICIOUS_CIFAR = Experiment(
    "malicious-cifar", "CPA with users who send ones or random bits, CIFAR-10",
    "Table VI (CIFAR-10)",
    "Test accuracy of CPA with 1000 users of whom a share sends constant ones or random flips.",
    "cifar", lambda lab: find(lab, ("cnn2",) if lab.quick else ("cnn2", "cnn3")), by_cells=True,
)  # fmt: skip
