"""The ledger's file: an append-only SQLite database that never loses an acknowledged entry.

A rollback journal (DELETE) is used and not a write-ahead log: the whole truth is in one file that
can be copied, read from read-only media and kept on any file system. EXTRA synchronisation
flushes the directory after the journal is removed; with FULL a power cut could bring the journal
back and undo a charge that was already acknowledged.
"""

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from hushbit.errors import DamagedFile

APPLICATION_ID = 0x48757368
VERSION = 1

_SCHEMA = """
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    user TEXT NOT NULL,
    round INTEGER NOT NULL CHECK (round >= 0),
    mechanism TEXT NOT NULL,
    cost TEXT NOT NULL,
    copies INTEGER NOT NULL CHECK (copies > 0),
    digest BLOB NOT NULL
) STRICT;
CREATE INDEX entries_of_user ON entries (user);
CREATE TABLE limits (
    id INTEGER PRIMARY KEY,
    user TEXT NOT NULL,
    epsilon TEXT NOT NULL,
    delta TEXT NOT NULL
) STRICT;
CREATE INDEX limits_of_user ON limits (user, id);
"""

_APPEND_ONLY = """
CREATE TRIGGER {table}_keep_update BEFORE UPDATE ON {table}
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER {table}_keep_delete BEFORE DELETE ON {table}
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
CREATE TRIGGER {table}_keep_replace BEFORE INSERT ON {table}
WHEN EXISTS (SELECT 1 FROM {table} WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END;
"""


def create_ledger_file(path: Path) -> None:
    """Makes a new ledger that appears under `path` complete or not at all.

    So an empty file is never a young ledger: it is a damaged one, and is refused. If another
    process was faster, its ledger stays.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            triggers = "".join(_APPEND_ONLY.format(table=t) for t in ("entries", "limits"))
            marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
            connection.executescript(f"BEGIN; {_SCHEMA} {triggers} {marks} COMMIT;")
        with suppress(FileExistsError):
            os.link(draft, path)
        _flush_directory(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise DamagedFile(
            f"The ledger {path} cannot be made: {error}. Give a path in a writable folder."
        ) from error
    finally:
        for leftover in (draft, draft.with_name(draft.name + "-journal")):
            leftover.unlink(missing_ok=True)


def _flush_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def ledger_connection(path: Path, wait_seconds: float) -> Iterator[sqlite3.Connection]:
    """A checked connection to an existing ledger; every failure of the file is a DamagedFile.

    Each operation opens the file anew, so a ledger can be used from threads and after a fork, and
    a file that was removed or replaced is noticed instead of written into the void.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(
            sqlite3.connect(uri, uri=True, timeout=wait_seconds, isolation_level=None)
        ) as connection:
            for setting in ("synchronous = EXTRA", "fullfsync = ON", "trusted_schema = OFF"):
                connection.execute(f"PRAGMA {setting}")
            _check_marks(connection, path)
            yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise DamagedFile(
            f"The ledger {path} cannot be used: {error}. Nothing was acknowledged, so send "
            "nothing; check that the file exists, is a ledger, and that the disk is writable."
        ) from error


def _check_marks(connection: sqlite3.Connection, path: Path) -> None:
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if mark != APPLICATION_ID:
        raise DamagedFile(f"{path} is not a ledger (mark {mark:#x}); give another path.")
    if version != VERSION:
        raise DamagedFile(
            f"{path} is a ledger of version {version}; this hushbit reads version {VERSION}."
        )


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Refuses a file whose pages, tables and indexes contradict each other."""
    finding = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if finding != "ok":
        raise DamagedFile(f"The ledger {path} is damaged: {finding}. Restore it from a copy.")


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction that holds the writer's lock from its first read to its last write."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
