"""The commands, one file each."""

import typer

from hushbit.cli.bench import bench

app = typer.Typer(
    name="hushbit",
    help="Federated learning made private with a few bits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def common(
    debug: bool = typer.Option(False, "--debug", help="Show a traceback instead of one line."),
) -> None:
    """Federated learning made private with a few bits."""


app.command()(bench)
