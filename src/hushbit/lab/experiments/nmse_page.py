"""The tables of docs/field.md, made from the result of the experiment `nmse`."""

from collections.abc import Sequence

from hushbit.lab.results import Cell, Result

BEGIN, END = "<!-- tables: made from results/nmse/result.json -->", "<!-- end of tables -->"
PROMISES = {
    "per bit": "One bit for each entry, epsilon {epsilon:g} for each bit, {users} users",
    "none": "{bits} bit(s) for each entry without privacy, {users} users",
    "whole message": "epsilon {epsilon:g} for the whole vector, {users} users",
}


def tables(result: Result) -> str:
    """Markdown: one table for each promise, schemes down, kinds of vectors across."""
    places: dict[tuple[tuple[str, str | int | float], ...], list[Cell]] = {}
    for cell in result.cells:
        place = tuple((key, value) for key, value in cell.where.items() if key != "vectors")
        places.setdefault(place, []).append(cell)
    parts = [_table(dict(place), cells) for place, cells in places.items()]
    claims = [
        f"- {'holds' if c.holds else '**fails**'}: {c.claim} ({c.figure})" for c in result.checks
    ]
    return "\n\n".join([*parts, "\n".join(claims)])


def with_tables(page: str, result: Result) -> str:
    """The page with its tables made anew between the two marks."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n\n{tables(result)}\n\n{END}{tail}"


def _table(place: dict[str, str | int | float], cells: Sequence[Cell]) -> str:
    vectors = list(dict.fromkeys(str(cell.where["vectors"]) for cell in cells))
    rows = list(dict.fromkeys((cell.scheme, cell.variant) for cell in cells))
    title = PROMISES[str(place["promise"])].format(**place)
    lines = [f"**{title}: NMSE** (in brackets: slope, where below 0.95)", ""]
    lines += [_line(["scheme", "bits", *vectors]), _line(["---"] * (2 + len(vectors)))]
    for scheme, variant in rows:
        mine = [cell for cell in cells if (cell.scheme, cell.variant) == (scheme, variant)]
        name = {"authors": f"{scheme}, as published", "exact": f"*{scheme}, stated*"}
        entries = [_entry(mine, kind, place) for kind in vectors]
        lines.append(_line([name.get(variant, scheme), _bits(mine), *entries]))
    return "\n".join(lines)


def _entry(cells: Sequence[Cell], vectors: str, place: dict[str, str | int | float]) -> str:
    found = {cell.metric: cell for cell in cells if cell.where["vectors"] == vectors}
    if "nmse" not in found:
        return ""
    text = f"{found['nmse'].mean:.3g}"
    # A slope says nothing where the noise is a hundred times the signal.
    if "slope" in found and place["promise"] != "whole message" and found["slope"].mean < 0.95:
        text += f" ({found['slope'].mean:.2f})"
    return text


def _bits(cells: Sequence[Cell]) -> str:
    spent = [cell.mean for cell in cells if cell.metric == "bits"]
    if not spent:
        return ""
    low, high = f"{min(spent):.3g}", f"{max(spent):.3g}"
    return low if low == high else f"{low} to {high}"


def _line(parts: Sequence[str]) -> str:
    return "| " + " | ".join(parts) + " |"
