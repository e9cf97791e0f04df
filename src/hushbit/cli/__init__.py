"""The command line: `hushbit COMMAND --help`."""

import sys
import traceback
from typing import Any

from hushbit.errors import HushbitError

WRONG_INPUT = 2
INTERRUPTED = 130


class Interrupted(Exception):
    """Ctrl-C, with a word on how to go on."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command; errors take one line and exit code 2, or a traceback with --debug."""
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        from hushbit.cli.app import app
    except ImportError as error:
        _say(f"the command line needs {error.name}: pip install 'hushbit[cli]'")
        sys.exit(WRONG_INPUT)
    try:
        sys.exit(_run(app, words or ["--help"]))
    except HushbitError as error:
        if debug:
            traceback.print_exc()
        _say(str(error))
        sys.exit(WRONG_INPUT)
    except MemoryError as error:
        if debug:
            traceback.print_exc()
        _say(f"this machine's memory does not suffice: {error}; ask for less")
        sys.exit(WRONG_INPUT)
    except (Interrupted, KeyboardInterrupt) as error:
        _say(str(error) or "interrupted")
        sys.exit(INTERRUPTED)


def _run(app: Any, words: list[str]) -> int:
    """The exit code of a command; a wrong option takes one line, as other errors do."""
    try:
        code: int | None = app(words, prog_name="hushbit", standalone_mode=False)
    except Exception as error:
        # Typer may bring its own copy of click, so its usage errors are known by what they offer.
        if not hasattr(error, "format_message"):
            raise
        if message := error.format_message():  # empty where the help was shown instead
            _say(f"{message}; see --help")
        return WRONG_INPUT
    if code == INTERRUPTED:
        _say("interrupted")
    return code or 0


def _say(text: str) -> None:
    """One line on standard error, whatever the text."""
    print("hushbit: " + " ".join(text.split()), file=sys.stderr)
