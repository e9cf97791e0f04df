"""Cells of a result as plots: lines over x, or points beside each other for a table."""

import math
from typing import Any

from hushbit.lab.report.blocks import Plot, Table, number
from hushbit.lab.report.series import (
    DASH,
    SYMBOL,
    Line,
    axis,
    figure,
    line_traces,
    plain,
    points_trace,
    wants_log,
)
from hushbit.lab.report.tables import (
    Place,
    column_of,
    place_of,
    places_for,
    series_name,
    shown,
    single_variants,
    table_of,
    unique,
    value_of,
    varying,
    words,
)
from hushbit.lab.results import VARIANTS, Cell, Metric, Result

ROW_HEIGHT = 30
COLOUR_OF = {"published": 5, "authors": 1, "corrected": 0, "bound": 3, "exact": 2}
FEW_TICKS = 7
SAID = 6
"""Lines beyond this are left out of the sentence about a plot; the table has them all."""


def plots_of(result: Result, metric: Metric) -> list[Plot]:
    """All plots of one metric."""
    cells = [cell for cell in result.cells if cell.metric == metric.metric]
    if not cells:
        return []
    if result.axes.kind == "table" or all(cell.x is None for cell in cells):
        return [_points_plot(result, metric, cells)]
    names = varying(cells)
    places = unique(place_of(cell) for cell in cells)
    return [
        _lines_plot(result, metric, [c for c in cells if place_of(c) == place], label(place, names))
        for place in places
    ]  # fmt: skip


def label(place: Place, names: list[str]) -> str:
    """A place by what sets it apart, as in "users 100, model mlp"."""
    where = dict(place)
    return ", ".join(f"{words(name)} {shown(where[name])}" for name in names if name in where)


def _lines_plot(result: Result, metric: Metric, cells: list[Cell], where: str) -> Plot:
    schemes = unique(cell.scheme for cell in result.cells)
    places, alone = places_for(cells), single_variants(cells)
    lines = []
    for scheme in unique(cell.scheme for cell in cells):
        for variant in VARIANTS:
            same = [c for c in cells if (c.scheme, c.variant) == (scheme, variant)]
            own = sorted((c for c in same if c.x is not None), key=lambda cell: cell.x or 0.0)
            if own:
                x, y = (c.x or 0.0 for c in own), (value_of(c, places) for c in own)
                colour = schemes.index(scheme)
                keys = (series_name(scheme, variant),) if alone else (scheme, column_of(variant))
                look = (DASH.get(variant, "solid"), SYMBOL.get(variant, "circle"))
                lines.append(Line(keys, tuple(x), tuple(y), colour, *look))
    return plot_lines(
        _title(metric.label, where), result.axes.x_label or "x", metric.label, lines,
        table_of(result, cells, f"{_title(metric.label, where)}: the data of the plot"),
        log_x=result.axes.log_x,
    )  # fmt: skip


def plot_lines(
    title: str, x_label: str, y_label: str, lines: list[Line], data: Table, log_x: bool = False
) -> Plot:
    """A plot of lines."""
    log_x = log_x and all(x > 0 for line in lines for x in line.x)
    means = [value.mean for line in lines for value in line.y]
    log_y = wants_log(means)
    # A logarithmic axis has no zero, so bands that reach it end a decade below the lines.
    lowest = min(means) / 10 if log_y else -math.inf
    made = figure(
        [trace for line in lines for trace in line_traces(line, lowest)],
        axis(x_label, log_x, **_ticks_at(lines) if log_x else {}),
        axis(y_label, log_y, **{"dtick": 1} if log_y else {}),
    )
    told = [_course(line) for line in lines[:SAID]]
    more = len(lines) - SAID
    says = f"Over {x_label}: {'; '.join(told)}" + (f"; and {more} more." if more > 0 else ".")
    return Plot(title, says, made, data)


def _ticks_at(lines: list[Line]) -> dict[str, Any]:
    """Ticks where the points are, if they are few: a logarithmic axis has odd ones of its own."""
    places = sorted({x for line in lines for x in line.x})
    if len(places) > FEW_TICKS:
        return {"dtick": 1}
    return {"tickvals": places, "ticktext": [number(x) for x in places]}


def _course(line: Line) -> str:
    """Where a line begins and ends."""
    first, last = number(line.y[0].mean), number(line.y[-1].mean)
    if len(line.x) == 1:
        return f"{line.name} {first} at {number(line.x[0])}"
    return f"{line.name} from {first} at {number(line.x[0])} to {last} at {number(line.x[-1])}"


def _points_plot(result: Result, metric: Metric, cells: list[Cell]) -> Plot:
    """Rows are schemes, under each place where there are several."""
    names = varying(cells)
    places, schemes = unique(map(place_of, cells)), unique(cell.scheme for cell in cells)
    rows = [(p, s) for p in places for s in schemes
            if any(place_of(c) == p and c.scheme == s for c in cells)]  # fmt: skip
    traces, digits = [], places_for(cells)
    for variant in VARIANTS:
        own = {(place_of(c), c.scheme): value_of(c, digits) for c in cells if c.variant == variant}
        if own:
            values = [own[row] for row in rows if row in own]
            ticks = _ticks([row for row in rows if row in own], names, len(schemes))
            traces.append(
                points_trace(column_of(variant), ticks, values, variant, COLOUR_OF.get(variant, 4))
            )
    log = wants_log([cell.mean for cell in cells])
    y = {"type": "multicategory" if names and len(schemes) > 1 else "category",
         "range": [len(rows) - 0.5, -0.5], "title": {"text": ""}}  # fmt: skip
    made = figure(traces, axis(metric.label, log), y, 100 + ROW_HEIGHT * len(rows))
    title = metric.label[:1].upper() + metric.label[1:]
    return Plot(title, _spread(cells), made, table_of(result, cells, f"{title}: the data"))


def _ticks(
    rows: list[tuple[Place, str]], names: list[str], schemes: int
) -> list[str] | list[list[str]]:
    """Labels of rows; two lists where the outer one names the place and the inner the scheme."""
    outer = [plain(_short(place, names)) for place, _ in rows]
    inner = [plain(scheme) for _, scheme in rows]
    if not names:
        return inner
    return outer if schemes == 1 else [outer, inner]


def _short(place: Place, names: list[str]) -> str:
    """A place with names for its numbers only, as in "mlp, users 100"."""
    parts = [(name, value) for name, value in place if name in names]
    return ", ".join(v if isinstance(v, str) else label(((n, v),), [n]) for n, v in parts)


def _spread(cells: list[Cell]) -> str:
    """Between which figures each variant lies."""
    told = []
    for variant in VARIANTS:
        own = sorted(cell.mean for cell in cells if cell.variant == variant)
        if own:
            told.append(f"{column_of(variant)} from {number(own[0])} to {number(own[-1])}")
    return f"Over all rows: {'; '.join(told)}."


def _title(metric: str, where: str) -> str:
    title = metric[:1].upper() + metric[1:]
    return f"{title}, {where}" if where else title
