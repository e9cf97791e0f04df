"""The pages of the documentation that are made from results/.

`write_docs` rewrites docs/reproduction.md with its figures and the tables of docs/field.md.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from hushbit.errors import InvalidInput
from hushbit.lab.experiments.results import Cell, Result
from hushbit.lab.report import document as doc
from hushbit.lab.report.document import Block, Document, Link, Part, ReportTable, Section, Text
from hushbit.lab.report.markdown import write_blocks, write_markdown
from hushbit.lab.report.plots import result_plots, to_svg
from hushbit.lab.report.sections import claims_headline, experiments_not_run
from hushbit.lab.report.sources import read_sources
from hushbit.lab.report.tables import QUICK_NOTE, unique
from hushbit.wire.files import write_atomic, write_text

PAGE, FIELD_PAGE = "reproduction.md", "field.md"
BEGIN, END = "<!-- tables: made from results/nmse/result.json -->", "<!-- end of tables -->"
CENTRAL = "nmse-central"
MARKS = {
    "nmse": (BEGIN, END),
    CENTRAL: (
        "<!-- tables: made from results/nmse-central/result.json -->",
        "<!-- end of tables of nmse-central -->",
    ),
}
"""Experiments whose tables are in FIELD_PAGE, and the marks between which they are written."""

TUNED = re.compile(r"Tuned .* \(corrected;")  # what tuning chose for one line of a plot
INTRODUCTION = (
    Text(
        "Every table and figure of the paper: as published, re-created with the estimator of the "
        "published code, and corrected at the same bits and epsilon. Values are means over seeds "
        "with 95 % intervals. The first command writes results/ (hours; finished cells are kept), "
        "the second makes an interactive page of it, the third rewrites this page and its figures."
    ),
    doc.Command(
        "hushbit reproduce all --out results\n"
        "hushbit report results --out report.html\n"
        "hushbit report results --docs docs"
    ),
)
SHARED_CELLS = Text(
    "CPU minutes are those of all runs that an experiment uses. Runs that several experiments "
    "share (architectures, convergence and malicious; users and epsilon) are computed once and "
    "counted in each."
)


def write_docs(places: Sequence[Path], folder: Path) -> list[Path]:
    """Write the pages and figures into the folder; return the files that were written.

    Nothing is written unless every result and the page with the NMSE tables can be read.
    """
    results = read_sources(list(places)).results
    if not results:
        raise InvalidInput(f"{places[0]} holds no results; run hushbit reproduce first")
    document = reproduction_document(results)
    pages = {folder / PAGE: write_markdown(document)}
    in_field = [result for result in results if result.name in MARKS]
    if in_field:
        pages[folder / FIELD_PAGE] = _page_with_tables(folder / FIELD_PAGE, in_field)
    pictures = {
        folder / block.file: to_svg(block.title, block.plots)
        for section in document.sections
        for part in section.parts
        for block in part.blocks
        if isinstance(block, doc.Picture)
    }
    for path, picture in pictures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda file, data=picture: file.write(data))  # type: ignore[misc]
    for path, text in pages.items():
        write_text(path, text)
    return [*pictures, *pages]


def reproduction_document(results: Sequence[Result]) -> Document:
    """The document of docs/reproduction.md."""
    sections = [_experiment_section(result) for result in results]
    overview = Section("overview", "Overview", "", (Part("", (_overview(results), SHARED_CELLS)),))
    headline = claims_headline(sections)
    return Document(
        "Reproduction of the paper",
        headline,
        (overview, *sections),
        INTRODUCTION,
        experiments_not_run(results),
    )


def _overview(results: Sequence[Result]) -> ReportTable:
    rows = tuple(
        (
            Link(one.name, f"#{one.name}"),
            one.paper,
            "too short to judge" if one.quick else f"{one.count(True)} of {len(one.checks)}",
            "quick" if one.quick else "full",
            f"{one.seconds / 60:.1f}",
        )
        for one in results
    )
    columns = ("experiment", "paper", "claims that hold", "form", "CPU minutes")
    return ReportTable("All experiments.", columns, rows, heads=2)


def _experiment_section(result: Result) -> Section:
    about = f"{result.title} ({result.paper}). {result.about}"
    blocks: list[Block] = [Text(f"{about} {QUICK_NOTE}" if result.quick else about)]
    if result.name in MARKS:
        blocks.append(Link("Tables of this experiment", FIELD_PAGE))
    else:
        title = result.title + (" (quick form)" if result.quick else "")
        plots = tuple(result_plots(result, result.axes.y[0]))
        blocks.append(doc.Picture(title, f"figures/{result.name}.svg", plots))
    blocks.append(doc.Command(result.command))
    blocks.append(Text(f"Seeds {', '.join(map(str, result.seeds))}."))
    if result.axes.kind == "table" and result.name not in MARKS:
        blocks += _tables(result)
    if result.checks:
        blocks.append(doc.ClaimVerdicts(result.checks))
    tuned = tuple(choice for choice in result.choices if TUNED.match(choice))
    choices = tuple(choice for choice in result.choices if choice not in tuned)
    blocks += [doc.BulletList(choices)] if choices else []
    notes = (*result.notes, *tuned)
    parts = [Part("", tuple(blocks))]
    parts += [Part("Notes", (doc.BulletList(notes),), folded=True)] if notes else []
    return Section(result.name, result.name, "", tuple(parts), result.quick)


def _tables(result: Result) -> list[ReportTable]:
    """One table for each metric, with the half-width of the interval after each mean."""
    tables = []
    for metric in result.axes.y:
        found: dict[tuple[str, str], dict[str, str]] = {}
        for cell in result.cells:
            if cell.metric == metric.metric:
                place = ", ".join(f"{key} {value}" for key, value in cell.where.items())
                found.setdefault((cell.scheme, place), {})[cell.variant] = _mean_and_width(cell)
        rows = tuple(
            (*key, *(row.get(v, "") for v in ("published", "authors", "corrected")))
            for key, row in found.items()
        )
        columns = ("scheme", "place", "published", "re-created", "corrected")
        if rows:
            tables.append(ReportTable(f"{metric.label}:", columns, rows, heads=2))
    return tables


def _mean_and_width(cell: Cell) -> str:
    half = (cell.high - cell.low) / 2
    return f"{cell.mean:.2f}" + (f" ± {half:.2f}" if half else "")


# The NMSE tables of docs/field.md

NMSE_CAPTIONS = {
    "per bit": "One bit for each entry, epsilon {epsilon:g} for each bit, {users} users",
    "none": "{bits} bit(s) for each entry without privacy, {users} users",
    "whole message": "epsilon {epsilon:g} for the whole vector, {users} users",
}
VARIANT_NAMES = {"authors": "{}, as published", "exact": "{}, stated"}


def nmse_blocks(result: Result) -> list[Block]:
    """One table for each privacy setting (schemes down, kinds of vectors across), then claims."""
    if result.name == CENTRAL:
        vectors = unique(str(cell.where["vectors"]) for cell in result.cells)
        return [
            *(_central_table(result, kind) for kind in vectors),
            doc.ClaimVerdicts(result.checks),
        ]
    settings: dict[tuple[tuple[str, str | int | float], ...], list[Cell]] = {}
    for cell in result.cells:
        key = tuple((name, value) for name, value in cell.where.items() if name != "vectors")
        settings.setdefault(key, []).append(cell)
    tables = [_nmse_table(dict(key), cells) for key, cells in settings.items()]
    return [*tables, doc.ClaimVerdicts(result.checks)]


def _page_with_tables(path: Path, results: Sequence[Result]) -> str:
    """The page with new tables between the two marks of each result."""
    page = path.read_text(encoding="utf-8") if path.is_file() else ""
    for result in results:
        begin, end = MARKS[result.name]
        if page.count(begin) != 1 or page.partition(begin)[2].count(end) != 1:
            raise InvalidInput(
                f"{path} must contain the lines {begin} and {end} once each; the tables of "
                f"{result.name} are written between them"
            )
        head, _, rest = page.partition(begin)
        tail = rest.partition(end)[2]
        page = f"{head}{begin}\n\n{write_blocks(nmse_blocks(result))}\n\n{end}{tail}"
    return page


def _central_table(result: Result, vectors: str) -> ReportTable:
    """Schemes down, budgets across."""
    cells = [cell for cell in result.cells if cell.where["vectors"] == vectors]
    users, budgets = cells[0].where["users"], unique(cell.where["epsilon"] for cell in cells)
    rows = []
    for scheme in unique(cell.scheme for cell in cells):
        own = [cell for cell in cells if cell.scheme == scheme]
        nmse = {cell.where["epsilon"]: cell.mean for cell in own if cell.metric == "nmse"}
        rows.append((scheme, _bits(own), *(f"{nmse[budget]:.3g}" for budget in budgets)))
    return ReportTable(
        f"{vectors}, {users} users, one round, delta 1e-5 against those who see only the sum: NMSE",
        ("scheme", "bits", *(f"epsilon {budget:g}" for budget in budgets)),
        tuple(rows),
    )


def _nmse_table(setting: dict[str, str | int | float], cells: Sequence[Cell]) -> ReportTable:
    vectors = unique(str(cell.where["vectors"]) for cell in cells)
    # The slope is meaningless where the noise is a hundred times the signal.
    with_slope = setting["promise"] != "whole message"
    rows = []
    for scheme, variant in unique((cell.scheme, cell.variant) for cell in cells):
        own = [cell for cell in cells if (cell.scheme, cell.variant) == (scheme, variant)]
        name = VARIANT_NAMES.get(variant, "{}").format(scheme)
        entries = (_nmse_entry(own, kind, with_slope) for kind in vectors)
        rows.append((name, _bits(own), *entries))
    caption = NMSE_CAPTIONS[str(setting["promise"])].format(**setting)
    return ReportTable(
        f"{caption}: NMSE (in brackets: slope, where below 0.95)",
        ("scheme", "bits", *vectors),
        tuple(rows),
    )


def _nmse_entry(cells: Sequence[Cell], vectors: str, with_slope: bool) -> str:
    found = {cell.metric: cell.mean for cell in cells if cell.where["vectors"] == vectors}
    if "nmse" not in found:
        return ""
    slope = found.get("slope", 1.0)
    return f"{found['nmse']:.3g}" + (f" ({slope:.2f})" if with_slope and slope < 0.95 else "")


def _bits(cells: Sequence[Cell]) -> str:
    sent = [cell.mean for cell in cells if cell.metric == "bits"]
    if not sent:
        return ""
    low, high = f"{min(sent):.3g}", f"{max(sent):.3g}"
    return low if low == high else f"{low} to {high}"
