"""A Griffe extension: docstrings of this project as Markdown.

Aligned lists (a name, two or more spaces, its meaning) become definition lists, doctests become
code blocks. Everything else already is Markdown.
"""

import re
from typing import Any

import griffe

ENTRY = re.compile(r"(\S+(?:,? \S+)*?) {2,}(\S.*)")


class AlignedLists(griffe.Extension):
    """Rewrites each docstring when it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(docstring: str) -> str:
    """The docstring with definition lists and code blocks."""
    return "\n\n".join(map(_paragraph, re.split(r"\n{2,}", docstring)))


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    if lines[0].startswith(">>> "):
        return f"```pycon\n{text}\n```"
    entries: list[tuple[str, list[str]]] = []
    for line in lines:
        if found := ENTRY.fullmatch(line):
            entries.append((found[1], [found[2]]))
        elif entries and line.startswith("  "):
            entries[-1][1].append(line.strip())
        else:
            return text
    return "\n\n".join(f"{_names(name)}\n:   {' '.join(about)}" for name, about in entries)


def _names(text: str) -> str:
    return ", ".join(f"`{name}`" for name in text.split(", "))
