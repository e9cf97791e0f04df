"""The chain of digests, the marker and the permissions of a ledger."""

import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hushbit.errors import DamagedFile
from hushbit.privacy.ledger import Ledger
from hushbit.privacy.ledger_file import LedgerFile, LedgerRow, _digest
from privacy.ledger_costs import TENTH, charge


def marker_of(ledger: Ledger) -> Path:
    return ledger.path.with_name(f"{ledger.path.name}.mark")


@pytest.fixture
def used(ledger: Ledger) -> Ledger:
    """A ledger of seven rows: the limits of two users and five charges."""
    ledger.set_limit("ann", epsilon=1.0, delta=0.0)
    charge(ledger, "ann", TENTH, 3)
    ledger.set_limit("bob", epsilon=1.0, delta=0.0)
    charge(ledger, "bob", TENTH, 2)
    return ledger


def edit(ledger: Ledger, *statements: str) -> None:
    """Change the file as somebody with access to the disk can."""
    connection = sqlite3.connect(ledger.path)
    for trigger in ("keep_update", "keep_delete", "keep_replace"):
        connection.execute(f"DROP TRIGGER {trigger}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


COPY = "SELECT {id}, time, kind, user, run, round, mechanism, cost, ballots, epsilon, delta, digest"
EDITS = {
    "first row removed": ["DELETE FROM rows WHERE id = 1"],
    "charge removed": ["DELETE FROM rows WHERE id = 3"],
    "charge removed, rest renumbered": [
        "DELETE FROM rows WHERE id = 3",
        "UPDATE rows SET id = id - 1 WHERE id > 3",
    ],
    "limit removed": ["DELETE FROM rows WHERE id = 5"],
    "last row removed": ["DELETE FROM rows WHERE id = 7"],
    "last three rows removed": ["DELETE FROM rows WHERE id > 4"],
    "all rows removed": ["DELETE FROM rows"],
    "two charges swapped": [
        "UPDATE rows SET id = 99 WHERE id = 2",
        "UPDATE rows SET id = 2 WHERE id = 3",
        "UPDATE rows SET id = 3 WHERE id = 99",
    ],
    "row copied to the end": [f"INSERT INTO rows {COPY.format(id=8)} FROM rows WHERE id = 7"],
    "rows moved up": ["UPDATE rows SET id = 98 - id", "UPDATE rows SET id = 99 - id"],
    "time": ["UPDATE rows SET time = 0.0 WHERE id = 3"],
    "kind": ["UPDATE rows SET kind = 'limit' WHERE id = 3"],
    "user": ["UPDATE rows SET user = 'eve' WHERE id = 3"],
    "run": ["UPDATE rows SET run = '00' WHERE id = 3"],
    "round": ["UPDATE rows SET round = 9 WHERE id = 3"],
    "mechanism": ["UPDATE rows SET mechanism = 'x' WHERE id = 3"],
    "cost": ["UPDATE rows SET cost = replace(cost, '0.1', '0.0') WHERE id = 3"],
    "ballots": ["UPDATE rows SET ballots = 2 WHERE id = 3"],
    "epsilon": ["UPDATE rows SET epsilon = 'inf' WHERE id = 1"],
    "delta": ["UPDATE rows SET delta = '0.5' WHERE id = 1"],
    "digest": ["UPDATE rows SET digest = zeroblob(16) WHERE id = 7"],
}


@pytest.mark.parametrize("statements", EDITS.values(), ids=EDITS)
def test_an_edited_file_is_refused_by_every_operation(used: Ledger, statements: list[str]) -> None:
    edit(used, *statements)
    before = used.path.read_bytes(), marker_of(used).read_bytes()
    for operation in (
        lambda: Ledger.open(used.path),
        lambda: charge(used, "ann", TENTH),
        lambda: used.record("ann", 9, TENTH, mechanism="cpa"),
        lambda: used.set_limit("ann", epsilon=5.0, delta=0.0),
        lambda: used.limit("ann"),
        lambda: used.spent("ann"),
        lambda: used.entries(),
        lambda: used.users(),
        lambda: used.summary(),
    ):
        with pytest.raises(DamagedFile, match="Restore the ledger and its marker"):
            operation()
    assert (used.path.read_bytes(), marker_of(used).read_bytes()) == before


def test_dropping_the_triggers_alone_is_harmless(used: Ledger) -> None:
    edit(used)
    assert len(used.entries()) == 5


def test_an_older_copy_of_the_ledger_is_refused(used: Ledger) -> None:
    older = used.path.read_bytes()
    charge(used, "ann", TENTH)
    used.path.write_bytes(older)
    with pytest.raises(DamagedFile, match=r"has 7 rows .* states 8"):
        charge(used, "ann", TENTH)


def test_another_ledger_in_its_place_is_refused(used: Ledger, tmp_path: Path) -> None:
    other = Ledger.open(tmp_path / "other")
    for number in range(9):
        other.record("ann", number, TENTH, mechanism="cpa")
    used.path.write_bytes(other.path.read_bytes())
    with pytest.raises(DamagedFile, match="does not agree with its marker"):
        Ledger.open(used.path)


def test_a_row_that_was_committed_but_not_marked_counts(used: Ledger) -> None:
    """The state after a crash between the commit and the marker; the next write marks both."""
    before = marker_of(used).read_bytes()
    charge(used, "ann", TENTH)
    marker_of(used).write_bytes(before)
    assert len(Ledger.open(used.path).entries("ann")) == 4
    charge(used, "ann", TENTH)
    assert marker_of(used).read_text().startswith("9 ")


def test_a_missing_ledger_is_not_replaced_by_an_empty_one(used: Ledger) -> None:
    used.path.unlink()
    for operation in (lambda: Ledger.open(used.path), lambda: charge(used, "ann", TENTH)):
        with pytest.raises(DamagedFile, match=r"new budget on purpose, delete the marker too"):
            operation()
    assert not used.path.exists()
    marker_of(used).unlink()
    assert Ledger.open(used.path).users() == []


def test_a_ledger_without_its_marker_is_refused(used: Ledger) -> None:
    marker_of(used).unlink()
    for operation in (lambda: Ledger.open(used.path), lambda: charge(used, "ann", TENTH)):
        with pytest.raises(DamagedFile, match=r"new budget on purpose, delete the ledger too"):
            operation()
    assert not marker_of(used).exists()


def test_the_marker_exists_from_the_first_row(ledger: Ledger) -> None:
    assert not marker_of(ledger).exists()
    ledger.set_limit("ann", epsilon=1.0, delta=0.0)
    assert marker_of(ledger).read_text().startswith("1 ")
    with LedgerFile(ledger.path, 1.0).append() as (rows, _):
        assert len(rows) == 1
    assert marker_of(ledger).read_text().startswith("1 ")


def test_a_marker_is_on_the_disk_before_it_replaces_the_last_one(
    used: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, replaced = [], []

    def sync(handle: int) -> None:
        synced.append(os.fstat(handle).st_ino)

    def replace(source: Path, target: Path) -> None:
        replaced.append((os.stat(source).st_ino in synced, source.read_bytes()))
        os.rename(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    charge(used, "ann", TENTH)
    assert replaced == [(True, marker_of(used).read_bytes())]
    assert synced[-1] == used.path.parent.stat().st_ino


@pytest.mark.parametrize(
    "text", ["", "7", "7 00\n", "-7 {}\n", "7 {} \n", "7  {}\n", "8 {}\n", "0 {}\n", "6 {}\n"]
)
def test_a_damaged_marker_is_refused(used: Ledger, text: str) -> None:
    digest = marker_of(used).read_text().split()[1]
    marker_of(used).write_text(text.format(digest))
    with pytest.raises(DamagedFile, match="Restore the ledger and its marker"):
        charge(used, "ann", TENTH)


def test_every_flipped_bit_of_the_marker_is_refused(used: Ledger) -> None:
    sound = marker_of(used).read_bytes()
    for place in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[place // 8] ^= 1 << (place % 8)
        marker_of(used).write_bytes(damaged)
        with pytest.raises(DamagedFile):
            used.entries()


def test_an_error_in_the_block_appends_nothing(used: Ledger) -> None:
    def append_and_fail() -> None:
        with LedgerFile(used.path, 1.0).append() as (_, new):
            new.append(LedgerRow(0.0, "limit", "ann", epsilon="1.0", delta="0.0"))
            raise KeyError

    before = used.path.read_bytes(), marker_of(used).read_bytes()
    with pytest.raises(KeyError):
        append_and_fail()
    assert (used.path.read_bytes(), marker_of(used).read_bytes()) == before


@pytest.fixture
def open_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_only_the_owner_can_use_the_files(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger")
    ledger.set_limit("ann", epsilon=1.0, delta=0.0)
    connection = sqlite3.connect(ledger.path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("PRAGMA user_version = 3")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    connection.close()
    assert modes == {"ledger": 0o600, "ledger.mark": 0o600, "ledger-journal": 0o600}


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
@pytest.mark.parametrize("name", ["ledger", "ledger.mark"])
def test_files_that_others_can_write_are_refused(used: Ledger, name: str, mode: int) -> None:
    path = used.path.with_name(name)
    path.chmod(mode)
    for operation in (lambda: Ledger.open(used.path), lambda: charge(used, "ann", TENTH)):
        with pytest.raises(DamagedFile, match=f"mode {mode:o}.*chmod 600 "):
            operation()
    path.chmod(0o644)
    charge(used, "ann", TENTH)


def test_a_row_with_a_new_digest_of_its_own_breaks_the_chain(used: Ledger) -> None:
    rows = used._file.rows()
    changed = rows[2]._replace(mechanism="x")
    connection = sqlite3.connect(used.path)
    [previous] = connection.execute("SELECT digest FROM rows WHERE id = 2").fetchone()
    connection.close()
    digest = _digest(3, changed, previous).hex()
    edit(used, f"UPDATE rows SET mechanism = 'x', digest = x'{digest}' WHERE id = 3")
    with pytest.raises(DamagedFile, match="Row 4 of the ledger"):
        used.entries()


def test_a_changed_row_is_noticed_when_the_ledger_is_opened(used: Ledger) -> None:
    edit(used, "UPDATE rows SET mechanism = 'x' WHERE id = 3")
    with pytest.raises(DamagedFile, match="Row 3 of the ledger"):
        Ledger.open(used.path)


def test_nobody_can_commit_between_reading_the_rows_and_the_marker(
    used: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_marker = LedgerFile._read_marker
    writer = Ledger(used.path, wait_seconds=0.0)

    def write_and_read(file: LedgerFile) -> tuple[int, bytes] | None:
        monkeypatch.undo()
        with pytest.raises(DamagedFile, match="locked"):
            charge(writer, "ann", TENTH)
        return read_marker(file)

    monkeypatch.setattr(LedgerFile, "_read_marker", write_and_read)
    assert len(used.entries()) == 5
    charge(writer, "ann", TENTH)


def test_connections_flush_everything_to_the_disk(used: Ledger) -> None:
    with used._file._connection() as connection:
        values = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "fullfsync", "trusted_schema", "journal_mode")
        }
    assert values == {
        "synchronous": 3,  # EXTRA
        "fullfsync": 1,
        "trusted_schema": 0,
        "journal_mode": "delete",
    }


def test_a_database_of_another_application_is_refused(used: Ledger) -> None:
    edit(used, "PRAGMA application_id = 7")
    with pytest.raises(DamagedFile, match=r"is not a ledger .application id 0x7"):
        Ledger.open(used.path)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_files_that_only_the_owner_can_write_are_used(used: Ledger, mode: int) -> None:
    for path in (used.path, used.path.with_name("ledger.mark")):
        path.chmod(mode)
    used.spent("ann")


def test_the_file_by_a_second_implementation(ledger: Ledger) -> None:
    """Identifiers, fields and hash chain, as the documentation of the file states them."""
    ledger.set_limit("ann", epsilon=2.0, delta=1e-6)
    ledger.charge("ann", 3, TENTH, mechanism="cpa", run="00ff")
    with closing(sqlite3.connect(ledger.path)) as connection:
        [application] = connection.execute("PRAGMA application_id").fetchone()
        [version] = connection.execute("PRAGMA user_version").fetchone()
        rows = connection.execute("SELECT * FROM rows ORDER BY id").fetchall()
    assert (application.to_bytes(4, "big"), version) == (b"Hush", 2)
    assert rows[0][2:11] == ("limit", "ann", "", 0, "", "", 0, "2.0", "1e-06")
    assert rows[1][2:11] == ("ballot", "ann", "00ff", 3, "cpa", TENTH.to_text(), 1, "", "")
    previous = bytes(16)
    for number, (identifier, *fields, digest) in enumerate(rows, start=1):
        content = repr((number, *fields, previous)).encode()
        previous = hashlib.blake2b(content, digest_size=16, person=b"hushbit ledger").digest()
        assert (identifier, digest) == (number, previous)
    marker = ledger.path.with_name(f"{ledger.path.name}.mark")
    assert marker.read_text() == f"2 {previous.hex()}\n"


def test_the_draft_of_a_killed_writer_is_replaced(used: Ledger) -> None:
    draft = used.path.with_name(f"{used.path.name}.mark.new")
    draft.write_text("half a mark")
    used.record("ann", 9, TENTH, mechanism="cpa")
    assert not draft.exists()
    assert used.entries("ann")[-1].round == 9
