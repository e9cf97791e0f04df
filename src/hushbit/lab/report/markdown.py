"""Documents as Markdown."""

import re
from collections.abc import Iterable

from hushbit.lab.decision_card import DecisionCard
from hushbit.lab.report import document as doc
from hushbit.lab.report.document import Block, Cell, Document, Link, Section


def write_markdown(document: Document) -> str:
    """The sections of the page as Markdown; the caption replaces a plot."""
    lines = [f"# {escape(document.title)}", "", escape(document.headline), ""]
    lines += _blocks(document.introduction)
    if document.failing:
        lines += ["## Claims that do not hold", ""]
        lines += [
            f"- {escape(section.title)}: {escape(verdict.claim)} — {escape(verdict.figure)}"
            for section, verdict in document.failing
        ]
        lines.append("")
    for title, names in (
        ("Too short to judge", [section.title for section in document.unjudged]),
        ("Not run", document.not_run),
    ):
        lines += [f"{title}: {escape(', '.join(names))}.", ""] if names else []
    for section in document.sections:
        lines += _section(section)
    return "\n".join(lines).rstrip() + "\n"


def write_blocks(blocks: Iterable[Block]) -> str:
    """Blocks as Markdown, to be inserted into a page."""
    return "\n".join(_blocks(blocks)).rstrip()


def escape(text: str) -> str:
    """The text on one line, without any effect on Markdown or HTML."""
    flat = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    # An underscore between letters or digits is plain text; elsewhere it may mark emphasis.
    flat = re.sub(r"([\\`*|\[\]~])", r"\\\1", flat)
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])|^(?=[#>]|[-+]\s)", r"\\\g<0>", flat)


def _section(section: Section) -> list[str]:
    source = f" ({section.source})" if section.source else ""
    lines = [f"## {escape(section.title + source)}", ""]
    for part in section.parts:
        title, blocks = escape(part.title), _blocks(part.blocks)
        if part.folded:
            summary = f"<details><summary>{title}</summary>"
            lines += [summary, "", *blocks, "</details>", ""]
        else:
            lines += [f"### {title}", "", *blocks] if title else blocks
    return lines


def _blocks(blocks: Iterable[Block]) -> list[str]:
    return [line for block in blocks for line in (*_block(block), "")]


def _block(block: Block) -> list[str]:
    match block:
        case doc.Text(text):
            return [escape(text)]
        case Link():
            return [_cell(block)]
        case doc.BulletList(items):
            return [f"- {escape(item)}" for item in items]
        case doc.Command(text):
            # A fence longer than any in the text cannot be closed by it.
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            return [fence, *text.splitlines(), fence]
        case doc.ClaimVerdicts(items):
            short = {True: "yes", False: "no", None: "too short to judge"}
            rows = [(v.claim, short[v.holds], v.figure) for v in items]
            return _rows(("claim", "holds", "figures"), ["---"] * 3, rows)
        case doc.Plot(title, caption):
            return [f"*{escape(title)}.* {escape(caption)}"]
        case doc.Picture(title, file):
            return [f"![{escape(title)}]({file})"]
        case DecisionCard():
            align = ["---"] + ["---:"] * (len(block.columns) - 1)
            facts = [
                f"- {escape(f'{label}: {value} {detail}')}"
                for label, value, detail in block.facts()
            ]
            head = [escape(f"{block.title}: {block.best.name}"), "", *facts, ""]
            table = _rows(block.columns, align, block.rows())
            return [*head, escape(block.verdict), "", escape(block.caption), "", *table]
        case doc.ReportTable():
            values = "---" if block.is_text else "---:"
            align = ["---"] * block.heads + [values] * (len(block.columns) - block.heads)
            return [escape(block.caption), "", *_rows(block.columns, align, block.rows)]


def _rows(columns: Iterable[str], align: list[str], rows: Iterable[Iterable[Cell]]) -> list[str]:
    cells = [[escape(column) for column in columns], align, *(map(_cell, row) for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def _cell(cell: Cell) -> str:
    text = escape(str(cell))
    return f"[{text}]({cell.target})" if isinstance(cell, Link) else text
