"""The command line: `hushbit COMMAND --help`."""

import sys
import traceback

from hushbit.errors import HushbitError

WRONG_INPUT = 2
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run a command; errors take one line and exit code 2, or a traceback with --debug."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        from hushbit.cli.app import app
    except ImportError as error:
        print(
            f"hushbit: the command line needs {error.name}: pip install 'hushbit[cli]'",
            file=sys.stderr,
        )
        sys.exit(WRONG_INPUT)
    try:
        app(words, prog_name="hushbit")
    except HushbitError as error:
        if debug:
            traceback.print_exc()
        print(f"hushbit: {error}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    except KeyboardInterrupt:
        print("hushbit: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
