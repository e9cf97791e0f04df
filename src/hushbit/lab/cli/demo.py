"""The `demo` command: one privacy budget, with CPA, the Gaussian mechanism and FedAvg."""

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hushbit.errors import HushbitError
from hushbit.lab.cli.compare import (
    draw_plot,
    print_statements,
    print_table,
    run_all,
    show_summaries,
)
from hushbit.lab.cli.output import DownloadProgress, err, need_lab
from hushbit.lab.cli.output import out as console

if TYPE_CHECKING:
    from hushbit.lab.sim.run import RunSummary

FOLDER = "demo"
BUDGET = {"epsilon": 4.0, "delta": 1e-5, "per": "run", "against": "model"}
TRAINING = {"users": 1000, "rounds": 60, "rate": 1.0, "evaluate_every": 4, "seed": 1}
MNIST = {"dataset": "mnist", "samples_per_user": 60}
DIGITS = {"dataset": "digits", "samples_per_user": 1}


def demo(
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for the runs and the plot; default: demo, demo-2, ..."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON.")] = False,
) -> None:
    """Train across 1 000 users within a privacy budget, compared with training without privacy."""
    need_lab()
    chosen = _free_folder() if out is None else out
    named = {**_data(), **TRAINING, **BUDGET}
    results = run_all(["fedavg", "gaussian", "cpa"], named, None, None, chosen)
    plot = draw_plot(results, chosen)
    if json:
        show_summaries(results)
        return
    print_table(results)
    print_statements(results[-1:])
    console.print(conclusion(results))
    console.print(f"plot: {plot}")


def conclusion(results: "list[RunSummary]") -> str:
    """The result of the runs in one sentence."""
    fedavg, _, cpa = results
    share = fedavg["bytes_up"] / cpa["bytes_up"]
    return (
        f"With cpa, {cpa['users']:,} users trained a model that recognizes "
        f"{cpa['test_accuracy']:.1%} of the test images ({fedavg['test_accuracy']:.1%} without "
        f"privacy) and sent {share:.0f} times fewer bytes; against those who see only the models, "
        f"each user is protected with epsilon {cpa['epsilon_run_model']:.3g} for the whole run."
    )


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
