"""HTML that is escaped by construction."""

import html
import json
from typing import Any


class Html(str):
    """Text that is HTML already; every other text is escaped when it is put into an element."""

    __slots__ = ()


VOID = {"meta", "link", "br"}


def element(name: str, /, *children: str, **attributes: str | int | bool | None) -> Html:
    """An element; `class_` is written class, underscores in other names become dashes.

    >>> element("p", "1 < 2", class_="small", hidden=True)
    '<p class="small" hidden>1 &lt; 2</p>'
    """
    words = [name, *(word for key, value in attributes.items() if (word := _attribute(key, value)))]
    opening = f"<{' '.join(words)}>"
    return Html(opening if name in VOID else f"{opening}{joined(*children)}</{name}>")


def joined(*children: str) -> Html:
    """Children one after the other."""
    return Html("".join(c if isinstance(c, Html) else html.escape(c) for c in children))


def data_block(value: Any) -> Html:
    """Data for scripts: no `<` is left that could end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return element("script", Html(text.replace("<", "\\u003c")), type="application/json")


def _attribute(key: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return name if value is True else f'{name}="{html.escape(str(value))}"'
