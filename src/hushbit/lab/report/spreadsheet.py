"""The figures of a report as CSV, one value a line."""

import csv
import io

from hushbit.lab.report.sources import Sources
from hushbit.lab.results import Cell, Result

COLUMNS = (
    "source", "paper", "form", "scheme", "variant", "where", "metric", "x", "mean", "low", "high",
    "seeds",
)  # fmt: skip


def write_csv(sources: Sources) -> str:
    """Every cell of every result, then every metric of every round of every run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in sources.results:
        writer.writerows(_cell_row(result, cell) for cell in result.cells)
    for run in sources.runs:
        head = [safe(run.name), "", "run", safe(run.settings.mechanism), "run", ""]
        for row in run.rows:
            for metric, value in row.items():
                if metric != "round" and value is not None:
                    writer.writerow([*head, safe(metric), row["round"], value, value, value, 1])
    return text.getvalue()


def safe(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _cell_row(result: Result, cell: Cell) -> list[str | float | int]:
    where = "; ".join(f"{name}={value}" for name, value in cell.where.items())
    return [
        safe(result.name), safe(result.paper), "quick" if result.quick else "full",
        safe(cell.scheme), cell.variant, safe(where), safe(cell.metric),
        "" if cell.x is None else cell.x, cell.mean, cell.low, cell.high, len(cell.seeds),
    ]  # fmt: skip
