"""The paper's tables by model and scheme, re-created and corrected.

Table IV, Figs. 8, 9   six schemes on four models, and learning curves of two of them
Table V                one and two bits, with and without randomized response
Table VI               users who send constant ones or random bits
Fig. 10                ResNet-18 on CIFAR-100 with ten users
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hushbit.lab.experiments import comparison, paper
from hushbit.lab.experiments.comparison import TablePlace, tuned_series, with_options
from hushbit.lab.experiments.experiment import (
    Coordinates,
    ExperimentRunner,
    Findings,
    Series,
    experiment,
    line_axes,
    listed,
    published,
    table_axes,
)
from hushbit.lab.experiments.paper import SCHEMES, authors, corrected, federation
from hushbit.lab.experiments.results import Cell, Check
from hushbit.lab.sim.settings import Settings

USERS = 1000
ROUNDS = {"linear": 30, "mlp": 100, "cnn2": 150, "cnn3": 150}
EVALUATIONS = {"linear": 10, "cnn2": 5, "cnn3": 5}  # points of learning curves
ARCHITECTURE_METRICS = ("accuracy", "snr_db", "snr_wiener_db")
ARCHITECTURE_AXES = table_axes(*ARCHITECTURE_METRICS, comparison.TRIED_METRICS[0])
CURVE_AXES = line_axes("round", "round", "validation")


def model_place(runner: ExperimentRunner, model: str) -> TablePlace:
    """The column of a model: MNIST with 5 samples per user, CIFAR-10 with 40."""
    cifar = model.startswith("cnn")
    rounds = runner.rounds_of(ROUNDS[model])
    options = federation(
        rounds,
        model=model,
        users=USERS // 10 if cifar and runner.quick else USERS,
        dataset="cifar10" if cifar else "mnist",
        samples_per_user=40 if cifar else 5,
        evaluate_every=max(1, rounds // EVALUATIONS.get(model, 1)),
    )
    small = runner.quick or model != "linear"
    return TablePlace({"model": model}, options, max_seeds=1 if cifar else None, small_grid=small)


def _seed_limit(variant: str, scheme: str, place: TablePlace) -> int | None:
    """The most seeds of a series: None for all, 0 where a run takes many minutes."""
    model = str(place.options["model"])
    if scheme == "JoPEQ" or (scheme == "Laplace" and variant == "corrected"):
        return {"linear": place.max_seeds, "cnn3": 0}.get(model, 1)
    # Its dither is drawn twice for every weight: the longest run of all.
    once = model == "mlp" and scheme == "CPA w/o RR" and variant == "corrected"
    return 1 if once else place.max_seeds


def _published_accuracy(scheme: str, where: Coordinates) -> dict[str, float]:
    column = paper.ARCHITECTURES.index(str(where["model"]))
    return {"accuracy": float(paper.ACCURACY_BY_ARCHITECTURE[scheme][column])}


def find_architectures(
    runner: ExperimentRunner, models: Sequence[str], *, curves: bool = False
) -> Findings:
    """The table of some models, or their learning curves with the claims of the table."""
    places = [model_place(runner, model) for model in models]
    rows = [
        Series(scheme, "authors", authors(scheme, **place.options), place.where, None, limit)
        for scheme in SCHEMES
        for place in places
        if (limit := _seed_limit("authors", scheme, place)) != 0
    ]
    old, notes, tried = comparison.nearest(runner, rows, _published_accuracy)
    corrected_limit = partial(_seed_limit, "corrected")
    new = runner.measure(tuned_series(runner, SCHEMES, places, limit=corrected_limit))
    cells = comparison.published_cells(SCHEMES, places, _published_accuracy)
    cells += old.cells(ARCHITECTURE_METRICS) + new.cells(ARCHITECTURE_METRICS)
    cells += [] if curves else tried
    checks: list[Check] = []
    for model in models:
        where: Coordinates = {"model": model}
        checks.append(comparison.AT_LEAST_AUTHORS.check(cells, where))
        if not runner.quick:  # a quick form trains less than the paper
            checks += [
                comparison.WITHIN_POINTS.check(cells, where),
                comparison.higher_snr(cells, where),
            ]
    return Findings(
        CURVE_AXES if curves else ARCHITECTURE_AXES,
        tuple(old.curves() + new.curves() if curves else cells),
        tuple(checks),
        new.tuned,
        old.privacy + new.privacy,
        tuple(notes),
    )


def _cifar_models(runner: ExperimentRunner) -> tuple[str, ...]:
    return ("cnn2",) if runner.quick else ("cnn2", "cnn3")


PRIVATE, NOT_PRIVATE = ("CPA", "nested CPA"), ("CPA w/o RR", "nested CPA w/o RR")
PRIVATE_RATES = (0.1, 0.11, 0.3, 1.0)
NOT_PRIVATE_RATES = (0.09, 0.095, 0.1, 0.103, 0.105, 0.107, 0.11, 0.12, 0.2, 1.0)
PUBLISHED_LEVELS, CORRECTED_LEVELS = {"JoPEQ": {"levels": 5}}, {"JoPEQ": {"levels": 4}}
NESTED_METRICS = ("accuracy", "snr_authors_db", "snr_db", "snr_wiener_db", "snr_median_db")
NESTED_AXES = table_axes(*NESTED_METRICS, *comparison.TRIED_METRICS)


def find_nested(runner: ExperimentRunner) -> Findings:
    """Run the published rows over their unknown settings; then tune and run the corrected ones."""
    users = paper.NESTED_USERS[:2] if runner.quick else paper.NESTED_USERS
    places = [TablePlace({"users": k}, federation(runner.rounds_of(30), users=k)) for k in users]
    rows = [
        Series(s, "authors", authors(s, **p.options, **PUBLISHED_LEVELS.get(s, {})), p.where)
        for s in paper.NESTED
        for p in places
    ]
    old, notes, tried = comparison.nearest(runner, rows, _published_nested, _unknown_rates)
    series = tuned_series(
        runner,
        tuple(paper.NESTED),
        places,
        make=lambda s, p: corrected(s, **p.options, **CORRECTED_LEVELS.get(s, {})),
    )
    new = runner.measure(series)
    cells = comparison.published_cells(paper.NESTED, places, _published_nested)
    cells += old.cells(NESTED_METRICS) + new.cells(NESTED_METRICS) + tried
    return Findings(
        NESTED_AXES,
        tuple(cells),
        tuple(check for k in users for check in _nested_checks(cells, k)),
        new.tuned,
        old.privacy + new.privacy,
        tuple(notes),
    )


def _unknown_rates(one: Series) -> list[Series]:
    """The settings that the paper does not state: the rate, and the radius of JoPEQ's lattice."""
    if one.scheme == "JoPEQ":
        return comparison.unknown_settings(one)
    return comparison.at_rates(
        one, *(NOT_PRIVATE_RATES if one.scheme in NOT_PRIVATE else PRIVATE_RATES)
    )


def _published_nested(scheme: str, where: Coordinates) -> dict[str, float]:
    column = paper.NESTED_USERS.index(int(where["users"]))
    return dict(zip(NESTED_METRICS, paper.NESTED[scheme][column], strict=False))


def _nested_checks(cells: Sequence[Cell], users: int) -> list[Check]:
    where: Coordinates = {"users": users}
    made = []
    if users >= 100:
        made.append(comparison.WITHIN_POINTS.check(cells, where))
        for schemes in (PRIVATE, NOT_PRIVATE, ("JoPEQ",)):
            made.append(comparison.WITHIN_DECIBEL.check(cells, where, schemes))
        made.append(comparison.INSIDE_INTERVAL.check(cells, where, NOT_PRIVATE))
    made.append(comparison.AT_LEAST_AUTHORS.check(cells, where))
    return [*made, comparison.higher_snr(cells, where)] if users == 1000 else made


SHARES = (0.2, 0.3)
MALICIOUS_RATE = {"linear": 1.0, "mlp": 1.0, "cnn2": 0.1, "cnn3": 0.1}


def find_malicious(runner: ExperimentRunner, models: Sequence[str]) -> Findings:
    """CPA as published and corrected, without and with attackers."""
    places = [model_place(runner, model) for model in models]
    series = [
        Series(
            "CPA",
            "authors",
            authors("CPA", **place.options, rate=MALICIOUS_RATE[model]),
            place.where,
            max_seeds=place.max_seeds,
        )
        for model, place in zip(models, places, strict=True)
    ]
    # Corrected runs of larger models take long: one seed shows the effect of an attack.
    series += [
        one if one.settings.model == "linear" else replace(one, max_seeds=1)
        for one in tuned_series(runner, ("CPA",), places)
    ]
    found = runner.measure([attacked for one in series for attacked in _attacked(one)])
    cells = [
        published("CPA", {"model": model, "share": share, "attack": attack}, "accuracy", value)
        for (model, share), row in paper.MALICIOUS.items()
        if model in models
        for attack, value in zip(paper.ATTACKS, row, strict=True)
    ]
    cells += found.cells(("accuracy",))
    checks: list[Check] = []
    for model, share, attack in itertools.product(models, SHARES, paper.ATTACKS[1:]):
        where: Coordinates = {"model": model, "share": share, "attack": attack}
        checks += [] if runner.quick else [comparison.WITHIN_POINTS.check(cells, where)]
        checks.append(comparison.AT_LEAST_AUTHORS.check(cells, where))
    chosen = tuple(line for line in found.tuned if "attack none" in line)
    return Findings(table_axes("accuracy"), tuple(cells), tuple(checks), chosen, found.privacy)


def _attacked(one: Series) -> list[Series]:
    """The series with every share of attackers and every attack."""
    made = []
    for share, attack in itertools.product(SHARES, paper.ATTACKS):
        options = {} if attack == "none" else {"attack": attack, "attackers": share}
        where: Coordinates = {**one.where, "share": share, "attack": attack}
        made.append(replace(with_options(one, **options), where=where))
    return made


RESNET_ROUNDS = 200
RESNET_CPA = ((1, 1.0), (1, 5.0), (2, 5.0))  # R, epsilon per bit


def find_resnet(runner: ExperimentRunner) -> Findings:
    """Learning curves of vanilla training and of CPA."""
    rounds = runner.rounds or (2 if runner.quick else RESNET_ROUNDS)
    training: dict[str, Any] = {
        "dataset": "cifar100",
        "model": "resnet18",
        "users": 10,
        "partition": "iid",
        "validation": 1000 if runner.quick else 5000,
        "rounds": rounds,
        "steps": 3,
        "pixels": "symmetric",
        "batch_size": 4 if runner.quick else 16,
        "optimizer": "adam",
        "rate": 1e-3,
        "evaluate_every": rounds if runner.quick else max(1, rounds // 5),
    }
    vanilla = Settings(mechanism="fedavg", **training)
    series = [Series("vanilla FL", "corrected", vanilla, {}, max_seeds=1)]
    training |= {"mechanism": "cpa", "radius": 3e-3, "rotate": True}
    for rate, epsilon in RESNET_CPA:
        settings = Settings(epsilon_per_bit=epsilon, points=2**rate, **training)
        where: Coordinates = {"epsilon_per_bit": epsilon}
        series.append(Series(f"CPA R = {rate}", "corrected", settings, where, max_seeds=1))
    found = runner.measure(series)
    notes = (RESNET_QUICK_NOTE, RESNET_NOTE) if runner.quick and rounds == 2 else (RESNET_NOTE,)
    return Findings(CURVE_AXES, tuple(found.curves()), privacy=found.privacy, notes=notes)


RESNET_QUICK_NOTE = (
    "After two rounds from random weights all accuracies are those of guessing among 100 classes. "
    "The quick form only shows that the experiment runs, and how long it takes."
)
RESNET_NOTE = "The paper gives this figure without numbers, and no code."


EXPERIMENTS = (
    experiment("architectures", lambda runner: find_architectures(runner, ("linear", "mlp"))),
    experiment(
        "architectures-cifar", lambda runner: find_architectures(runner, _cifar_models(runner))
    ),
    experiment("convergence", lambda runner: find_architectures(runner, ("linear",), curves=True)),
    experiment(
        "convergence-cnn2", lambda runner: find_architectures(runner, ("cnn2",), curves=True)
    ),
    experiment(
        "nested",
        find_nested,
        private_rates=listed(PRIVATE_RATES),
        not_private_rates=listed(NOT_PRIVATE_RATES),
        jopeq_pairs=len(comparison.JOPEQ_TRIED),
    ),
    experiment("malicious", lambda runner: find_malicious(runner, ("linear", "mlp"))),
    experiment("malicious-cifar", lambda runner: find_malicious(runner, _cifar_models(runner))),
    experiment("resnet", find_resnet, rounds=RESNET_ROUNDS),
)
