"""Side by side: schemes as published and corrected, at every place of a table or figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hushbit.fl.settings import Settings
from hushbit.lab.cells import Outcome
from hushbit.lab.experiments.base import (
    Lab,
    Series,
    Where,
    cell_of,
    cells_of,
    chosen_text,
    privacy_lines,
)
from hushbit.lab.results import Cell, PrivacyLine
from hushbit.lab.tuning import Grid


@dataclass(frozen=True)
class Place:
    """A column of a table or a point of a line: what names it, and the options that make it.

    `tuned_as` names another place whose tuned settings are used here; `at_most` limits seeds.
    """

    where: Where
    options: dict[str, Any]
    x: float | None = None
    tuned_as: int | None = None
    at_most: int | None = None


@dataclass(frozen=True)
class Sides:
    """All series of a comparison with their outcomes."""

    series: tuple[Series, ...]
    found: tuple[tuple[Outcome, ...], ...]

    def cells(self, metrics: Sequence[str]) -> list[Cell]:
        """A cell for each series and metric."""
        return [
            cell
            for one, outcomes in zip(self.series, self.found, strict=True)
            for cell in cells_of(one, outcomes, metrics)
        ]

    def curves(self) -> list[Cell]:
        """Validation accuracy by round, a cell for each evaluated round."""
        return [
            cell
            for one, outcomes in zip(self.series, self.found, strict=True)
            for cell in _curve(one, outcomes)
        ]

    @property
    def privacy(self) -> tuple[PrivacyLine, ...]:
        """What the schemes promise."""
        return privacy_lines(self.series, self.found)

    @property
    def tuned(self) -> tuple[str, ...]:
        """What tuning chose."""
        corrected = [one for one in self.series if one.variant == "corrected"]
        return tuple(f"Tuned {chosen_text(one)}" for one in corrected)


def measure(lab: Lab, series: Sequence[Series]) -> Sides:
    """Run every series once for each seed."""
    return Sides(tuple(series), tuple(tuple(outcomes) for outcomes in lab.measure(series)))


SHORT_SEEDS, LONG_SEEDS = 3, 1
TUNING_CHOICE = (
    f"Tuned on the mean validation accuracy of {SHORT_SEEDS} seeds that are not reported (of one "
    "for models beyond the linear one and for schemes that are run with one seed), the same rule "
    "for all schemes. Test accuracy is that of the last round; the published code can test its "
    "best checkpoint instead, and the paper does not say."
)
SNR_CHOICE = (
    "SNR of the best guess: that of the server's best guess of a round's mean, which shrinks the "
    "singular values of the decoded updates of the last five rounds together by what is known of "
    "the noise, and the frequencies of a layer that reads an image. It is made of what was sent "
    "anyway, so it costs no privacy; the published decoder does not know its noise. Models are "
    "trained by the decoded update itself, whose SNR is shown as well."
)
Maker = Callable[[str, Place], Settings]
Gridder = Callable[[str, Place], Grid]
Limiter = Callable[[str, Place], int | None]


def as_placed(scheme: str, place: Place) -> int | None:
    """The limit of seeds that a place has for all schemes."""
    return place.at_most


def tuned_series(
    lab: Lab, schemes: Sequence[str], places: Sequence[Place], make: Maker, grid: Gridder,
    limit: Limiter = as_placed,
) -> list[Series]:  # fmt: skip
    """Corrected series at all places, with what tuning chose there or at `tuned_as`.

    `limit` says how many seeds a scheme gets at most at a place; with 0 it is left out.
    """
    fit = [(s, n) for s in schemes for n, p in enumerate(places) if limit(s, p) != 0]
    own = [(s, n) for s, n in fit if places[n].tuned_as is None]
    chosen: dict[tuple[str, int], Settings] = {}
    for short, seeds in ((True, SHORT_SEEDS), (False, LONG_SEEDS)):
        part = [(s, n) for s, n in own if _short(places[n], limit(s, places[n])) is short]
        wanted = [(make(s, places[n]), grid(s, places[n])) for s, n in part]
        chosen |= dict(zip(part, lab.tune(wanted, seeds), strict=True))
    made = []
    for scheme, number in fit:
        place = places[number]
        source = number if place.tuned_as is None else place.tuned_as
        settings = _with_tuned(make(scheme, place), chosen[scheme, source])
        at_most = limit(scheme, place)
        made.append(Series(scheme, "corrected", settings, place.where, place.x, at_most))
    return made


def _short(place: Place, at_most: int | None) -> bool:
    """Whether runs are so short that tuning takes several seeds."""
    return place.options["model"] == "linear" and at_most is None


def _with_tuned(settings: Settings, tuned: Settings) -> Settings:
    return replace(settings, rate=tuned.rate, radius=tuned.radius, sign_step=tuned.sign_step)


def _curve(one: Series, outcomes: Sequence[Outcome]) -> list[Cell]:
    made = []
    for points in zip(*(outcome.curve for outcome in outcomes), strict=False):
        at = replace(one, x=float(points[0][0]))
        made.append(cell_of(at, "validation", [validation for _, validation, _ in points]))
    return made
