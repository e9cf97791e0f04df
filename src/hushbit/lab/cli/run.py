"""The `run` command: train a model across users with one mechanism."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from hushbit.errors import InvalidInput
from hushbit.lab.callbacks import Callback, MLflow, TensorBoard, WandB
from hushbit.lab.cli.options import (
    COMPUTATION,
    ConfigFile,
    DataFolder,
    options_from,
    output_flag,
    output_path,
    with_settings,
)
from hushbit.lab.cli.output import (
    Interrupted,
    RoundProgress,
    announce_cluster,
    err,
    need_lab,
    print_card,
    print_details,
    print_lines,
    print_simulation_note,
    print_statement,
    print_title,
    resume_hint,
    show_json,
    without_history,
)
from hushbit.lab.sim.settings import Settings, check_rotation
from hushbit.wire.files import write_text

Engine = Annotated[
    str,
    typer.Option(
        help="Where users train: local (processes on this machine) or ray.",
        rich_help_panel=COMPUTATION,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Worker processes; default: from the number of cores and users.",
        rich_help_panel=COMPUTATION,
    ),
]


@with_settings()
def run(
    named: dict[str, Any],
    config: ConfigFile = None,
    data: DataFolder = None,
    engine: Engine = "local",
    workers: Workers = None,
    out: Annotated[
        Path | None,
        output_path("Folder for configuration, metrics, checkpoint and weights."),
    ] = None,
    resume: Annotated[
        bool,
        output_flag(
            "--resume",
            "Continue the run in --out from its checkpoint; a larger --rounds extends it.",
        ),
    ] = False,
    ballots: Annotated[
        Path | None,
        output_path(
            "Folder to store every ballot in, as Parquet files. The keys then have a run "
            "identifier, so words differ from those of a run without --ballots."
        ),
    ] = None,
    note: Annotated[
        Path | None, output_path("Markdown file to write the privacy note of the run to.")
    ] = None,
    tensorboard: Annotated[
        bool, output_flag("--tensorboard", "Write TensorBoard events into --out.")
    ] = False,
    mlflow: Annotated[
        bool, output_flag("--mlflow", "Log to MLflow; MLFLOW_TRACKING_URI names the server.")
    ] = False,
    wandb: Annotated[
        bool, output_flag("--wandb", "Log to Weights & Biases; WANDB_PROJECT names the project.")
    ] = False,
    details: Annotated[bool, output_flag("--details", "Print every figure of the run.")] = False,
    json: Annotated[bool, output_flag("--json", "Print the summary as JSON.")] = False,
) -> None:
    """Train a model across users with one mechanism; report accuracy, bytes and privacy."""
    need_lab()
    if resume and out is None:
        raise InvalidInput("--resume needs --out: the folder of the run to continue")
    if tensorboard and out is None:
        raise InvalidInput("--tensorboard needs --out: the folder to write into")
    if resume and out is not None:
        if set(named) - {"rounds"} or config is not None:
            raise InvalidInput(
                "--resume takes the options of the stored run, and --rounds to extend it: leave "
                "the others out"
            )
        from hushbit.lab.sim.run import RunRecord

        settings = dataclasses.replace(RunRecord(out).settings(), **named)
    else:
        settings = Settings(**options_from(named, config))
        check_rotation(settings.mechanism, named.get("rotate"))
    # torch and Numba take seconds to load, so wrong options are refused before.
    from hushbit.lab.sim.defences import defence_warnings
    from hushbit.lab.sim.engines import open_engine
    from hushbit.lab.sim.rounds import BATCH_USERS
    from hushbit.lab.sim.run import metric_text
    from hushbit.lab.sim.run import run as run_settings
    from hushbit.lab.sim.setup import settings_of_task
    from hushbit.lab.sim.task import load_task

    if settings.task is not None:
        settings = settings_of_task(settings, load_task(settings.task))
    callbacks: list[Callback] = [MLflow()] if mlflow else []
    callbacks += [WandB()] if wandb else []
    callbacks += [TensorBoard(out / "events")] if tensorboard and out is not None else []
    for line in defence_warnings(settings):
        err.print(f"note: {line}", soft_wrap=True, highlight=False)
    jobs = math.ceil(settings.users * settings.participation / BATCH_USERS)
    announce_cluster(engine)
    try:
        with (
            open_engine(engine, workers, jobs) as opened,
            RoundProgress(settings) as progress,
        ):
            summary = run_settings(
                settings,
                out,
                resume=resume,
                data=data,
                watch=progress.watch,
                engine=opened,
                ballots=ballots,
                callbacks=callbacks,
            )
    except KeyboardInterrupt:
        raise Interrupted(resume_hint(out)) from None
    if summary["rounds"] < settings.rounds:
        text = f"note: stopped early: no higher test accuracy in {settings.patience} rounds"
        err.print(text, soft_wrap=True, highlight=False)
    if note is not None:
        write_text(note, summary.privacy_note())
    if json:
        show_json(without_history(summary))
        return
    print_title(summary)
    print_card([summary])
    others = {n: v for n, v in summary.metrics.items() if n != "accuracy"}
    texts = [f"test {name} {metric_text(name, value)}" for name, value in others.items()]
    print_lines([f"{', '.join(texts)}, time {summary['seconds']:.1f} s", ""])
    print_statement(summary)
    if details:
        print_details(summary)
        print_simulation_note()
