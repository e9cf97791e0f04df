"""Stored ballots: every fault is found and named, and no user is counted twice."""

import dataclasses
import json
import resource
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hushbit as hb
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.store.ballot_files import (
    METADATA_KEY,
    UNFINISHED,
    ballot_writer,
    find_ballot_files,
    publish_round,
    read_run,
)
from hushbit.store.recount import all_ballots, recount
from hushbit.wire.ballot import HEADER_BYTES, wire_rows
from store.ballot_samples import CPA, KEY, encode_users, with_macs, write_ballots


def expected(users: Any) -> Any:
    tally = CPA.tally(KEY)
    tally.add_many(encode_users(users))
    return tally


def counted(folder: Path, **options: Any) -> Any:
    files, bad = find_ballot_files(folder)
    assert not bad
    return recount(files, KEY, histogram=True, **options)


def same(left: Any, right: Any) -> None:
    assert left.count == right.count
    assert (left.voters.users() == right.voters.users()).all()
    for name, counter in left.counters.items():
        assert (counter == right.counters[name]).all()


def test_a_recount_equals_the_tally_of_the_ballots(tmp_path: Path) -> None:
    write_ballots(tmp_path, CPA, (encode_users(range(n, n + 50)) for n in range(0, 300, 50)), "a")
    write_ballots(tmp_path, CPA, [encode_users(range(1000, 1010))], "b")
    found = counted(tmp_path)
    same(found.tally, expected([*range(300), *range(1000, 1010)]))
    assert not found.refused
    file = pq.ParquetFile(tmp_path / "round=3" / "a.parquet")
    assert pa.types.is_fixed_size_binary(file.schema_arrow.field("ballot").type)
    column = file.metadata.row_group(0).column(1)
    assert not column.has_dictionary_page
    assert column.compression == "UNCOMPRESSED"


def test_a_ballot_twice_in_two_files_counts_once(tmp_path: Path) -> None:
    write_ballots(tmp_path, CPA, [encode_users(range(40)), encode_users([3, 5])], "a")
    write_ballots(tmp_path, CPA, [encode_users(range(30, 60))], "b")
    write_ballots(tmp_path, CPA, [encode_users([3])], "c")
    found = counted(tmp_path)
    same(found.tally, expected(range(60)))
    assert found.refused == {"duplicate": 13}
    valid = all_ballots(find_ballot_files(tmp_path)[0], KEY)
    assert sorted(valid.users) == list(range(60))


def test_the_first_valid_ballot_of_a_user_counts(tmp_path: Path) -> None:
    """A damaged copy does not exclude a valid one; of two valid ones the first counts."""
    first, second = encode_users(range(4)), encode_users(range(4))
    second.payload[1] ^= 1  # another vote of user 1
    rows = wire_rows(with_macs(first))
    rows[2, HEADER_BYTES] ^= 1  # the checksum no longer matches
    _write_rows(tmp_path, "a", rows, first.users)
    write_ballots(tmp_path, CPA, [second], "b")
    found = counted(tmp_path)
    tally = CPA.tally(KEY)
    tally.add_many(first[:2])
    tally.add_many(first[3:])
    tally.add_many(second[2:3])
    same(found.tally, tally)
    assert found.refused == {"damaged": 1, "duplicate": 3}


def _write_rows(folder: Path, name: str, rows: Any, users: Any) -> None:
    """A file whose rows may hold any bytes."""
    path = write_ballots(folder, CPA, [encode_users([0])], name)
    schema = pq.read_schema(path)
    made = pa.array([row.tobytes() for row in rows], pa.binary(rows.shape[1]))
    pq.write_table(pa.Table.from_arrays([pa.array(users), made], schema=schema), path)


def test_files_that_hold_no_ballots_are_named(tmp_path: Path) -> None:
    good = write_ballots(tmp_path, CPA, [encode_users(range(300))], "good")
    raw = good.read_bytes()
    home = good.parent
    (home / "cut.parquet").write_bytes(raw[: len(raw) // 2])
    (home / "empty.parquet").write_bytes(b"")
    (home / "text.parquet").write_text("hello")
    (home / ".half.parquet.0123").write_bytes(raw[:100])
    pq.write_table(pa.table({"user": [1], "ballot": [b"x"]}), home / "foreign.parquet")
    mislabelled = pa.table({"user": ["x"]}).replace_schema_metadata(pq.read_schema(good).metadata)
    pq.write_table(mislabelled, home / "mislabelled.parquet")
    files, bad = find_ballot_files(tmp_path)
    assert [file.path.name for file in files] == ["good.parquet"]
    assert sorted(path.name for path in bad) == [
        "cut.parquet",
        "empty.parquet",
        "foreign.parquet",
        "mislabelled.parquet",
        "text.parquet",
    ]
    assert "foreign" in bad[home / "foreign.parquet"]


@pytest.mark.parametrize(
    "change", [{}, [], {"round": -1}, {"round": 2**64}, {"round": 7}, {"format": 9}]
)
def test_files_with_unusable_metadata_are_named(tmp_path: Path, change: Any) -> None:
    path = write_ballots(tmp_path, CPA, [encode_users([0])], "a")
    table = pq.read_table(path)
    stored = json.loads(table.schema.metadata[METADATA_KEY])
    changed = {**stored, **change} if change else change
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(changed)}), path)
    files, bad = find_ballot_files(tmp_path)
    assert not files
    assert "its metadata cannot be read" in bad[path]


def test_ballots_of_variable_length_are_a_foreign_schema(tmp_path: Path) -> None:
    path = write_ballots(tmp_path, CPA, [encode_users([0])], "a")
    table = pq.read_table(path)
    wide = pa.table({"user": table["user"], "ballot": table["ballot"].cast(pa.binary())})
    pq.write_table(wide.replace_schema_metadata(table.schema.metadata), path)
    files, bad = find_ballot_files(tmp_path)
    assert not files
    assert "a foreign schema: user uint64, ballot binary" in bad[path]


def test_a_damaged_page_is_found(tmp_path: Path) -> None:
    path = write_ballots(tmp_path, CPA, [encode_users(range(300))], "a")
    write_ballots(tmp_path, CPA, [encode_users(range(300, 320))], "b")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(DamagedFile, match="damaged"):
        counted(tmp_path)
    found = counted(tmp_path, skip_damaged=True)
    same(found.tally, expected(range(300, 320)))
    assert found.refused == {"damaged": 300}
    assert len(found.damaged) == 1


def test_files_of_two_mechanisms_are_not_counted_together(tmp_path: Path) -> None:
    other = hb.CPA(53, 0.5, 2.0, points=4)
    write_ballots(tmp_path, CPA, [encode_users([1])], "a")
    write_ballots(tmp_path, other, [encode_users([2], other)], "b")
    with pytest.raises(InvalidInput, match="--fingerprint"):
        counted(tmp_path)


def test_a_writer_refuses_ballots_of_another_mechanism_and_leaves_nothing(tmp_path: Path) -> None:
    other = hb.CPA(53, 0.5, 2.0, points=4)
    with pytest.raises(InvalidInput, match="mechanism"):
        write_ballots(tmp_path, CPA, [encode_users([1]), encode_users([2], other)], "a")
    with pytest.raises(InvalidInput), ballot_writer(tmp_path, CPA, KEY, "b") as write:
        write(with_macs(encode_users([1], other)))
    with pytest.raises(InvalidInput, match="MACs"), ballot_writer(tmp_path, CPA, KEY, "b") as write:
        write(encode_users([1]))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.fixture
def _small_files() -> Iterator[None]:
    """Files cannot grow beyond 20 000 bytes, as if the disk were full."""
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.usefixtures("_small_files")
def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    write_ballots(tmp_path, CPA, [encode_users(range(10))], "small")
    with pytest.raises(DamagedFile, match="could not be written: File too large; what"):
        write_ballots(
            tmp_path, CPA, (encode_users(range(n, n + 100)) for n in range(0, 900, 100)), "big"
        )
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert left == ["small.parquet"]
    assert counted(tmp_path).tally.count == 10


WRITING = """
import sys, time
from store.ballot_samples import CPA, KEY, encode_users, with_macs
from hushbit.store import ballot_writer
with ballot_writer(sys.argv[1], CPA, KEY, "a") as write:
    write(with_macs(encode_users(range(50))))
    print("ready", flush=True)
    time.sleep(60)
"""


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITING, str(tmp_path)]
    home = Path(__file__).parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=home) as writing:
        assert writing.stdout is not None
        assert writing.stdout.readline() == "ready\n"
        write_ballots(tmp_path, CPA, [encode_users([9])], "b")
        with ballot_writer(tmp_path, CPA, KEY, "a"):
            assert len(list((tmp_path / "round=3").glob(".a.parquet.*"))) == 2
        writing.kill()
    assert len(list((tmp_path / "round=3").glob(".a.parquet.*"))) == 1
    write_ballots(tmp_path, CPA, [encode_users(range(60, 70))], "a")
    assert sorted(path.name for path in (tmp_path / "round=3").iterdir()) == [
        "a.parquet",
        "b.parquet",
    ]
    same(counted(tmp_path).tally, expected([9, *range(60, 70)]))


def test_metadata_are_read_strictly(tmp_path: Path) -> None:
    path = write_ballots(tmp_path, CPA, [encode_users([1])], "a")
    table = pq.read_table(path)
    for change in (
        {"format": 1},
        {"key mark": 5},
        {"extra": 1},
        {"round": -1},
        {"round": True},
        {"mechanism": "{}"},
    ):
        changed = json.loads(table.schema.metadata[b"hushbit ballots"]) | change
        metadata = {b"hushbit ballots": json.dumps(changed).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path)
        assert list(find_ballot_files(tmp_path)[1]) == [path], change


def test_counted_and_refused_rows_add_up(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows_written = 0
    for name in "abc":
        ballots = encode_users(np.sort(rng.choice(80, 50, replace=False)))
        rows = wire_rows(with_macs(ballots))
        for row in rng.choice(50, 7, replace=False):
            rows[row, rng.integers(rows.shape[1])] ^= 1 << rng.integers(8)
        _write_rows(tmp_path, name, rows, ballots.users)
        rows_written += len(rows)
    found = counted(tmp_path)
    assert found.tally.count + sum(Counter(found.refused).values()) == rows_written


def test_forged_and_unauthenticated_rows_are_refused(tmp_path: Path) -> None:
    ballots = with_macs(encode_users(range(6)))
    forged = dataclasses.replace(ballots, payload=ballots.payload.copy())
    forged.payload[2] ^= 1  # another vote of user 2, with a right checksum
    _write_rows(tmp_path, "a", wire_rows(forged), ballots.users)
    found = counted(tmp_path)
    assert found.refused == {"forged": 1}
    same(found.tally, expected([0, 1, 3, 4, 5]))
    plain = wire_rows(encode_users([7]))
    padded = np.concatenate([plain, np.zeros((1, 16), np.uint8)], axis=1)
    start = padded[0, :36].tobytes()
    checksum = zlib.crc32(padded[0, 40:].tobytes(), zlib.crc32(start))
    padded[0, 36:40] = np.frombuffer(checksum.to_bytes(4, "little"), np.uint8)
    _write_rows(tmp_path, "b", padded, np.array([7], np.uint64))
    assert counted(tmp_path).refused == {"forged": 1, "unauthenticated": 1}


def test_the_run_of_a_folder_is_written_once_and_read_strictly(tmp_path: Path) -> None:
    folder = tmp_path / "ballots"
    with pytest.raises(InvalidInput, match=r"earlier versions have none"):
        read_run(tmp_path)
    for number in (0, 1):
        with publish_round(folder, number, b"spring"):
            (folder / UNFINISHED / f"round={number}").mkdir(parents=True)
    assert read_run(folder) == b"spring"
    with pytest.raises(InvalidInput, match="another run"), publish_round(folder, 2, b"autumn"):
        pass
    path = folder / "ballots.json"
    for text in (
        "",
        "[]",
        "null",
        '{"format": 2}',
        '{"format": 2, "run": ""}',
        '{"format": 2, "run": "xy"}',
        '{"format": 2, "run": 5}',
        json.dumps({"format": 2, "run": "00" * 33}),
        '{"format": 1, "run": "00"}',
    ):
        path.write_text(text)
        with pytest.raises(DamagedFile, match="cannot be read"):
            read_run(folder)


def test_a_round_without_a_run_is_not_published(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidInput, match="need a run"),
        publish_round(tmp_path / "ballots", 0, b""),
    ):
        (tmp_path / "ballots" / UNFINISHED / "round=0").mkdir(parents=True)
    assert not (tmp_path / "ballots").exists()
