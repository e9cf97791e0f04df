"""The document model of reports: sections of text, tables, plots and claims.

`sections.py` and `docs_pages.py` build documents; `html.py` and `markdown.py` write them.
"""

import math
from dataclasses import dataclass

from hushbit.lab.decision_card import DecisionCard
from hushbit.lab.experiments.results import Check


@dataclass(frozen=True)
class Value:
    """A number with its 95 % interval; an interval of width zero counts as none.

    `decimals` is the number of decimals shown; None means four significant digits.
    """

    mean: float
    low: float
    high: float
    decimals: int | None = None

    @property
    def interval(self) -> str:
        """The interval as text, empty if there is none."""
        if self.low == self.high:
            return ""
        return f"[{number(self.low, self.decimals)}, {number(self.high, self.decimals)}]"

    @property
    def figure(self) -> str:
        """The mean as text; without an interval it keeps its own digits."""
        return number(self.mean, self.decimals if self.interval else None)

    def __str__(self) -> str:
        return f"{self.figure} {self.interval}".strip()


@dataclass(frozen=True)
class Link:
    """A link, as a paragraph or as a cell of a table."""

    text: str
    target: str

    def __str__(self) -> str:
        return self.text


Cell = str | Value | Link


@dataclass(frozen=True)
class ReportTable:
    """A table; the first `heads` columns name the row, the others hold numbers or text."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    heads: int = 1
    is_text: bool = False


@dataclass(frozen=True)
class Line:
    """A line of a plot: ascending x, values with intervals, and the style.

    `keys` name the line, one key for each row of the legend, as in ("CPA", "corrected").
    `colour` is an index into the eight colours of the theme.
    """

    keys: tuple[str, ...]
    x: tuple[float, ...]
    y: tuple[Value, ...]
    colour: int
    dash: str = "solid"
    symbol: str = "circle"

    @property
    def name(self) -> str:
        """All keys, separated by commas."""
        return ", ".join(self.keys)


@dataclass(frozen=True)
class Plot:
    """Lines over x, a caption that describes them in one sentence, and the numbers as a table.

    With `categories`, each x is an index into them and the points are not connected. A category
    has one label, or an outer label (the place) and an inner label (the scheme). `reference` is a
    horizontal line with its label.
    """

    title: str
    caption: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    data: ReportTable
    log_x: bool = False
    log_y: bool = False
    categories: tuple[tuple[str, ...], ...] = ()
    reference: tuple[str, float] | None = None


@dataclass(frozen=True)
class Picture:
    """Plots as panels of one image file; `file` is relative to the page."""

    title: str
    file: str
    plots: tuple[Plot, ...]
    same_scale: bool = False


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class BulletList:
    """A list of short texts."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """Lines for a shell or a file, to be copied."""

    text: str


@dataclass(frozen=True)
class ClaimVerdicts:
    """The claims of one experiment."""

    items: tuple[Check, ...]


Block = (
    ReportTable | Plot | Picture | Text | Link | BulletList | Command | ClaimVerdicts | DecisionCard
)


@dataclass(frozen=True)
class Part:
    """Blocks under a small heading (none if the title is empty), or `folded` behind it."""

    title: str
    blocks: tuple[Block, ...]
    folded: bool = False


@dataclass(frozen=True)
class Section:
    """An experiment or a run; `source` is its origin, such as "Table III"."""

    anchor: str
    title: str
    source: str
    parts: tuple[Part, ...]
    quick: bool = False

    @property
    def verdicts(self) -> tuple[Check, ...]:
        """All claims of the section."""
        blocks = [block for part in self.parts for block in part.blocks]
        return tuple(v for block in blocks if isinstance(block, ClaimVerdicts) for v in block.items)

    def count(self, holds: bool | None) -> int:
        """The number of claims that hold, do not hold (False) or are not judged (None)."""
        return sum(verdict.holds is holds for verdict in self.verdicts)


@dataclass(frozen=True)
class Document:
    """A report: the headline states the main result, the introduction may add to it.

    `not_run` names experiments of the catalogue without a result.
    """

    title: str
    headline: str
    sections: tuple[Section, ...]
    introduction: tuple[Block, ...] = ()
    not_run: tuple[str, ...] = ()

    def count(self, holds: bool | None) -> int:
        """The number of claims that hold, do not hold (False) or are not judged (None)."""
        return sum(section.count(holds) for section in self.sections)

    @property
    def failing(self) -> list[tuple[Section, Check]]:
        """The claims that do not hold with their sections."""
        return [(s, v) for s in self.sections for v in s.verdicts if v.holds is False]

    @property
    def unjudged(self) -> list[Section]:
        """The sections with claims that are too short to judge."""
        return [section for section in self.sections if section.count(None)]


def number(value: float, decimals: int | None = None) -> str:
    """A number with four significant digits, or the given decimals, and a true minus sign.

    >>> number(-17.574), number(12345.6), number(0.0000123), number(float("inf"))
    ('−17.57', '12,346', '1.23e−05', '∞')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        text = "∞" if value > 0 else "-∞"
    elif decimals is not None:
        text = f"{value:,.{decimals}f}"
    elif abs(value) >= 1e7:
        text = f"{value:.3e}"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.4g}"
    return text.replace("-", "−")


def sentence_case(text: str) -> str:
    """The text with a capital first letter.

    >>> sentence_case("test accuracy (%)"), sentence_case("SNR (dB)")
    ('Test accuracy (%)', 'SNR (dB)')
    """
    return text[:1].upper() + text[1:]
