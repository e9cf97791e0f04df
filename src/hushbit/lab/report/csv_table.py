"""The figures of a report as CSV, one value per line."""

import csv
import io

from hushbit.lab.report.sources import Sources

HEADER = "source,paper,form,scheme,variant,where,metric,x,mean,low,high,seeds\n"


def write_csv(sources: Sources) -> str:
    """Every cell of every result, then every metric of every round of every run."""
    text = io.StringIO()
    text.write(HEADER)
    writer = csv.writer(text, lineterminator="\n")
    for result in sources.results:
        head = (result.name, result.paper, "quick" if result.quick else "full")
        for c in result.cells:
            where = "; ".join(f"{name}={value}" for name, value in c.where.items())
            texts = (*head, c.scheme, c.variant, where, c.metric)
            x = "" if c.x is None else c.x
            writer.writerow([*map(escape_formula, texts), x, c.mean, c.low, c.high, len(c.seeds)])
    for run in sources.runs:
        for row in run.rows:
            for metric, value in row.items():
                if metric != "round" and value is not None:
                    texts = (run.name, "", "run", run.settings.mechanism, "run", "", metric)
                    figures = (row["round"], value, value, value, 1)
                    writer.writerow([*map(escape_formula, texts), *figures])
    return text.getvalue()


def escape_formula(text: str) -> str:
    """The text with an apostrophe if a spreadsheet would read it as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
