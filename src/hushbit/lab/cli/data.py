"""The `data` command: list, fetch and verify data sets."""

from typing import Annotated

import typer

from hushbit.lab.cli.options import DataFolder
from hushbit.lab.cli.output import DownloadProgress, err, out, show_json, table

data = typer.Typer(
    help="List, fetch and verify data sets.", no_args_is_help=True, add_completion=False
)
Names = Annotated[
    list[str], typer.Argument(help="digits, mnist, fashion-mnist, cifar10 or cifar100.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@data.command("list")
def list_all(
    folder: DataFolder = None,
    json: Json = False,
) -> None:
    """List all data sets and verify those that are present."""
    from hushbit.lab.sim.datasets import dataset_status

    with err.status("verifying checksums"):
        rows = dataset_status(folder)
    if json:
        show_json([vars(row) for row in rows])
        return
    out.print(
        table("Data sets", ["name", "state", "where"], [list(vars(r).values()) for r in rows])
    )


@data.command()
def fetch(names: Names, folder: DataFolder = None, json: Json = False) -> None:
    """Download mnist, fashion-mnist, cifar10 or cifar100 into the data folder."""
    from hushbit.lab.sim.datasets import fetch_dataset

    rows = []
    for name in names:
        with DownloadProgress(f"fetching {name}") as progress:
            source = fetch_dataset(name, folder, progress=progress)
        rows.append({"name": name, "source": source})
        if not json:
            out.print(f"{name}: {source}")
    if json:
        show_json(rows)


@data.command()
def verify(names: Names, folder: DataFolder = None, json: Json = False) -> None:
    """Compare all files of a data set with their checksums; exit code 1 if one is bad or absent."""
    from hushbit.lab.sim.datasets import verify_dataset

    found = [verify_dataset(name, folder) for name in names]
    if json:
        show_json([vars(row) for row in found])
    for row in found if not json else ():
        out.print(f"{row.name}: {row.state} ({row.detail})")
    if any(row.state not in ("present", "embedded") for row in found):
        raise typer.Exit(1)
