"""The command line: `hushbit COMMAND --help`.

The module of a command is imported when the command is named, so that `hushbit --help` needs
neither Numba nor any package of the lab.
"""

import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hushbit.errors import HushbitError

if TYPE_CHECKING:
    import typer

WRONG_INPUT = 2
INTERRUPTED = 130


# The module that defines a command under its own name, and the help in the list.
COMMANDS = {
    "demo": ("demo", "Train 1 000 users within a privacy budget, compared with FedAvg."),
    "run": ("run", "Train a model across users with one mechanism."),
    "compare": ("compare", "Run several mechanisms on the same users and seed."),
    "export": ("export", "Write weights and metrics of a stored run for other programs."),
    "reproduce": ("reproduce", "Reproduce the tables and figures of the paper."),
    "plan": ("plan", "Predict SNR, bytes and guarantees for a privacy budget."),
    "audit": ("audit", "Attack the encoder, read a ledger, or invert updates."),
    "tally": ("tally", "Verify and count stored ballots."),
    "bench": ("bench", "Measure votes per second, compared with NumPy and torch."),
    "report": ("report", "Write results and runs as one offline HTML page."),
    "data": ("data", "List, fetch and verify data sets."),
}


def main(arguments: list[str] | None = None) -> None:
    """Run a command; errors take one line and exit code 2, or a traceback with --debug."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        app = build_app()
        from hushbit.lab.cli.output import Interrupted
    except ImportError as error:
        _print_error(f"the command line needs {error.name}: pip install 'hushbit[cli]'")
        sys.exit(WRONG_INPUT)
    try:
        sys.exit(_run(app, words or ["--help"]))
    except (Interrupted, KeyboardInterrupt) as error:
        _print_error(str(error) or "interrupted")
        sys.exit(INTERRUPTED)
    except (HushbitError, MemoryError, ModuleNotFoundError) as error:
        if debug:
            traceback.print_exc()
        _print_error(_message(error))
        sys.exit(WRONG_INPUT)


def build_app() -> "typer.Typer":
    """Return the application; a command is imported when it is named."""
    import typer
    from typer.core import TyperGroup

    class CommandGroup(TyperGroup):
        """Lists all commands and imports the one that runs."""

        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
            name, command, rest = super().resolve_command(ctx, args)
            return name, load_command(name) if name in COMMANDS else command, rest

    def print_version(asked: bool) -> None:
        if asked:
            from hushbit import __version__

            print(f"hushbit {__version__}")
            raise typer.Exit

    app = typer.Typer(
        name="hushbit",
        cls=CommandGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def main_options(
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
        version: bool = typer.Option(
            False,
            "--version",
            callback=print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ) -> None:
        """Private federated learning with one bit per weight."""

    def listed() -> None:
        """An entry of the list of commands, which is never called."""

    for name, (_, text) in COMMANDS.items():
        app.command(name, help=text)(listed)
    return app


def load_command(name: str) -> Any:
    """Import the module of a command and return the command for click."""
    import typer

    module, _ = COMMANDS[name]
    command = getattr(import_module(f"hushbit.lab.cli.{module}"), name)
    if not isinstance(command, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command(name)(command)
        command = app
    return typer.main.get_command(command)


def _run(app: "typer.Typer", words: list[str]) -> int:
    """Return the exit code of a command; a wrong option takes one line, as other errors do."""
    try:
        code: int | None = app(words, prog_name="hushbit", standalone_mode=False)
    except Exception as error:
        # Typer may contain its own copy of click, so usage errors are recognised by this method.
        if not hasattr(error, "format_message"):
            raise
        if message := error.format_message():  # empty where the help was printed instead
            _print_error(f"{message.rstrip('.')}; see --help")
        return WRONG_INPUT
    if code == INTERRUPTED:
        _print_error("interrupted")
    return code or 0


def _message(error: Exception) -> str:
    if isinstance(error, HushbitError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"out of memory: {error}; reduce the size of the run"
    return f"this command needs {error.name}: pip install 'hushbit[lab]'"  # type: ignore[attr-defined]


def _print_error(text: str) -> None:
    """Print one line on standard error, whatever the text."""
    print("hushbit: " + " ".join(text.split()), file=sys.stderr)
