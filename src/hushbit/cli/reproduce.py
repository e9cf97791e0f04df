"""hushbit reproduce"""

import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hushbit.checks import whole
from hushbit.cli import Interrupted
from hushbit.cli.extras import need_lab
from hushbit.cli.output import err, show_json, table
from hushbit.cli.output import out as console
from hushbit.errors import InvalidInput

FOLDER = Path("reproduction")
Jobs = list[tuple[Any, Any, str]]  # experiment, laboratory, command


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments, or mnist, cifar, all; see --list.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A third of the rounds, 2 seeds.")] = False,
    seeds: Annotated[int | None, typer.Option(help="How many seeds: 1, 2, ...")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds instead of the paper's.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for results and kept cells.")] = FOLDER,
    workers: Annotated[int | None, typer.Option(help="Processes. Default: one a core.")] = None,
    data: Annotated[Path | None, typer.Option(help="Data folder; else HUSHBIT_DATA.")] = None,
    show: Annotated[bool, typer.Option("--list", help="List the experiments and stop.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Run the paper's tables and figures: published, re-created and corrected side by side.

    mnist names all experiments on MNIST and both theorems: half an hour on two cores. Finished
    cells are kept in --out, so the same command goes on where it was interrupted.
    """
    need_lab()
    from hushbit.lab import reproduce as work
    from hushbit.lab.experiments import Lab

    if show:
        _list(json)
        return
    if not names:
        raise InvalidInput("name an experiment, mnist, cifar or all; --list shows them")
    chosen = work.named(names)
    if rounds is not None:
        whole("rounds", rounds, 1)
    count = whole("workers", os.cpu_count() or 1 if workers is None else workers, 1, 1024)
    options = {"quick": quick, "seeds": seeds, "rounds": rounds, "out": shlex.quote(str(out))}
    folder = None if data is None else str(data)
    jobs = [
        (one, Lab(out, work.seeds_for(one, quick, seeds), quick, rounds, count, folder),
         work.command_line(one.name, options))
        for one in chosen
    ]  # fmt: skip
    made = []
    try:
        for result in _alone(jobs) if count == 1 else _together(jobs, " ".join(names)):
            made.append(_summary(result, out))
            if not json:
                _tell(result, out)
    except KeyboardInterrupt:
        line = work.command_line(" ".join(names), options)
        raise Interrupted(f"interrupted; finished cells are kept: go on with {line}") from None
    if json:
        show_json(made)


def _alone(jobs: Jobs) -> Iterator[Any]:
    """One experiment after the other in this process, each with its own line."""
    from hushbit.cli.cell_progress import CellProgress
    from hushbit.lab import reproduce as work

    for number, (experiment, lab, line) in enumerate(jobs, 1):
        with CellProgress(f"{experiment.name} ({number} of {len(jobs)})") as progress:
            result = work.reproduce(experiment, replace(lab, watch=progress.watch), line)
        yield result


def _together(jobs: Jobs, label: str) -> Iterator[Any]:
    """All experiments side by side, with one line for the whole."""
    from hushbit.cli.whole_progress import WholeProgress
    from hushbit.lab import reproduce as work
    from hushbit.lab.bench import Bench
    from hushbit.lab.plan import planned

    lab = jobs[0][1]
    cells = planned([(experiment, lab) for experiment, lab, _ in jobs])
    with WholeProgress(label, cells) as progress:
        bench = Bench(lab.workers, lab.data, progress.done)
        try:
            shared = [(one, replace(own, bench=bench), line) for one, own, line in jobs]
            yield from work.reproduce_together(shared)
        finally:
            bench.close()


def _list(as_json: bool) -> None:
    from hushbit.lab.experiments import EXPERIMENTS

    rows = [[one.name, one.paper, one.group, one.title] for one in EXPERIMENTS.values()]
    if as_json:
        show_json(
            [dict(zip(("name", "paper", "group", "title"), row, strict=True)) for row in rows]
        )
        return
    console.print(table("Experiments", ["name", "paper", "group", "title"], rows))


def _summary(result: Any, out: Path) -> dict[str, Any]:
    return {
        "name": result.name,
        "quick": result.quick,
        "file": str(out / result.name / "result.json"),
        "checks": [vars(check) for check in result.checks],
        "seconds": result.seconds,
    }


def _tell(result: Any, out: Path) -> None:
    """A line for the experiment and one for each claim that does not hold."""
    held = sum(check.holds for check in result.checks)
    form = " (quick form)" if result.quick else ""
    console.print(
        f"{result.name}{form}: {held} of {len(result.checks)} claims hold, "
        f"{result.seconds:.0f} s of CPU, {out / result.name / 'result.json'}"
    )
    for check in result.checks:
        if not check.holds:
            console.print(f"  does not hold: {check.claim}: {check.figure}")
    err.print(f"show it with: hushbit report {out}", highlight=False)
