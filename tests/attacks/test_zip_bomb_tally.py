"""Attack: a small tally file that unpacks to, or announces, far more than a tally needs."""

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

import hushbit as hb

KEY = hb.RoundKey(bytes(range(32)), 3, b"spring")
MECHANISM = hb.CPA(40, 0.5, 1.0)
LIMIT = 200_000  # bytes; a tally of this mechanism has about 500


def refused_within_the_limit(path: Path) -> None:
    tally = MECHANISM.tally(KEY)
    tracemalloc.start()
    try:
        with pytest.raises(hb.HushbitError):
            tally.load(path)
        assert tracemalloc.get_traced_memory()[1] < LIMIT
    finally:
        tracemalloc.stop()
    assert tally.count == 0


def member(entries: int) -> bytes:
    """A NumPy array of zeros as bytes."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(entries, dtype=np.int64))
    return buffer.getvalue()


def test_compressed_archives_are_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("head.npy", "users.npy", "counter stage 0.npy"):
            archive.writestr(name, member(2_000_000))
    assert path.stat().st_size < 100_000
    refused_within_the_limit(path)
    MECHANISM.tally(KEY).save(tmp_path / "t")
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes() + path.read_bytes())
    refused_within_the_limit(tmp_path / "t")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_with_a_member_twice_or_too_large_are_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "twice.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entries in (1, 2_000_000):
            archive.writestr("head.npy", member(entries))
    refused_within_the_limit(path)


@pytest.mark.parametrize("voters", [1, 2**20, 2**61, 2**64 - 1])
@pytest.mark.parametrize("size", [None, 2**30])
def test_announced_voters_are_not_allocated(tmp_path: Path, voters: int, size: int | None) -> None:
    """The file is as short as an empty tally, or sparse with a gigabyte of zeros."""
    path = tmp_path / "t"
    MECHANISM.tally(KEY).save(path)
    raw = path.read_bytes()
    path.write_bytes(raw[:48] + struct.pack("<Q", voters) + raw[56:])
    if size is not None:
        with path.open("r+b") as file:
            file.truncate(size)
    refused_within_the_limit(path)
