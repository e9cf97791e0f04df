"""hushbit demo"""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from hushbit.cli.compare import picture, print_table, run_all
from hushbit.cli.extras import need_lab
from hushbit.cli.output import err, out
from hushbit.errors import HushbitError

USERS, SAMPLES = 1000, 5
DIGITS = {"dataset": "digits", "samples_per_user": 1, "rounds": 40, "rate": 0.3, "radius": 0.05}
MNIST = {
    "dataset": "mnist",
    "samples_per_user": SAMPLES,
    "rounds": 60,
    "rate": 0.03,
    "radius": 0.01,
    "rotate": True,
}


def demo(
    folder: Annotated[Path | None, typer.Option(help="Where runs and plot go.")] = None,
) -> None:
    """Train across 1 000 users with one private bit per weight, beside plain averaging."""
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="hushbit-demo-"))
    chosen = _data()
    named = {
        **chosen, "users": USERS, "epsilon_per_bit": 0.5, "seed": 1,
    }  # fmt: skip
    results = run_all(["fedavg", "cpa"], named, None, None, folder)
    print_table(results)
    private = results[1]
    out.print(
        f"{USERS:,} users sent {private['bytes_up'] / results[0]['bytes_up']:.1%} of the bytes. "
        "Each bit is 0.5-private; the unit matters: see eps per message and per run."
    )
    out.print(f"plot: {picture(results, folder)}")


def _data() -> dict[str, object]:
    """MNIST where it is at hand or can be fetched; the embedded digits otherwise."""
    need_lab()
    from hushbit.fl.data import fetch_dataset

    try:
        with err.status("looking for MNIST"):
            fetch_dataset("mnist")
    except HushbitError:
        err.print("MNIST is not to be had here: the embedded digits serve instead.")
        return dict(DIGITS)
    return dict(MNIST)
