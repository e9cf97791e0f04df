"""hushbit report"""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from hushbit.cli.output import err, show_json
from hushbit.cli.output import out as console


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of hushbit run, compare or reproduce.")
    ],
    out: Annotated[Path, typer.Option(help="The page; .md and .csv go beside it.")] = Path(
        "report.html"
    ),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Make one page of results and runs that opens offline, with Markdown and CSV beside it."""
    from hushbit.lab.report import TITLE, write_report

    with err.status("writing the report"):
        written = write_report(folders, out, TITLE if title is None else title)
    if json:
        show_json({k: str(v) if isinstance(v, Path) else v
                   for k, v in dataclasses.asdict(written).items()})  # fmt: skip
        return
    claims = written.holds + written.fails
    if claims:
        console.print(f"{written.holds} of {claims} claims hold")
    for path in (written.html, written.markdown, written.csv):
        console.print(str(path), markup=False, highlight=False)
