"""A document as Markdown."""

import re

from hushbit.lab.report.blocks import (
    Block,
    Command,
    Document,
    Plot,
    Points,
    Section,
    Table,
    Text,
    Verdict,
    Verdicts,
)
from hushbit.lab.report.summary import lead


def write_markdown(document: Document) -> str:
    """The same sections as the page; plots are told in a sentence."""
    lines = [f"# {quoted(document.title)}", "", quoted(lead(document)), ""]
    failing = [verdict for verdict in document.verdicts if not verdict.holds]
    if failing:
        lines += ["## What does not hold", "", *map(_verdict, failing), ""]
    for section in document.sections:
        lines += _section(section)
    return "\n".join(lines).rstrip() + "\n"


def quoted(text: str) -> str:
    """Text without its power over Markdown and HTML, on one line."""
    flat = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_|\[\]#~])", r"\\\1", flat)


def _section(section: Section) -> list[str]:
    source = f" ({section.source})" if section.source else ""
    lines = [f"## {quoted(section.title + source)}{' — quick form' * section.quick}", ""]
    for part in section.parts:
        lines += [f"### {quoted(part.title)}", ""]
        for block in part.blocks:
            lines += [*_block(block), ""]
    return lines


def _block(block: Block) -> list[str]:
    match block:
        case Text(text):
            return [quoted(text)]
        case Points(items):
            return [f"- {quoted(item)}" for item in items]
        case Command(text):
            # A fence longer than any in the text cannot be closed by it.
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            return [fence, *text.splitlines(), fence]
        case Verdicts(items):
            return [_verdict(item) for item in items]
        case Plot(title, says):
            return [f"*{quoted(title)}.* {quoted(says)}"]
        case Table():
            return _table(block)


def _verdict(verdict: Verdict) -> str:
    word = "holds" if verdict.holds else "does not hold"
    return f"- **{word}**: {quoted(verdict.claim)} — {quoted(verdict.figure)}"


def _table(table: Table) -> list[str]:
    rest = "---" if table.words else "---:"
    align = ["---"] * table.heads + [rest] * (len(table.columns) - table.heads)
    return [
        quoted(table.caption),
        "",
        _row([quoted(column) for column in table.columns]),
        _row(align),
        *(_row([quoted(str(cell)) for cell in row]) for row in table.rows),
    ]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
