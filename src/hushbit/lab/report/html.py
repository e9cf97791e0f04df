"""Documents as one HTML page that works without a network."""

import base64
import hashlib
from importlib import resources
from itertools import pairwise

from hushbit.errors import MissingExtra
from hushbit.lab.report.document import Block, Document, Picture, Plot, ReportTable
from hushbit.lab.report.plots import to_plotly

MAX_FAILING_CLAIMS = 5
"""Failing claims in the summary; the others are counted, and listed in their sections."""
MAX_FIGURE_LENGTH = 110
"""Characters of a claim's figures in the summary; its section has them all."""
FAILED = " (no)"
"""The mark of the figures that break a claim."""


def write_page(document: Document) -> str:
    """The page as text, with styles, plotting library and data inside it."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise MissingExtra("a report needs jinja2: pip install 'hushbit[lab]'") from None
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {
        "ensure_ascii": False,
        "separators": (",", ":"),
        "allow_nan": False,
    }
    environment.filters |= {
        "kind": lambda block: type(block).__name__,
        "plotly": to_plotly,
        "repeated": repeated_heads,
        "rows": block_rows,
        "shorten": shorten_figure,
    }
    scripts = [read_resource("theme.js"), plotting_library(), read_resource("page.js")]
    page = environment.get_template("page.html.j2").render(
        document=document,
        policy=content_security_policy(scripts),
        style=Markup(read_resource("style.css")),
        scripts=[Markup(script) for script in scripts],
        max_failing=MAX_FAILING_CLAIMS,
    )
    return f"{page}\n"


def plotting_library() -> str:
    """The text of plotly.js from the installed package plotly."""
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("a report needs plotly: pip install 'hushbit[lab]'") from None
    text = str(get_plotlyjs())
    # These would end the script element; in JavaScript the backslash changes nothing.
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def block_rows(blocks: tuple[Block, ...]) -> list[tuple[Block | None, list[Plot]]]:
    """Each block with the plots that follow it: one plot is shown beside its table."""
    rows: list[tuple[Block | None, list[Plot]]] = []
    for block in blocks:
        if isinstance(block, Plot | Picture):
            rows = rows or [(None, [])]
            rows[-1][1].extend(block.plots if isinstance(block, Picture) else [block])
        else:
            rows.append((block, []))
    return rows


def repeated_heads(table: ReportTable) -> list[int]:
    """For each row, how many of its first cells equal those of the row above."""
    counts = [0]
    for above, row in pairwise(table.rows):
        equal = [one == other for one, other in zip(above, row, strict=True)][: table.heads - 1]
        counts.append(equal.index(False) if False in equal else len(equal))
    return counts


def shorten_figure(text: str) -> str:
    """The figures that decide a claim: only the failing ones where some are marked so."""
    failing = [part for part in text.split("; ") if part.endswith(FAILED)]
    text = "; ".join(part.removesuffix(FAILED) for part in failing) or text
    if len(text) <= MAX_FIGURE_LENGTH:
        return text
    return f"{text[:MAX_FIGURE_LENGTH].rsplit(' ', 1)[0]} …"


def read_resource(name: str) -> str:
    """The text of a file of this package."""
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def content_security_policy(scripts: list[str]) -> str:
    """Only the page's own scripts run, and nothing is fetched."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts]
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
