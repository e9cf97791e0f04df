"""A document as one HTML page that asks nothing of the network."""

import base64
import hashlib
from importlib import resources

from hushbit.errors import MissingExtra
from hushbit.lab.report.blocks import Document, Section
from hushbit.lab.report.content import section_html
from hushbit.lab.report.elements import Html, element, joined
from hushbit.lab.report.front import front_html


def write_page(document: Document) -> str:
    """The whole page: styles, plotting library and data are inside it."""
    scripts = [_resource("theme.js"), plotting_library(), _resource("page.js")]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content="hushbit report"),
        element("title", document.title),
        element("style", Html(_resource("style.css"))),
        element("script", Html(scripts[0])),
    )
    body = element(
        "body",
        element("a", "Skip to the content", class_="skip", href="#content"),
        _header(),
        element(
            "main",
            front_html(document),
            *(_section(section) for section in document.sections),
            id="content",
            tabindex="-1",
        ),
        _footer(),
        *(element("script", Html(script)) for script in scripts[1:]),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def plotting_library() -> str:
    """The text of plotly.js, as the installed plotly has it."""
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("a report needs plotly: pip install 'hushbit[lab]'") from None
    text = str(get_plotlyjs())
    # Inside an HTML element this would end the script; in JavaScript both mean the same.
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _resource(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _policy(scripts: list[str]) -> str:
    """Only the page's own scripts run, and nothing is fetched from anywhere."""
    marks = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{mark}'" for mark in marks)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _header() -> Html:
    button = element("button", "Theme: system", type="button", id="theme", aria_live="polite")
    return element(
        "header", element("a", "hushbit report", href="#summary", class_="brand"), button,
        class_="bar",
    )  # fmt: skip


def _section(section: Section) -> Html:
    back = element("p", element("a", "Back to the summary", href="#summary"), class_="back")
    return joined(section_html(section), back)


def _footer() -> Html:
    return element(
        "footer",
        element(
            "p",
            "Made by hushbit report. Everything is inside this file; it asks nothing of the "
            "network. The same as Markdown and the figures as CSV lie beside it.",
        ),
    )
