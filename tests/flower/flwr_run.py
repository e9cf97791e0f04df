"""`flwr run` in Flower's simulation engine, as a user types it, and the end of its processes."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from flower.deployment import descendants

BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


PR_SET_CHILD_SUBREAPER = 36  # of prctl on Linux


@contextlib.contextmanager
def flower_home() -> Iterator[dict[str, str]]:
    """The environment of a Flower installation of its own; its processes end with it.

    `flwr run` leaves a SuperLink behind. The path is short, because Ray's sockets are inside.
    """
    with tempfile.TemporaryDirectory(prefix="fl", ignore_cleanup_errors=True) as home:
        path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
        with ended_descendants():
            yield {**os.environ, **QUIET, "FLWR_HOME": home, "TMPDIR": home, "PATH": path}


@contextlib.contextmanager
def ended_descendants() -> Iterator[None]:
    """End the processes that were started inside, and no others, one by one.

    As a subreaper, this process stays the ancestor of daemons whose parents have ended.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = set(descendants(os.getpid()))
    try:
        yield
    finally:
        for process in descendants(os.getpid()):
            if process not in before:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def flwr_run(app: Path, env: dict[str, str], users: int, *arguments: str) -> str:
    """The output of `flwr run` with so many simulated users, after the run has ended.

    On a busy machine the SuperLink may need longer than `flwr` waits; a second call then finds it.
    """
    command = [BIN / "flwr", "run", app, "--stream", *arguments]
    command += ["--federation-config", f"num-supernodes={users}"]
    for _ in range(3):
        done = subprocess.run(
            [str(part) for part in command],
            env=env,
            cwd=app,
            timeout=500,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if "Failed to start local SuperLink" not in done.stdout:
            break
        time.sleep(10)
    return done.stdout
