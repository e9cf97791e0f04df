"""The commands, one file each."""

import typer

from hushbit.cli.audit import audit
from hushbit.cli.bench import bench
from hushbit.cli.compare import compare
from hushbit.cli.data import data
from hushbit.cli.demo import demo
from hushbit.cli.options import with_settings
from hushbit.cli.plan import plan
from hushbit.cli.report import report
from hushbit.cli.reproduce import reproduce
from hushbit.cli.run import run
from hushbit.cli.tally import tally

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


app.command()(with_settings(run))
app.command()(with_settings(compare, leave_out=("mechanism",)))
app.command()(bench)
app.command()(audit)
app.command()(plan)
app.command()(tally)
app.command()(demo)
app.command()(reproduce)
app.command()(report)
app.add_typer(data, name="data")
