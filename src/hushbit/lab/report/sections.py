"""Sections of a report: one for each experiment, all runs side by side, then each run."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from hushbit.lab.decision_card import METRICS, DecisionCard, size_text
from hushbit.lab.experiments import CATALOGUE
from hushbit.lab.experiments.results import Result
from hushbit.lab.report import document as doc
from hushbit.lab.report.document import Block, Document, Part, ReportTable, Section, Text, number
from hushbit.lab.report.plots import card_plots, plots_by_round, result_plots
from hushbit.lab.report.sources import Row, RunReport, Sources
from hushbit.lab.report.tables import QUICK_NOTE, side_by_side

SEED_ENDING = re.compile(r"(^|[-_/ .]+)(seed|s)?[-_ ]*\d+$")
"""The end of a run's name that tells its seed, as in cpa/1 or cpa-seed-1."""
MAX_PLOTTED_ROWS = 100
"""A table with more rows has no plot: it would fill several screens."""


def report_document(sources: Sources, title: str) -> Document:
    """The document of a report; each section has an anchor of its own."""
    sections = [experiment_section(result) for result in sources.results]
    headline, introduction = claims_headline(sections), _run_results(sources.runs)
    if sources.runs and not introduction:
        headline = f"{headline} No run is finished and tested yet.".strip()
    if sources.runs:
        sections += [_comparison_section(sources.runs), *map(_run_section, sources.runs)]
    not_run = experiments_not_run(sources.results) if sources.results else ()
    return Document(title, headline, tuple(_with_anchors(sections)), introduction, not_run)


def claims_headline(experiments: Sequence[Section]) -> str:
    """The number of claims that hold, fail or are not judged; empty without experiments."""
    holds, fails, open_ = (sum(s.count(v) for s in experiments) for v in (True, False, None))
    texts = []
    if holds + fails:
        ending = "." if not fails else "; 1 does not." if fails == 1 else f"; {fails} do not."
        texts.append(f"{holds} of {holds + fails} claims hold{ending}")
    quick = sum(section.quick for section in experiments)
    if quick:
        form = "ran in the quick form, with fewer rounds and seeds"
        unjudged = f", too short to judge {open_} claims" if open_ else ""
        texts.append(f"{quick} of {len(experiments)} experiments {form}{unjudged}.")
    return " ".join(texts)


def experiments_not_run(results: Iterable[Result]) -> tuple[str, ...]:
    """The names of experiments in the catalogue that have no result."""
    present = {result.name for result in results}
    return tuple(name for name in CATALOGUE["experiments"] if name not in present)


def _run_results(runs: tuple[RunReport, ...]) -> tuple[Block, ...]:
    """For each dataset and model its decision card and plots, in which seeds are one run."""
    tasks: dict[str, list[RunReport]] = {}
    for run in runs:
        if run.finished and any(run.last(metric) is not None for metric in METRICS):
            tasks.setdefault(f"{run.settings.dataset}, {run.settings.model}", []).append(run)
    blocks: list[Block] = []
    for task, own in tasks.items():
        names = _names_of_seeds(own)
        card = DecisionCard.of([_card_summary(run, names[run.name]) for run in own])
        histories: dict[str, list[tuple[Row, ...]]] = {}
        for run in own:
            histories.setdefault(names[run.name], []).append(run.rows)
        blocks += [Text(f"{task}:")] if len(tasks) > 1 else []
        blocks += [card, *card_plots(card, histories)]
    return tuple(blocks)


def _names_of_seeds(runs: list[RunReport]) -> dict[str, str]:
    """The name of each run, without its seed if other runs differ from it by the seed only."""
    seeds: dict[str, list[RunReport]] = {}
    for run in runs:
        seeds.setdefault(replace(run.settings, seed=0).to_toml(), []).append(run)
    names: dict[str, str] = {}
    for own in seeds.values():
        first = own[0].name
        shared = first if len(own) == 1 else SEED_ENDING.sub("", first) or own[0].settings.mechanism
        shared = f"{shared} ({first})" if shared in names.values() else shared
        names |= {run.name: shared for run in own}
    return names


def _card_summary(run: RunReport, name: str) -> dict[str, Any]:
    own = {"name": name, "mechanism": run.settings.mechanism, "history": run.rows}
    own |= {"server": run.settings.server_name}
    users = {"users": run.settings.users, "rounds": run.settings.rounds}
    return {"test_loss": run.last("test_loss"), **run.summary, **own, **users}


def _with_anchors(sections: list[Section]) -> Iterable[Section]:
    """The sections with unique anchors that are safe in a URL."""
    taken = {"summary", "content", "theme"}
    for section in sections:
        base = re.sub(r"[^a-z0-9]+", "-", section.anchor.lower()).strip("-") or "section"
        anchor, count = base, 2
        while anchor in taken:
            anchor, count = f"{base}-{count}", count + 1
        taken.add(anchor)
        yield replace(section, anchor=anchor)


def experiment_section(result: Result) -> Section:
    """Claims, figures side by side, privacy, choices, notes and the command of an experiment."""
    parts = [
        _claims(result),
        _figures(result),
        _privacy(result),
        _list("Choices that the paper leaves open", result.choices),
        _list("Notes", result.notes, folded=True),
        _reproduction(result),
    ]
    present = tuple(part for part in parts if part)
    return Section(result.name, result.title, result.paper, present, result.quick)


def _claims(result: Result) -> Part:
    texts = [result.about, QUICK_NOTE if result.quick else ""]
    texts.append("" if result.checks else "This experiment makes no claims.")
    blocks: list[Block] = [Text(text) for text in texts if text]
    return Part("Claims", (*blocks, *([doc.ClaimVerdicts(result.checks)] if result.checks else [])))


def _figures(result: Result) -> Part | None:
    blocks: list[Block] = []
    for metric in result.axes.y:
        rows = {(c.scheme, str(c.where)) for c in result.cells if c.metric == metric.metric}
        if rows:
            blocks.append(side_by_side(result, metric))
        if 0 < len(rows) <= MAX_PLOTTED_ROWS or result.axes.kind != "table":
            blocks += result_plots(result, metric)
    return Part("Results", tuple(blocks)) if blocks else None


def _privacy(result: Result) -> Part | None:
    rows = tuple((p.scheme, p.per_bit, p.per_message, p.per_run) for p in result.privacy)
    columns = ("scheme", "per bit", "per message", "per run")
    caption = "The guarantee of each scheme for one user, in three units."
    table = ReportTable(caption, columns, rows, is_text=True)
    return Part("Privacy per bit, message and run", (table,)) if rows else None


def _list(title: str, items: tuple[str, ...], folded: bool = False) -> Part | None:
    return Part(title, (doc.BulletList(items),), folded) if items else None


def _reproduction(result: Result) -> Part:
    seeds = f"Seeds {', '.join(map(str, result.seeds))}. " if result.seeds else ""
    text = f"{seeds}CPU time: {_time(result.seconds)}. {_versions(result.environment)}".strip()
    return Part("How to run it again", (doc.Command(result.command), Text(text)))


def _versions(environment: dict[str, str]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment.items())
    return f"Made with {versions}." if versions else ""


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def _comparison_section(runs: tuple[RunReport, ...]) -> Section:
    """All runs in one table, and their metrics by round."""
    plots = plots_by_round({run.name: [run.rows] for run in runs})
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return Section("runs", "Runs", count, (Part("Comparison", (_comparison(runs), *plots)),))


def _run_section(run: RunReport) -> Section:
    """The guarantee, the traffic, the command and the settings of one run."""
    settings = run.settings
    source = f"{settings.dataset}, {settings.model}, {settings.mechanism}"
    hidden = ("guarantee", "guarantee_note", "fingerprint", "mechanism")
    versions = _versions({k: v for k, v in run.environment.items() if k not in hidden})
    parts = (
        Part("Privacy per bit, message and run", _guarantee(run)),
        Part("Traffic", (_traffic(run),)),
        Part("How to run it again", (doc.Command(run.command), Text(versions))),
        Part("Settings", (doc.Command(settings.to_toml().rstrip()),), folded=True),
    )
    return Section(run.name, run.name, source, parts)


def _at_end(metric: str) -> Callable[[RunReport], str]:
    return lambda run: number(run.summary[metric]) if run.finished else ""


def _accuracy(run: RunReport) -> str:
    accuracy, loss = run.last("test_accuracy"), run.last("test_loss")
    if accuracy is None and loss is not None:  # a task without classes
        return f"loss {loss:.4g}"
    return "" if accuracy is None else f"{accuracy:.2%}"


COMPARISON: dict[str, Callable[[RunReport], str]] = {
    "run": lambda run: run.name,
    "mechanism": lambda run: run.settings.mechanism,
    "data, model": lambda run: f"{run.settings.dataset}, {run.settings.model}",
    "users": lambda run: f"{run.settings.users:,}",
    "rounds": lambda run: f"{len(run.rows):,} of {run.settings.rounds:,}",
    "test accuracy": _accuracy,
    "SNR (dB)": _at_end("snr_db"),
    "sent up": lambda run: size_text(_total(run, "bytes_up")),
    "epsilon requested": lambda run: _requested(run) if run.finished else "",
    "epsilon per run, server": _at_end("epsilon_run_server"),
    "epsilon per run, model": lambda run: _against_model(run) if run.finished else "",
    "time": lambda run: f"{run.summary['seconds']:,.1f} s" if run.finished else "not finished",
}
"""The columns of the table of all runs."""


def _comparison(runs: tuple[RunReport, ...]) -> ReportTable:
    rows = tuple(tuple(text(run) for text in COMPARISON.values()) for run in runs)
    caption = (
        "All runs. SNR is the median over rounds; only a simulation has it, and a deployment must "
        "not release it. Epsilons of a run are at its delta: against the server, which sees "
        "ballots, and against those who see only the model."
    )
    return ReportTable(caption, tuple(COMPARISON), rows, heads=3)


def _guarantee(run: RunReport) -> tuple[Block, ...]:
    end = run.summary
    note = run.environment.get("guarantee_note", "")
    notes = (Text(note),) if note else ()
    if not end:
        text = run.environment.get("guarantee", "Its record has no guarantee.")
        return (Text(f"The run is not finished. {text}"), *notes)
    rounds = f"per run of {max(run.settings.rounds, len(run.rows)):,} rounds"
    units = (
        ("server", "per bit", "epsilon_bit", "epsilon_bit"),
        ("server", "per message", "pure_epsilon_message_server", "epsilon_message_server"),
        ("server", rounds, "pure_epsilon_run_server", "epsilon_run_server"),
    )
    rows = [(who, unit, number(end[pure]), number(end[at])) for who, unit, pure, at in units]
    rows.append(("model", rounds, "", _against_model(run)))
    caption = (
        f"Requested: {_requested(run)}. The server sees ballots. Others see only the model, which "
        "needs a server that releases nothing but tallies and what is computed from them"
    )
    if "honest" in end:
        caption += f", and {end['honest']:,.0f} voters in every round whose coins stay secret"
    caption += ". The run is simulated: these are the figures of the deployment that it simulates."
    columns = ("against", "unit", "pure epsilon", f"epsilon at delta {end['delta']:g}")
    return (ReportTable(caption, columns, tuple(rows), heads=2), *notes)


def _requested(run: RunReport) -> str:
    """What a finished run spends in the unit of its budget, else per bit or against the model."""
    end, budget = run.summary, run.settings.budget
    if budget is not None and "epsilon_spent" in end:
        unit = f"per {budget.per}, {budget.against}"
        return f"{number(end['epsilon_spent'])} of {number(budget.epsilon)} {unit}"
    if math.isfinite(end["epsilon_bit"]):
        return f"{number(end['epsilon_bit'])} per bit, server"
    spent = end["epsilon_run_model"]
    return "no privacy" if math.isinf(spent) else f"{number(spent)} per run, model"


def _against_model(run: RunReport) -> str:
    """Epsilon of a finished run against the model."""
    end = run.summary
    if math.isinf(end["epsilon_run_model"]) and math.isfinite(end["epsilon_run_server"]):
        return "as server"
    return number(end["epsilon_run_model"])


def _traffic(run: RunReport) -> ReportTable:
    up, ballots = _total(run, "bytes_up"), _total(run, "users")
    rows = (
        ("users to server, total", size_text(up)),
        ("one ballot, on average", f"{up / ballots:,.0f} bytes" if ballots else ""),
        ("server to users, total", size_text(_total(run, "bytes_down"))),
    )
    return ReportTable("Bytes counted on the wire.", ("direction", "size"), rows)


def _total(run: RunReport, metric: str) -> float:
    return sum(row.get(metric) or 0.0 for row in run.rows)
