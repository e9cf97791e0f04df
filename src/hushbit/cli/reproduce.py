"""hushbit reproduce"""

import shlex
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

    Finished cells are kept in --out, so the same command goes on where it was interrupted.
    """
    need_lab()
    from hushbit.lab import reproduce as work

    if show:
        _list(json)
        return
    if not names:
        raise InvalidInput("name an experiment, mnist, cifar or all; --list shows them")
    chosen = work.named(names)
    if rounds is not None:
        whole("rounds", rounds, 1)
    made = []
    for number, experiment in enumerate(chosen, 1):
        label = f"{experiment.name} ({number} of {len(chosen)})"
        options = {"quick": quick, "seeds": seeds, "rounds": rounds, "out": shlex.quote(str(out))}
        line = work.command_line(experiment.name, options)
        try:
            result = _one(experiment, label, line, quick, seeds, rounds, out, workers, data)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; finished cells are kept: go on with {line}") from None
        made.append(_summary(result, out))
        if not json:
            _tell(result, out)
    if json:
        show_json(made)


def _one(
    experiment: Any, label: str, line: str, quick: bool, seeds: int | None, rounds: int | None,
    out: Path, workers: int | None, data: Path | None,
) -> Any:  # fmt: skip
    import os

    from hushbit.cli.cell_progress import CellProgress
    from hushbit.lab import reproduce as work
    from hushbit.lab.experiments import Lab

    count = whole("workers", os.cpu_count() or 1 if workers is None else workers, 1, 1024)
    numbers = work.seeds_for(experiment, quick, seeds)
    with CellProgress(label) as progress:
        lab = Lab(
            out, numbers, quick, rounds, count,
            None if data is None else str(data), progress.watch,
        )  # fmt: skip
        return work.reproduce(experiment, lab, line)


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
