"""The ledger with killed and concurrent processes, full disks and read-only files."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hushbit.privacy.accountant import Cost
from hushbit.privacy.ledger import Ledger

WORKER = Path(__file__).with_name("ledger_worker.py")
COST = Cost(((0.5, 10),))


def start(task: str, path: Path, *numbers: int) -> "subprocess.Popen[str]":
    command = [sys.executable, str(WORKER), task, str(path), *map(str, numbers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> dict[str, Any]:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    result: dict[str, Any] = json.loads(output)
    return result


def assert_never_undercounts(path: Path, kills: int, seed: int) -> None:
    result = finish(start("kill", path, kills, seed))
    assert result["undercounts"] == 0
    assert result["acknowledged"] >= kills
    assert result["acknowledged"] <= result["recorded"] <= result["acknowledged"] + kills


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if possible, so that more charges happen between two kills."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


def test_fifty_kills_never_undercount(memory_folder: Path) -> None:
    assert_never_undercounts(memory_folder / "ledger", 50, 20)


@pytest.mark.slow
def test_a_thousand_kills_never_undercount(memory_folder: Path) -> None:
    for part in range(10):  # short ledgers, so that kills hit the writing, not only the reading
        assert_never_undercounts(memory_folder / f"ledger {part}", 100, part)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_kill_at_any_line_is_no_tampering_and_loses_no_charge(
    memory_folder: Path, rows: int
) -> None:
    """A process is killed before each line of Python that one write executes, in turn.

    With 0 rows the write is the first limit, otherwise a charge. Afterwards the ledger opens, has
    the old rows or one more, and accepts the next write.
    """
    result = finish(start("lines", memory_folder / "ledger", rows))
    assert result["refused"] == []
    assert result["lost"] == 0
    assert result["lines"] > 60  # the trace has followed the write
    assert 0 < result["beyond_marker"] < result["counted"] < result["lines"]


def test_readers_never_take_a_writer_for_tampering(memory_folder: Path) -> None:
    path = memory_folder / "ledger"
    Ledger.open(path)
    writers = [start("write", path, 100) for _ in range(2)]
    while any(writer.poll() is None for writer in writers):
        Ledger.open(path).summary()
    assert sum(finish(writer)["accepted"] for writer in writers) == 200
    assert len(Ledger.open(path).entries("ann")) == 200
    assert path.with_name("ledger.mark").read_text().startswith("202 ")  # and two limits


def test_two_writers_never_overspend(memory_folder: Path) -> None:
    path = memory_folder / "ledger"
    ledger = Ledger.open(path)
    ledger.set_limit("ann", epsilon=5.0 * 150, delta=0.0)
    writers = [start("race", path, 120) for _ in range(2)]
    accepted = [finish(writer)["accepted"] for writer in writers]
    assert sum(accepted) == 150 == len(ledger.entries("ann"))
    assert ledger.remaining("ann") == 0


def test_full_disk_refuses_the_charge(memory_folder: Path) -> None:
    path = memory_folder / "ledger"
    ledger = Ledger.open(path)
    ledger.set_limit("ann", epsilon=1e9, delta=0.0)
    result = finish(start("disk", path, path.stat().st_size + 8192))
    assert result["error"] == "DamagedFile"
    recorded = len(ledger.entries("ann"))
    assert 0 < result["accepted"] == recorded
    ledger.charge("ann", 0, COST, mechanism="cpa")
    assert len(ledger.entries("ann")) == recorded + 1


def test_read_only_file_refuses_the_charge() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        try:
            path = Path(folder) / "ledger"
            ledger = Ledger.open(path)
            ledger.set_limit("ann", epsilon=100.0, delta=0.0)
            ledger.charge("ann", 0, COST, mechanism="cpa")
            for file in (path, path.with_name("ledger.mark")):
                os.chmod(file, 0o444)
            os.chmod(folder, 0o555)
            result = finish(start("nobody", path))
        finally:
            os.chmod(folder, 0o755)
        assert result == {"error": "DamagedFile", "spent": 5.0}
        assert len(ledger.entries("ann")) == 1
