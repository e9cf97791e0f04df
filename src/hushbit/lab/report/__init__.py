"""Reports: one page that opens offline, the same as Markdown, and every figure as CSV."""

from dataclasses import dataclass
from pathlib import Path

from hushbit.errors import InvalidInput
from hushbit.files import write_text
from hushbit.lab.report.document import make_document
from hushbit.lab.report.markdown import write_markdown
from hushbit.lab.report.page import write_page
from hushbit.lab.report.sources import read_sources
from hushbit.lab.report.spreadsheet import write_csv

TITLE = "What holds, and what does not"


@dataclass(frozen=True)
class Written:
    """The files of a report, and how many claims hold and fail in it."""

    html: Path
    markdown: Path
    csv: Path
    experiments: int
    runs: int
    holds: int
    fails: int


def write_report(places: list[Path], target: Path, title: str = TITLE) -> Written:
    """Read results and runs, and write TARGET.html with .md and .csv beside it, each whole.

    Nothing is written unless everything could be read.
    """
    target = Path(target)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InvalidInput(f"the report is a page: name a file that ends in .html; got {target}")
    if target.is_dir() or not title.strip():
        raise InvalidInput(f"{target} is a folder, or the title is empty: name a file and a title")
    sources = read_sources([Path(place) for place in places])
    document = make_document(sources, title)
    page, words, figures = write_page(document), write_markdown(document), write_csv(sources)
    holds = sum(verdict.holds for verdict in document.verdicts)
    written = Written(
        html=target,
        markdown=target.with_suffix(".md"),
        csv=target.with_suffix(".csv"),
        experiments=len(sources.results),
        runs=len(sources.runs),
        holds=holds,
        fails=len(document.verdicts) - holds,
    )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{target.parent} cannot hold a report: {error}") from error
    write_text(written.html, page)
    write_text(written.markdown, words)
    write_text(written.csv, figures)
    return written
