"""hushbit run"""

import math
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from hushbit.cli import Interrupted
from hushbit.cli.extras import need_lab
from hushbit.cli.output import announce_cluster, err, show_json, table
from hushbit.cli.output import out as console
from hushbit.errors import InvalidInput


def run(
    named: dict[str, Any],
    out: Annotated[
        Path | None, typer.Option(help="Run folder: configuration, metrics, checkpoints.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    config: Annotated[Path | None, typer.Option(help="Options from a TOML file.")] = None,
    data: Annotated[Path | None, typer.Option(help="Data folder; else HUSHBIT_DATA.")] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard events into --out.")
    ] = False,
    engine: Annotated[
        str, typer.Option(help="Where users are computed: local (processes here) or ray.")
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(help="Worker processes; else as many as cores and users need.")
    ] = None,
    ballots: Annotated[
        Path | None, typer.Option(help="Keep all ballots in this folder, as Parquet.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train a model across users with one mechanism, and say what it cost in bits and privacy."""
    need_lab()
    from hushbit.cli.options import settings_from
    from hushbit.cli.progress import RoundProgress
    from hushbit.engine import chosen_engine
    from hushbit.fl.votes import SPAN
    from hushbit.lab.record import Record
    from hushbit.lab.runs import run as run_settings
    from hushbit.robust.advice import advice

    if resume and out is None:
        raise InvalidInput("--resume needs --out: the folder of the run to go on with")
    if tensorboard and out is None:
        raise InvalidInput("--tensorboard needs --out: the folder to write into")
    if resume and out is not None:
        if named or config is not None:
            raise InvalidInput("--resume takes its options from the run: leave the others out")
        settings = Record(out).settings()
    else:
        settings = settings_from(named, config)
    for line in advice(settings):
        err.print(f"note: {line}", soft_wrap=True, highlight=False)
    jobs = math.ceil(settings.users * settings.participation / SPAN)
    announce_cluster(engine)
    try:
        with (
            chosen_engine(engine, workers, jobs) as place,
            RoundProgress(settings, out if tensorboard else None) as progress,
        ):
            summary = run_settings(
                settings, out, resume=resume, data=data, watch=progress.watch, engine=place,
                ballots=ballots,
            )  # fmt: skip
    except KeyboardInterrupt:
        raise Interrupted(how_to_go_on(out)) from None
    summary.pop("history")
    if json:
        show_json(summary)
        return
    rows = [[name, shown(value)] for name, value in summary.items() if value is not None]
    console.print(table("Run", ["", "value"], rows))


def how_to_go_on(folder: Path | None) -> str:
    """What to say after Ctrl-C."""
    from hushbit.lab.record import CONFIG

    if folder is None or not (folder / CONFIG).exists():
        return "interrupted; nothing was kept"
    return f"interrupted; go on with: hushbit run --resume --out {shlex.quote(str(folder))}"


def shown(value: Any) -> str:
    """A figure as a person wants to read it."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3e}"
    return f"{value:,}" if isinstance(value, int) else str(value)
