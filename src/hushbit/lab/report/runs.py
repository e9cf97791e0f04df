"""Sections of the report for runs of the user: all side by side, then each alone."""

import math

from hushbit.lab.report.blocks import (
    Block,
    Command,
    Part,
    Plot,
    Section,
    Table,
    Text,
    Value,
    number,
)
from hushbit.lab.report.plots import plot_lines
from hushbit.lab.report.run_folder import RunFolder
from hushbit.lab.report.series import DASHES, SERIES, Line

CURVES = (
    ("test_accuracy", "test accuracy (%)", 100.0),
    ("snr_db", "SNR of the mean update (dB)", 1.0),
    ("training_loss", "training loss", 1.0),
    ("mse", "MSE of the mean update", 1.0),
    ("backdoor_rate", "success of the backdoor (%)", 100.0),
    ("removed_attackers", "attackers removed (%)", 100.0),
    ("removed_honest", "honest users removed (%)", 100.0),
)
ROUNDS_SHOWN = 40
"""Rows of a plot's table, evenly spread; the CSV file has every round."""


def runs_section(runs: tuple[RunFolder, ...], anchor: str) -> Section:
    """All runs in one table, and their metrics by round."""
    plots = [plot for metric, text, scale in CURVES if (plot := _curves(runs, metric, text, scale))]
    blocks: tuple[Block, ...] = (_comparison(runs), *plots)
    return Section(
        anchor, "Runs side by side", f"{len(runs)} runs", False, (Part("By round", blocks),)
    )


def run_section(run: RunFolder, anchor: str) -> Section:
    """One run: its guarantee, its traffic, its settings and how to run it again."""
    settings = run.settings
    source = f"{settings.dataset}, {settings.model}, {settings.mechanism}"
    return Section(
        anchor,
        run.name,
        source,
        False,
        (
            Part("What it promises a user, in three units", _guarantee(run)),
            Part("What it sent", (_traffic(run),)),
            Part("Run it again", (Command(run.command), Text(_made_with(run)))),
            Part("Settings", (Command(settings.to_toml().rstrip()),)),
        ),
    )


def _comparison(runs: tuple[RunFolder, ...]) -> Table:
    rows = []
    for run in runs:
        end, settings = run.summary, run.settings
        accuracy = run.last("test_accuracy")
        units = ("epsilon_per_bit", "epsilon_per_message", "epsilon_run")
        rows.append((
            run.name, settings.mechanism, f"{settings.dataset}, {settings.model}",
            f"{settings.users:,}", f"{len(run.rows):,} of {settings.rounds:,}",
            "" if accuracy is None else f"{accuracy:.2%}",
            number(end["snr_db"]) if end else "",
            _size(_total(run, "bytes_up")), *(number(end[key]) if end else "" for key in units),
            f"{end['seconds']:,.1f} s" if end else "not finished",
        ))  # fmt: skip
    columns = (
        "run", "mechanism", "data, model", "users", "rounds", "test accuracy", "SNR (dB)",
        "sent up", "epsilon per bit", "epsilon per message", "epsilon per run", "time",
    )  # fmt: skip
    caption = (
        "All runs. SNR is the median over rounds; epsilons are pure local differential privacy "
        "(each run's section has them at a delta too)."
    )
    return Table(caption, columns, tuple(rows), heads=3)


def _curves(runs: tuple[RunFolder, ...], metric: str, text: str, scale: float) -> Plot | None:
    """One metric by round, a line for each run that measured it."""
    lines = []
    for place, run in enumerate(runs):
        measured = [
            (row["round"] or 0.0, scale * value) for row in run.rows
            if (value := row.get(metric)) is not None and math.isfinite(value)
        ]  # fmt: skip
        if measured:
            x, y = zip(*measured, strict=True)
            values = tuple(Value(v, v, v) for v in y)
            # Colours repeat after a while; the dash then tells runs apart.
            dash = DASHES[place // SERIES % len(DASHES)]
            lines.append(Line((run.name,), x, values, place % SERIES, dash))
    if not lines:
        return None
    title = text[:1].upper() + text[1:]
    return plot_lines(title, "round", text, lines, _by_round(title, lines))


def _by_round(title: str, lines: list[Line]) -> Table:
    rounds = sorted({x for line in lines for x in line.x})
    step = max(1, -(-len(rounds) // ROUNDS_SHOWN))
    kept = rounds if step == 1 else sorted({*rounds[::step], rounds[-1]})
    found = [dict(zip(line.x, line.y, strict=True)) for line in lines]
    rows = tuple(
        (f"{x:,.0f}", *(number(values[x].mean) if x in values else "" for values in found))
        for x in kept
    )
    some = "" if step == 1 else f"; {len(kept)} of {len(rounds):,} rounds, all in the CSV file"
    return Table(f"{title}: the data{some}", ("round", *(line.name for line in lines)), rows)


def _guarantee(run: RunFolder) -> tuple[Block, ...]:
    end, settings = run.summary, run.settings
    note = run.environment.get("guarantee_note", "")
    more: tuple[Block, ...] = (Text(note),) if note else ()
    if not end:
        line = run.environment.get("guarantee", "The run's record does not say.")
        return (Text(f"The run is not finished. {line}"), *more)
    rounds = max(settings.rounds, len(run.rows))
    same = number(end["epsilon_per_bit"])
    rows = (
        ("per bit", same, same),
        ("per message", number(end["epsilon_per_message"]),
         number(end["epsilon_per_message_at_delta"])),
        (f"per run of {rounds:,} rounds", number(end["epsilon_run"]),
         number(end["epsilon_run_at_delta"])),
    )  # fmt: skip
    caption = "Local differential privacy of one user, against all who see ballots and keys."
    columns = ("unit", "pure epsilon", f"epsilon at delta {end['delta']:g}")
    return (Table(caption, columns, rows), *more)


def _traffic(run: RunFolder) -> Table:
    up, down = _total(run, "bytes_up"), _total(run, "bytes_down")
    ballots = sum(row.get("users") or 0.0 for row in run.rows)
    each = f"{up / ballots:,.0f} bytes" if ballots else ""
    rows = (
        ("users to server, in all", _size(up)), ("one user's ballot, on average", each),
        ("server to users, in all", _size(down)),
    )  # fmt: skip
    return Table("Bytes on the wire, counted from the bytes.", ("direction", "size"), rows)


def _made_with(run: RunFolder) -> str:
    words = [f"{k} {v}" for k, v in run.environment.items()
             if k not in ("guarantee", "guarantee_note", "fingerprint", "mechanism")]  # fmt: skip
    return f"Made with {', '.join(words)}." if words else ""


def _total(run: RunFolder, metric: str) -> float:
    return sum(row.get(metric) or 0.0 for row in run.rows)


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
