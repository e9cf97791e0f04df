"""Schemes as published and corrected, side by side at every place of a table or figure.

Three parts: series at places with tuned settings; settings that the paper does not state, of which
several values are run and the nearest is shown; and claims with the figures that decide them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hushbit.lab.experiments.cells import Outcome
from hushbit.lab.experiments.experiment import (
    TUNING_SEEDS,
    Coordinates,
    ExperimentRunner,
    Grid,
    Measured,
    Series,
    cell_of,
    place_text,
    published,
    select,
)
from hushbit.lab.experiments.paper import CODE_RATES, corrected, grid_of
from hushbit.lab.experiments.results import Cell, Check
from hushbit.lab.intervals import interval
from hushbit.lab.sim.settings import Settings

POINTS, DECIBEL, HIGHER = 3.0, 1.0, 3.0


@dataclass(frozen=True)
class TablePlace:
    """A column of a table or a point of a line: its coordinates and the options of its runs.

    tuned_at    index of another place whose tuned settings are used here
    max_seeds   limit of seeds for all schemes
    small_grid  tune over fewer candidates
    """

    where: Coordinates
    options: dict[str, Any]
    x: float | None = None
    tuned_at: int | None = None
    max_seeds: int | None = None
    small_grid: bool = False


def grid_at(scheme: str, place: TablePlace) -> Grid:
    """The tuning grid of a scheme for the model and the users of a place."""
    model, users = str(place.options["model"]), int(place.options["users"])
    return grid_of(scheme, model, users, small=place.small_grid)


def tuned_series(
    runner: ExperimentRunner,
    schemes: Sequence[str],
    places: Sequence[TablePlace],
    *,
    make: Callable[[str, TablePlace], Settings] = lambda s, p: corrected(s, **p.options),
    grid: Callable[[str, TablePlace], Grid] = grid_at,
    limit: Callable[[str, TablePlace], int | None] = lambda s, p: p.max_seeds,
) -> list[Series]:
    """Corrected series at all places, with the settings tuned there or at `tuned_at`.

    `limit` is the most seeds of a scheme at a place; a scheme with 0 is left out.
    """
    pairs = [(s, n) for s in schemes for n, p in enumerate(places) if limit(s, p) != 0]
    chosen: dict[tuple[str, int], Settings] = {}
    for short, seeds in ((True, TUNING_SEEDS), (False, 1)):
        part = [
            (s, n)
            for s, n in pairs
            if places[n].tuned_at is None
            and (places[n].options["model"] == "linear" and limit(s, places[n]) is None) is short
        ]
        wanted = [(make(s, places[n]), grid(s, places[n])) for s, n in part]
        chosen |= dict(zip(part, runner.tune(wanted, seeds), strict=True))
    made = []
    for scheme, number in pairs:
        place = places[number]
        tuned = chosen[scheme, number if place.tuned_at is None else place.tuned_at]
        size = {name: getattr(tuned, name) for name in ("rate", "radius", "sign_step")}
        settings, max_seeds = replace(make(scheme, place), **size), limit(scheme, place)
        made.append(Series(scheme, "corrected", settings, place.where, place.x, max_seeds))
    return made


# Rate and radius: the radius of the other schemes, wider ones, and no clipping from about 1 on.
JOPEQ_TRIED = (
    *((rate, radius) for radius in (0.05, 0.1, 0.2) for rate in CODE_RATES),
    *((1.0, radius) for radius in (0.95, 1.0, 1.5, 3.0)),
)
JOPEQ_TRIED_LARGE = JOPEQ_TRIED[:4]  # on models beyond the linear one
SLOWER_RATE = 0.05  # for what is unstable at the rates of the code
SHOWN_IN_FULL = ("JoPEQ", "Laplace")  # schemes whose figures depend most on unknown settings
TRIED_METRICS = ("accuracy_tried", "snr_tried")
TOLERANCES = {"accuracy": POINTS, "snr_authors_db": DECIBEL}
MISSING = -999.0  # in place of a figure that no seed has
FAR = 1e6  # larger than any distance
Figures = dict[str, float]


def at_rates(one: Series, *rates: float) -> list[Series]:
    """The series at each of these rates."""
    return [with_options(one, rate=rate) for rate in rates]


def unknown_settings(one: Series) -> list[Series]:
    """Both rates of the code; slower ones where a scheme is unstable; radii for JoPEQ."""
    if one.scheme == "JoPEQ":
        pairs = JOPEQ_TRIED if one.settings.model == "linear" else JOPEQ_TRIED_LARGE
        return [with_options(one, rate=rate, radius=radius) for rate, radius in pairs]
    made = at_rates(one, *CODE_RATES)
    if _is_unstable(one):
        rounds, every = 2 * one.settings.rounds, 2 * one.settings.evaluate_every
        made.append(with_options(one, rate=SLOWER_RATE))
        made.append(with_options(one, rate=SLOWER_RATE, rounds=rounds, evaluate_every=every))
    return made


def with_options(one: Series, **options: Any) -> Series:
    """The series with other settings."""
    return replace(one, settings=replace(one.settings, **options))


def _is_unstable(one: Series) -> bool:
    """Whether seeds differ so much that one is not enough: published Laplace on the MLP."""
    return one.scheme == "Laplace" and one.settings.model == "mlp"


def published_cells(
    schemes: Iterable[str],
    places: Sequence[TablePlace],
    figures: Callable[[str, Coordinates], Figures],
) -> list[Cell]:
    """The published figures of all schemes at all places."""
    return [
        published(scheme, place.where, metric, value)
        for scheme in schemes
        for place in places
        for metric, value in figures(scheme, place.where).items()
    ]


def nearest(
    runner: ExperimentRunner,
    series: Sequence[Series],
    figures: Callable[[str, Coordinates], Figures],
    variants: Callable[[Series], list[Series]] = unknown_settings,
) -> tuple[Measured, list[str], list[Cell]]:
    """Run variants of each series; keep the one that is nearest to the published figures.

    Also returns a note on each series, and cells of all variants of the schemes that depend on
    them most. Distances are in units of the tolerance: 3 points of accuracy, 1 dB of SNR; of
    several figures the worst decides. Models beyond the linear one are compared by their first
    seed, and only the nearest variant runs with the other seeds.
    """
    tried = [[_for_scan(varied) for varied in variants(one)] for one in series]
    scanned = iter(runner.measure([one for group in tried for one in group]).pairs)
    kept, notes, cells = [], [], []
    for one, group in zip(series, tried, strict=True):
        results, wanted = [next(scanned)[1] for _ in group], figures(one.scheme, one.where)
        gaps = [_gap(one, result, wanted) for result in results]
        best = gaps.index(min(gaps))
        kept.append(replace(group[best], max_seeds=one.max_seeds))
        notes.append(_note(group, results, best, wanted))
        if one.scheme in SHOWN_IN_FULL and len(group) > len(CODE_RATES):
            for varied, found in zip(group, results, strict=True):
                cells += _tried_cells(varied, group, found, wanted)
    return runner.measure(kept), notes, cells


def _for_scan(one: Series) -> Series:
    several = one.settings.model == "linear" or _is_unstable(one)
    return one if several else replace(one, max_seeds=1)


def _tried_cells(
    one: Series, tried: Sequence[Series], outcomes: Sequence[Outcome], wanted: Figures
) -> list[Cell]:
    """The figures of one variant, and the published ones."""
    here, made = replace(one, where={**one.where, **_differences(one, tried)}), []
    for shown, metric in zip(TRIED_METRICS, TOLERANCES, strict=True):
        values = [getattr(outcome, metric) for outcome in outcomes]
        if metric in wanted and None not in values:
            made.append(published(one.scheme, here.where, shown, wanted[metric]))
            made.append(cell_of(here, shown, values))
    return made


def _gap(one: Series, outcomes: Sequence[Outcome], wanted: Figures) -> float:
    """The distance; for JoPEQ by accuracy, and within its tolerance by SNR."""
    if one.scheme != "JoPEQ":
        return _distance(outcomes, wanted)
    off = _distance(outcomes, {"accuracy": wanted["accuracy"]})
    rest = {name: value for name, value in wanted.items() if name != "accuracy"}
    if not rest:
        return off
    return FAR + off if off > 1 else _distance(outcomes, rest)


def _distance(outcomes: Sequence[Outcome], wanted: Figures) -> float:
    return max(
        abs(_mean(outcomes, name) - value) / TOLERANCES[name] for name, value in wanted.items()
    )


def _mean(outcomes: Sequence[Outcome], metric: str) -> float:
    values = [getattr(one, metric) for one in outcomes if getattr(one, metric) is not None]
    return interval(values)[0] if values else MISSING


def _note(
    tried: Sequence[Series], results: Sequence[Sequence[Outcome]], best: int, wanted: Figures
) -> str:
    names = [
        ", ".join(f"{name} {value:g}" for name, value in _differences(one, tried).items())
        for one in tried
    ]
    parts = []
    for name, outcomes in zip(names, results, strict=True):
        found = _figures_text(_mean(outcomes, "accuracy"), _mean(outcomes, "snr_authors_db"))
        parts.append(f"{name}: {found}")
    target = _figures_text(wanted["accuracy"], wanted.get("snr_authors_db", MISSING))
    place = f"{tried[0].scheme}, {place_text(tried[0].where, ' = ')}"
    return f"{place}: {'; '.join(parts)}; published {target}; shown is {names[best]}"


def _figures_text(accuracy: float, ratio: float) -> str:
    return f"{accuracy:.1f} %" + ("" if ratio == MISSING else f", {ratio:.2f} dB")


def _differences(one: Series, tried: Sequence[Series]) -> dict[str, float]:
    """The rate of a variant, and its radius and rounds where the variants differ in them."""
    found = {"rate": one.settings.local_rate}
    for name in ("radius", "rounds"):
        if len({getattr(other.settings, name) for other in tried}) > 1:
            found[name] = getattr(one.settings, name)
    return found


@dataclass(frozen=True)
class Claim:
    """A claim on two variants of every scheme at a place.

    text        the claim; {schemes} is replaced by the schemes that it is restricted to
    holds       whether it holds for the cells of the variants `first` and `second` of a scheme
    show_tried  give the range over the values of an unknown setting where the claim fails
    """

    text: str
    metric: str
    first: str
    second: str
    holds: Callable[[Cell, Cell], bool]
    show_tried: bool = False

    def check(
        self, cells: Sequence[Cell], where: Coordinates, schemes: Sequence[str] | None = None
    ) -> Check:
        """The claim at a place, for all schemes or some of them."""
        if schemes is not None:
            cells = [cell for cell in cells if cell.scheme in schemes]
        before, after = (
            cells_by_scheme(cells, variant=variant, metric=self.metric, where=where)
            for variant in (self.first, self.second)
        )
        holds = {s: self.holds(before[s], after[s]) for s in before if s in after}
        figures = []
        for scheme, fine in holds.items():
            text = f"{scheme} {after[scheme].mean:.2f} against {before[scheme].mean:.2f}"
            tried = _tried_text(cells, scheme, where) if self.show_tried else ""
            figures.append(text if fine else f"{text}{tried} (no)")
        claim = self.text.format(schemes=" and ".join(schemes or ()))
        return Check(
            f"{claim}, {place_text(where, ' = ')}",
            bool(holds) and all(holds.values()),
            "; ".join(figures) or "nothing to compare",
        )


WITHIN_POINTS = Claim(
    f"re-created accuracy within {POINTS:g} points of the published",
    "accuracy",
    "published",
    "authors",
    lambda wanted, got: abs(got.mean - wanted.mean) <= POINTS,
    show_tried=True,
)
WITHIN_DECIBEL = Claim(
    f"re-created SNR of {{schemes}} within {DECIBEL:g} dB of the published (20 log10)",
    "snr_authors_db",
    "published",
    "authors",
    lambda wanted, got: abs(got.mean - wanted.mean) <= DECIBEL,
)
INSIDE_INTERVAL = Claim(
    "published SNR of {schemes} inside the re-created 95 % interval",
    "snr_authors_db",
    "published",
    "authors",
    lambda wanted, got: got.low <= wanted.mean <= got.high,
)
AT_LEAST_AUTHORS = Claim(
    "corrected accuracy at least the re-created one",
    "accuracy",
    "authors",
    "corrected",
    lambda old, new: new.mean >= old.mean,
)


def higher_snr(cells: Sequence[Cell], where: Coordinates) -> Check:
    """The corrected best guess of every CPA scheme has an SNR at least 3 dB higher.

    The figures also give the SNR of the update that training uses.
    """
    here = select(cells, where=where)
    old = cells_by_scheme(here, variant="authors", metric="snr_db")
    step = cells_by_scheme(here, variant="corrected", metric="snr_db")
    best = cells_by_scheme(here, variant="corrected", metric="snr_wiener_db")
    shared = [scheme for scheme in old if "CPA" in scheme and scheme in best]
    lines, fine = [], bool(shared)
    for scheme in shared:
        higher = best[scheme].mean >= old[scheme].mean + HIGHER
        fine = fine and higher
        lines.append(
            f"{scheme} {best[scheme].mean:.2f} (as trained on {step[scheme].mean:.2f}) against "
            f"{old[scheme].mean:.2f}" + ("" if higher else " (no)")
        )
    return Check(
        f"corrected SNR of CPA, best guess, at least {HIGHER:g} dB higher (10 log10), "
        f"{place_text(where, ' = ')}",
        fine,
        "; ".join(lines) or "nothing to compare",
    )


def cells_by_scheme(cells: Sequence[Cell], **wanted: object) -> dict[str, Cell]:
    """The cells with these attributes, by scheme."""
    return {cell.scheme: cell for cell in select(cells, **wanted)}


def _tried_text(cells: Sequence[Cell], scheme: str, where: Coordinates) -> str:
    """The range of accuracies over the values tried for an unknown setting; empty if none were."""
    found = [
        cell.mean
        for cell in select(cells, scheme=scheme, variant="authors", metric="accuracy_tried")
        if where.items() <= cell.where.items()
    ]
    if not found:
        return ""
    return f", by the unknown setting {min(found):.1f} to {max(found):.1f}"
