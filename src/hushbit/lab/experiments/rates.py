"""The rate that the paper does not tell: both defaults of its code, the nearer one shown."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hushbit.lab.cells import Outcome
from hushbit.lab.experiments.base import Lab, Series, interval
from hushbit.lab.experiments.checks import place
from hushbit.lab.experiments.schemes import CODE_RATES
from hushbit.lab.experiments.sides import Sides

RATE_CHOICE = (
    "The paper does not say the learning rate. The published code has 1, its earlier revision "
    "0.1; each cell shows the one of these two that comes nearer to the published figure, and the "
    "notes show both."
)


def nearest_rates(
    lab: Lab, series: Sequence[Series], metric: str, wanted: Callable[[Series], float]
) -> tuple[Sides, list[str]]:
    """Run each series at both rates; keep the one whose metric is nearer to the published one."""
    both = [
        [replace(one, settings=replace(one.settings, rate=rate)) for rate in CODE_RATES]
        for one in series
    ]
    outcomes = iter(lab.measure([one for pair in both for one in pair]))
    kept, found, notes = [], [], []
    for one, tried in zip(series, both, strict=True):
        results = [next(outcomes) for _ in tried]
        gaps = [abs(_mean(result, metric) - wanted(one)) for result in results]
        best = gaps.index(min(gaps))
        kept.append(tried[best])
        found.append(tuple(results[best]))
        notes.append(_note(tried, results, best))
    return Sides(tuple(kept), tuple(found)), notes


def _mean(outcomes: Sequence[Outcome], metric: str) -> float:
    values = [getattr(one, metric) for one in outcomes if getattr(one, metric) is not None]
    return interval(values)[0] if values else -999.0


def _note(tried: Sequence[Series], results: Sequence[Sequence[Outcome]], best: int) -> str:
    parts = []
    for one, outcomes in zip(tried, results, strict=True):
        ratio = _mean(outcomes, "snr_authors_db")
        shown = "" if ratio == -999.0 else f", {ratio:.2f} dB"
        parts.append(
            f"rate {one.settings.local_rate:g}: {_mean(outcomes, 'accuracy'):.1f} %{shown}"
        )
    first = tried[0]
    rate = tried[best].settings.local_rate
    return f"{first.scheme}, {place(first.where)}: {'; '.join(parts)}; shown is rate {rate:g}"
