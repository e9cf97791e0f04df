"""The first screen: what holds, what does not, and where to find it."""

from hushbit.lab.report.blocks import Document, Section, Verdict
from hushbit.lab.report.elements import Html, element, joined
from hushbit.lab.report.summary import lead

SHOWN = 5
"""Failing claims on the first screen; the others are counted, and stand in their sections."""

FAILED = " (no)"
"""How the figures of a claim mark those that break it."""

ROOM = 110
"""Characters of a claim's figures on the first screen; its section has them all."""


def front_html(document: Document) -> Html:
    """Title, verdict in numbers, claims that fail, and the contents."""
    return element(
        "section",
        element("h1", document.title, id="summary-title"),
        element("p", lead(document), class_="lead"),
        element(
            "div",
            element("div", _score(document.verdicts), _failing(document), class_="found"),
            _contents(document),
            class_="front",
        ),
        element(
            "noscript",
            element("p", "Plots need JavaScript; every figure also stands in a table."),
        ),
        id="summary",
        aria_labelledby="summary-title",
    )


def _score(verdicts: tuple[Verdict, ...]) -> Html:
    if not verdicts:
        return Html("")
    holds = sum(verdict.holds for verdict in verdicts)
    share = 100 * holds / len(verdicts)
    return element(
        "div",
        element("p", element("b", str(holds)), " hold", class_="count good"),
        element("p", element("b", str(len(verdicts) - holds)), " do not", class_="count bad"),
        element("span", element("span", style=f"width:{share:.1f}%"), class_="meter", role="img",
                aria_label=f"{share:.0f} % of the claims hold"),
        class_="score",
    )  # fmt: skip


def _failing(document: Document) -> Html:
    found = [(s, v) for s in document.sections for v in s.verdicts if not v.holds]
    found.sort(key=lambda one: one[0].quick)  # what a quick form misses says least
    if not found:
        return Html("")
    items = [
        element("li", v.claim, ": ", element("span", _short(v.figure), class_="figure"), " ",
                element("a", s.source or s.title, href=f"#{s.anchor}"))
        for s, v in found[:SHOWN]
    ]  # fmt: skip
    more = len(found) - SHOWN
    if more > 0:
        items.append(element("li", f"and {more} more, in the sections marked below"))
    return joined(
        element("h2", "What does not hold"), element("ul", *items, class_="claims failing")
    )


def _short(text: str) -> str:
    """The figures that decide: where some are marked as failing, only these."""
    failing = [part for part in text.split("; ") if part.endswith(FAILED)]
    text = "; ".join(part.removesuffix(FAILED) for part in failing) or text
    return text if len(text) <= ROOM else f"{text[:ROOM].rsplit(' ', 1)[0]} …"


def _contents(document: Document) -> Html:
    rows = [_content_row(section) for section in document.sections]
    heads = [
        element("th", text, scope="col", class_=look)
        for text, look in (
            ("section", None),
            ("from", None),
            ("holds", "number"),
            ("fails", "number"),
        )
    ]
    table = element(
        "table",
        element("caption", "Contents", class_="hidden"),
        element("thead", element("tr", *heads)),
        element("tbody", *rows),
    )
    box = element("div", table, class_="box", tabindex="0", role="group", aria_label="Contents")
    return element("nav", element("h2", "Contents"), box, aria_label="Contents", class_="contents")


def _content_row(section: Section) -> Html:
    holds = sum(verdict.holds for verdict in section.verdicts)
    fails = len(section.verdicts) - holds
    name = joined(
        element("a", section.title, href=f"#{section.anchor}"),
        *((" ", element("span", "quick", class_="badge")) if section.quick else ()),
    )
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", section.source),
        element("td", str(holds) if section.verdicts else "–", class_="number"),
        element("td", str(fails) if section.verdicts else "–",
                class_="number bad" if fails else "number"),
    )  # fmt: skip
