"""What the comparison with the field must show."""

from collections.abc import Sequence

from hushbit.lab.experiments.base import Where
from hushbit.lab.results import Cell, Check

CLOSE = 0.15


def checks_of(cells: Sequence[Cell]) -> tuple[Check, ...]:
    """Measured errors are the stated ones; CPA corrected beats CPA as published."""
    return (
        _stated(cells),
        _better(cells, "CPA", "corrected", "CPA", "authors"),
        _better(cells, "CPA", "corrected", "Laplace", "corrected"),
        _better(cells, "CPA", "corrected", "JoPEQ", "corrected"),
    )


def _stated(cells: Sequence[Cell]) -> Check:
    """Schemes from papers show the error their theory states, where vectors are not sparse."""
    worst, figure, count = 0.0, "", 0
    for cell in cells:
        if cell.variant != "exact" or cell.where["vectors"] not in ("gaussian", "log-normal"):
            continue
        measured = _at(cells, cell.scheme, "corrected", cell.where)
        assert measured is not None
        gap = abs(measured.mean / cell.mean - 1)
        count += 1
        if gap >= worst:
            worst = gap
            figure = f"{cell.scheme}: {measured.mean:.4g} against {cell.mean:.4g}"
    return Check(
        f"schemes from papers: NMSE within {CLOSE:.0%} of the stated one (gaussian, log-normal)",
        count > 0 and worst <= CLOSE,
        f"{count} cells; largest gap {worst:.1%}: {figure}",
    )


def _better(cells: Sequence[Cell], name: str, variant: str, other: str, second: str) -> Check:
    pairs = [
        (cell, _at(cells, other, second, cell.where)) for cell in cells
        if cell.scheme == name and cell.variant == variant and cell.metric == "nmse"
        and cell.where["promise"] == "per bit"
    ]  # fmt: skip
    figures = [
        f"{mine.where['vectors']} {mine.mean:.4g} against {theirs.mean:.4g}"
        for mine, theirs in pairs if theirs is not None
    ]  # fmt: skip
    holds = all(theirs is not None and mine.mean <= theirs.mean for mine, theirs in pairs)
    return Check(
        f"{name} ({variant}) has no larger NMSE than {other} ({second}) at the same epsilon",
        bool(pairs) and holds,
        "; ".join(figures),
    )


def _at(cells: Sequence[Cell], name: str, variant: str, where: Where) -> Cell | None:
    found = [
        cell for cell in cells
        if (cell.scheme, cell.variant, cell.metric) == (name, variant, "nmse")
        and cell.where == where
    ]  # fmt: skip
    return found[0] if found else None
