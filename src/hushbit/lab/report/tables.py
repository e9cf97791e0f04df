"""Cells of a result as tables: published, re-created and corrected values side by side."""

import dataclasses
import math
import statistics
from collections.abc import Iterable
from typing import TypeVar

from hushbit.lab.experiments.results import VARIANTS, Cell, Metric, Result
from hushbit.lab.report.document import ReportTable, Value, number, sentence_case

VARIANT_NAMES = {
    "published": "published",
    "authors": "re-created (authors)",
    "corrected": "corrected",
    "bound": "bound",
    "exact": "exact formula",
}
QUICK_NOTE = "Quick form: fewer rounds and seeds than the full experiment."
MAX_X_VALUES = 12
"""A table of a line with more values of x shows the last one only."""
MAX_SCHEME_COLUMNS = 6
Item = TypeVar("Item")
Place = tuple[tuple[str, str | int | float], ...]


def place_of(cell: Cell) -> Place:
    """The place of a cell, apart from x, as a hashable value."""
    return tuple(cell.where.items())


def unique(items: Iterable[Item]) -> list[Item]:
    """Each item once, in order of appearance."""
    return list(dict.fromkeys(items))


def varying(cells: list[Cell]) -> list[str]:
    """Names in `where` whose values differ between cells, in order of appearance."""
    names = unique(name for cell in cells for name in cell.where)
    return [name for name in names if len({cell.where.get(name) for cell in cells}) > 1]


def place_label(where: dict[str, str | int | float], names: Iterable[str]) -> str:
    """The named values of a place as text, such as "model linear, users 1,000"."""
    return ", ".join(f"{readable(n)} {format_value(where[n])}" for n in names if n in where)


def readable(name: str) -> str:
    """A name from a file with spaces for underscores."""
    return name.replace("_", " ")


def format_value(value: str | int | float) -> str:
    """A value from a file as text."""
    return value if isinstance(value, str) else number(value)


def value_of(cell: Cell, decimals: int | None = None) -> Value:
    """The mean of a cell with its interval."""
    return Value(cell.mean, cell.low, cell.high, decimals)


def decimals_for(cells: list[Cell]) -> int | None:
    """Decimals that show the median interval with one digit; None means four significant digits."""
    widths = [(cell.high - cell.low) / 2 for cell in cells if cell.low != cell.high]
    largest = max((abs(cell.mean) for cell in cells), default=0.0)
    if not widths or not 1 <= largest < 1e5:
        return None
    decimals = min(4, max(1, -math.floor(math.log10(statistics.median(widths)))))
    return decimals if min(widths) >= 10.0 ** -(decimals + 1) else None


def side_by_side(result: Result, metric: Metric) -> ReportTable:
    """One row for each place and scheme, one column for each variant."""
    cells = [cell for cell in result.cells if cell.metric == metric.metric]
    caption = sentence_case(metric.label)
    if len({cell.x for cell in cells if cell.x is not None}) > MAX_X_VALUES:
        cells = _last_of_each(cells)
        caption += f", at the last {result.axes.x_label or 'place'}"
    changing, where = varying(cells), cells[0].where if cells else {}
    common = place_label(where, [name for name in where if name not in changing])
    caption += f" ({common})" if common else ""
    return table_of(result, cells, f"{caption}. {_interval_note(result, cells)}")


def table_of(result: Result, cells: list[Cell], caption: str) -> ReportTable:
    """Cells of one metric as a table, with one column for each variant.

    If every scheme has a single variant, the schemes are the columns instead.
    """
    names = varying(cells)
    with_x = len({cell.x for cell in cells}) > 1
    columns = [readable(name) for name in names] + ([result.axes.x_label or "x"] if with_x else [])
    decimals = decimals_for(cells)
    found = {(place_of(c), c.x, c.scheme, c.variant): value_of(c, decimals) for c in cells}
    single = single_variants(cells)
    by_scheme = bool(columns) and 1 < len(single) <= MAX_SCHEME_COLUMNS
    variants = [variant for variant in VARIANTS if any(c.variant == variant for c in cells)]
    rows: dict[tuple[str | Value, ...], None] = {}
    for place, x, scheme in _row_keys(cells):
        where = dict(place)
        head = [format_value(where[name]) if name in where else "" for name in names]
        head += ["" if x is None else number(x)] if with_x else []
        if by_scheme:
            wanted = [(place, x, one, variant) for one, variant in single.items()]
        else:
            head.append(scheme)
            wanted = [(place, x, scheme, variant) for variant in variants]
        rows[(*head, *(found.get(key, "") for key in wanted))] = None
    if by_scheme:
        values = [series_name(scheme, variant) for scheme, variant in single.items()]
    else:
        columns, values = [*columns, "scheme"], [VARIANT_NAMES[variant] for variant in variants]
    return ReportTable(caption, (*columns, *values), tuple(rows), heads=len(columns))


def single_variants(cells: list[Cell]) -> dict[str, str]:
    """The variant of each scheme, or an empty dictionary if a scheme has several."""
    pairs = unique((cell.scheme, cell.variant) for cell in cells)
    return dict(pairs) if len(pairs) == len(dict(pairs)) else {}


def series_name(scheme: str, variant: str) -> str:
    """The name of a scheme that has one variant; figures of the authors are marked.

    >>> series_name("CPA", "corrected"), series_name("CPA", "published")
    ('CPA', 'CPA (published)')
    """
    marked = variant in ("published", "authors") and variant not in scheme
    return f"{scheme} ({variant})" if marked else scheme


def _interval_note(result: Result, cells: list[Cell]) -> str:
    """The meaning of the brackets, and a note if the result has the quick form."""
    counts = sorted({len(cell.seeds) for cell in cells if cell.low != cell.high})
    if not counts:
        text = "Single figures, without intervals."
    else:
        many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        text = f"Mean over {many} seeds [95 % interval]; published figures have no interval."
    return f"{text} {QUICK_NOTE}" if result.quick else text


def _row_keys(cells: list[Cell]) -> list[tuple[Place, float | None, str]]:
    """Rows in order: places as they first appear, x ascending, schemes as they first appear."""
    places = unique(place_of(cell) for cell in cells)
    schemes = unique(cell.scheme for cell in cells)
    keys = {(place_of(cell), cell.x, cell.scheme) for cell in cells}
    return sorted(
        keys,
        key=lambda key: (
            places.index(key[0]),
            -math.inf if key[1] is None else key[1],
            schemes.index(key[2]),
        ),
    )


def _last_of_each(cells: list[Cell]) -> list[Cell]:
    """The cell with the largest x of each scheme, variant and place.

    Published figures may end at another x, so x is dropped: all variants share one row.
    """
    ordered = sorted(cells, key=lambda cell: cell.x or 0.0)
    last = {(place_of(c), c.scheme, c.variant): c for c in ordered}
    first_seen = unique((place_of(c), c.scheme, c.variant) for c in cells)
    return [dataclasses.replace(last[key], x=None) for key in first_seen]
