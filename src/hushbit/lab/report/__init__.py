"""Reports: one page that opens offline, the same as Markdown, and every figure as CSV."""

from dataclasses import dataclass
from pathlib import Path

from hushbit.errors import InvalidInput
from hushbit.lab.decision_card import DecisionCard
from hushbit.lab.report.csv_table import write_csv
from hushbit.lab.report.html import write_page
from hushbit.lab.report.markdown import write_markdown
from hushbit.lab.report.sections import report_document
from hushbit.lab.report.sources import read_sources
from hushbit.wire.files import write_text

TITLE = "Experiment results"


@dataclass(frozen=True)
class ReportFiles:
    """The files of a report, its main results, and the number of claims by their verdict."""

    html: Path
    markdown: Path
    csv: Path
    headline: str
    experiments: int
    runs: int
    holds: int
    fails: int
    unjudged: int


def write_report(places: list[Path], target: Path, title: str = TITLE) -> ReportFiles:
    """Read results and runs, and write TARGET.html with .md and .csv beside it.

    Nothing is written unless every source can be read; each file is replaced atomically.
    """
    target = Path(target)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InvalidInput(f"the report must be a file that ends in .html; got {target}")
    if target.is_dir():
        raise InvalidInput(f"{target} is a folder; name a file that ends in .html")
    if not title.strip():
        raise InvalidInput("the title is empty; name one, or leave out --title")
    sources = read_sources([Path(place) for place in places])
    document = report_document(sources, title)
    shown = [block for block in document.introduction if isinstance(block, DecisionCard)]
    cards = [line for card in shown for line in card.lines()]
    files = ReportFiles(
        html=target,
        markdown=target.with_suffix(".md"),
        csv=target.with_suffix(".csv"),
        headline="\n".join([*filter(None, [document.headline]), *cards]),
        experiments=len(sources.results),
        runs=len(sources.runs),
        holds=document.count(True),
        fails=document.count(False),
        unjudged=document.count(None),
    )
    texts = {
        files.html: write_page(document),
        files.markdown: write_markdown(document),
        files.csv: write_csv(sources),
    }
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{target.parent} cannot hold a report: {error}") from error
    for path, text in texts.items():
        write_text(path, text)
    return files
