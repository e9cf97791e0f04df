"""Cells of a result as tables: published, re-created and corrected side by side."""

import math
import statistics
from collections.abc import Iterable
from typing import TypeVar

from hushbit.lab.report.blocks import QUICK, Table, Value, number
from hushbit.lab.results import VARIANTS, Cell, Metric, Result

COLUMNS = {
    "published": "published",
    "authors": "re-created (authors)",
    "corrected": "corrected",
    "bound": "bound",
    "exact": "exact formula",
}
MANY = 12
"""Above so many places along x a table shows the last one only."""

MOST_COLUMNS = 6
Item = TypeVar("Item")
Place = tuple[tuple[str, str | int | float], ...]


def place_of(cell: Cell) -> Place:
    """What names the place of a cell, apart from x, in a form that can be looked up."""
    return tuple(cell.where.items())


def unique(items: Iterable[Item]) -> list[Item]:
    """Each item once, in order of appearance."""
    return list(dict.fromkeys(items))


def varying(cells: Iterable[Cell]) -> list[str]:
    """Names in `where` that differ from cell to cell, in order of appearance."""
    cells = list(cells)
    names = dict.fromkeys(name for cell in cells for name in cell.where)
    return [name for name in names if len({cell.where.get(name) for cell in cells}) > 1]


def fixed(cells: Iterable[Cell]) -> str:
    """What is the same for all cells, as text such as "model linear, users 1,000"."""
    cells = list(cells)
    changing = varying(cells)
    common = cells[0].where if cells else {}
    return ", ".join(
        f"{words(name)} {shown(value)}" for name, value in common.items() if name not in changing
    )


def words(name: str) -> str:
    """A name from a file as a reader sees it."""
    return name.replace("_", " ")


def shown(value: str | int | float) -> str:
    """A value from a file as a reader sees it."""
    return value if isinstance(value, str) else number(value)


def column_of(variant: str) -> str:
    """What a variant is called at the head of its column."""
    return COLUMNS.get(variant, words(variant))


def value_of(cell: Cell, places: int | None = None) -> Value:
    """The figure of a cell."""
    return Value(cell.mean, cell.low, cell.high, places)


def places_for(cells: list[Cell]) -> int | None:
    """Decimals that show the usual interval with one digit; None where four digits do better."""
    widths = [(cell.high - cell.low) / 2 for cell in cells if cell.low != cell.high]
    largest = max((abs(cell.mean) for cell in cells), default=0.0)
    if not widths or not 1 <= largest < 1e5:
        return None
    places = min(4, max(1, -math.floor(math.log10(statistics.median(widths)))))
    return places if min(widths) >= 10.0 ** -(places + 1) else None


def side_by_side(result: Result, metric: Metric) -> Table:
    """One row for each place and scheme, one column for each variant."""
    cells = [cell for cell in result.cells if cell.metric == metric.metric]
    caption = metric.label[:1].upper() + metric.label[1:]
    places = sorted({cell.x for cell in cells if cell.x is not None})
    if len(places) > MANY:
        cells = _last_of_each(cells)
        caption += f", at the last {result.axes.x_label or 'place'}"
    common = fixed(cells)
    caption += f" ({common})" if common else ""
    return table_of(result, cells, f"{caption}. {note(result, cells)}")


def table_of(result: Result, cells: list[Cell], caption: str) -> Table:
    """Cells of one metric as a table: a column for each variant, or for each scheme if it has one.

    Schemes that come in a single variant have nothing to stand beside but each other.
    """
    names = varying(cells)
    with_x = len({cell.x for cell in cells}) > 1
    columns = [words(name) for name in names] + ([result.axes.x_label or "x"] if with_x else [])
    places = places_for(cells)
    found = {(place_of(c), c.x, c.scheme, c.variant): value_of(c, places) for c in cells}
    alone = single_variants(cells)
    by_scheme = bool(columns) and 1 < len(alone) <= MOST_COLUMNS
    variants = [variant for variant in VARIANTS if any(c.variant == variant for c in cells)]
    rows: dict[tuple[str | Value, ...], None] = {}
    for place, x, scheme in _row_keys(cells):
        where = dict(place)
        head = [shown(where[name]) if name in where else "" for name in names]
        head += ["" if x is None else number(x)] if with_x else []
        if by_scheme:
            wanted = [(place, x, one, variant) for one, variant in alone.items()]
        else:
            head.append(scheme)
            wanted = [(place, x, scheme, variant) for variant in variants]
        rows[(*head, *(found.get(key, "") for key in wanted))] = None
    if by_scheme:
        values = [series_name(scheme, variant) for scheme, variant in alone.items()]
    else:
        columns, values = [*columns, "scheme"], [column_of(variant) for variant in variants]
    return Table(caption, (*columns, *values), tuple(rows), heads=len(columns))


def single_variants(cells: list[Cell]) -> dict[str, str]:
    """The variant of each scheme, or nothing if a scheme has several."""
    pairs = unique((cell.scheme, cell.variant) for cell in cells)
    return dict(pairs) if len(pairs) == len(dict(pairs)) else {}


def series_name(scheme: str, variant: str) -> str:
    """A scheme that has one variant; figures that are not ours say so.

    >>> series_name("CPA", "corrected"), series_name("CPA", "published")
    ('CPA', 'CPA (published)')
    """
    told = variant in scheme or variant not in ("published", "authors")
    return scheme if told else f"{scheme} ({variant})"


def note(result: Result, cells: list[Cell]) -> str:
    """What the brackets mean, and whether the form is the quick one."""
    counts = sorted({len(cell.seeds) for cell in cells if cell.low != cell.high})
    if not counts:
        text = "Single figures, without intervals."
    else:
        many = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        text = f"Mean over {many} seeds [95 % interval]; published figures have no interval."
    return f"{text} This is the {QUICK}." if result.quick else text


def _row_keys(cells: list[Cell]) -> list[tuple[Place, float | None, str]]:
    """Rows in order: places as they first appear, x ascending, schemes as they first appear."""
    places = unique(place_of(cell) for cell in cells)
    schemes = unique(cell.scheme for cell in cells)
    keys = {(place_of(cell), cell.x, cell.scheme) for cell in cells}
    return sorted(
        keys,
        key=lambda key: (
            places.index(key[0]), -1e300 if key[1] is None else key[1], schemes.index(key[2])
        ),
    )  # fmt: skip


def _last_of_each(cells: list[Cell]) -> list[Cell]:
    """The cell farthest along x of each scheme, variant and place."""
    last: dict[tuple[Place, str, str], Cell] = {}
    for cell in cells:
        key = (place_of(cell), cell.scheme, cell.variant)
        if key not in last or (cell.x or 0.0) >= (last[key].x or 0.0):
            last[key] = cell
    # Published figures may end elsewhere; all stand in one row, so the place is left out.
    return [
        Cell(c.scheme, c.variant, c.where, c.metric, c.mean, c.low, c.high, c.seeds)
        for c in last.values()
    ]
