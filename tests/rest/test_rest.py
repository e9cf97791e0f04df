"""Ballots at rest: bytes as on the wire, every fault found and named, none counted twice."""

import json
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hushbit as hb
from hushbit.ballot import HEADER_BYTES, Ballots
from hushbit.baselines import MVU
from hushbit.coins import SimulationCoins
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.rest import ballot_writer, find_sources, recount, write_ballots
from hushbit.rest.recount import all_ballots
from hushbit.rest.store import NOTE
from hushbit.rest.wire import verify, wire_rows

KEY = hb.RoundKey(bytes(range(32)), 3)
CPA = hb.CPA(53, 0.5, 1.0, points=4)


def cast(users: Any, mechanism: Any = CPA, key: hb.RoundKey = KEY) -> Ballots:
    """Ballots of users, whose updates depend on their numbers."""
    users = np.asarray(users)
    updates = np.sin(np.outer(users + 1.0, np.arange(1, mechanism.dim + 1)))
    made: Ballots = mechanism.encode_many(updates, key.users(users), SimulationCoins(1))
    return made


def expected(users: Any) -> Any:
    tally = CPA.tally(KEY)
    tally.add_many(cast(users))
    return tally


def counted(folder: Path, **options: Any) -> Any:
    sources, bad = find_sources(folder)
    assert not bad
    return recount(sources, KEY, histogram=True, **options)


def same(left: Any, right: Any) -> None:
    assert left.count == right.count
    assert (left.roll.users() == right.roll.users()).all()
    for name, counter in left.counters.items():
        assert (counter == right.counters[name]).all()


def test_rows_are_the_bytes_of_ballots() -> None:
    ballots = cast(range(5))
    rows = wire_rows(ballots)
    assert [row.tobytes() for row in rows] == [ballot.to_bytes() for ballot in ballots]
    back = verify(rows, ballots.users, CPA, 3)
    assert (back.ballots.payload == ballots.payload).all()
    assert not back.refused


@pytest.mark.parametrize("mechanism", [CPA, MVU(9, 1.0, 1.0, bits=2)], ids=["cpa", "mvu"])
def test_every_flipped_bit_is_refused_for_the_reason_of_a_single_ballot(mechanism: Any) -> None:
    ballots = cast([7], mechanism)
    clean = wire_rows(ballots)
    for bit in range(8 * clean.shape[1]):
        rows = clean.copy()
        rows[0, bit // 8] ^= 1 << bit % 8
        found = verify(rows, ballots.users, mechanism, 3)
        assert len(found.ballots) == 0
        with pytest.raises(hb.HushbitError) as error:
            hb.Ballot.from_bytes(rows[0].tobytes())
        assert dict(found.refused) == {error.value.reason: 1}  # type: ignore[attr-defined]


def test_reasons() -> None:
    other = hb.CPA(53, 0.5, 2.0, points=4)
    longer = hb.CPA(99, 0.5, 1.0, points=4)
    rows = wire_rows(cast([1, 2], other))
    assert verify(rows, np.array([1, 2], np.uint64), CPA, 3).refused == {"mechanism": 2}
    late = cast([1], key=hb.RoundKey(bytes(range(32)), 4))
    assert verify(wire_rows(late), late.users, CPA, 3).refused == {"round": 1}
    assert verify(wire_rows(cast([4], longer)), np.array([4], np.uint64), CPA, 3).refused == {
        "mechanism": 1
    }
    own = cast([1, 2])
    assert verify(wire_rows(own), own.users[::-1].copy(), CPA, 3).refused == {"damaged": 2}
    padded = Ballots(own.fingerprint, 3, own.bits, own.users, own.payload | 0x80, own.overloaded)
    assert verify(wire_rows(padded), own.users, CPA, 3).refused == {"padding": 2}
    tiny = np.zeros((2, HEADER_BYTES - 1), np.uint8)
    assert verify(tiny, own.users, CPA, 3).refused == {"damaged": 2}


def test_streams_of_batches_are_counted_as_if_never_stored(tmp_path: Path) -> None:
    write_ballots(tmp_path, CPA, (cast(range(n, n + 50)) for n in range(0, 300, 50)), "a")
    write_ballots(tmp_path, CPA, [cast(range(1000, 1010))], "b")
    found = counted(tmp_path)
    same(found.tally, expected([*range(300), *range(1000, 1010)]))
    assert not found.refused
    file = pq.ParquetFile(tmp_path / "round=3" / "a.parquet")
    assert pa.types.is_fixed_size_binary(file.schema_arrow.field("ballot").type)
    column = file.metadata.row_group(0).column(1)
    assert not column.has_dictionary_page
    assert column.compression == "UNCOMPRESSED"


def test_a_ballot_twice_in_two_files_counts_once(tmp_path: Path) -> None:
    write_ballots(tmp_path, CPA, [cast(range(40)), cast([3, 5])], "a")
    write_ballots(tmp_path, CPA, [cast(range(30, 60))], "b")
    write_ballots(tmp_path, CPA, [cast([3])], "c")
    found = counted(tmp_path)
    same(found.tally, expected(range(60)))
    assert found.refused == {"duplicate": 13}
    valid = all_ballots(find_sources(tmp_path)[0], KEY)
    assert sorted(valid.users) == list(range(60))


def test_the_first_valid_ballot_of_a_user_counts(tmp_path: Path) -> None:
    """A damaged copy must not keep a good one out; of two good ones the first counts."""
    first, second = cast(range(4)), cast(range(4))
    second.payload[1] ^= 1  # another vote of user 1
    rows = wire_rows(first)
    rows[2, HEADER_BYTES] ^= 1  # damaged: its checksum is of other bits
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
    """A file whose rows may be anything."""
    path = write_ballots(folder, CPA, [cast([0])], name)
    schema = pq.read_schema(path)
    made = pa.array([row.tobytes() for row in rows], pa.binary(rows.shape[1]))
    pq.write_table(pa.Table.from_arrays([pa.array(users), made], schema=schema), path)


def test_files_that_are_no_ballots_are_named(tmp_path: Path) -> None:
    good = write_ballots(tmp_path, CPA, [cast(range(300))], "good")
    raw = good.read_bytes()
    home = good.parent
    (home / "cut.parquet").write_bytes(raw[: len(raw) // 2])
    (home / "empty.parquet").write_bytes(b"")
    (home / "text.parquet").write_text("hello")
    (home / ".half.parquet.0123").write_bytes(raw[:100])
    pq.write_table(pa.table({"user": [1], "ballot": [b"x"]}), home / "foreign.parquet")
    lying = pa.table({"user": ["x"]}).replace_schema_metadata(pq.read_schema(good).metadata)
    pq.write_table(lying, home / "lying.parquet")
    sources, bad = find_sources(tmp_path)
    assert [source.path.name for source in sources] == ["good.parquet"]
    assert sorted(path.name for path in bad) == [
        "cut.parquet", "empty.parquet", "foreign.parquet", "lying.parquet", "text.parquet"
    ]  # fmt: skip
    assert "foreign" in bad[home / "foreign.parquet"]


@pytest.mark.parametrize(
    "note", [{}, [], {"round": -1}, {"round": 2**64}, {"round": 7}, {"format": 9}]
)
def test_notes_that_say_nothing_sensible_are_named(tmp_path: Path, note: Any) -> None:
    path = write_ballots(tmp_path, CPA, [cast([0])], "a")
    table = pq.read_table(path)
    told = json.loads(table.schema.metadata[NOTE])
    made = {**told, **note} if note else note
    pq.write_table(table.replace_schema_metadata({NOTE: json.dumps(made)}), path)
    sources, bad = find_sources(tmp_path)
    assert not sources
    assert "its note cannot be understood" in bad[path]


def test_ballots_of_any_width_are_a_foreign_schema(tmp_path: Path) -> None:
    path = write_ballots(tmp_path, CPA, [cast([0])], "a")
    table = pq.read_table(path)
    wide = pa.table({"user": table["user"], "ballot": table["ballot"].cast(pa.binary())})
    pq.write_table(wide.replace_schema_metadata(table.schema.metadata), path)
    sources, bad = find_sources(tmp_path)
    assert not sources
    assert "a foreign schema: user uint64, ballot binary" in bad[path]


def test_a_damaged_page_is_noticed(tmp_path: Path) -> None:
    path = write_ballots(tmp_path, CPA, [cast(range(300))], "a")
    write_ballots(tmp_path, CPA, [cast(range(300, 320))], "b")
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
    write_ballots(tmp_path, CPA, [cast([1])], "a")
    write_ballots(tmp_path, other, [cast([2], other)], "b")
    with pytest.raises(InvalidInput, match="--fingerprint"):
        counted(tmp_path)


def test_writers_refuse_other_ballots_and_leave_nothing(tmp_path: Path) -> None:
    other = hb.CPA(53, 0.5, 2.0, points=4)
    with pytest.raises(InvalidInput, match="mechanism"):
        write_ballots(tmp_path, CPA, [cast([1]), cast([2], other)], "a")
    with pytest.raises(InvalidInput, match="no ballots"):
        write_ballots(tmp_path, CPA, [], "a")
    with pytest.raises(InvalidInput), ballot_writer(tmp_path, CPA, 3, "b") as write:
        write(cast([1], other))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.fixture
def _small_files() -> Iterator[None]:
    """As if the disk were full after 20 000 bytes of a file."""
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.usefixtures("_small_files")
def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    write_ballots(tmp_path, CPA, [cast(range(10))], "small")
    with pytest.raises(DamagedFile, match="could not be written: File too large; it"):
        write_ballots(tmp_path, CPA, (cast(range(n, n + 100)) for n in range(0, 900, 100)), "big")
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert left == ["small.parquet"]
    assert counted(tmp_path).tally.count == 10


WRITING = """
import sys, time
from tests.rest.test_rest import CPA, cast
from hushbit.rest import ballot_writer
with ballot_writer(sys.argv[1], CPA, 3, "a") as write:
    write(cast(range(50)))
    print("ready", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_writer_left_goes_when_its_job_is_done_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITING, str(tmp_path)]
    home = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=home) as writing:
        assert writing.stdout is not None
        assert writing.stdout.readline() == "ready\n"
        write_ballots(tmp_path, CPA, [cast([9])], "b")
        with ballot_writer(tmp_path, CPA, 3, "a"):
            assert len(list((tmp_path / "round=3").glob(".a.parquet.*"))) == 2
        writing.kill()
    assert len(list((tmp_path / "round=3").glob(".a.parquet.*"))) == 1
    write_ballots(tmp_path, CPA, [cast(range(60, 70))], "a")
    assert sorted(path.name for path in (tmp_path / "round=3").iterdir()) == [
        "a.parquet", "b.parquet",
    ]  # fmt: skip
    same(counted(tmp_path).tally, expected([9, *range(60, 70)]))


def test_the_note_of_a_file_is_read_strictly(tmp_path: Path) -> None:
    path = write_ballots(tmp_path, CPA, [cast([1])], "a")
    table = pq.read_table(path)
    for change in ({"format": 2}, {"round": -1}, {"round": True}, {"mechanism": "{}"}):
        note = json.loads(table.schema.metadata[b"hushbit ballots"]) | change
        told = table.replace_schema_metadata({b"hushbit ballots": json.dumps(note).encode()})
        pq.write_table(told, path)
        assert list(find_sources(tmp_path)[1]) == [path], change


def test_counts_add_up(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows_written = 0
    for name in "abc":
        ballots = cast(np.sort(rng.choice(80, 50, replace=False)))
        rows = wire_rows(ballots)
        for row in rng.choice(50, 7, replace=False):
            rows[row, rng.integers(rows.shape[1])] ^= 1 << rng.integers(8)
        _write_rows(tmp_path, name, rows, ballots.users)
        rows_written += len(rows)
    found = counted(tmp_path)
    assert found.tally.count + sum(Counter(found.refused).values()) == rows_written
