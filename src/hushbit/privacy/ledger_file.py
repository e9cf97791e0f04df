"""The file of a ledger: append-only rows in a hash chain, with a marker file beside it.

The file is an SQLite database that never loses an acknowledged row. It uses a rollback journal
(DELETE) and no write-ahead log, so that it can be copied, read from read-only media and kept on any
file system. EXTRA synchronisation flushes the directory after the journal is removed; with FULL, a
power failure could restore the journal and undo a row that was already acknowledged.

The digest of a row covers its own fields and the previous digest, so the rows form a hash chain. A
row that was changed, inserted, moved or removed breaks the chain, which is checked at every access.
If the last rows are removed, the chain is valid but too short. The marker LEDGER.mark therefore
states the number of rows and the last digest. A write has these steps, all but the last under the
database's write lock:

1. If the ledger is empty and has no marker, a marker of zero rows is written.
2. The row is committed.
3. The write lock is taken again, and the marker is replaced by one that covers all rows.
4. The row is acknowledged: the caller returns.

A crash after step 1 or 2 leaves a file with at least as many rows as its marker states. Such a file
is accepted; a row beyond the marker counts although it was never acknowledged. A crash never leaves
fewer rows than the marker states, rows without a marker, or a marker without a file; these are
refused. The digests have no key: they detect damage, an older copy of the ledger and edited rows,
but not an attacker who rewrites the ledger and the marker together.
"""

import hashlib
import os
import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hushbit.errors import DamagedFile
from hushbit.wire.files import sync_folder

APPLICATION_ID = 0x48757368
VERSION = 2
_INITIAL_DIGEST = bytes(16)

_HEADER = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
_SCHEMA = """
CREATE TABLE rows (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('ballot', 'limit')),
    user TEXT NOT NULL,
    run TEXT NOT NULL,
    round INTEGER NOT NULL,
    mechanism TEXT NOT NULL,
    cost TEXT NOT NULL,
    ballots INTEGER NOT NULL,
    epsilon TEXT NOT NULL,
    delta TEXT NOT NULL,
    digest BLOB NOT NULL
) STRICT;
CREATE TRIGGER keep_update BEFORE UPDATE ON rows
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER keep_delete BEFORE DELETE ON rows
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER keep_replace BEFORE INSERT ON rows
WHEN EXISTS (SELECT 1 FROM rows WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
"""


class LedgerRow(NamedTuple):
    """One row: a ballot (`run` to `ballots`) or a new limit (`epsilon`, `delta`) of a user."""

    time: float
    kind: str
    user: str
    run: str = ""
    round: int = 0
    mechanism: str = ""
    cost: str = ""
    ballots: int = 0
    epsilon: str = ""
    delta: str = ""


_COLUMNS = ", ".join(LedgerRow._fields)
_INSERT = f"INSERT INTO rows ({_COLUMNS}, id, digest) VALUES ({'?, ' * len(LedgerRow._fields)}?, ?)"


@dataclass(frozen=True)
class LedgerFile:
    """The rows of a ledger, read and appended under the database's locks.

    Every access opens the file again, so it can be used from threads and after a fork, and a file
    that was removed or replaced is detected before anything is written.
    """

    path: Path
    wait_seconds: float

    @property
    def marker(self) -> Path:
        """The path of the marker, LEDGER.mark."""
        return self.path.with_name(f"{self.path.name}.mark")

    def create_if_absent(self) -> None:
        """Create an empty ledger if neither a ledger nor a marker exists.

        The marker is looked up first. It is always created after its ledger, so if another process
        creates both in the meantime, this is not mistaken for a ledger that was removed.
        """
        if self.marker.exists() or self.path.exists():
            return
        if not self.path.parent.is_dir():
            raise DamagedFile(
                f"The ledger {self.path} cannot be created: there is no folder {self.path.parent}."
            )
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}.new")
        try:
            _create_private_file(draft, b"")  # SQLite gives the journal the same mode
            with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.executescript(f"BEGIN; {_SCHEMA} {_HEADER} COMMIT;")
            with suppress(FileExistsError):
                os.link(draft, self.path)
            sync_folder(self.path.parent)
        except (OSError, sqlite3.Error) as error:
            raise DamagedFile(
                f"The ledger {self.path} cannot be created: {error}. "
                "Give a path in a writable folder."
            ) from error
        finally:
            for leftover in (draft, draft.with_name(draft.name + "-journal")):
                leftover.unlink(missing_ok=True)

    def rows(self) -> list[LedgerRow]:
        """All rows in the order in which they were written, after the chain was checked."""
        with self._connection() as connection:
            connection.execute("BEGIN")
            return self._checked_rows(connection)[0]

    @contextmanager
    def append(self) -> Iterator[tuple[list[LedgerRow], list[LedgerRow]]]:
        """Yield all rows and an empty list; rows added to that list are written at the end.

        The write lock is held from the first read to the commit. After an exception nothing is
        written.
        """
        with self._connection() as connection:
            with _transaction(connection):
                rows, digest = self._checked_rows(connection)
                new: list[LedgerRow] = []
                yield rows, new
                if new and not self.marker.exists():
                    self._write_marker(0, _INITIAL_DIGEST)
                for number, row in enumerate(new, start=len(rows) + 1):
                    digest = _digest(number, row, digest)
                    connection.execute(_INSERT, (*row, number, digest))
            if new:
                with _transaction(connection):
                    last = "SELECT id, digest FROM rows ORDER BY id DESC LIMIT 1"
                    self._write_marker(*connection.execute(last).fetchone())

    def check_integrity(self) -> None:
        """Raise DamagedFile if pages and tables of the file are inconsistent."""
        with self._connection() as connection:
            finding = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if finding != "ok":
            raise DamagedFile(f"The ledger {self.path} is damaged: {finding}. {_RESTORE_ADVICE}")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection to an existing ledger; every failure of the file is a DamagedFile."""
        try:
            self._check_presence_and_mode()
            uri = f"{self.path.absolute().as_uri()}?mode=rw"
            with closing(
                sqlite3.connect(uri, uri=True, timeout=self.wait_seconds, isolation_level=None)
            ) as connection:
                for setting in ("synchronous = EXTRA", "fullfsync = ON", "trusted_schema = OFF"):
                    connection.execute(f"PRAGMA {setting}")
                self._check_header(connection)
                yield connection
        except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                raise DamagedFile(
                    f"The ledger {self.path} is locked by another process, which did not finish "
                    f"within {self.wait_seconds:g} seconds. Nothing was acknowledged, so send "
                    "nothing. Try again, or pass a larger wait_seconds."
                ) from error
            raise DamagedFile(
                f"The ledger {self.path} cannot be used: {error}. Nothing was acknowledged, so "
                "send nothing. Check that the file is a ledger and that the disk is writable."
            ) from error

    def _check_presence_and_mode(self) -> None:
        marked = self.marker.exists()
        if marked and not self.path.exists():
            raise DamagedFile(
                f"The ledger {self.path} is missing, but its marker {self.marker.name} shows that "
                "there was one. Restore the ledger from a copy. To give all its users a new budget "
                "on purpose, delete the marker too."
            )
        for path in (self.path, self.marker) if marked else (self.path,):
            mode = path.stat().st_mode & 0o777
            if os.name == "posix" and mode & 0o022:
                raise DamagedFile(
                    f"{path} can be written by other accounts (mode {mode:o}), which could change "
                    f"what was spent. If none did, remove the permission: chmod 600 {path}"
                )

    def _check_header(self, connection: sqlite3.Connection) -> None:
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application_id != APPLICATION_ID:
            raise DamagedFile(
                f"{self.path} is not a ledger (application id {application_id:#x}). If it was "
                "one, it was emptied or overwritten: restore a copy. Otherwise give another path."
            )
        if version != VERSION:
            raise DamagedFile(
                f"{self.path} is a ledger of version {version}; "
                f"this hushbit reads version {VERSION}."
            )

    def _checked_rows(self, connection: sqlite3.Connection) -> tuple[list[LedgerRow], bytes]:
        """All rows and the last digest; must be called in a transaction.

        The marker is read after the rows, while the transaction prevents commits by others, so it
        never states more rows than an intact ledger has.
        """
        found = connection.execute(
            f"SELECT {_COLUMNS}, id, digest FROM rows ORDER BY id"
        ).fetchall()
        marked = self._read_marker()
        if found and marked is None:
            raise DamagedFile(
                f"The marker {self.marker.name} of the ledger {self.path} is missing, so removed "
                "rows cannot be detected. Restore it from a copy. To give all users of the ledger "
                "a new budget on purpose, delete the ledger too."
            )
        rows, digests = [], [_INITIAL_DIGEST]
        for number, (*fields, identifier, digest) in enumerate(found, start=1):
            row = LedgerRow(*fields)
            if identifier != number or digest != _digest(number, row, digests[-1]):
                raise DamagedFile(
                    f"Row {number} of the ledger {self.path} or a row before it was changed, added "
                    f"or removed on the disk. {_RESTORE_ADVICE}"
                )
            rows.append(row)
            digests.append(digest)
        if marked is not None and digests[marked[0] : marked[0] + 1] != [marked[1]]:
            raise DamagedFile(
                f"The ledger {self.path} has {len(rows)} rows and does not agree with its marker "
                f"{self.marker.name}, which states {marked[0]}. Rows were removed, or one of the "
                f"files is an older copy. {_RESTORE_ADVICE}"
            )
        return rows, digests[-1]

    def _read_marker(self) -> tuple[int, bytes] | None:
        try:
            text = self.marker.read_bytes()
        except FileNotFoundError:
            return None
        match = re.fullmatch(rb"([0-9]{1,19}) ([0-9a-f]{32})\n", text)
        if match is None:
            raise DamagedFile(f"The marker {self.marker} is damaged. {_RESTORE_ADVICE}")
        return int(match[1]), bytes.fromhex(match[2].decode())

    def _write_marker(self, rows: int, digest: bytes) -> None:
        """Replace the marker atomically; the write lock keeps other writers away from the draft."""
        draft = self.marker.with_name(f"{self.marker.name}.new")
        draft.unlink(missing_ok=True)
        _create_private_file(draft, f"{rows} {digest.hex()}\n".encode())
        os.replace(draft, self.marker)
        sync_folder(self.path.parent)


_RESTORE_ADVICE = "Restore the ledger and its marker from copies of the same time."


def _create_private_file(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read or write, and flush it to the disk."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction that holds the write lock from its first read to its last write.

    An exception undoes it, because it closes the connection.
    """
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")


def _digest(number: int, row: LedgerRow, previous: bytes) -> bytes:
    content = repr((number, *row, previous)).encode()
    return hashlib.blake2b(content, digest_size=16, person=b"hushbit ledger").digest()
