"""What a report is made of, before any format: sections of text, tables and plots."""

import math
from dataclasses import dataclass
from typing import Any

Figure = dict[str, Any]
"""A figure in Plotly's JSON: {"data": [...], "layout": {...}}."""


@dataclass(frozen=True)
class Value:
    """A number with its 95 % interval; an interval of no width is a figure without one.

    `places` are the decimals to show, four digits where it is None.
    """

    mean: float
    low: float
    high: float
    places: int | None = None

    @property
    def interval(self) -> str:
        """The interval as text, empty where there is none."""
        if self.low == self.high:
            return ""
        return f"[{number(self.low, self.places)}, {number(self.high, self.places)}]"

    @property
    def figure(self) -> str:
        """The mean as text; a figure without interval keeps the digits it came with."""
        return number(self.mean, self.places if self.interval else None)

    def __str__(self) -> str:
        return f"{self.figure} {self.interval}".strip()


@dataclass(frozen=True)
class Table:
    """A table whose first `heads` columns name the row; the others hold numbers, or `words`."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | Value, ...], ...]
    heads: int = 1
    words: bool = False


@dataclass(frozen=True)
class Plot:
    """A figure, what it says in a sentence, and its numbers as a table."""

    title: str
    says: str
    figure: Figure
    data: Table


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Points:
    """A list of short texts."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """Lines for a shell or a file, to be copied."""

    text: str


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it holds, and the figures that decide it."""

    claim: str
    holds: bool
    figure: str


@dataclass(frozen=True)
class Verdicts:
    """Claims of one experiment."""

    items: tuple[Verdict, ...]


Block = Table | Plot | Text | Points | Command | Verdicts


@dataclass(frozen=True)
class Part:
    """Blocks under a small heading."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Section:
    """An experiment, or one run: `source` says where it comes from, such as "Table III"."""

    anchor: str
    title: str
    source: str
    quick: bool
    parts: tuple[Part, ...]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All claims of the section."""
        blocks = [block for part in self.parts for block in part.blocks]
        return tuple(v for block in blocks if isinstance(block, Verdicts) for v in block.items)


@dataclass(frozen=True)
class Document:
    """The whole report."""

    title: str
    sections: tuple[Section, ...]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All claims of the report."""
        return tuple(verdict for section in self.sections for verdict in section.verdicts)


QUICK = "quick form: fewer rounds and seeds than the full one"


def number(value: float, places: int | None = None) -> str:
    """A number with four digits or so many decimals, and a true minus sign.

    >>> number(-17.574), number(12345.6), number(0.0000123), number(float("inf"))
    ('−17.57', '12,346', '1.23e−05', '∞')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        text = "∞" if value > 0 else "-∞"
    elif places is not None:
        text = f"{value:,.{places}f}"
    elif abs(value) >= 1e7:
        text = f"{value:.3e}"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.4g}"
    return text.replace("-", "−")
