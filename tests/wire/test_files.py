"""Files and folders are written completely or not at all."""

import errno
import os
import secrets
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hushbit.errors import DamagedFile, InvalidInput
from hushbit.wire.files import (
    LOCK,
    atomic_file,
    new_folder,
    remove_abandoned,
    sync_folder,
    write_atomic,
    write_text,
)
from hushbit.wire.keys import load_secret

FILLING = """
import sys, time
from pathlib import Path
from hushbit.wire.files import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "part").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_written_and_replaced(tmp_path):
    target = tmp_path / "note"
    write_text(target, "first")
    write_text(target, "größer")
    assert target.read_text(encoding="utf-8") == "größer"
    assert list(tmp_path.iterdir()) == [target]


def test_all_bytes_are_on_the_disk_before_the_file_is_renamed(tmp_path, monkeypatch):
    steps, sync, replace = [], os.fsync, os.replace

    def recorded_sync(handle):
        state = os.fstat(handle)
        steps.append(state.st_size if stat.S_ISREG(state.st_mode) else "folder")
        sync(handle)

    def recorded_replace(source, target):
        steps.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    write_text(tmp_path / "note", "five!")
    assert steps == [5, "replace", "folder"]
    steps.clear()
    for _ in range(2):
        place = tmp_path / "new" / "folder" / secrets.token_hex(4)
        load_secret(place)
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert steps == [32, 32]


def test_only_files_of_killed_writers_are_removed(tmp_path):
    left, other = tmp_path / ".note.1", tmp_path / ".notes.1"
    for path in (left, other):
        path.write_text("half")
    with atomic_file(tmp_path / "note") as file:
        remove_abandoned(tmp_path / "note")
        assert not left.exists()
        file.write(b"whole")
    assert (tmp_path / "note").read_bytes() == b"whole"
    assert other.exists()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, call):
    target = tmp_path / "note"
    write_text(target, "before")
    monkeypatch.setattr(os, call, full_disk)
    with pytest.raises(DamagedFile, match="No space left"):
        write_text(target, "after")
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    target = tmp_path / "note"
    write_text(target, "before")

    def half(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(target, half)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(DamagedFile, match="could not be written"):
        write_text(tmp_path / "absent" / "note", "text")


def test_a_folder_appears_complete(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "out") as folder:
        (folder / "a").write_text("x")
        assert not (tmp_path / "deep" / "out").exists()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "deep" / "out").iterdir()] == ["a"]
    with pytest.raises(InvalidInput, match="exists already"), new_folder(tmp_path / "deep" / "out"):
        pass


def test_an_error_leaves_no_folder(tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        with new_folder(target) as folder:
            (folder / "a").write_text("x")
            raise DamagedFile("no")

    with pytest.raises(DamagedFile, match="no"):
        fail(tmp_path / "out")
    with pytest.raises(DamagedFile, match="nothing was kept"), new_folder(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_of_two_writers_of_a_folder_one_succeeds(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def both() -> None:
        with new_folder(out) as late:
            (late / "late").write_text("x")
            with new_folder(out) as early:
                (early / "early").write_text("x")

    with pytest.raises(InvalidInput, match="another process"):
        both()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["early"]


def test_only_folders_of_killed_writers_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out[1]"
    command = [sys.executable, "-c", FILLING, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as filling:
        assert filling.stdout is not None
        assert filling.stdout.readline() == "ready\n"
        with pytest.raises(DamagedFile), new_folder(out):
            raise DamagedFile("no")
        (left,) = tmp_path.iterdir()
        assert (left / "part").exists()
        filling.kill()
    assert (left / LOCK).exists()
    with new_folder(out) as folder:
        (folder / "a").write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["out[1]"]
    assert [path.name for path in out.iterdir()] == ["a"]


def test_a_folder_is_closed_after_it_was_synchronized(tmp_path, monkeypatch):
    opened = []
    open_file = os.open

    def recorded(*arguments):
        opened.append(open_file(*arguments))
        return opened[-1]

    monkeypatch.setattr(os, "open", recorded)
    sync_folder(tmp_path)
    (handle,) = opened
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_a_secret_is_on_the_disk_before_it_is_used(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda handle: sizes.append(os.fstat(handle).st_size))
    secret = load_secret(tmp_path / "new" / "folder" / "secret")
    assert sizes == [len(secret)] == [32]
    assert load_secret(tmp_path / "new" / "folder" / "secret") == secret
    assert load_secret(tmp_path / "new" / "folder" / "other") != secret
