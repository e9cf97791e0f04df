"""Ledger files: damaged, removed, locked and foreign files are refused."""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushbit.errors import BudgetSpent, DamagedFile, InvalidInput
from hushbit.privacy.accountant import Cost
from hushbit.privacy.ledger import Ledger
from hushbit.privacy.ledger_file import LedgerFile, LedgerRow
from privacy.ledger_costs import TENTH, charge


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE rows SET ballots = 1",
        "DELETE FROM rows",
        "DELETE FROM rows WHERE kind = 'limit'",
        "INSERT OR REPLACE INTO rows SELECT 2, time, kind, user, run, round, mechanism, cost,"
        " ballots, epsilon, delta, digest FROM rows WHERE id = 3",
    ],
)
def test_rows_cannot_be_changed_by_a_statement(ledger: Ledger, attack: str) -> None:
    ledger.set_limit("ann", epsilon=10.0, delta=0.0)
    charge(ledger, "ann", TENTH, 2)
    connection = sqlite3.connect(ledger.path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(attack)
    connection.close()
    assert len(ledger.entries("ann")) == 2


def test_files_that_are_not_ledgers_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a database, but long enough to look like one " * 100)
    empty = tmp_path / "empty"
    empty.touch()
    other = tmp_path / "other"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE entries (id)")
    connection.commit()
    connection.close()
    for path in (text, empty, other, tmp_path):
        content = path.read_bytes() if path.is_file() else b""
        with pytest.raises(DamagedFile):
            Ledger.open(path)
        assert not path.is_file() or path.read_bytes() == content
    with pytest.raises(DamagedFile):
        Ledger.open(tmp_path / "missing", create=False)
    with pytest.raises(DamagedFile):
        Ledger.open(tmp_path / "no such folder" / "ledger")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "other", "text"]


def test_newer_versions_and_damaged_pages_are_refused(ledger: Ledger) -> None:
    ledger.set_limit("ann", epsilon=100.0, delta=0.0)
    charge(ledger, "ann", TENTH, 100)
    good = ledger.path.read_bytes()
    ledger.path.write_bytes(good[:4096] + bytes(len(good) - 4096))
    with pytest.raises(DamagedFile):
        Ledger.open(ledger.path)
    ledger.path.write_bytes(good[: len(good) // 2])
    with pytest.raises(DamagedFile):
        Ledger.open(ledger.path)
    ledger.path.write_bytes(good)
    connection = sqlite3.connect(ledger.path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(DamagedFile, match="version 99"):
        charge(ledger, "ann", TENTH)


def test_damage_that_no_row_shows_is_refused(ledger: Ledger) -> None:
    """The header states a free page, which SQLite would write the next rows to."""
    ledger.set_limit("ann", epsilon=1.0, delta=0.0)
    damaged = bytearray(ledger.path.read_bytes())
    damaged[39] ^= 1
    ledger.path.write_bytes(damaged)
    assert len(LedgerFile(ledger.path, 1.0).rows()) == 1
    with pytest.raises(DamagedFile, match="is damaged"):
        Ledger.open(ledger.path)


def test_ledgers_open_where_sqlite_reads_uris_only_on_request(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def without_uris(database: object, **options: Any) -> sqlite3.Connection:
        if str(database).startswith("file:") and not options.get("uri"):
            raise sqlite3.OperationalError("no such file")
        return connect(database, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite3, "connect", without_uris)
    ledger.set_limit("ann", epsilon=1.0, delta=0.0)
    assert len(LedgerFile(ledger.path, 1.0).rows()) == 1


def test_a_ledger_of_the_first_version_is_refused(ledger: Ledger) -> None:
    connection = sqlite3.connect(ledger.path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(DamagedFile, match="version 1; this hushbit reads version 2"):
        Ledger.open(ledger.path)


def test_rows_with_sound_digests_and_unreadable_content_are_refused(ledger: Ledger) -> None:
    with LedgerFile(ledger.path, 1.0).append() as (_, new):
        new.append(LedgerRow(0.0, "ballot", "ann", cost="{}", ballots=1))
        new.append(LedgerRow(0.0, "limit", "bob", epsilon="much", delta="0"))
    with pytest.raises(DamagedFile, match="cannot be read"):
        ledger.spent("ann")
    with pytest.raises(DamagedFile, match="cannot be read"):
        ledger.limit("bob")


def test_writer_that_waits_too_long_is_refused(ledger: Ledger) -> None:
    ledger.set_limit("ann", epsilon=100.0, delta=0.0)
    other = sqlite3.connect(ledger.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    impatient = Ledger.open(ledger.path, wait_seconds=0.01)
    with pytest.raises(DamagedFile, match=r"locked by another process, .* within 0.01 seconds"):
        charge(impatient, "ann", TENTH)
    other.close()
    charge(impatient, "ann", TENTH)


def test_no_flipped_bit_on_the_disk_lets_a_user_overspend(tmp_path: Path) -> None:
    """After any single bit flip the ledger refuses the file or still counts all charges."""
    path = tmp_path / "ledger"
    ledger = Ledger.open(path)
    ledger.set_limit("alice", epsilon=75.0, delta=0.0)
    for number in range(15):
        ledger.charge("alice", number, Cost(((5.0, 1),)), mechanism="cpa")
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    noticed = 0
    for place in rng.choice(8 * len(sound), 400, replace=False):
        damaged = bytearray(sound)
        damaged[place // 8] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        try:
            again = Ledger.open(path)
            assert again.spent("alice", delta=0.0).epsilon == 75.0
            with pytest.raises((BudgetSpent, DamagedFile, InvalidInput)):
                again.charge("alice", 16, Cost(((5.0, 1),)), mechanism="cpa")
        except DamagedFile:
            noticed += 1
    assert noticed > 20


def test_the_largest_round_is_stored(ledger: Ledger) -> None:
    ledger.record("ann", 2**63 - 1, TENTH, mechanism="cpa")
    assert [entry.round for entry in ledger.entries()] == [2**63 - 1]


def test_the_fields_of_stored_rows(ledger: Ledger) -> None:
    ledger.set_limit("ann", epsilon=2.0, delta=0.0)
    ledger.charge("ann", 7, TENTH, mechanism="cpa", run="0a")
    limit, ballot = LedgerFile(ledger.path, 1.0).rows()
    assert limit[1:] == ("limit", "ann", "", 0, "", "", 0, "2.0", "0.0")
    assert ballot[1:6] == ("ballot", "ann", "0a", 7, "cpa")
    assert ballot[7:] == (1, "", "")


def test_ledger_in_a_missing_folder_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match=r"there is no folder .*nowhere") as caught:
        Ledger.open(tmp_path / "nowhere" / "ledger.db")
    assert ".new" not in str(caught.value)
