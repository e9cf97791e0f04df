"""Processes that use a ledger while they are killed, limited or in a race.

Run by test_ledger_crash.py; prints one JSON object. Children are started by `os.fork` only, so that
a thousand of them are cheap.
"""

import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

from hushbit.errors import BudgetSpent, HushbitError
from hushbit.privacy.accountant import Cost
from hushbit.privacy.ledger import Ledger

COST = Cost(((0.5, 10),))


def charge_until_killed(path: str, acknowledge: int) -> None:
    ledger = Ledger.open(path)
    while True:
        ledger.charge("ann", 0, COST, mechanism="cpa")
        os.write(acknowledge, b"+")


def in_child(work: Callable[[], None]) -> int:
    """Fork a child that calls `work` and exits without cleaning up the parent's open files."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return child


def kill_many_times(path: str, kills: int, seed: int) -> dict[str, int]:
    """Kill a charging process at random moments; compare the acknowledged charges with the file.

    Each kill follows zero to three acknowledged charges and a random wait, so that kills hit every
    phase of a charge on machines of any speed.
    """
    moments = random.Random(seed)
    Ledger.open(path).set_limit("ann", epsilon=float("inf"), delta=0.0)
    acknowledged = 0
    undercounts = 0
    for _ in range(kills):
        reader, writer = os.pipe()
        child = in_child(lambda end=writer: charge_until_killed(path, end))  # type: ignore[misc]
        os.close(writer)
        for _ in range(moments.randrange(4)):
            acknowledged += len(os.read(reader, 1))
        time.sleep(moments.uniform(0.0, 0.005))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while chunk := os.read(reader, 65536):
            acknowledged += len(chunk)
        os.close(reader)
        undercounts += len(Ledger.open(path).entries("ann")) < acknowledged
    recorded = len(Ledger.open(path).entries("ann"))
    return {"acknowledged": acknowledged, "recorded": recorded, "undercounts": undercounts}


def kill_before_every_line(path: str, rows: int) -> dict[str, object]:
    """Kill a process before the k-th line of a write, for every k until the write completes.

    Counts the lines, the kills after which the row counts, and those among them that left a marker
    of fewer rows.
    """
    refused: list[str] = []
    lost = counted = beyond_marker = line = 0
    finished = False
    while not finished:
        line += 1
        ledger = Ledger.open(f"{path} {line}")
        write = partial(ledger.set_limit, "ann", epsilon=float("inf"), delta=0.0)
        if rows:
            write()
            for number in range(rows - 1):
                ledger.charge("ann", number, COST, mechanism="cpa")
            write = partial(ledger.charge, "ann", rows, COST, mechanism="cpa")
        child = in_child(lambda: kill_before_line(line, write))  # noqa: B023
        finished = not os.WIFSIGNALED(os.waitpid(child, 0)[1])
        try:
            found = len(Ledger.open(ledger.path)._file.rows())
            marker = ledger.path.with_name(f"{ledger.path.name}.mark")
            marked = int(marker.read_text().split()[0]) if marker.exists() else 0
            lost += found < rows + finished
            counted += found == rows + 1
            beyond_marker += marked < found
            ledger.set_limit("bob", epsilon=1.0, delta=0.0)
        except HushbitError as error:
            refused.append(str(error))
    return {
        "lines": line,
        "refused": refused,
        "lost": lost,
        "counted": counted,
        "beyond_marker": beyond_marker,
    }


def kill_before_line(line: int, write: Callable[[], None]) -> None:
    """Write, but end by SIGKILL before the given line of the ledger's code."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal lines
        if "ledger" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        if lines == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    write()


def write(path: str, charges: int) -> dict[str, int]:
    """Set a limit and charge, while other processes read and write."""
    ledger = Ledger.open(path)
    ledger.set_limit("ann", epsilon=float("inf"), delta=0.0)
    for number in range(charges):
        ledger.charge("ann", number, COST, mechanism="cpa")
    return {"accepted": charges}


def race(path: str, attempts: int) -> dict[str, int]:
    """Charge as often as the limit allows, while another process does the same."""
    ledger = Ledger.open(path)
    accepted = 0
    for number in range(attempts):
        try:
            ledger.charge("ann", number, COST, mechanism="cpa")
            accepted += 1
        except BudgetSpent:
            pass
    return {"accepted": accepted}


def charge_with_little_disk(path: str, room: int) -> dict[str, object]:
    """Charge until files would exceed `room` bytes, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    ledger = Ledger.open(path)
    accepted = 0
    for number in range(10_000):
        try:
            ledger.charge("ann", number, COST, mechanism="cpa")
        except HushbitError as error:
            return {"accepted": accepted, "error": type(error).__name__}
        accepted += 1
    return {"accepted": accepted, "error": "none"}


def charge_as_nobody(path: str) -> dict[str, object]:
    """Charge without permission to write, even if the tests run as root."""
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    ledger = Ledger.open(path)
    spent = ledger.spent("ann").epsilon
    try:
        ledger.charge("ann", 1, COST, mechanism="cpa")
    except HushbitError as error:
        return {"error": type(error).__name__, "spent": spent}
    return {"error": "none", "spent": spent}


def main(task: str, path: str, *numbers: str) -> None:
    """Run one task by its name."""
    tasks: dict[str, Callable[..., object]] = {
        "kill": kill_many_times,
        "lines": kill_before_every_line,
        "write": write,
        "race": race,
        "disk": charge_with_little_disk,
        "nobody": charge_as_nobody,
    }
    print(json.dumps(tasks[task](path, *(int(number) for number in numbers))))


if __name__ == "__main__":
    main(*sys.argv[1:])
