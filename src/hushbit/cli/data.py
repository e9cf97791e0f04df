"""hushbit data"""

from pathlib import Path
from typing import Annotated

import typer

from hushbit.cli.output import err, out, show_json, table

data = typer.Typer(help="List, fetch and verify data sets.", no_args_is_help=True)
Folder = Annotated[Path | None, typer.Option(help="Data folder; else HUSHBIT_DATA.")]
Names = Annotated[list[str], typer.Argument(help="mnist, fashion-mnist, cifar10, cifar100.")]


@data.command("list")
def list_all(
    folder: Folder = None,
    json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """What is there, verified."""
    from hushbit.fl.data import status

    with err.status("verifying checksums"):
        rows = status(folder)
    if json:
        show_json([vars(row) for row in rows])
        return
    out.print(
        table("Data sets", ["name", "state", "where"], [list(vars(r).values()) for r in rows])
    )


@data.command()
def fetch(names: Names, folder: Folder = None) -> None:
    """Bring data sets into the data folder."""
    from hushbit.fl.data import fetch_dataset

    for name in names:
        with err.status(f"fetching {name}"):
            source = fetch_dataset(name, folder)
        out.print(f"{name}: {source}")


@data.command()
def verify(names: Names, folder: Folder = None) -> None:
    """Compare every file with its checksum; exit code 1 if one is absent or damaged."""
    from hushbit.fl.data import verify as check

    found = [check(name, folder) for name in names]
    for row in found:
        out.print(f"{row.name}: {row.state} ({row.detail})")
    if any(row.state not in ("present", "embedded") for row in found):
        raise typer.Exit(1)
