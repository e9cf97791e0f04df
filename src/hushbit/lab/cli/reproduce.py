"""hushbit reproduce"""

import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hushbit.checks import check_int
from hushbit.errors import InvalidInput
from hushbit.lab.cli.options import DataFolder
from hushbit.lab.cli.output import Interrupted, err, need_lab, show_json
from hushbit.lab.cli.output import out as console

if TYPE_CHECKING:
    from hushbit.lab.experiments.claims import Claim, Verdict
    from hushbit.lab.experiments.reproduce import Job
    from hushbit.lab.experiments.results import Result

FOLDER = Path("reproduction")
COMMITTED = Path("results")
"""The results that are listed if there is no output folder."""


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names of experiments, or mnist, cifar, scale, all; see --list."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use a third of the rounds and 2 seeds.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds: 1, 2, ...")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Number of rounds. Default: as in the paper.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results and finished cells.")] = FOLDER,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes. Default: one per core.")
    ] = None,
    data: DataFolder = None,
    show: Annotated[
        bool,
        typer.Option(
            "--list", help="List the paper's items, claims and verdicts, and all experiments; exit."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Reproduce the paper's tables and figures: published, re-created and corrected values.

    NAMES are experiments (see --list), or mnist, cifar, scale or all. `mnist` runs all experiments
    on MNIST and both theorems: half an hour on two cores. `all` runs every experiment, which takes
    hours. Finished cells are kept in --out, so the same command resumes after an interruption.
    """
    need_lab()
    from hushbit.lab.experiments import reproduce as experiments
    from hushbit.lab.experiments.experiment import ExperimentRunner

    if show:
        _list(out if out.is_dir() else COMMITTED, json)
        return
    if not names:
        raise InvalidInput("name an experiment, mnist, cifar, scale or all; --list shows them")
    chosen = experiments.select_experiments(names)
    if rounds is not None:
        check_int("rounds", rounds, 1)
    count = check_int("workers", os.cpu_count() or 1 if workers is None else workers, 1, 1024)
    options = {"quick": quick, "seeds": seeds, "rounds": rounds, "out": shlex.quote(str(out))}
    folder = None if data is None else str(data)
    jobs = []
    for one in chosen:
        own_seeds = experiments.seeds_for(one, quick, seeds)
        runner = ExperimentRunner(out, own_seeds, quick, rounds, count, folder)
        jobs.append((one, runner, experiments.command_line(one.name, options)))
    summaries = []
    try:
        for result in _run_in_turn(jobs) if count == 1 else _run_together(jobs, " ".join(names)):
            summaries.append(_summary(result, out))
            if not json:
                _print_result(result, out)
    except KeyboardInterrupt:
        command = experiments.command_line(" ".join(names), options)
        raise Interrupted(f"interrupted; finished cells are kept; resume with {command}") from None
    if json:
        show_json(summaries)


def _run_in_turn(jobs: "list[Job]") -> "Iterator[Result]":
    """One experiment after the other in this process, with one progress line each."""
    from hushbit.lab.cli.output import CellProgress
    from hushbit.lab.experiments import reproduce as experiments

    for number, (experiment, runner, command) in enumerate(jobs, 1):
        with CellProgress(f"{experiment.name} ({number} of {len(jobs)})") as progress:
            result = experiments.reproduce(
                experiment, replace(runner, watch=progress.watch), command
            )
        yield result


def _run_together(jobs: "list[Job]", label: str) -> "Iterator[Result]":
    """All experiments side by side, with one progress line in all."""
    from hushbit.lab.cli.output import TotalProgress
    from hushbit.lab.experiments.cells import CellPool
    from hushbit.lab.experiments.reproduce import planned_cells, reproduce_together

    first = jobs[0][1]
    cells = planned_cells([(experiment, runner) for experiment, runner, _ in jobs])
    with TotalProgress(label, cells) as progress:
        pool = CellPool(first.workers, first.data, progress.done)
        try:
            shared = [(one, replace(runner, pool=pool), command) for one, runner, command in jobs]
            yield from reproduce_together(shared)
        finally:
            pool.close()


def _list(folder: Path, as_json: bool) -> None:
    """Print the paper's items with the verdicts on their claims, then the experiments."""
    from hushbit.lab.experiments.claims import item_verdicts, paper_items
    from hushbit.lab.experiments.reproduce import EXPERIMENTS, cpu_hours, stored_results

    results = stored_results(folder)
    items = [(item, item_verdicts(item, results)) for item in paper_items()]
    columns = ["name", "paper", "group", "title", "CPU hours"]
    rows = [
        [one.name, one.paper, one.group, one.title, "" if hours is None else f"{hours:.2g}"]
        for one in EXPERIMENTS.values()
        for hours in [cpu_hours(one)]
    ]
    if as_json:
        experiments = [dict(zip(columns, row, strict=True)) for row in rows]
        made = [
            asdict(item) | {"claims": [_claim_json(*pair) for pair in pairs]}
            for item, pairs in items
        ]
        show_json({"results": str(folder), "items": made, "experiments": experiments})
        return
    for item, pairs in items:
        console.print(f"{item.number}: {item.title}", markup=False, highlight=False)
        if item.about:
            console.print(f"  no claim: {item.about}", markup=False, highlight=False)
        for claim, found in pairs:
            parts = [
                f"  {found.state:14}",
                f"[{claim.reading}]" if claim.reading else "",
                claim.text,
            ]
            parts += [f"-- {found.figure}"] if found.figure else []
            parts += [f"-- not run by the rule; earlier: {found.earlier}"] if found.earlier else []
            line = " ".join(part for part in parts if part)
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print("Experiments and their estimated CPU hours:", highlight=False)
    for name, source, group, title, hours in rows:
        line = f"  {name:20} {hours or '-':>6}  {group:7} {source}: {title}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"Verdicts from {folder}.", markup=False, highlight=False)


def _claim_json(claim: "Claim", found: "Verdict") -> dict[str, Any]:
    names = ("text", "reading", "experiment", "evidence")
    return {name: getattr(claim, name) for name in names} | asdict(found)


def _summary(result: "Result", out: Path) -> dict[str, Any]:
    return {
        "name": result.name,
        "quick": result.quick,
        "file": str(out / result.name / "result.json"),
        "checks": [vars(check) for check in result.checks],
        "seconds": result.seconds,
    }


def _print_result(result: "Result", out: Path) -> None:
    """A line for the experiment and one for each claim that does not hold."""
    from hushbit.lab.experiments.claims import STATES, claims_of

    name, failed = result.name, [check for check in result.checks if check.holds is False]
    claims = "no claim fails"
    if failed:
        claims = "1 claim fails" if len(failed) == 1 else f"{len(failed)} claims fail"
    states = [found.state for _, found in claims_of(result)]
    if states:
        claims = ", ".join(f"{states.count(state)} {state}" for state in STATES)
    if result.quick:
        name, claims = f"{name} (quick form)", "too short to judge its claims"
    console.print(
        f"{name}: {claims}, {result.seconds:.0f} s of CPU, {out / result.name / 'result.json'}"
    )
    for check in failed:
        console.print(f"  does not hold: {check.claim}: {check.figure}")
    err.print(f"show it with: hushbit report {out}", highlight=False)
