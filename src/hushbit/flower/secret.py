"""The server's secret, in a file beside the app that loads it."""

import sys
from pathlib import Path

from hushbit.wire import keys


def load_secret(path: str | Path) -> bytes:
    """Read the secret from a file; a missing file is created with 32 random bytes.

    A relative path is relative to the folder of the module that calls this function: the working
    directory of a ServerApp is where somebody started the SuperLink. Flower installs every version
    of an app in a folder of its own, so use an absolute path for runs that are to be resumed after
    the app was changed.
    """
    caller = sys._getframe(1).f_globals.get("__file__")
    return keys.load_secret(Path(path) if caller is None else Path(caller).parent / path)
