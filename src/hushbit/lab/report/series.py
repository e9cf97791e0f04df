"""Lines and points in Plotly's JSON; colours are numbers that the page looks up in its theme."""

import html
import math
from dataclasses import dataclass
from typing import Any

from hushbit.lab.report.blocks import Figure, Value

SERIES = 8
"""How many colours the page has."""

LIGHT = ("#0b62b8", "#b8420f", "#0d7468", "#9a1fa8", "#8a5b00", "#47525d", "#b4123f", "#48690f")
"""The colours of the light theme, as `style.css` has them."""

DASH = {
    "published": "dot", "authors": "dash", "corrected": "solid", "bound": "longdash",
    "exact": "dashdot",
}  # fmt: skip
SYMBOL = {
    "published": "diamond-open", "authors": "square", "corrected": "circle", "bound": "x-thin-open",
    "exact": "cross-thin-open",
}  # fmt: skip
DASHES = ("solid", "dash", "dot", "dashdot")
FEW = 16
"""Up to so many points of a line are marked, with error bars; above it gets a band."""
MOST = 1000
"""Points of a line beyond this are thinned out in the plot."""


@dataclass(frozen=True)
class Line:
    """A line: x ascending, values with intervals, look by colour, dash and symbol.

    `keys` name it, one for each row of the legend, as in ("CPA", "corrected").
    """

    keys: tuple[str, ...]
    x: tuple[float, ...]
    y: tuple[Value, ...]
    colour: int
    dash: str = "solid"
    symbol: str = "circle"

    @property
    def name(self) -> str:
        """All keys."""
        return ", ".join(self.keys)


def plain(text: str) -> str:
    """Text that Plotly shows as it is, since it reads some HTML in names and titles."""
    return html.escape(text, quote=False)


def line_traces(line: Line, lowest: float = -math.inf) -> list[dict[str, Any]]:
    """A line, and its band down to `lowest` where there are too many points for error bars."""
    x, y = thinned(line.x), thinned(line.y)
    marked = len(x) <= FEW
    look = {"color": LIGHT[line.colour % SERIES]}
    trace: dict[str, Any] = {
        "type": "scatter", "mode": "lines+markers" if marked else "lines",
        "name": plain(line.name), "meta": _meta(line.colour, line.keys),
        "x": list(x), "y": [v.mean for v in y],
        "line": {**look, "dash": line.dash, "width": 2},
        "marker": {**look, "symbol": line.symbol, "size": 8},
        "customdata": [str(v) for v in y],
        "hovertemplate": "%{customdata}<extra>%{fullData.name}</extra>",
    }  # fmt: skip
    if not any(v.interval for v in y):
        return [trace]
    if marked:
        return [trace | {"error_y": _bars(y) | look}]
    return [_band(line, x, y, lowest), trace]


def points_trace(name: str, rows: list[Any], values: list[Value], variant: str, colour: int) -> Any:
    """Values along x, one for each row label along y, with intervals."""
    look = {"color": LIGHT[colour % SERIES]}
    symbol = SYMBOL.get(variant, "circle")
    bars = {"error_x": _bars(tuple(values)) | look} if any(v.interval for v in values) else {}
    return bars | {
        "type": "scatter", "mode": "markers", "name": plain(name), "meta": _meta(colour, (name,)),
        "x": [v.mean for v in values], "y": rows,
        "marker": {**look, "symbol": symbol, "size": 10, "line": {**look, "width": 2}},
        "customdata": [str(v) for v in values],
        "hovertemplate": "%{customdata}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def axis(title: str, log: bool = False, **more: Any) -> dict[str, Any]:
    """An axis with a title; a logarithmic one says so."""
    text = f"{title} (log scale)" if log else title
    return {
        "title": {"text": plain(text), "font": {"size": 13}},
        "type": "log" if log else "linear",
        "exponentformat": "power",
        **more,
    }


def figure(traces: list[Any], x: dict[str, Any], y: dict[str, Any], height: int = 360) -> Figure:
    """A figure whose legend is made by the page, of buttons that a keyboard can reach."""
    layout = {
        "xaxis": {"automargin": True, "zeroline": False, **x},
        "yaxis": {"automargin": True, "zeroline": False, **y},
        "height": height, "margin": {"l": 12, "r": 16, "t": 34, "b": 12}, "showlegend": False,
        "hovermode": "closest", "uirevision": "kept",
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def wants_log(values: list[float]) -> bool:
    """Whether numbers span so much that only a logarithmic axis shows them all."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > 100


def thinned(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """At most MOST items, evenly spread, the last one among them."""
    step = -(-len(items) // MOST)
    return items if step <= 1 else (*items[:-1:step], items[-1])


def _meta(colour: int, keys: tuple[str, ...]) -> dict[str, Any]:
    """What the page needs to colour a trace and to hide it by its legend."""
    return {"series": colour % SERIES, "keys": list(keys)}


def _bars(values: tuple[Value, ...]) -> dict[str, Any]:
    return {
        "type": "data", "symmetric": False, "thickness": 1.5, "width": 3,
        "array": [v.high - v.mean if v.interval else None for v in values],
        "arrayminus": [v.mean - v.low if v.interval else None for v in values],
    }  # fmt: skip


def _band(line: Line, x: tuple[float, ...], y: tuple[Value, ...], lowest: float) -> dict[str, Any]:
    edge = [*(v.high for v in y), *(v.low for v in reversed(y))]
    return {
        "type": "scatter", "mode": "lines", "name": plain(line.name),
        "meta": _meta(line.colour, line.keys) | {"band": True},
        "x": [*x, *reversed(x)], "y": [max(value, lowest) for value in edge],
        "fill": "toself", "line": {"width": 0}, "hoverinfo": "skip",
    }  # fmt: skip
