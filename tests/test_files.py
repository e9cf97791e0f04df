"""Files are written whole or not at all."""

import errno
import os

import pytest

from hushbit.errors import DamagedFile
from hushbit.files import write_text, write_whole


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_writes_and_replaces(tmp_path):
    target = tmp_path / "note"
    write_text(target, "first")
    write_text(target, "zweiter Gruß")
    assert target.read_text(encoding="utf-8") == "zweiter Gruß"
    assert list(tmp_path.iterdir()) == [target]


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
        write_whole(target, half)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_folder_is_a_clear_error(tmp_path):
    with pytest.raises(DamagedFile, match="could not be written"):
        write_text(tmp_path / "absent" / "note", "text")
