"""The claims that the tables are held against, each with the figures that decide it."""

from collections.abc import Callable, Sequence

from hushbit.lab.experiments.base import Where
from hushbit.lab.results import Cell, Check

POINTS, DECIBEL, HIGHER = 3.0, 1.0, 3.0
Picked = dict[str, Cell]


def pick(cells: Sequence[Cell], variant: str, metric: str, where: Where) -> Picked:
    """The cells of a variant and metric at a place, by scheme."""
    return {
        cell.scheme: cell for cell in cells
        if cell.variant == variant and cell.metric == metric and cell.where == where
    }  # fmt: skip


def within_points(cells: Sequence[Cell], where: Where) -> Check:
    """Re-created accuracy lies within 3 points of the published one, scheme by scheme."""
    return _compared(
        cells, where, "accuracy", "published", "authors",
        f"re-created accuracy within {POINTS:g} points of the published, {place(where)}",
        lambda wanted, got: abs(got.mean - wanted.mean) <= POINTS,
        lambda scheme: _tried(cells, scheme, where),
    )  # fmt: skip


def _tried(cells: Sequence[Cell], scheme: str, where: Where) -> str:
    """Between which accuracies the values tried for an unknown setting lie; empty if none were."""
    found = [
        cell.mean for cell in cells
        if (cell.scheme, cell.variant, cell.metric) == (scheme, "authors", "accuracy_tried")
        and where.items() <= cell.where.items()
    ]  # fmt: skip
    if not found:
        return ""
    return f", by the unknown setting {min(found):.1f} to {max(found):.1f}"


def within_decibel(cells: Sequence[Cell], where: Where, schemes: Sequence[str]) -> Check:
    """Re-created SNR of some schemes lies within 1 dB of the published one, as published."""
    return _compared(
        [cell for cell in cells if cell.scheme in schemes], where, "snr_authors_db", "published",
        "authors",
        f"re-created SNR of {' and '.join(schemes)} within {DECIBEL:g} dB of the published "
        f"(20 log10), {place(where)}",
        lambda wanted, got: abs(got.mean - wanted.mean) <= DECIBEL,
    )  # fmt: skip


def inside_interval(cells: Sequence[Cell], where: Where, schemes: Sequence[str]) -> Check:
    """The published SNR, of one seed, lies in the 95 % interval of the re-created mean."""
    return _compared(
        [cell for cell in cells if cell.scheme in schemes], where, "snr_authors_db", "published",
        "authors",
        f"published SNR of {' and '.join(schemes)} inside the re-created 95 % interval, "
        f"{place(where)}",
        lambda wanted, got: got.low <= wanted.mean <= got.high,
    )  # fmt: skip


def at_least_authors(cells: Sequence[Cell], where: Where) -> Check:
    """Corrected accuracy is at least that of the re-created one."""
    return _compared(
        cells, where, "accuracy", "authors", "corrected",
        f"corrected accuracy at least the re-created one, {place(where)}",
        lambda old, new: new.mean >= old.mean,
    )  # fmt: skip


def higher_snr(cells: Sequence[Cell], where: Where) -> Check:
    """The corrected best guess of every CPA scheme has an SNR at least 3 dB higher.

    The figures also tell the SNR of the update that training goes by.
    """
    old = pick(cells, "authors", "snr_db", where)
    step, best = (pick(cells, "corrected", name, where) for name in ("snr_db", "snr_wiener_db"))
    shared = [scheme for scheme in old if "CPA" in scheme and scheme in best]
    lines, fine = [], bool(shared)
    for scheme in shared:
        higher = best[scheme].mean >= old[scheme].mean + HIGHER
        fine = fine and higher
        lines.append(
            f"{scheme} {best[scheme].mean:.2f} (as trained on {step[scheme].mean:.2f}) against "
            f"{old[scheme].mean:.2f}" + ("" if higher else " (no)")
        )
    return Check(
        f"corrected SNR of CPA, best guess, at least {HIGHER:g} dB higher (10 log10), "
        f"{place(where)}",
        fine, "; ".join(lines) or "nothing to compare",
    )  # fmt: skip


def place(where: Where) -> str:
    """Where, in words."""
    return ", ".join(f"{key} = {value}" for key, value in where.items())


def _compared(
    cells: Sequence[Cell], where: Where, metric: str, first: str, second: str, claim: str,
    holds: Callable[[Cell, Cell], bool], told: Callable[[str], str] = lambda scheme: "",
) -> Check:  # fmt: skip
    before, after = pick(cells, first, metric, where), pick(cells, second, metric, where)
    shared = [scheme for scheme in before if scheme in after]
    figures = [
        f"{scheme} {after[scheme].mean:.2f} against {before[scheme].mean:.2f}"
        + ("" if holds(before[scheme], after[scheme]) else f"{told(scheme)} (no)")
        for scheme in shared
    ]
    fine = bool(shared) and all(holds(before[scheme], after[scheme]) for scheme in shared)
    return Check(claim, fine, "; ".join(figures) or "nothing to compare")
