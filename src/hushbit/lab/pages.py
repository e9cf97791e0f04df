"""The page of a reproduction: Markdown with a figure for each experiment, made from result files.

write_page("results", "docs/reproduction.md")     figures go to docs/figures/NAME.svg
"""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hushbit.errors import InvalidInput
from hushbit.files import write_text, write_whole
from hushbit.lab.plots import COLOURS
from hushbit.lab.results import Cell, Result, find_results

LOOKS = {
    "published": ("o", ":"), "authors": ("s", "--"), "corrected": ("^", "-"),
    "bound": ("", "-."), "exact": ("", "-"),
}  # fmt: skip
TUNED = re.compile(r"Tuned .* \(corrected;")  # what tuning chose for one series
ELSEWHERE = {"nmse": "field.md"}  # results too wide for one table, on pages of their own
HEAD = """# Reproduction of the paper

Every table and figure, published, re-created with the published code's estimator, and corrected
at the same bits and epsilon. Made from the files in `results/` by
`hushbit.lab.pages.write_page`; `hushbit reproduce NAME` makes those files (`hushbit reproduce
mnist` all that need MNIST only, side by side, in about half an hour on two cores), and `hushbit
report results` an interactive page of them. Values are means over seeds with 95 % intervals.
"""
SHARED = """CPU minutes are those of all runs that an experiment looks at; runs that several of
them share (architectures, convergence and malicious; users and epsilon) count in each, and are
computed once."""


def write_page(results: str | Path, target: str | Path) -> list[Path]:
    """Write the page and its figures; the files that were written."""
    found, page = find_results(results), Path(target)
    if not found:
        raise InvalidInput(f"{results} holds no results; run hushbit reproduce first")
    figures = page.parent / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    written = []
    for result in found:
        if result.name in ELSEWHERE:
            continue
        picture = draw(result)
        path = figures / f"{result.name}.svg"
        write_whole(path, lambda file, data=picture: file.write(data))  # type: ignore[misc]
        written.append(path)
    write_text(page, page_text(found))
    return [*written, page]


def page_text(results: Sequence[Result]) -> str:
    """The page as Markdown."""
    parts = [HEAD, _summary(results)]
    parts += [_section(result) for result in results]
    return "\n".join(parts)


def _summary(results: Sequence[Result]) -> str:
    lines = [
        "## What holds",
        "",
        "| experiment | paper | claims that hold | form | CPU minutes |",
        "|---|---|---|---|---|",
    ]
    for one in results:
        held = sum(check.holds for check in one.checks)
        form = "quick" if one.quick else "full"
        lines.append(
            f"| [{one.name}](#{one.name}) | {one.paper} | {held} of {len(one.checks)} | {form} "
            f"| {one.seconds / 60:.1f} |"
        )
    return "\n".join([*lines, "", SHARED, ""])


def _section(one: Result) -> str:
    quick = " **Quick form: fewer rounds and seeds.**" if one.quick else ""
    lines = [f"## {one.name}", "", f"{one.title} ({one.paper}). {one.about}{quick}", ""]
    elsewhere = ELSEWHERE.get(one.name)
    lines += [] if elsewhere else [f"![{one.title}](figures/{one.name}.svg)", ""]
    lines += [f"`{one.command}`, seeds {', '.join(map(str, one.seeds))}.", ""]
    if elsewhere:
        lines += [f"Its tables are in [{elsewhere}]({elsewhere}).", ""]
    elif one.axes.kind == "table":
        lines += _table(one)
    if one.checks:
        lines += ["| claim | holds | figures |", "|---|---|---|"]
        lines += [f"| {c.claim} | {'yes' if c.holds else 'no'} | {c.figure} |" for c in one.checks]
        lines.append("")
    tuned = [choice for choice in one.choices if TUNED.match(choice)]
    lines += [f"- {choice}" for choice in one.choices if choice not in tuned]
    if one.notes or tuned:
        lines += ["", "<details><summary>Notes</summary>", ""]
        lines += [f"- {note}" for note in (*one.notes, *tuned)]
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _table(one: Result) -> list[str]:
    lines = []
    for metric in one.axes.y:
        cells = [cell for cell in one.cells if cell.metric == metric.metric]
        if not cells:
            continue
        lines += [f"{metric.label}:", "", "| scheme | place | published | re-created | corrected |"]
        lines.append("|---|---|---|---|---|")
        for scheme, place in dict.fromkeys((c.scheme, _place(c)) for c in cells):
            row = {c.variant: c for c in cells if (c.scheme, _place(c)) == (scheme, place)}
            shown = [_value(row.get(v)) for v in ("published", "authors", "corrected")]
            lines.append(f"| {scheme} | {place} | {' | '.join(shown)} |")
        lines.append("")
    return lines


def _place(cell: Cell) -> str:
    return ", ".join(f"{key} {value}" for key, value in cell.where.items())


def _value(cell: Cell | None) -> str:
    if cell is None:
        return ""
    half = (cell.high - cell.low) / 2
    return f"{cell.mean:.2f}" + (f" ± {half:.2f}" if half else "")


def draw(one: Result) -> bytes:
    """The first metric as an SVG: a panel of lines for each place, or the dots of a table."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    lines = one.axes.kind == "lines"
    cells = [cell for cell in one.cells if cell.metric == one.axes.y[0].metric]
    places = list(dict.fromkeys(_place(cell) for cell in cells)) if lines else [""]
    wide = min(3, len(places))
    high = -(-len(places) // wide)
    with rc_context({"svg.hashsalt": "hushbit", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8 if wide == 1 else 3.6 * wide, 0.8 + 3 * high), layout="tight")
        FigureCanvasSVG(figure)
        panels = figure.subplots(high, wide, squeeze=False).ravel()
        for panel in panels[len(places) :]:
            panel.remove()
        for place, panel in zip(places, panels, strict=False):
            if lines:
                _lines(one, [cell for cell in cells if _place(cell) == place], panel, place)
            else:
                _dots(cells, panel)
            panel.grid(alpha=0.3)
        panels[0].set_ylabel(one.axes.y[0].label)
        panels[0].legend(fontsize=6)
        figure.suptitle(one.title + (" (quick form)" if one.quick else ""), fontsize=10)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "hushbit"})
    return out.getvalue()


def _lines(one: Result, cells: Sequence[Cell], axes: Any, place: str) -> None:
    """A line for each scheme and variant."""
    schemes = list(dict.fromkeys(cell.scheme for cell in one.cells))
    for key in dict.fromkeys((c.scheme, c.variant) for c in cells):
        own = [c for c in cells if (c.scheme, c.variant) == key]
        mark, dash = LOOKS[key[1]]
        axes.plot(
            [c.x for c in own], [c.mean for c in own], marker=mark, ls=dash, ms=4, lw=1,
            color=COLOURS[schemes.index(key[0]) % len(COLOURS)], label=", ".join(key),
        )  # fmt: skip
    axes.set_xlabel(one.axes.x_label)
    axes.set_title(place, fontsize=7)
    if one.axes.log_x:
        axes.set_xscale("log")
    if one.axes.y[0].metric in ("distortion", "gap"):
        axes.set_yscale("log")


def _dots(cells: Sequence[Cell], axes: Any) -> None:
    """A column for each scheme and place, a mark for each variant."""
    columns = list(dict.fromkeys((c.scheme, _place(c)) for c in cells))
    for variant in dict.fromkeys(cell.variant for cell in cells):
        own = [cell for cell in cells if cell.variant == variant]
        axes.errorbar(
            [columns.index((c.scheme, _place(c))) for c in own], [c.mean for c in own],
            yerr=[[c.mean - c.low for c in own], [c.high - c.mean for c in own]],
            fmt=LOOKS[variant][0] or ".", ms=5, capsize=2, ls="", label=variant,
        )  # fmt: skip
    names = [f"{scheme}, {place}" for scheme, place in columns]
    axes.set_xticks(range(len(columns)), names, rotation=60, ha="right", fontsize=6)
