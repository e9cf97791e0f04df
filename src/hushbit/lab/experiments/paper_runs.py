"""The runs of the paper's tables and figures, by one rule.

Every scheme has one rate and one radius (or sign step) for a whole table, found by `climb` on seeds
from 101 on, which are never reported; results have seeds from 201 on. With one local step a round
an update is proportional to the rate, so a server step of s equals a rate and a radius that are s
times as large: the server step stays 1.

authors     what the published code fixes is fixed (radius 0.05, sign step 1); the rate, and JoPEQ's
            radius, are those with the most published figures of the table within their tolerance
corrected   the highest mean validation accuracy over the table
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

from hushbit.lab.experiments import paper
from hushbit.lab.experiments.cells import Outcome
from hushbit.lab.experiments.claims import CellRef, Claim, claims, ref_of
from hushbit.lab.experiments.experiment import (
    Coordinates,
    ExperimentRunner,
    Findings,
    Series,
    experiment,
    line_axes,
    published,
    table_axes,
)
from hushbit.lab.experiments.paper import scheme_settings
from hushbit.lab.experiments.results import Axes, Cell
from hushbit.lab.experiments.search import Point, climb, ladder
from hushbit.lab.sim.aggregate_sampler import can_sample_aggregate
from hushbit.lab.sim.settings import Settings

TUNING_SEED, TUNING_SEEDS = 101, 3
TRAINED_USERS = 100  # of the 1000 users of CNN3; each is counted ten times
FARTHEST = 10.0  # a figure is never farther away than this many tolerances
TUNED = {  # numbers that are searched for; all others have a rate, and if corrected a reach
    ("signSGD + RR", "authors"): (),
    ("JoPEQ", "authors"): ("rate", "reach"),
    ("vanilla FL", "corrected"): ("rate",),
    ("signSGD + RR", "corrected"): ("sign_step",),
}
STAGES = {"nested CPA": 2, "nested CPA, 3 bits": 3}


@dataclass(frozen=True)
class TablePlace:
    """A column of a table or a point of a line.

    tuned   settings are chosen by the runs here
    shown   the results have cells of it
    """

    where: Coordinates
    options: dict[str, Any]
    x: float | None = None
    tuned: bool = True
    shown: bool = True

    @property
    def key(self) -> tuple[object, ...]:
        """The place of its cells."""
        return tuple(sorted(self.where.items())), self.x


@dataclass(frozen=True)
class PaperTable:
    """A table or figure: places (of the full or the quick form), schemes and metrics.

    targets   the experiment whose published figures choose the settings of authors' schemes
    reach     the step of the ladder at which the search for a reach (radius / rate) begins
    extra     options of a scheme and variant
    split     epsilon is that of all bits of a weight together
    """

    places: Callable[[ExperimentRunner], list[TablePlace]]
    authors: tuple[str, ...]
    corrected: tuple[str, ...]
    axes: Axes
    targets: str = ""
    reach: int = -2
    curves: bool = False
    tuning_seeds: int = TUNING_SEEDS
    extra: Mapping[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    split: bool = False

    def find(self, runner: ExperimentRunner) -> Findings:
        """Choose the settings of each scheme, run them at all places, show published figures."""
        places = self.places(runner)
        series: list[Series] = []
        chosen = []
        for variant, schemes in (("authors", self.authors), ("corrected", self.corrected)):
            for scheme in schemes:
                make = partial(self.settings, scheme, variant)
                first = self.starts(scheme, variant)[-1]
                # Ballots are cast by users, so a subsample needs a sampled aggregate.
                own = [
                    p
                    for p in places
                    if p.options.get("copies", 1) == 1 or can_sample_aggregate(make(p, first))
                ]
                point = first if runner.quick else self.search(runner, scheme, variant, own)
                values = numbers_at(tuned_numbers(scheme, variant), point)
                text = ", ".join(f"{name} {value:g}" for name, value in values.items())
                chosen.append(f"{scheme} ({variant}): {text or 'nothing to choose'}")
                series += [
                    Series(scheme, variant, make(p, point), p.where, p.x) for p in own if p.shown
                ]
        found = runner.measure(series)
        if self.curves:
            cells = found.curves()
        else:
            here = {place.key for place in places}
            cells = [
                cell
                for cell in published_cells(self.targets)
                if (ref_of(cell).where, cell.x) in here
            ]
            cells += found.cells([metric.metric for metric in self.axes.y])
        return Findings(self.axes, tuple(cells), (), tuple(chosen), found.privacy)

    def starts(self, scheme: str, variant: str) -> list[Point]:
        """Where searches begin: at both rates of the published code, else at one point."""
        numbers = tuned_numbers(scheme, variant)
        if variant == "authors":
            both: dict[int, list[Point]] = {0: [()], 1: [(-3,), (0,)], 2: [(-3, -1), (0, -4)]}
            return both[len(numbers)]
        return [tuple({"rate": -3, "reach": self.reach, "sign_step": -6}[n] for n in numbers)]

    def settings(self, scheme: str, variant: str, place: TablePlace, point: Point) -> Settings:
        """The settings of a scheme at a place, with its tuned numbers."""
        options = place.options | self.extra.get((scheme, variant), {})
        if self.split:
            options["epsilon"] /= STAGES.get(scheme, 1)
        options |= numbers_at(tuned_numbers(scheme, variant), point)
        return scheme_settings(scheme, variant, **options)

    def search(
        self, runner: ExperimentRunner, scheme: str, variant: str, places: Sequence[TablePlace]
    ) -> Point:
        """The tuned numbers of a scheme for the whole table."""
        tuned = [place for place in places if place.tuned]
        wanted = {} if variant == "corrected" else targets(self.targets, scheme)

        def score(points: list[Point]) -> list[tuple[float, float]]:
            flat = [
                replace(self.settings(scheme, variant, place, point), seed=TUNING_SEED + number)
                for point in points
                for place in tuned
                for number in range(self.tuning_seeds)
            ]
            made = iter(runner.run(flat, "tuning"))
            return [
                score_of(
                    [(p.key, [next(made) for _ in range(self.tuning_seeds)]) for p in tuned],
                    wanted,
                )
                for _ in points
            ]

        return climb(score, self.starts(scheme, variant))


def tuned_numbers(scheme: str, variant: str) -> tuple[str, ...]:
    """The names of the numbers that are searched for."""
    return TUNED.get((scheme, variant), ("rate",) if variant == "authors" else ("rate", "reach"))


def numbers_at(names: Sequence[str], point: Point) -> dict[str, float]:
    """The options at a point of the ladder; a radius is its reach times the rate."""
    values = {name: ladder(step) for name, step in zip(names, point, strict=True)}
    if "reach" in values:
        values["radius"] = float(f"{values['rate'] * values.pop('reach'):.6g}")
    return values


def targets(name: str, scheme: str) -> dict[tuple[object, ...], list[Claim]]:
    """The claims on published figures of a scheme, by place."""
    found: dict[tuple[object, ...], list[Claim]] = {}
    for claim, ref in published_figures(name):
        if ref.scheme == scheme:
            found.setdefault((ref.where, ref.x), []).append(claim)
    return found


def published_figures(name: str) -> list[tuple[Claim, CellRef]]:
    """The claims of an experiment on published figures, with the cells that they are about."""
    own = [one for one in claims() if one.experiment == name and one.published is not None]
    return [(claim, claim.forms[0][0][1]) for claim in own]


def published_cells(name: str) -> list[Cell]:
    """The published figures of an experiment."""
    return [
        published(ref.scheme, dict(ref.where), ref.metric, claim.published or 0.0, ref.x)
        for claim, ref in published_figures(name)
    ]


def score_of(
    found: Sequence[tuple[tuple[object, ...], Sequence[Outcome]]],
    wanted: Mapping[tuple[object, ...], Sequence[Claim]],
) -> tuple[float, float]:
    """By published figures: how many are met, then how near they are. Else validation accuracy."""
    gaps = [_gap(claim, outcomes) for place, outcomes in found for claim in wanted.get(place, ())]
    if gaps:
        return float(sum(gap <= 1 for gap in gaps)), -statistics.fmean(gaps)
    return 0.0, statistics.fmean(one.validation for _, outcomes in found for one in outcomes)


def _gap(claim: Claim, outcomes: Sequence[Outcome]) -> float:
    """The distance from a published figure in tolerances."""
    values = [getattr(one, claim.forms[0][0][1].metric) for one in outcomes]
    if None in values:
        return FARTHEST
    middle, half = (claim.low + claim.high) / 2, (claim.high - claim.low) / 2
    return min(FARTHEST, abs(statistics.fmean(values) - middle) / half)


# The tables and figures

SNR_METRICS = ("snr_authors_db", "snr_db", "snr_wiener_db")
EPSILON_LABEL = "epsilon per bit (or entry)"
SIX = tuple(paper.ACCURACY_BY_ARCHITECTURE)
CURVE_AXES = line_axes("round", "round", "validation")


def epsilon_places(runner: ExperimentRunner, users: Sequence[int]) -> list[TablePlace]:
    """Numbers of users and epsilons; settings are chosen at the least, middle and largest."""
    rounds = runner.rounds_of(30)
    return [
        TablePlace(
            {"users": k},
            {"users": k, "epsilon": x, "rounds": rounds, "evaluate_every": rounds},
            x,
            tuned=number % 2 == 0,
        )
        for k in (users[:1] if runner.quick else users)
        for number, x in enumerate(paper.SNR_EPSILONS)
    ]


def reading_places(
    runner: ExperimentRunner, columns: Sequence[float], options_at: Callable[[Any], dict[str, Any]]
) -> list[TablePlace]:
    """Both readings of what a user holds; settings are chosen with at most 400 users."""
    rounds = runner.rounds_of(150)
    shared = {"model": "cnn2", "rounds": rounds, "evaluate_every": rounds}
    divided = {"partition": "iid"}
    return [
        TablePlace(
            {"reading": reading},
            shared | own | options_at(x),
            float(x),
            tuned=options_at(x)["users"] <= 400,
        )
        for reading, own in zip(paper.READINGS, ({}, divided), strict=True)
        for x in (columns[:1] if runner.quick else columns)
    ]


def one_reading(
    reading: str, places: Callable[[ExperimentRunner], list[TablePlace]]
) -> Callable[[ExperimentRunner], list[TablePlace]]:
    """The places of one reading: each reading has its own settings."""
    return lambda runner: [p for p in places(runner) if p.where["reading"] == reading]


def find_readings(
    runner: ExperimentRunner,
    name: str,
    places: Callable[[ExperimentRunner], list[TablePlace]],
    axes: Axes,
) -> Findings:
    """A table under each reading."""
    found = [
        PaperTable(
            one_reading(reading, places),
            ("vanilla FL", "CPA"),
            ("vanilla FL", "CPA"),
            axes,
            name,
            reach=-5,
        ).find(runner)
        for reading in paper.READINGS
    ]
    choices = tuple(
        f"{reading}: {choice}"
        for reading, one in zip(paper.READINGS, found, strict=True)
        for choice in one.choices
    )
    cells = tuple(cell for one in found for cell in one.cells)
    return Findings(axes, cells, (), choices, found[0].privacy)


ERROR_METRICS = ("accuracy", "rmse")
USERS_AXES = line_axes("users", "users", *ERROR_METRICS, log=True)
EPSILON_AXES = line_axes("epsilon_per_bit", "epsilon per bit", *ERROR_METRICS)


def users_places(runner: ExperimentRunner) -> list[TablePlace]:
    """The columns of Table II."""
    return reading_places(runner, paper.TABLE_USERS, lambda users: {"users": users})


def epsilons_places(runner: ExperimentRunner) -> list[TablePlace]:
    """The columns of Table III."""
    return reading_places(
        runner, paper.TABLE_EPSILONS, lambda epsilon: {"users": 100, "epsilon": epsilon}
    )


def model_place(runner: ExperimentRunner, model: str, **options: Any) -> TablePlace:
    """1000 users: of MNIST with 5 samples, of CIFAR-10 with 40. CNN3 is trained by a subsample."""
    rounds, cifar = runner.rounds_of(paper.ROUNDS[model]), model.startswith("cnn")
    options = {
        "model": model,
        "users": paper.MANY_USERS,
        "rounds": rounds,
        "evaluate_every": max(1, rounds // {"linear": 10, "mlp": 1}.get(model, 5)),
        **({"dataset": "cifar10", "samples_per_user": 40} if cifar else {}),
        **options,
    }
    if model == "cnn3":
        options = subsampled(options)
    if cifar and runner.quick:
        options |= {"users": options["users"] // 10}
    return TablePlace({"model": model}, options, tuned=model != "cnn3")


def subsampled(options: dict[str, Any]) -> dict[str, Any]:
    """A part of the users train, each is counted several times; the noise is that of all users."""
    copies = paper.MANY_USERS // TRAINED_USERS
    return options | {"users": TRAINED_USERS, "copies": copies}


def mnist_places(runner: ExperimentRunner) -> list[TablePlace]:
    """The MNIST columns of Table IV."""
    return [model_place(runner, model) for model in ("linear", "mlp")]


def cifar_places(runner: ExperimentRunner) -> list[TablePlace]:
    """The CIFAR-10 columns of Table IV, and CNN2 by subsample, which validates that of CNN3."""
    cnn2, cnn3 = model_place(runner, "cnn2"), model_place(runner, "cnn3")
    where: Coordinates = {"model": "cnn2, subsample"}
    checked = TablePlace(where, subsampled(cnn2.options), tuned=False)
    return [cnn2] if runner.quick else [cnn2, checked, cnn3]


def only(
    model: str, places: Callable[[ExperimentRunner], list[TablePlace]]
) -> Callable[[ExperimentRunner], list[TablePlace]]:
    """Places of which one model is shown; settings are chosen at all of them."""
    return lambda runner: [replace(p, shown=p.where["model"] == model) for p in places(runner)]


def nested_places(runner: ExperimentRunner) -> list[TablePlace]:
    """The columns of Table V."""
    rounds = runner.rounds_of(30)
    return [
        TablePlace({"users": k}, {"users": k, "rounds": rounds, "evaluate_every": rounds})
        for k in (paper.NESTED_USERS[:2] if runner.quick else paper.NESTED_USERS)
    ]


def malicious_places(runner: ExperimentRunner, models: Sequence[str]) -> list[TablePlace]:
    """The cells of Table VI; settings are chosen without attackers."""
    made = []
    for model, share, attack in product(models, (0.2, 0.3), paper.ATTACKS):
        attacked = {} if attack == "none" else {"attack": attack, "attackers": share}
        place = model_place(runner, model, **attacked)
        where: Coordinates = {"model": model, "share": share, "attack": attack}
        tuned = place.tuned and not attacked and share == 0.2
        made.append(replace(place, where=where, tuned=tuned))
    return made


def trade_off_places(runner: ExperimentRunner) -> list[TablePlace]:
    """Epsilon of all bits of a weight, without attackers and with 10 % who know their words."""
    rounds = runner.rounds_of(30)
    options = {"users": paper.MANY_USERS, "rounds": rounds, "evaluate_every": rounds}
    attacked = {"attack": "directed", "attackers": 0.1}
    return [
        TablePlace({"attack": name}, options | own | {"epsilon": x}, x, tuned=not own)
        for name, own in (("none", {}), ("directed, 10 %", attacked))
        for x in ((1.0,) if runner.quick else (0.5, 1.0, 2.0, 4.0, 8.0))
    ]


RESNET_ROUNDS = 60  # four curves in about six CPU hours
RESNET_CPA = ((1, 1.0), (1, 5.0), (2, 5.0))  # R, epsilon per bit


def find_resnet(runner: ExperimentRunner) -> Findings:
    """Learning curves of vanilla training and of CPA, from random weights."""
    rounds = runner.rounds or (2 if runner.quick else RESNET_ROUNDS)
    training: dict[str, Any] = {
        "dataset": "cifar100",
        "model": "resnet18",
        "users": 10,
        "partition": "iid",
        "validation": 1000 if runner.quick else 5000,
        "rounds": rounds,
        "steps": 3,
        "batch_size": 4 if runner.quick else 16,
        "optimizer": "adam",
        "momentum": 0.0,
        "keep_momentum": False,
        "rate": 1e-3,
        "evaluate_every": rounds if runner.quick else max(1, rounds // 6),
    }
    series = [
        Series(
            "vanilla FL", "corrected", scheme_settings("vanilla FL", "corrected", **training), {}
        )
    ]
    for rate, epsilon in RESNET_CPA:
        options = training | {"radius": 3e-3, "points": 2**rate, "epsilon": epsilon}
        settings = scheme_settings("CPA", "corrected", **options)
        where: Coordinates = {"epsilon_per_bit": epsilon}
        series.append(Series(f"CPA R = {rate}", "corrected", settings, where))
    found = runner.measure(series)
    return Findings(CURVE_AXES, tuple(found.curves()), privacy=found.privacy)


ARCHITECTURE_AXES = table_axes("accuracy", "snr_db", "snr_wiener_db")
NESTED_ROWS = tuple(paper.NESTED)
FIVE_LEVELS: dict[tuple[str, str], dict[str, Any]] = {
    ("JoPEQ", "authors"): {"levels": 5},
    ("JoPEQ", "corrected"): {"levels": 4},
}
_THREE = ("CPA", "Laplace", "signSGD + RR")
_MNIST = partial(PaperTable, authors=SIX, corrected=SIX, targets="architectures", reach=-4)
_CIFAR = partial(
    PaperTable,
    authors=SIX,
    corrected=SIX,
    targets="architectures-cifar",
    reach=-5,
    tuning_seeds=1,
)
_ATTACKED = partial(PaperTable, authors=("CPA",), corrected=("CPA",), axes=table_axes("accuracy"))
TABLES = {
    "snr-epsilon": PaperTable(
        partial(epsilon_places, users=(100, 1000)),
        _THREE,
        _THREE,
        line_axes("epsilon_per_bit", EPSILON_LABEL, *SNR_METRICS),
        "snr-epsilon",
    ),
    "accuracy-epsilon": PaperTable(
        partial(epsilon_places, users=paper.FEW_USERS),
        ("CPA", "JoPEQ"),
        ("CPA", "JoPEQ", "MVU"),
        line_axes("epsilon_per_bit", EPSILON_LABEL, "accuracy"),
    ),
    "architectures": _MNIST(mnist_places, axes=ARCHITECTURE_AXES),
    "convergence": _MNIST(only("linear", mnist_places), axes=CURVE_AXES, curves=True),
    "architectures-cifar": _CIFAR(cifar_places, axes=ARCHITECTURE_AXES),
    "convergence-cnn2": _CIFAR(only("cnn2", cifar_places), axes=CURVE_AXES, curves=True),
    "nested": PaperTable(
        nested_places,
        NESTED_ROWS,
        NESTED_ROWS,
        table_axes("accuracy", *SNR_METRICS),
        "nested",
        extra=FIVE_LEVELS,
    ),
    "malicious": _ATTACKED(
        partial(malicious_places, models=("linear", "mlp")), targets="malicious", reach=-4
    ),
    "malicious-cifar": _ATTACKED(
        partial(malicious_places, models=("cnn2", "cnn3")),
        targets="malicious-cifar",
        reach=-5,
        tuning_seeds=1,
    ),
    "nested-trade-off": PaperTable(
        trade_off_places,
        (),
        ("CPA", "nested CPA", "nested CPA, 3 bits"),
        line_axes("epsilon", "epsilon per weight", "accuracy", log=True),
        split=True,
    ),
}
EXPERIMENTS = (
    *(experiment(name, table.find) for name, table in TABLES.items()),
    experiment("users", partial(find_readings, name="users", places=users_places, axes=USERS_AXES)),
    experiment(
        "epsilon",
        partial(find_readings, name="epsilon", places=epsilons_places, axes=EPSILON_AXES),
    ),
    experiment("resnet", find_resnet, rounds=RESNET_ROUNDS),
)
