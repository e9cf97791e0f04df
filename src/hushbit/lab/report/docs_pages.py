"""The pages of the documentation that are made from results/.

`write_docs` rewrites docs/reproduction.md with its figures, the tables of other pages and the
picture of the README.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

import numpy as np

import hushbit as hb
from hushbit.baselines import FedAvg
from hushbit.errors import InvalidInput
from hushbit.lab.experiments import central
from hushbit.lab.experiments.claims import (
    REFUTED,
    STATES,
    Claim,
    PaperItem,
    Verdict,
    follows_rule,
    item_verdicts,
    paper_items,
)
from hushbit.lab.experiments.results import Cell, Result
from hushbit.lab.report import document as doc
from hushbit.lab.report.document import (
    Block,
    Document,
    Line,
    Link,
    Part,
    ReportTable,
    Section,
    Text,
    Value,
)
from hushbit.lab.report.markdown import write_blocks, write_markdown
from hushbit.lab.report.plots import line_plot, result_plots, to_svg
from hushbit.lab.report.sources import read_sources
from hushbit.lab.report.tables import unique
from hushbit.wire.files import write_atomic, write_text

PAGE = "reproduction.md"
PAGES_WITH_TABLES = {
    "nmse": "field.md",
    "nmse-central": "field.md",
    "central": "private-training.md",
}
"""Experiments whose tables stand in another page, between two marks (`table_marks`)."""

INTRODUCTION = (
    Text(
        "Every table, figure and statement of the paper has claims that were fixed before the runs "
        "that decide them. A published cell is reproduced if the authors' estimator gives its "
        "accuracy within 3 points, or its SNR or error within 1 dB; a second claim is that the "
        "corrected estimator is at least as good. Rankings and trends that the paper states in "
        "words are claims too. Every scheme has one rate and one radius (or sign step) for a whole "
        "table, found on seeds from 101 on; results have other seeds, from 201 on (MNIST 10, "
        "CIFAR-10 3). A cell without such a result is not run. Results in results/ that are older "
        "than this rule were fitted cell by cell: they confirm nothing, and the list shows them as "
        "information."
    ),
    doc.Command(
        "hushbit reproduce --list                    # every claim with its verdict and figures\n"
        "hushbit reproduce mnist --out results       # finished cells are kept\n"
        "hushbit report results --out report.html    # all tables and plots\n"
        "hushbit report results --docs docs          # this page"
    ),
)
UNSAID = (
    "What a user holds in Tables II and III. FedAvg's published row hardly depends on the number "
    "of users, which 5 samples a user cannot give; dividing the training set among the users can. "
    "Both readings have claims.",
    "The learning rate of every table and figure. The published code has 1, its earlier revision "
    "has 0.1.",
    "The number of rounds of the MLP and of the CIFAR-10 models, and whether the last or the best "
    "model is tested.",
    "JoPEQ and MVU: their radius, and all code. Fig. 7 and Fig. 10 have no numbers.",
    "Seeds and intervals: the published figures come from one seed.",
)
TUNED_ON_REPORTED_SEEDS = Text(
    "Results beyond the paper. The defaults of AutoCPA were developed on seeds that accuracy and "
    "accuracy-cifar report, so these results are not independent confirmations."
)
REPOSITORY = "../"


def write_docs(places: Sequence[Path], folder: Path) -> list[Path]:
    """Write the pages and figures into the folder; return the files that were written.

    Nothing is written unless every result and every page with tables can be read.
    """
    results = read_sources(list(places)).results
    if not results:
        raise InvalidInput(f"{places[0]} holds no results; run hushbit reproduce first")
    document = reproduction_document(results)
    pages = {folder / PAGE: write_markdown(document)}
    for page in unique(PAGES_WITH_TABLES.values()):
        own = [result for result in results if PAGES_WITH_TABLES.get(result.name) == page]
        if own:
            pages[folder / page] = _page_with_tables(folder / page, own)
    blocks = [block for s in document.sections for part in s.parts for block in part.blocks]
    blocks += [readme_picture(result) for result in results if result.name == "central"]
    pictures = {
        folder / block.file: to_svg(block.title, block.plots, block.same_scale)
        for block in blocks
        if isinstance(block, doc.Picture)
    }
    for path, picture in pictures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda file, data=picture: file.write(data))  # type: ignore[misc]
    for path, text in pages.items():
        write_text(path, text)
    return [*pictures, *pages]


README_SAMPLES = 60
STYLES = {  # colour, dash and symbol of each line in the picture of the README
    central.CPA: (0, "solid", "circle"),
    central.GAUSSIAN: (1, "dash", "square"),
    central.FEDAVG: (5, "dot", "diamond-open"),
}


def readme_picture(result: Result) -> doc.Picture:
    """Accuracy of the linear model on MNIST against epsilon and against the bytes of a message."""
    shown = [
        cell
        for cell in result.cells
        if (cell.where["data"], cell.where["model"]) == (central.MNIST, "linear")
        and cell.where["samples"] == README_SAMPLES
    ]
    accuracy, plots = "test accuracy (%)", []
    users_shown = unique(cell.where["users"] for cell in shown)
    for users in users_shown:
        lines = _readme_lines([cell for cell in shown if cell.where["users"] == users])
        x_label = "epsilon of the whole run, against the model"
        plots.append(line_plot(f"{users:,} users", x_label, accuracy, lines, log_x=True))
    few = [cell for cell in shown if cell.where["users"] == users_shown[0]]
    epsilons = [cell.x for cell in few if cell.scheme == central.CPA and cell.x is not None]
    title = f"{users_shown[0]:,} users, epsilon {min(epsilons):g} (below) to {max(epsilons):g}"
    lines = _readme_lines(few, _message_kilobytes())
    plots.append(line_plot(title, "kB that a user sends per round", accuracy, lines, log_x=True))
    return doc.Picture(
        f"MNIST, linear model, {README_SAMPLES} samples a user, {central.ROUNDS} rounds",
        "figures/private-training.svg",
        tuple(plots),
        same_scale=True,
    )


def _readme_lines(cells: Sequence[Cell], kilobytes: dict[str, float] | None = None) -> list[Line]:
    """A line for each scheme, over epsilon or, if sizes are given, over the size of a message."""
    lines = []
    for scheme, style in STYLES.items():
        own = [cell for cell in cells if cell.scheme == scheme and cell.x is not None]
        x = [kilobytes[scheme] if kilobytes else cell.x or 0.0 for cell in own]
        values = tuple(Value(cell.mean, cell.low, cell.high) for cell in own)
        lines.append(Line((scheme,), tuple(x), values, *style))
    return lines


def _message_kilobytes() -> dict[str, float]:
    """Sizes of messages of the linear model on MNIST; the Gaussian mechanism sends the update."""
    dim = 7850
    bits = hb.Rotated(hb.CPA(dim, epsilon_per_bit=0.1, radius=1.0))
    user = hb.RoundKey(bytes(32), round=0).user(0)
    one, plain = (len(m.encode(np.zeros(dim), user).to_bytes()) / 1e3 for m in (bits, FedAvg(dim)))
    return {central.CPA: one, central.GAUSSIAN: plain, central.FEDAVG: plain}


def reproduction_document(results: Sequence[Result]) -> Document:
    """The document of docs/reproduction.md."""
    by_name = {result.name: result for result in results}
    judged = [(item, item_verdicts(item, by_name)) for item in paper_items()]
    of_paper = {name for item, _ in judged for name in item.experiments}
    states = Counter(found.state for _, pairs in judged for _, found in pairs)
    headline = ", ".join(f"{states[state]} {state}" for state in STATES)
    sections = [
        Section("items", "Items of the paper", "", (Part("", (_items_table(judged),)),)),
        Section("wrong", "What the paper gets wrong", "", (Part("", (_refuted_table(judged),)),)),
        Section("unsaid", "What it leaves unsaid", "", (Part("", (doc.BulletList(UNSAID),)),)),
    ]
    for anchor, title, own, note in (
        ("figures", "Figures", [r for r in results if r.name in of_paper], EARLIER),
        (
            "beyond",
            "Beyond the paper",
            [r for r in results if r.name not in of_paper],
            TUNED_ON_REPORTED_SEEDS,
        ),
    ):
        if own:
            blocks = (note, *map(_figure, own))
            sections.append(Section(anchor, title, "", (Part("", blocks),)))
    return Document(
        "Reproduction of the paper", f"Claims: {headline}.", tuple(sections), INTRODUCTION
    )


Judged = Sequence[tuple[PaperItem, Sequence[tuple[Claim, Verdict]]]]
EARLIER = Text(
    "Figures of results that do not follow the rule yet are marked as earlier results. Published "
    "figures stand beside them."
)


def _items_table(judged: Judged) -> ReportTable:
    """A row for each item and reading."""
    rows: list[tuple[str, ...]] = []
    for item, pairs in judged:
        name = f"{item.number}: {shorten(item.title, 70, placeholder=' ...')}"
        if item.about:
            rows.append((name, "", "", "", "", f"no claim: {item.about}"))
        for reading in unique(claim.reading for claim, _ in pairs):
            own = [found for claim, found in pairs if claim.reading == reading]
            states = Counter(found.state for found in own)
            earlier = sum(bool(found.earlier) for found in own)
            note = f"{earlier} have an earlier result without the rule" if earlier else ""
            counts = tuple(str(states[state] or "") for state in STATES)
            rows.append((f"{name} ({reading})" if reading else name, *counts, note))
    return ReportTable(
        "Number of claims by verdict.", ("item", *STATES, "remark"), tuple(rows), is_text=True
    )


def _refuted_table(judged: Judged) -> ReportTable:
    """Claims that a proof, an enumeration or a counterexample refutes, with the evidence.

    A claim that was tried on several problems has one row.
    """
    rows: list[tuple[str | Link, ...]] = []
    for item, pairs in judged:
        tried: dict[str, list[tuple[Claim, Verdict]]] = {}
        for claim, found in pairs:
            text = claim.text.partition(" (")[0] if claim.experiment == "theorem2" else claim.text
            tried.setdefault(text, []).append((claim, found))
        for text, own in tried.items():
            refuted = [(claim, found) for claim, found in own if found.state == REFUTED]
            if refuted:
                claim, found = refuted[0]
                why = found.figure
                if len(own) > 1:
                    why = f"refuted in {len(refuted)} of {len(own)} problems; first: {why}"
                evidence = claim.evidence or f"results/{claim.experiment}/result.json"
                file, _, name = evidence.partition("::")
                rows.append((item.number, text, why, Link(name or file, REPOSITORY + file)))
    columns = ("item", "claim of the paper", "why it is wrong", "evidence")
    caption = "Each is refuted by enumeration, by the published figures or by a counterexample."
    return ReportTable(caption, columns, tuple(rows), is_text=True)


def _figure(result: Result) -> Block:
    if result.axes.kind == "table" and result.name in PAGES_WITH_TABLES:
        return Link(result.title, PAGES_WITH_TABLES[result.name])
    title = f"{result.title} ({result.paper}{_mark(result)})"
    plots = tuple(result_plots(result, result.axes.y[0]))
    return doc.Picture(title, f"figures/{result.name}.svg", plots)


def _mark(result: Result) -> str:
    """How a result of the paper's experiments differs from the rule."""
    if result.quick:
        return ", quick form"
    by_rule = result.name not in EXPERIMENT_NAMES or follows_rule(result)
    return "" if by_rule else ", earlier result"


EXPERIMENT_NAMES = frozenset(name for item in paper_items() for name in item.experiments)


# The NMSE tables of docs/field.md

NMSE_CAPTIONS = {
    "per bit": "One bit for each entry, epsilon {epsilon:g} for each bit, {users} users",
    "none": "{bits} bit(s) for each entry without privacy, {users} users",
    "whole message": "epsilon {epsilon:g} for the whole vector, {users} users",
}
VARIANT_NAMES = {"authors": "{}, as published", "exact": "{}, stated"}


def result_tables(result: Result) -> list[Block]:
    """The tables of a result of PAGES_WITH_TABLES, then its claims."""
    if result.name == "central":
        tables = [_accuracy_table(result)]
    elif result.name == "nmse-central":
        vectors = unique(str(cell.where["vectors"]) for cell in result.cells)
        tables = [_central_table(result, kind) for kind in vectors]
    else:  # one table for each privacy setting: schemes down, kinds of vectors across
        settings: dict[tuple[tuple[str, str | int | float], ...], list[Cell]] = {}
        for cell in result.cells:
            key = tuple((name, value) for name, value in cell.where.items() if name != "vectors")
            settings.setdefault(key, []).append(cell)
        tables = [_nmse_table(dict(key), cells) for key, cells in settings.items()]
    return [*tables, doc.ClaimVerdicts(result.checks)]


def table_marks(name: str) -> tuple[str, str]:
    """The lines of a page between which the tables of an experiment are written."""
    return (
        f"<!-- tables: made from results/{name}/result.json -->",
        f"<!-- end of tables of {name} -->",
    )


def _page_with_tables(path: Path, results: Sequence[Result]) -> str:
    """The page with new tables between the two marks of each result."""
    page = path.read_text(encoding="utf-8") if path.is_file() else ""
    for result in results:
        begin, end = table_marks(result.name)
        if page.count(begin) != 1 or page.partition(begin)[2].count(end) != 1:
            raise InvalidInput(
                f"{path} must contain the lines {begin} and {end} once each; the tables of "
                f"{result.name} are written between them"
            )
        head, _, rest = page.partition(begin)
        tail = rest.partition(end)[2]
        page = f"{head}{begin}\n\n{write_blocks(result_tables(result))}\n\n{end}{tail}"
    return page


def _accuracy_table(result: Result) -> ReportTable:
    """Places down, budgets across: both private schemes; FedAvg in the last column."""
    budgets = unique(cell.x for cell in result.cells if cell.x is not None)
    rows = []
    for place in unique(tuple(cell.where.items()) for cell in result.cells):
        found = {(c.scheme, c.x): c for c in result.cells if tuple(c.where.items()) == place}
        where = dict(place)
        pairs = (
            f"{found[central.CPA, x].mean:.1f} / {found[central.GAUSSIAN, x].mean:.1f}"
            for x in budgets
        )
        plain = found[central.FEDAVG, budgets[0]]
        name = f"{where['data']}, {where['model']}, {where['users']:,} users, {where['samples']}"
        rows.append((name, str(len(plain.seeds)), *pairs, f"{plain.mean:.1f}"))
    columns = ("data, model, users, samples a user", "seeds")
    return ReportTable(
        "Test accuracy in %: CPA / Gaussian mechanism at epsilon of the whole run against the "
        "model (delta 1e-5), and FedAvg without privacy",
        (*columns, *(f"epsilon {x:g}" for x in budgets), "FedAvg"),
        tuple(rows),
    )


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
