"""The `demo` command: one privacy budget, with CPA, the Gaussian mechanism and FedAvg."""

from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from hushbit.errors import HushbitError
from hushbit.lab.cli.compare import (
    draw_plot,
    print_results,
    run_all,
    show_summaries,
)
from hushbit.lab.cli.output import DownloadProgress, err, need_lab, print_lines

FOLDER, REPORT = "demo", "report.html"
BUDGET = {"epsilon": 4.0, "delta": 1e-5, "per": "run", "against": "model"}
TRAINING = {"users": 1000, "rounds": 60, "rate": 1.0, "evaluate_every": 4, "seed": 1}
MNIST = {"dataset": "mnist", "samples_per_user": 60}
DIGITS = {"dataset": "digits", "samples_per_user": 1}


def demo(
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for runs, plot and report; default: demo, demo-2, ..."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON.")] = False,
) -> None:
    """Train across 1 000 users within a privacy budget, compared with training without privacy."""
    need_lab()
    chosen = _free_folder() if out is None else out
    named = {**_data(), **TRAINING, **BUDGET}
    results = run_all(["fedavg", "gaussian", "cpa"], named, None, None, chosen)
    draw_plot(results, chosen)
    with err.status("writing the report"):
        from hushbit.lab.report import write_report

        report = write_report([chosen], chosen / REPORT, "Demo").html
    if json:
        show_summaries(results)
        return
    print_results(results)
    print_lines([f"report: {report}"])


def _free_folder() -> Path:
    """The first folder of demo, demo-2, ... that does not exist."""
    names = (FOLDER if number == 1 else f"{FOLDER}-{number}" for number in count(1))
    return next(path for path in map(Path, names) if not path.exists())


def _data() -> dict[str, Any]:
    """The options for MNIST if it is present or can be fetched, else for the embedded digits."""
    from hushbit.lab.sim.datasets import fetch_dataset

    try:
        with DownloadProgress("fetching MNIST") as progress:
            fetch_dataset("mnist", progress=progress)
    except HushbitError:
        err.print("MNIST is not available: using the embedded digits instead.")
        return DIGITS
    return MNIST
