"""hushbit report"""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from hushbit.lab.cli.output import err, show_json
from hushbit.lab.cli.output import out as console


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Output folders of hushbit run, compare or reproduce.")
    ],
    out: Annotated[
        Path, typer.Option(help="HTML file to write; .md and .csv are written beside it.")
    ] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    docs: Annotated[
        Path | None,
        typer.Option(
            help="Rewrite reproduction.md, its figures and the tables of field.md in this folder "
            "instead of writing a report."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the written files as JSON.")] = False,
) -> None:
    """Write the results and runs in FOLDERS as one offline HTML page, with Markdown and CSV.

    FOLDERS are output folders of hushbit run, compare or reproduce.
    """
    from hushbit.lab.report import TITLE, write_report
    from hushbit.lab.report.docs_pages import write_docs

    with err.status("writing the report"):
        if docs is not None:
            files = write_docs(folders, docs)
            answer: object = {"files": [str(path) for path in files]}
            headline = ""
        else:
            report_files = write_report(folders, out, TITLE if title is None else title)
            files = [report_files.html, report_files.markdown, report_files.csv]
            fields = dataclasses.asdict(report_files)
            answer = {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()}
            headline = report_files.headline
    if json:
        show_json(answer)
        return
    for line in filter(None, [headline, *map(str, files)]):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
