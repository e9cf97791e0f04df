"""Sections and blocks as HTML."""

from hushbit.lab.report.blocks import (
    QUICK,
    Block,
    Command,
    Part,
    Plot,
    Points,
    Section,
    Table,
    Text,
    Value,
    Verdict,
    Verdicts,
)
from hushbit.lab.report.elements import Html, data_block, element, joined

LONG = 24
"""Tables with more rows get a box that scrolls up and down too."""


def section_html(section: Section) -> Html:
    """A section under a heading of the second level, its parts under the third."""
    heading = f"{section.anchor}-title"
    badge = element("span", "quick", class_="badge", title=QUICK) if section.quick else Html("")
    return element(
        "section",
        element("p", section.source, " ", badge, class_="source"),
        element("h2", section.title, id=heading),
        *(_part(part, f"{section.anchor}-{number}") for number, part in enumerate(section.parts)),
        id=section.anchor,
        aria_labelledby=heading,
        class_="entry",
    )


def _part(part: Part, anchor: str) -> Html:
    """A heading and blocks; a table and the one plot that follows it share a row."""
    rows: list[tuple[Html, list[Html]]] = [(element("h3", part.title), [])]
    for number, block in enumerate(part.blocks):
        if isinstance(block, Plot):
            rows[-1][1].append(_plot(block, f"{anchor}-plot-{number}"))
        else:
            rows.append((_block(block), []))
    return joined(*(_with_plots(block, plots) for block, plots in rows))


def _with_plots(block: Html, plots: list[Html]) -> Html:
    """A block, and its plots side by side where there is room."""
    if not plots:
        return block
    beside = "pair" if len(plots) == 1 else None
    return element("div", block, element("div", *plots, class_="plots"), class_=beside)


def _block(block: Block) -> Html:
    match block:
        case Text(text):
            return element("p", text)
        case Points(items):
            return element("ul", *(element("li", item) for item in items))
        case Command(text):
            return element("pre", element("code", text), tabindex="0")
        case Verdicts(items):
            return element("ul", *map(_verdict, items), class_="claims")
        case Table():
            return table_html(block)
        case Plot():
            return _plot(block, "plot")


def _verdict(verdict: Verdict) -> Html:
    word, look = ("holds", "good") if verdict.holds else ("does not hold", "bad")
    return element(
        "li",
        element("span", word, class_=f"verdict {look}"),
        element("span", verdict.claim, class_="claim"),
        element("span", verdict.figure, class_="figure"),
    )


def table_html(table: Table) -> Html:
    """A table that scrolls in its own box, which a keyboard can reach."""
    look = None if table.words else "number"
    columns = [
        element("th", text, scope="col", class_=None if n < table.heads else look)
        for n, text in enumerate(table.columns)
    ]
    before: tuple[str | Value, ...] = ()
    rows = []
    for row in table.rows:
        rows.append(_row(row, before, table.heads, look))
        before = row
    made = element(
        "table",
        element("caption", element("span", table.caption)),
        element("thead", element("tr", *columns)),
        element("tbody", *rows),
        class_="words" if table.words else None,
    )
    size = "box tall" if len(table.rows) > LONG else "box"
    return element("div", made, class_=size, tabindex="0", role="group", aria_label=table.caption)


def _row(
    row: tuple[str | Value, ...], before: tuple[str | Value, ...], heads: int, look: str | None
) -> Html:
    """A row; names that the row above has too are shown faintly."""
    again = 0
    while again < heads - 1 and before and row[again] == before[again]:
        again += 1
    cells = [
        element("th", str(cell), scope="row", class_="again" if n < again else None)
        if n < heads
        else element("td", *_cell(cell), class_=look)
        for n, cell in enumerate(row)
    ]
    return element("tr", *cells)


def _cell(cell: str | Value) -> list[str]:
    if isinstance(cell, str):
        return [cell]
    if not cell.interval:
        return [str(cell)]
    return [cell.figure, " ", element("span", cell.interval, class_="interval")]


def _plot(plot: Plot, anchor: str) -> Html:
    """A figure with its caption, the drawing, a legend of buttons, and its numbers."""
    height = plot.figure["layout"]["height"]
    return element(
        "figure",
        element("figcaption", element("b", plot.title), id=f"{anchor}-title"),
        element("div", class_="drawing", id=anchor, role="group", style=f"min-height:{height}px",
                aria_labelledby=f"{anchor}-title", aria_describedby=f"{anchor}-says"),
        element("div", class_="legend", role="group", aria_label=f"Lines of {plot.title}"),
        element("p", plot.says, class_="hidden", id=f"{anchor}-says"),
        element("details", element("summary", "Data as a table"), table_html(plot.data)),
        data_block(plot.figure),
        class_="plot",
    )  # fmt: skip
