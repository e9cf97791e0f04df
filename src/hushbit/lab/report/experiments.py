"""A section of the report for each experiment."""

from hushbit.lab.report.blocks import (
    QUICK,
    Block,
    Command,
    Part,
    Points,
    Section,
    Table,
    Text,
    Verdict,
    Verdicts,
)
from hushbit.lab.report.plots import plots_of
from hushbit.lab.report.tables import side_by_side
from hushbit.lab.results import Result

MOST_ROWS = 100
"""Of a table that is drawn as well: one row of points each would fill several screens."""


def experiment_section(result: Result, anchor: str) -> Section:
    """What was asked, what holds, the figures side by side, the guarantee, how to run it again."""
    parts = [
        _about(result), _figures(result), _privacy(result),
        _list("Choices where the paper is silent", result.choices), _list("Notes", result.notes),
        _again(result),
    ]  # fmt: skip
    return Section(
        anchor, result.title, result.paper, result.quick, tuple(part for part in parts if part)
    )


def _about(result: Result) -> Part:
    blocks: list[Block] = [Text(result.about)] if result.about else []
    if result.quick:
        blocks.append(Text(f"This is the {QUICK}."))
    if result.checks:
        blocks.append(Verdicts(tuple(Verdict(c.claim, c.holds, c.figure) for c in result.checks)))
    else:
        blocks.append(Text("Nothing is claimed here: the figures speak for themselves."))
    return Part("What was found", tuple(blocks))


def _figures(result: Result) -> Part | None:
    blocks: list[Block] = []
    for metric in result.axes.y:
        rows = {(c.scheme, str(c.where)) for c in result.cells if c.metric == metric.metric}
        if rows:
            blocks.append(side_by_side(result, metric))
        if 0 < len(rows) <= MOST_ROWS or result.axes.kind != "table":
            blocks += plots_of(result, metric)
    return Part("Side by side", tuple(blocks)) if blocks else None


def _privacy(result: Result) -> Part | None:
    rows = tuple((p.scheme, p.per_bit, p.per_message, p.per_run) for p in result.privacy)
    if not rows:
        return None
    table = Table(
        "What each scheme promises a user, in three units. An epsilon without a unit means "
        "nothing.",
        ("scheme", "per bit", "per message", "per run"),
        rows,
        words=True,
    )
    return Part("Privacy in three units", (table,))


def _list(title: str, items: tuple[str, ...]) -> Part | None:
    return Part(title, (Points(items),)) if items else None


def _again(result: Result) -> Part:
    seeds = ", ".join(str(seed) for seed in result.seeds)
    versions = ", ".join(f"{name} {version}" for name, version in result.environment.items())
    told = [f"Seeds {seeds}." if seeds else "", f"It took {_time(result.seconds)} of CPU time."]
    told.append(f"Made with {versions}." if versions else "")
    return Part("Run it again", (Command(result.command), Text(" ".join(filter(None, told)))))


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
