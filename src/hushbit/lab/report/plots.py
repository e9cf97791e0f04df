"""Plots of results and runs, as Plotly figures for the page and as image files.

A `Plot` holds plain lines. `to_plotly` returns the JSON that the page draws; `to_svg` and
`plot_runs` draw plots as panels of one image with Matplotlib.
"""

import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hushbit.lab.decision_card import DecisionCard
from hushbit.lab.experiments.results import VARIANTS, Cell, Metric, Result
from hushbit.lab.intervals import interval
from hushbit.lab.report import tables
from hushbit.lab.report.document import Line, Plot, ReportTable, Value, number, sentence_case
from hushbit.lab.report.tables import VARIANT_NAMES, Place, place_label, place_of, unique
from hushbit.wire.files import write_atomic

COLOURS = ("#0b62b8", "#b8420f", "#0d7468", "#9a1fa8", "#8a5b00", "#47525d", "#b4123f", "#48690f")
"""The series colours of the light theme, as in `style.css`; the page replaces them in the dark."""
DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
    "longdash": (0, (8, 2)),
}
"""Dashes by their names in Plotly, with Matplotlib's form."""
SYMBOLS = {
    "circle": "o",
    "square": "s",
    "diamond-open": "D",
    "x-thin-open": "x",
    "cross-thin-open": "+",
}
"""Symbols by their names in Plotly, with Matplotlib's form."""
VARIANT_STYLES = {
    "published": ("dot", "diamond-open"),
    "authors": ("dash", "square"),
    "corrected": ("solid", "circle"),
    "bound": ("longdash", "x-thin-open"),
    "exact": ("dashdot", "cross-thin-open"),
}
VARIANT_COLOURS = {"published": 5, "authors": 1, "corrected": 0, "bound": 3, "exact": 2}
CURVES = (
    ("test_accuracy", "test accuracy (%)", 100.0),
    ("test_loss", "test loss", 1.0),
    ("snr_db", "SNR of the mean update (dB)", 1.0),
    ("training_loss", "training loss", 1.0),
    ("mse", "MSE of the mean update", 1.0),
    ("backdoor_rate", "success of the backdoor (%)", 100.0),
    ("removed_attackers", "attackers removed (%)", 100.0),
    ("removed_honest", "honest users removed (%)", 100.0),
)
"""Metrics of runs that are plotted by round: name, label and scale."""
MAX_MARKED_POINTS = 16
"""A line of at most so many points has markers and error bars, a longer one has a band."""
MAX_POINTS = 1000
MAX_TICKS = 7
MAX_LINES_IN_CAPTION = 6
MAX_TABLE_ROWS = 40
"""Rows of the table of a plot by round, evenly spaced; the CSV file has every round."""
ROW_HEIGHT = 30

History = Sequence[Mapping[str, Any]]


# From results and runs to plots


def result_plots(result: Result, metric: Metric) -> list[Plot]:
    """The plots of one metric: lines over x for each place, or points beside each other."""
    cells = [cell for cell in result.cells if cell.metric == metric.metric]
    if not cells:
        return []
    if result.axes.kind == "table" or all(cell.x is None for cell in cells):
        return [_points_plot(result, metric, cells)]
    names = tables.varying(cells)
    return [
        _place_plot(
            result,
            metric,
            [cell for cell in cells if place_of(cell) == place],
            place_label(dict(place), names),
        )
        for place in unique(map(place_of, cells))
    ]


def line_plot(
    title: str,
    x_label: str,
    y_label: str,
    lines: Sequence[Line],
    data: ReportTable | None = None,
    log_x: bool = False,
) -> Plot:
    """A plot of lines, with a logarithmic y axis where the values span a factor of 100.

    `data` is the table of the plot; by default it has a row for each x and a column for each line.
    """
    parts = [_endpoints(line) for line in lines[:MAX_LINES_IN_CAPTION]]
    more = len(lines) - MAX_LINES_IN_CAPTION
    return Plot(
        title,
        f"Over {x_label}: {'; '.join(parts)}" + (f"; and {more} more." if more > 0 else "."),
        x_label,
        y_label,
        tuple(lines),
        _data_table(title, x_label, lines) if data is None else data,
        log_x=log_x and all(x > 0 for line in lines for x in line.x),
        log_y=_needs_log([value.mean for line in lines for value in line.y]),
    )


def numbered_line(place: int, name: str, points: Mapping[float, Value]) -> Line:
    """A line whose colour and dash follow from its place in the plot.

    Neighbours differ in both, so equal lines on top of each other are both visible.
    """
    colour, lap = place % len(COLOURS), place // len(COLOURS)
    dash = ("solid", "dash", "dot", "dashdot")[(place + lap) % 4]
    return Line((name,), tuple(points), tuple(points.values()), colour, dash)


def plots_by_round(
    histories: Mapping[str, Sequence[History]],
    metrics: Sequence[str] = (),
) -> list[Plot]:
    """One plot for each metric (all of CURVES by default), one line for each run with values.

    A run has one history for each seed; its line is their mean, with an interval.
    """
    plots = []
    for metric, label, scale in CURVES:
        lines = []
        for place, (name, seeds) in enumerate(histories.items()):
            points = _means_by_round(seeds, metric, scale)
            if points:
                lines.append(numbered_line(place, name, points))
        if lines and (not metrics or metric in metrics):
            plots.append(line_plot(sentence_case(label), "round", label, lines))
    return plots


def _means_by_round(seeds: Sequence[History], metric: str, scale: float) -> dict[float, Value]:
    found: dict[float, list[float]] = {}
    for row in (row for rows in seeds for row in rows):
        if row.get(metric) is not None and math.isfinite(float(row[metric])):
            found.setdefault(float(row["round"]), []).append(scale * float(row[metric]))
    return {number: Value(*interval(found[number])) for number in sorted(found)}


def card_plots(card: DecisionCard, histories: Mapping[str, Sequence[History]]) -> list[Plot]:
    """The metric of a card by round, against epsilon and against bytes, with FedAvg as reference.

    `histories` are those of the card's runs by name. Runs of one mechanism form a line.
    """
    plain = card.reference
    reference = None if plain is None else (f"FedAvg {card.score(plain)}", plain.score[0])
    label = next(label for metric, label, _ in CURVES if metric == card.metric)
    title, data = sentence_case(label), ReportTable(card.caption, card.columns, tuple(card.rows()))
    by_epsilon, by_bytes = [], []
    for colour, mechanism in enumerate(unique(run.mechanism for run in card.runs)):
        own = [run for run in card.runs if run.mechanism == mechanism]
        scores = [Value(*run.score) for run in own]
        for key, dash, symbol in (("model", "solid", "circle"), ("server", "dash", "square")):
            epsilons = [getattr(run, f"epsilon_{key}") for run in own]
            keys = (mechanism, f"against the {key}")
            by_epsilon += _points_line(keys, epsilons, scores, colour, dash, symbol)
        sizes = [run.message_bytes for run in own]
        by_bytes += _points_line((mechanism,), sizes, scores, colour)
    plots = plots_by_round({run.name: histories[run.name] for run in card.runs}, (card.metric,))
    plots = [replace(plot, title=f"{title} by round") for plot in plots]
    for what, lines in (
        ("epsilon of the run", by_epsilon),
        ("bytes sent per user and round", by_bytes),
    ):
        if lines:
            plots.append(line_plot(f"{title} against {what}", what, label, lines, data, True))
    return [replace(plot, reference=reference) for plot in plots]


def _points_line(
    keys: tuple[str, ...], x: Sequence[float], y: Sequence[Value], colour: int, *style: str
) -> list[Line]:
    """The line through the points with finite x, none if there is no such point."""
    finite = [(at, value) for at, value in zip(x, y, strict=True) if math.isfinite(at)]
    points = sorted(finite, key=lambda point: point[0])
    if not points:
        return []
    places, values = zip(*points, strict=True)
    return [Line(keys, places, values, colour, *style)]


def _place_plot(result: Result, metric: Metric, cells: list[Cell], where: str) -> Plot:
    """The lines of one place: a colour for each scheme, a dash for each variant."""
    schemes = unique(cell.scheme for cell in result.cells)
    decimals, single = tables.decimals_for(cells), tables.single_variants(cells)
    lines = []
    for scheme in unique(cell.scheme for cell in cells):
        for variant in VARIANTS:
            own = {
                c.x: tables.value_of(c, decimals)
                for c in cells
                if (c.scheme, c.variant) == (scheme, variant) and c.x is not None
            }
            if own:
                x = sorted(own)
                keys = (scheme, VARIANT_NAMES[variant])
                lines.append(
                    Line(
                        (tables.series_name(scheme, variant),) if single else keys,
                        tuple(x),
                        tuple(own[place] for place in x),
                        schemes.index(scheme),
                        *VARIANT_STYLES[variant],
                    )
                )
    title = sentence_case(metric.label) + (f", {where}" if where else "")
    data = tables.table_of(result, cells, f"{title}: the data of the plot")
    x_label = result.axes.x_label or "x"
    return line_plot(title, x_label, metric.label, lines, data, result.axes.log_x)


def _points_plot(result: Result, metric: Metric, cells: list[Cell]) -> Plot:
    """Categories are schemes, under each place where there are several."""
    names, decimals = tables.varying(cells), tables.decimals_for(cells)
    schemes = unique(cell.scheme for cell in cells)
    present = {(place_of(cell), cell.scheme) for cell in cells}
    places = unique(map(place_of, cells))
    rows = [(place, scheme) for place in places for scheme in schemes if (place, scheme) in present]
    lines, parts = [], []
    for variant in VARIANTS:
        own = {
            rows.index((place_of(c), c.scheme)): tables.value_of(c, decimals)
            for c in cells
            if c.variant == variant
        }
        if own:
            x, name = sorted(own), VARIANT_NAMES[variant]
            y = tuple(own[row] for row in x)
            colour, symbol = VARIANT_COLOURS[variant], VARIANT_STYLES[variant][1]
            lines.append(Line((name,), tuple(map(float, x)), y, colour, symbol=symbol))
            means = [value.mean for value in y]
            parts.append(f"{name} from {number(min(means))} to {number(max(means))}")
    title = sentence_case(metric.label)
    return Plot(
        title,
        f"Over all rows: {'; '.join(parts)}.",
        "",
        metric.label,
        tuple(lines),
        tables.table_of(result, cells, f"{title}: the data"),
        log_y=_needs_log([cell.mean for cell in cells]),
        categories=tuple(_category(place, scheme, names, len(schemes)) for place, scheme in rows),
    )


def _category(place: Place, scheme: str, names: list[str], schemes: int) -> tuple[str, ...]:
    """The labels of a row; texts of a place have no name, as in ("mlp, users 100", "CPA")."""
    where = {name: value for name, value in place if name in names}
    parts = [v if isinstance(v, str) else place_label({n: v}, [n]) for n, v in where.items()]
    if not names:
        return (scheme,)
    return (", ".join(parts),) if schemes == 1 else (", ".join(parts), scheme)


def _data_table(title: str, x_label: str, lines: Sequence[Line]) -> ReportTable:
    places = sorted({x for line in lines for x in line.x})
    step = -(-len(places) // MAX_TABLE_ROWS)
    kept = sorted({*places[::step], places[-1]})
    found = [dict(zip(line.x, line.y, strict=True)) for line in lines]
    rows = tuple((number(x), *(str(values.get(x, "")) for values in found)) for x in kept)
    some = f"; {len(kept)} of {len(places):,} rows, all in the CSV file" if step > 1 else ""
    return ReportTable(f"{title}: the data{some}", (x_label, *(line.name for line in lines)), rows)


def _endpoints(line: Line) -> str:
    """The first and the last value of a line as text."""
    first, last = number(line.y[0].mean), number(line.y[-1].mean)
    if len(line.x) == 1:
        return f"{line.name} {first} at {number(line.x[0])}"
    return f"{line.name} from {first} at {number(line.x[0])} to {last} at {number(line.x[-1])}"


def _needs_log(values: list[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) / min(values) > 100


def _lowest(plot: Plot) -> float:
    """The lower end of bands: a logarithmic axis has no zero, so one decade below the lines."""
    if not plot.log_y:
        return -math.inf
    return min(value.mean for line in plot.lines for value in line.y) / 10


# As JSON for plotly.js


def to_plotly(plot: Plot) -> dict[str, Any]:
    """The plot in Plotly's JSON, {"data": [...], "layout": {...}}.

    The page colours the traces and builds the legend from `meta`.
    """
    if plot.categories:
        traces = [_category_trace(line, plot.categories) for line in plot.lines]
        x = _axis(plot.y_label, plot.log_y)
        y = {
            "type": "multicategory" if len(plot.categories[0]) > 1 else "category",
            "range": [len(plot.categories) - 0.5, -0.5],
            "title": {"text": ""},
        }
    else:
        lowest = _lowest(plot)
        traces = [trace for line in plot.lines for trace in _line_traces(line, lowest)]
        x = _axis(plot.x_label, plot.log_x) | (_log_ticks(plot.lines) if plot.log_x else {})
        y = _axis(plot.y_label, plot.log_y) | ({"dtick": 1} if plot.log_y else {})
    layout = {
        "xaxis": {"automargin": True, "zeroline": False, **x},
        "yaxis": {"automargin": True, "zeroline": False, **y},
        "height": 100 + ROW_HEIGHT * len(plot.categories) if plot.categories else 360,
        "margin": {"l": 12, "r": 16, "t": 34, "b": 12},
        "showlegend": False,
        "hovermode": "closest",
        "uirevision": "kept",
    }
    if plot.reference is not None:
        label, height = plot.reference
        ends = {"x0": 0, "x1": 1, "y0": height, "y1": height, "xref": "paper"}
        where = "middle" if plot.log_x else "start"  # away from points, and from ends of lines
        text = {"text": _escape(label), "textposition": where, "yanchor": "top"}
        line = {"dash": "longdash", "width": 1.5}
        layout["shapes"] = [{"type": "line", **ends, "line": line, "label": text}]
    return {"data": traces, "layout": layout}


def thinned(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """At most MAX_POINTS items and the last one, evenly spaced."""
    step = -(-len(items) // MAX_POINTS)
    return items if step <= 1 else (*items[:-1:step], items[-1])


def _trace(line: Line, values: Sequence[Value], error_axis: str | None) -> dict[str, Any]:
    """What all traces share: name, legend, markers, texts and, on one axis, error bars."""
    colour = {"color": _colour(line)}
    trace = {
        "type": "scatter",
        "name": _escape(line.name),
        "meta": {"series": line.colour % len(COLOURS), "keys": list(line.keys)},
        "marker": {**colour, "symbol": line.symbol, "size": 8},
        "customdata": [str(value) for value in values],
        "hovertemplate": "%{customdata}<extra>%{fullData.name}</extra>",
    }
    if error_axis and any(value.interval for value in values):
        trace[error_axis] = {
            **colour,
            "type": "data",
            "symmetric": False,
            "thickness": 1.5,
            "width": 3,
            "array": [v.high - v.mean if v.interval else None for v in values],
            "arrayminus": [v.mean - v.low if v.interval else None for v in values],
        }
    return trace


def _line_traces(line: Line, lowest: float) -> list[dict[str, Any]]:
    """The line, with a band before it where there are too many points for error bars."""
    x, y = thinned(line.x), thinned(line.y)
    marked = len(x) <= MAX_MARKED_POINTS
    trace = _trace(line, y, "error_y" if marked else None) | {
        "mode": "lines+markers" if marked else "lines",
        "x": list(x),
        "y": [value.mean for value in y],
        "line": {"color": _colour(line), "dash": line.dash, "width": 2},
    }
    if marked or not any(value.interval for value in y):
        return [trace]
    edge = [*(value.high for value in y), *(value.low for value in reversed(y))]
    band = {
        "type": "scatter",
        "mode": "lines",
        "name": trace["name"],
        "meta": {**trace["meta"], "band": True},
        "x": [*x, *reversed(x)],
        "y": [max(value, lowest) for value in edge],
        "fill": "toself",
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    return [band, trace]


def _category_trace(line: Line, categories: tuple[tuple[str, ...], ...]) -> dict[str, Any]:
    """Values along x, one category for each along y."""
    labels = [[_escape(text) for text in categories[int(row)]] for row in line.x]
    levels = [list(level) for level in zip(*labels, strict=True)]
    trace = _trace(line, line.y, "error_x") | {
        "mode": "markers",
        "x": [value.mean for value in line.y],
        "y": levels[0] if len(levels) == 1 else levels,
    }
    trace["marker"] |= {"size": 10, "line": {"color": _colour(line), "width": 2}}
    return trace


def _colour(line: Line) -> str:
    return COLOURS[line.colour % len(COLOURS)]


def _escape(text: str) -> str:
    """Plotly reads some HTML in names and titles; escaped text is shown as it is."""
    return html.escape(text, quote=False)


def _axis(title: str, log: bool) -> dict[str, Any]:
    text = f"{title} (log scale)" if log else title
    return {
        "title": {"text": _escape(text), "font": {"size": 13}},
        "type": "log" if log else "linear",
        "exponentformat": "power",
    }


def _log_ticks(lines: Iterable[Line]) -> dict[str, Any]:
    """Ticks at the points if there are few of them, else at powers of ten."""
    places = sorted({x for line in lines for x in line.x})
    if len(places) > MAX_TICKS:
        return {"dtick": 1}
    return {"tickvals": places, "ticktext": [number(x) for x in places]}


# As image files


def to_svg(title: str, plots: Sequence[Plot], same_scale: bool = False) -> bytes:
    """The plots as panels of one SVG image; the same plots give the same bytes.

    With `same_scale` all panels have the same y axis.
    """
    metadata = {"Date": None, "Creator": "hushbit"}
    return _image(title, plots, "svg", same_scale, metadata=metadata)


def plot_runs(histories: Mapping[str, History], target: Path, title: str) -> None:
    """Write accuracy and SNR by round as a PNG, one line for each run."""
    single = {name: [rows] for name, rows in histories.items()}
    plots = plots_by_round(single, ("test_accuracy", "snr_db"))
    picture = _image(title, plots, "png", dpi=110)
    write_atomic(target, lambda file: file.write(picture))


def _image(
    title: str, plots: Sequence[Plot], kind: str, same_scale: bool = False, **options: Any
) -> bytes:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = max(1, min(3, len(plots)))
    rows = max(1, -(-len(plots) // columns))
    height = max(
        [4.0 if rows == 1 else 3.0, *(0.8 + 0.19 * len(plot.categories) for plot in plots)]
    )
    with rc_context({"svg.hashsalt": "hushbit", "svg.fonttype": "none"}):
        figure = Figure(figsize=(6.5 + 1.5 * columns, 1 + height * rows), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(rows, columns, squeeze=False, sharey=same_scale).ravel()
        for panel in panels[len(plots) :]:
            panel.remove()
        handles: dict[str, Any] = {}
        for panel, plot in zip(panels, plots, strict=False):
            _draw_panel(panel, plot)
            panel.set_title(plot.title if len(plots) > 1 else "", fontsize=8)
            own, names = panel.get_legend_handles_labels()
            handles |= dict(zip(names, own, strict=True))
        if len(handles) > 1:
            place = "outside lower center"
            figure.legend(handles.values(), handles, loc=place, ncols=3, fontsize=8)
        figure.suptitle(title, fontsize=11)
        out = io.BytesIO()
        figure.savefig(out, format=kind, **options)
    return out.getvalue()


def _draw_panel(axes: Any, plot: Plot) -> None:
    lowest = _lowest(plot)
    for line in plot.lines:
        mean, high = [value.mean for value in line.y], [value.high for value in line.y]
        low = [max(value.low, lowest) for value in line.y]
        widths = [
            [value.mean - end for value, end in zip(line.y, low, strict=True)],
            [value.high - value.mean for value in line.y],
        ]
        style: dict[str, Any] = {"color": _colour(line), "label": line.name, "linewidth": 1.2}
        marker = {"marker": SYMBOLS[line.symbol], "markersize": 4, "capsize": 2, "elinewidth": 0.7}
        marker |= {"markerfacecolor": "none"} if line.symbol.endswith("open") else {}
        if plot.categories:
            axes.errorbar(mean, line.x, xerr=widths, **style | marker, linestyle="")
        elif len(line.x) <= MAX_MARKED_POINTS:
            dash = DASHES[line.dash]
            axes.errorbar(line.x, mean, yerr=widths, **style | marker, linestyle=dash)
        else:
            axes.plot(line.x, mean, **style, linestyle=DASHES[line.dash])
            axes.fill_between(line.x, low, high, color=style["color"], alpha=0.16, linewidth=0)
    if plot.categories:
        labels = [", ".join(texts) for texts in plot.categories]
        axes.set_yticks(range(len(labels)), labels, fontsize=7)
        axes.set(xlabel=plot.y_label, ylim=(len(labels) - 0.5, -0.5))
        axes.set_xscale("log" if plot.log_y else "linear")
    else:
        axes.set(xlabel=plot.x_label, ylabel=plot.y_label)
        axes.set_xscale("log" if plot.log_x else "linear")
        axes.set_yscale("log" if plot.log_y else "linear")
        places = sorted({x for line in plot.lines for x in line.x})
        if plot.log_x and len(places) <= MAX_TICKS:
            axes.set_xticks(places, [f"{x:.3g}" for x in places])
            axes.minorticks_off()
        elif not plot.log_x and all(x == int(x) for x in places):
            axes.xaxis.get_major_locator().set_params(integer=True)
    if plot.reference is not None:
        axes.axhline(plot.reference[1], label=plot.reference[0], color="black", linestyle="--")
    axes.grid(alpha=0.3)
