"""Colluding attackers: what they cost with and without the ballot filter.

`robustness` compares attacks and defences at a fixed share of attackers, `robustness-shares` shows
accuracy against that share. Robust means of plain updates, which have no privacy, are run beside
them.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from hushbit.lab.experiments.experiment import (
    Coordinates,
    ExperimentRunner,
    Findings,
    Measured,
    Series,
    experiment,
    line_axes,
    table_axes,
)
from hushbit.lab.experiments.results import Cell, Check
from hushbit.lab.sim.settings import PAPER_TRAINING, Settings

DIM = {"linear": 7850, "mlp": 25_818}
# Local rate and l2 clip of each model. The radius is half the spread of a rotated clipped update:
# bits then carry most about the direction of an update, and users have about the same weight.
TRAINING = {"linear": (0.03, 0.26), "mlp": (0.14, 1.12)}
ROUNDS = {"linear": 100, "mlp": 150}
USERS, FEDAVG_USERS = 1000, 200
SHARE, ADAPTIVE_SHARE = 0.3, 0.2
ATTACKS = (
    "ones",
    "flip",
    "directed",
    "directed-stealth",
    "sybils",
    "scaled",
    "inner-product",
    "little",
    "label-flip",
    "backdoor",
)
QUICK_ATTACKS = ("directed", "scaled", "backdoor")
COMPARED_ATTACKS = ("directed", "scaled", "inner-product", "little", "label-flip")
# On the MLP, attacks under which seeds differ most: they run with two seeds.
TWO_SEED_ATTACKS = ("none", "scaled", "inner-product", "little", "label-flip", "adaptive")
ROBUST_MEANS = (
    "none",
    "median",
    "trimmed-mean",
    "norm-clipping",
    "krum",
    "multi-krum",
    "bulyan",
    "sign-majority",
)
FILTERS = ("none", "spectral")
METRICS = ("accuracy", "removed_attackers", "removed_honest", "backdoor")
MAX_LOSS, MAX_ADAPTIVE_LOSS = 2.0, 5.0  # points of accuracy under attack
MAX_HONEST_LOSS, MAX_HONEST_REMOVED = 0.5, 1.0  # points and percent without attackers


def private(model: str, rounds: int, **options: Any) -> Settings:
    """Rotated two points at 0.5 per bit, clipped; server momentum, enough rounds to converge."""
    rate, clip = TRAINING[model]
    defaults: dict[str, Any] = {
        **PAPER_TRAINING,
        "dataset": "mnist",
        "model": model,
        "users": USERS,
        "mechanism": "cpa",
        "rotate": True,
        "epsilon_per_bit": 0.5,
        "clip": clip,
        "radius": clip / 2 / math.sqrt(DIM[model]),
        "rate": rate,
        "server": "momentum",
        "server_momentum": 0.9,
        "rounds": rounds,
        "evaluate_every": rounds,
    }
    return Settings(**(defaults | options))


FEDAVG: dict[str, Any] = {
    "mechanism": "fedavg",
    "epsilon_per_bit": None,
    "clip": None,
    "radius": None,
    "rotate": False,
}
"""Options of `private` for plain updates: no clip, no privacy."""

HISTOGRAM: dict[str, Any] = {"rotate": False, "points": 4, "clip": None, "radius": 0.05}
"""Options of `private` for robust means of the histogram of four points."""


def attack_options(attack: str, share: float) -> dict[str, Any]:
    """The options of an attack; none without attackers."""
    return {} if attack == "none" or not share else {"attack": attack, "attackers": share}


def claimed_limits(attack: str) -> tuple[float, float]:
    """The share of attackers up to which a claim is made, and the points that it allows."""
    return (ADAPTIVE_SHARE, MAX_ADAPTIVE_LOSS) if attack == "adaptive" else (SHARE, MAX_LOSS)


def with_ballots(model: str, rounds: int, attacks: Sequence[str]) -> list[Series]:
    """Every attack without defence and with the filter, and the same runs without attackers.

    Attacks without defence run with one seed, and only on the linear model.
    """
    made = []
    for defence in FILTERS:
        for attack in ("none", *attacks, "adaptive"):
            undefended = defence == "none" and attack != "none"
            if model == "linear":
                max_seeds = 1 if undefended else None
            elif undefended:
                continue
            else:
                max_seeds = 2 if attack in TWO_SEED_ATTACKS else 1
            options = attack_options(attack, claimed_limits(attack)[0])
            settings = private(model, rounds, defence=defence, **options)
            where: Coordinates = {"model": model, "attack": attack, "share": settings.attackers}
            made.append(_series("CPA", settings, where, max_seeds=max_seeds))
    return made


def heterogeneous(model: str, rounds: int) -> list[Series]:
    """Honest users whose data differ: by writer, and by Dirichlet 0.1."""
    partitions: dict[str, dict[str, Any]] = {
        "by writer": {"partition": "writer", "users": 539},
        "Dirichlet 0.1": {"partition": "dirichlet", "alpha": 0.1},
    }
    return [
        _series(
            "CPA",
            private(model, rounds, defence=defence, **options),
            {"model": model, "attack": f"none ({name})", "share": 0.0},
            max_seeds=None if model == "linear" else 1,
        )
        for name, options in partitions.items()
        for defence in FILTERS
    ]


def robust_means(rounds: int, attacks: Sequence[str], defences: Sequence[str]) -> list[Series]:
    """Robust means of plain updates, and those of the histogram, which is private."""
    rows = [("FedAvg", FEDAVG, defence) for defence in defences]
    rows += [("CPA histogram", HISTOGRAM, defence) for defence in ("median", "trimmed-mean")]
    made = []
    for attack in ("none", *attacks):
        attacked = attack_options(attack, SHARE) | {"users": FEDAVG_USERS}
        for name, options, defence in rows:
            settings = private("linear", rounds, defence=defence, **options, **attacked)
            where: Coordinates = {
                "model": f"linear, {FEDAVG_USERS} users",
                "attack": attack,
                "share": settings.attackers,
            }
            made.append(_series(name, settings, where))
    return made


def scheme_name(mechanism: str, defence: str) -> str:
    """The name of a mechanism with a defence."""
    return f"{mechanism}, {'no defence' if defence == 'none' else defence}"


UNDEFENDED, FILTERED = (scheme_name("CPA", defence) for defence in FILTERS)


def _series(
    name: str,
    settings: Settings,
    where: Coordinates,
    x: float | None = None,
    max_seeds: int | None = 1,
) -> Series:
    scheme = scheme_name(name, settings.defence)
    return Series(scheme, "corrected", settings, where, x, max_seeds)


def find(runner: ExperimentRunner) -> Findings:
    """All series; the quick form has three attacks and `adaptive`, on the linear model."""
    attacks = QUICK_ATTACKS if runner.quick else ATTACKS
    series: list[Series] = []
    for model in ("linear",) if runner.quick else ("linear", "mlp"):
        rounds = runner.rounds_of(ROUNDS[model])
        series += with_ballots(model, rounds, attacks) + heterogeneous(model, rounds)
    compared = COMPARED_ATTACKS[:1] if runner.quick else COMPARED_ATTACKS
    defences = ROBUST_MEANS[:3] if runner.quick else ROBUST_MEANS
    series += robust_means(runner.rounds_of(ROUNDS["linear"]), compared, defences)
    return findings(runner.measure(series))


def findings(found: Measured) -> Findings:
    """Cells, claims and guarantees from the outcomes."""
    cells = tuple(found.cells(METRICS))
    return Findings(table_axes(*METRICS), cells, _checks(cells), privacy=found.privacy)


def _checks(cells: Sequence[Cell]) -> tuple[Check, ...]:
    table = {
        (cell.where["model"], cell.where["attack"], cell.scheme, cell.metric): cell
        for cell in cells
    }
    made = []
    for (model, attack, scheme, metric), cell in table.items():
        if scheme != FILTERED or metric != "accuracy":
            continue
        if str(attack).startswith("none"):
            plain = table[model, attack, UNDEFENDED, "accuracy"]
            removed = max(table[model, attack, scheme, "removed_honest"].seeds)
            lost, text = _loss(plain, cell, "without filter")
            claim = (
                f"{model}, {attack}: the filter costs at most {MAX_HONEST_LOSS:g} points and "
                f"{MAX_HONEST_REMOVED:g} % of honest users"
            )
            fine = lost <= MAX_HONEST_LOSS and removed <= MAX_HONEST_REMOVED
            made.append(Check(claim, fine, f"{text}; at most {removed:.2f} % removed"))
        else:
            share, most = claimed_limits(str(attack))
            plain = table[model, "none", UNDEFENDED, "accuracy"]
            lost, text = _loss(plain, cell, "without attackers")
            claim = f"{model}, {share:.0%} {attack}: at most {most:g} points lost with the filter"
            made.append(Check(claim, lost <= most, text))
    return tuple(made)


def _loss(plain: Cell, cell: Cell, reference: str) -> tuple[float, str]:
    """The most points lost with one seed, and the figures beside those of the reference.

    A claim must hold for every seed. Means are over the seeds of `cell`, which may be fewer.
    """
    lost = [before - after for before, after in zip(plain.seeds, cell.seeds, strict=False)]
    usual = statistics.fmean(plain.seeds[: len(cell.seeds)])
    text = f"{cell.mean:.1f} against {usual:.1f} {reference}"
    if len(lost) > 1:
        text += f", at most {max(lost):.1f} lost in {len(lost)} seeds"
    return max(lost), text


SHARES, QUICK_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4), (0.0, 0.15, 0.3)
SHARE_AXES = line_axes("share", "attackers (% of users)", "accuracy")


def share_series(rounds: int, attacks: Sequence[str], shares: Sequence[float]) -> list[Series]:
    """Every attack at every share, with ballots and with plain updates.

    Without attackers the runs of all attacks are the same.
    """
    made = []
    for attack in attacks:
        for share in shares:
            options = attack_options(attack, share)
            for defence in FILTERS:
                settings = private("linear", rounds, defence=defence, **options)
                made.append(_series("CPA", settings, {"attack": attack}, 100 * share))
            for defence in ("none", "multi-krum"):
                settings = private("linear", rounds, defence=defence, **FEDAVG, **options)
                scheme = f"{scheme_name('FedAvg', defence)}, no privacy"
                where: Coordinates = {"attack": attack}
                made.append(Series(scheme, "corrected", settings, where, 100 * share, max_seeds=1))
    return made


def find_shares(runner: ExperimentRunner) -> Findings:
    """Ten attacks and `adaptive` at four shares; the quick form has three attacks at two."""
    attacks = QUICK_ATTACKS if runner.quick else (*ATTACKS, "adaptive")
    shares = QUICK_SHARES if runner.quick else SHARES
    series = share_series(runner.rounds_of(ROUNDS["linear"]), attacks, shares)
    return share_findings(runner.measure(series))


def share_findings(found: Measured) -> Findings:
    """Lines and claims from the outcomes."""
    cells = tuple(found.cells(("accuracy",)))
    return Findings(SHARE_AXES, cells, _share_checks(cells), privacy=found.privacy)


def _share_checks(cells: Sequence[Cell]) -> tuple[Check, ...]:
    """Smaller shares cost no more than the share that the claims of `robustness` are about."""
    lines: dict[str, dict[float, float]] = {}
    for cell in cells:
        if cell.scheme == FILTERED and cell.x is not None:
            lines.setdefault(str(cell.where["attack"]), {})[cell.x] = cell.mean
    made = []
    for attack, line in lines.items():
        share, most = claimed_limits(attack)
        lost = {x: line[0.0] - value for x, value in line.items() if 0 < x <= 100 * share}
        figures = ", ".join(f"{points:.1f} at {x:g} %" for x, points in lost.items())
        claim = f"{attack}: up to {share:.0%} cost at most {most:g} points with the filter"
        made.append(Check(claim, max(lost.values()) <= most, f"lost {figures}"))
    return tuple(made)


EXPERIMENTS = (
    experiment("robustness", find, fedavg_users=FEDAVG_USERS),
    experiment("robustness-shares", find_shares),
)
