"""The paper's curves over epsilon and over users, re-created and corrected.

Figs. 6 and 7        SNR and accuracy against epsilon, linear model on MNIST
Tables II and III    accuracy and "MSE" against users and epsilon, CNN2 on MNIST
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hushbit.lab.experiments import paper
from hushbit.lab.experiments.comparison import HIGHER, TablePlace, tuned_series
from hushbit.lab.experiments.experiment import (
    ExperimentRunner,
    Findings,
    Series,
    experiment,
    line_axes,
    published,
    select,
)
from hushbit.lab.experiments.paper import MANY_USERS, authors, federation, grid_of
from hushbit.lab.experiments.results import Axes, Cell, Check
from hushbit.lab.sim.settings import Settings

EPSILON_LABEL = "epsilon per bit (or entry)"
SNR_METRICS = ("snr_authors_db", "snr_db", "snr_wiener_db")
SNR_AXES = line_axes("epsilon_per_bit", EPSILON_LABEL, *SNR_METRICS)
ACCURACY_AXES = line_axes("epsilon_per_bit", EPSILON_LABEL, "accuracy")
PUBLISHED_RATE = 0.1
TUNED_AT = 0.5


def epsilon_places(runner: ExperimentRunner, users: Sequence[int]) -> list[TablePlace]:
    """All numbers of users and epsilons; each number of users is tuned at its first epsilon."""
    made: list[TablePlace] = []
    for k in users:
        first = len(made)
        for number, epsilon in enumerate(paper.SNR_EPSILONS):
            options = federation(runner.rounds_of(30), users=k, epsilon=epsilon)
            made.append(TablePlace({"users": k}, options, epsilon, first if number else None))
    return made


def _as_published(schemes: Sequence[str], places: Sequence[TablePlace]) -> list[Series]:
    return [
        Series(s, "authors", authors(s, **p.options, rate=PUBLISHED_RATE), p.where, p.x)
        for s in schemes
        for p in places
    ]


def _widened(one: Series) -> Series:
    """A radius twice as wide where epsilon leaves less noise than at the tuned epsilon."""
    radius = one.settings.radius
    if radius is None or one.x is None or one.x <= TUNED_AT:
        return one
    return replace(one, settings=replace(one.settings, radius=round(2 * radius, 6)))


def find_snr(runner: ExperimentRunner) -> Findings:
    """SNR against epsilon, 100 and 1000 users."""
    users = (100,) if runner.quick else (100, 1000)
    schemes = ("CPA", "Laplace", "signSGD + RR")
    places = epsilon_places(runner, users)
    tuned = tuned_series(runner, schemes, places)
    found = runner.measure(_as_published(schemes, places) + [_widened(one) for one in tuned])
    cells = [
        published(scheme, {"users": k}, "snr_authors_db", value, epsilon)
        for (scheme, k), row in paper.SNR_BY_EPSILON.items()
        if k in users
        for epsilon, value in zip(paper.SNR_EPSILONS, row, strict=True)
    ]
    cells += found.cells(SNR_METRICS)
    checks = tuple(check for k in users for check in _snr_checks(cells, k))
    return Findings(SNR_AXES, tuple(cells), checks, found.tuned, found.privacy)


def _snr_checks(cells: Sequence[Cell], users: int) -> tuple[Check, Check]:
    """The re-created curve of CPA is near the published one; the corrected one lies above it."""
    line = partial(_cpa_line, cells, users)
    recreated, printed = line("authors", "snr_authors_db"), line("published", "snr_authors_db")
    gaps = [abs(recreated[x] - printed[x]) for x in printed]
    old, trained = line("authors", "snr_db"), line("corrected", "snr_db")
    best = line("corrected", "snr_wiener_db")
    gains, plain = ([new[x] - old[x] for x in old if x in best] for new in (best, trained))
    least = HIGHER if users >= MANY_USERS else 0
    return (
        Check(
            f"re-created SNR of CPA within 3 dB of the published figure (20 log10), K = {users}",
            max(gaps) <= 3,
            f"gaps {_list_text(gaps)}",
        ),
        Check(
            f"corrected SNR of CPA, best guess, at least {least:g} dB above the re-created one at "
            f"every epsilon (10 log10), K = {users}",
            min(gains, default=-math.inf) >= least,
            f"gains {_list_text(gains)} (as trained on {_list_text(plain)})",
        ),
    )


def find_accuracy(runner: ExperimentRunner) -> Findings:
    """Accuracy against epsilon, 10 and 50 users; the paper gives a figure without numbers."""
    users = (10, 50)
    places = epsilon_places(runner, users)
    tuned = tuned_series(runner, ("CPA", "JoPEQ", "MVU"), places)
    found = runner.measure(_as_published(("CPA", "JoPEQ"), places) + tuned)
    cells = found.cells(("accuracy",))
    checks = []
    for k in users:
        new, old = (_cpa_line(cells, k, v, "accuracy") for v in ("corrected", "authors"))
        gains = [new[x] - old[x] for x in old]
        claim = f"corrected accuracy of CPA at least the re-created one at every epsilon, K = {k}"
        checks.append(Check(claim, min(gains) >= 0, f"gains {_list_text(gains)}"))
    return Findings(ACCURACY_AXES, tuple(cells), tuple(checks), found.tuned, found.privacy)


def _cpa_line(
    cells: Sequence[Cell], users: int, variant: str, metric: str
) -> dict[float | None, float]:
    own = select(cells, scheme="CPA", variant=variant, metric=metric, where={"users": users})
    return {cell.x: cell.mean for cell in own}


def _list_text(figures: Sequence[float]) -> str:
    return ", ".join(f"{figure:.1f}" for figure in figures)


CNN2_ROUNDS = 150
RATE, SLOW_RATE = 1.0, 0.1  # of the published code and of its earlier revision
SLOW_CPA = f"CPA, rate {SLOW_RATE:g}"
FEW_USERS = 100  # up to this number of users a run is short enough for several seeds
ERROR_METRICS = ("accuracy", "rmse")


@dataclass(frozen=True)
class ErrorTable:
    """A table of the paper over x: its columns, of which the quick form has some, and its rows.

    `options_at` are the options of the runs at an x.
    """

    axes: Axes
    columns: Sequence[float]
    quick: slice
    accuracy: Mapping[str, Sequence[float]]
    error: Sequence[float]
    options_at: Callable[[Any], dict[str, Any]]


USERS_TABLE = ErrorTable(
    line_axes("users", "users", *ERROR_METRICS, log=True),
    paper.TABLE_USERS,
    slice(2),
    paper.ACCURACY_BY_USERS,
    paper.ERROR_BY_USERS,
    lambda users: {"users": users},
)
EPSILON_TABLE = ErrorTable(
    line_axes("epsilon_per_bit", "epsilon per bit", *ERROR_METRICS),
    paper.TABLE_EPSILONS,
    slice(None, None, 2),
    paper.ACCURACY_BY_EPSILON,
    paper.ERROR_BY_EPSILON,
    lambda epsilon: {"users": 100, "epsilon": epsilon},
)


def find_errors(runner: ExperimentRunner, table: ErrorTable) -> Findings:
    """Vanilla training and CPA as published and corrected, tuned at the first place."""
    shown = range(len(table.columns))[table.quick if runner.quick else slice(None)]
    places: list[TablePlace] = []
    for column in shown:
        x, rounds = table.columns[column], runner.rounds_of(CNN2_ROUNDS)
        options = federation(rounds, model="cnn2", **table.options_at(x))
        max_seeds = 1 if options["users"] > FEW_USERS else None
        places.append(TablePlace({}, options, float(x), 0 if places else None, max_seeds))
    series = [
        # The slower rate is run for its error, which hardly depends on the seed.
        Series(s, "authors", _settings(s, p), p.where, p.x, 1 if s == SLOW_CPA else p.max_seeds)
        for s in ("vanilla FL", "CPA", SLOW_CPA)
        for p in places
    ]
    series += tuned_series(
        runner,
        ("vanilla FL", "CPA"),
        places,
        grid=lambda scheme, _: grid_of(scheme, "cnn2", MANY_USERS, small=True),
    )
    found = runner.measure(series)
    cells = []
    for place, column in zip(places, shown, strict=True):
        for scheme, row in table.accuracy.items():
            cells.append(published(scheme, {}, "accuracy", row[column], place.x))
        cells.append(published("CPA", {}, "rmse", table.error[column], place.x))
    cells += found.cells(ERROR_METRICS)
    return Findings(table.axes, tuple(cells), _error_checks(cells), found.tuned, found.privacy)


def _settings(scheme: str, place: TablePlace) -> Settings:
    rate = RATE if scheme == "CPA" else SLOW_RATE
    return authors("CPA" if scheme == SLOW_CPA else scheme, **place.options, rate=rate)


def _error_checks(cells: Sequence[Cell]) -> tuple[Check, ...]:
    table = {(c.scheme, c.variant, c.metric, c.x): c.mean for c in cells}
    made = []
    for x in sorted({cell.x for cell in cells if cell.x is not None}):
        old, printed = table[SLOW_CPA, "authors", "rmse", x], table["CPA", "published", "rmse", x]
        claim = (
            "the published MSE is the re-created root mean square error at rate "
            f"{SLOW_RATE:g} within 60 %, x = {x:g}"
        )
        near = 1 / 1.6 <= old / printed <= 1.6
        made.append(Check(claim, near, f"{old:.4f} against {printed:.4f}"))
        new, old = (table["CPA", v, "accuracy", x] for v in ("corrected", "authors"))
        claim = f"corrected accuracy of CPA at least the re-created one, x = {x:g}"
        made.append(Check(claim, new >= old, f"{new:.2f} against {old:.2f}"))
    return tuple(made)


SHOWN_VALUES = {"few_users": FEW_USERS, "slow_rate": SLOW_RATE}
EXPERIMENTS = (
    experiment("snr-epsilon", find_snr, tuned_at=TUNED_AT),
    experiment("accuracy-epsilon", find_accuracy, tuned_at=TUNED_AT),
    experiment("users", partial(find_errors, table=USERS_TABLE), **SHOWN_VALUES),
    experiment("epsilon", partial(find_errors, table=EPSILON_TABLE), **SHOWN_VALUES),
)
