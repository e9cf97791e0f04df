"""The ledger: a durable record of what each user has spent, charged before a ballot is sent.

Every ballot that is sent is a new release: charging the same user, round and mechanism twice
charges twice. After a crash between charge and send the charge remains: the ledger may count a
ballot that was never sent, but every ballot that was sent is counted.

The file is an append-only SQLite database that never loses an acknowledged entry. It uses a
rollback journal (DELETE) and no write-ahead log, so that all data is in one file that can be
copied, read from read-only media and kept on any file system. EXTRA synchronisation flushes the
directory after the journal is removed; with FULL, a power failure could restore the journal and
undo a charge that was already acknowledged.
"""

import hashlib
import math
import numbers
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hushbit.checks import check_int, check_nonnegative
from hushbit.errors import BudgetSpent, DamagedFile, InvalidInput
from hushbit.privacy.accountant import Bound, Cost, Limit, composed_bound, pure_total, within_limit

APPLICATION_ID = 0x48757368
VERSION = 1
_MAX_INTEGER = 2**63 - 1

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
    """Create a new ledger at `path`, complete or not at all.

    An empty file is therefore always a damaged ledger and is refused. If another process has
    created a ledger at the same path in the meantime, that one is kept.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            triggers = "".join(_APPEND_ONLY.format(table=t) for t in ("entries", "limits"))
            header = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
            connection.executescript(f"BEGIN; {_SCHEMA} {triggers} {header} COMMIT;")
        with suppress(FileExistsError):
            os.link(draft, path)
        _flush_directory(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise DamagedFile(
            f"The ledger {path} cannot be created: {error}. Give a path in a writable folder."
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

    Each operation opens the file again, so a ledger can be used from threads and after a fork, and
    a file that was removed or replaced is detected before anything is written.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(
            sqlite3.connect(uri, uri=True, timeout=wait_seconds, isolation_level=None)
        ) as connection:
            for setting in ("synchronous = EXTRA", "fullfsync = ON", "trusted_schema = OFF"):
                connection.execute(f"PRAGMA {setting}")
            _check_header(connection, path)
            yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise DamagedFile(
            f"The ledger {path} cannot be used: {error}. Nothing was acknowledged, so send "
            "nothing; check that the file exists, is a ledger, and that the disk is writable."
        ) from error


def _check_header(connection: sqlite3.Connection, path: Path) -> None:
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application_id != APPLICATION_ID:
        raise DamagedFile(
            f"{path} is not a ledger (application id {application_id:#x}); give another path."
        )
    if version != VERSION:
        raise DamagedFile(
            f"{path} is a ledger of version {version}; this hushbit reads version {VERSION}."
        )


def check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    """Raise DamagedFile if pages, tables and indexes of the file are inconsistent."""
    finding = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if finding != "ok":
        raise DamagedFile(f"The ledger {path} is damaged: {finding}. Restore it from a copy.")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction that holds the write lock from its first read to its last write."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@dataclass(frozen=True)
class LedgerEntry:
    """One row of the ledger."""

    user: str
    round: int
    mechanism: str
    cost: Cost


@dataclass(frozen=True)
class UserSummary:
    """What one user has spent and what remains, as `hushbit audit --ledger` prints it."""

    user: str
    ballots: int
    bits: int
    last_round: int | None
    pure_epsilon: float
    spent: Bound
    limit: Limit | None
    remaining: float


@dataclass(frozen=True)
class Ledger:
    """A ledger file; open it with `Ledger.open`. Safe for threads, forks and several processes.

    A user is named by a string; an integer stands for its decimal digits.
    """

    path: Path
    wait_seconds: float

    @staticmethod
    def open(path: str | Path, *, create: bool = True, wait_seconds: float = 30.0) -> "Ledger":
        """Open the ledger at `path`; create it if there is no file and `create` is true.

        `wait_seconds` is the longest time that an operation waits for another process.
        """
        if not isinstance(path, str | Path) or not str(path) or "\0" in str(path):
            raise InvalidInput(f"path is {path!r}; give the path of a ledger file.")
        ledger = Ledger(Path(path), check_nonnegative("wait_seconds", wait_seconds))
        if create and not ledger.path.exists():
            create_ledger_file(ledger.path)
        with ledger_connection(ledger.path, ledger.wait_seconds) as connection:
            check_integrity(connection, ledger.path)
        return ledger

    def set_limit(self, user: str | int, *, epsilon: float, delta: float) -> None:
        """Set what the user may spend in total, past entries included; delta 0 is pure epsilon.

        `epsilon=math.inf` records without refusing. A limit below what is spent is refused.
        """
        name, limit = _user(user), Limit(epsilon, delta)
        with ledger_connection(self.path, self.wait_seconds) as connection, transaction(connection):
            costs = _costs(connection, name)
            if not within_limit(costs, limit):
                raise InvalidInput(
                    f"The limit {limit.epsilon:g} ({limit.unit}) is below what user {name!r} has "
                    f"spent, {_spent(costs, limit).epsilon:g}; give a larger one."
                )
            connection.execute(
                "INSERT INTO limits (user, epsilon, delta) VALUES (?, ?, ?)",
                (name, repr(limit.epsilon), repr(limit.delta)),
            )

    def charge(self, user: str | int, round: int, cost: Cost, *, mechanism: str) -> None:
        """Charge a ballot before it is sent; when this returns, the charge is on the disk.

        Raises BudgetSpent, with nothing charged, if the charge would exceed the user's limit.
        """
        entry = _entry(user, round, cost, mechanism)
        with ledger_connection(self.path, self.wait_seconds) as connection, transaction(connection):
            limit = _limit(connection, entry.user)
            if limit is None:
                raise InvalidInput(f"User {entry.user!r} has no limit; call set_limit first.")
            costs = _costs(connection, entry.user)
            if not within_limit([*costs, cost], limit):
                raise BudgetSpent(
                    f"User {entry.user!r} has spent "
                    f"{_spent(costs, limit).epsilon:g} of {limit.epsilon:g} ({limit.unit}); "
                    f"a ballot of {cost.bits} bits would exceed the limit. Nothing was charged; "
                    "send nothing."
                )
            _append(connection, entry)

    def record(self, user: str | int, round: int, cost: Cost, *, mechanism: str) -> None:
        """Add a ballot that has already been sent, whatever the limit; for reports by a server."""
        entry = _entry(user, round, cost, mechanism)
        with ledger_connection(self.path, self.wait_seconds) as connection, transaction(connection):
            _append(connection, entry)

    def limit(self, user: str | int) -> Limit | None:
        """The user's current limit, or None."""
        with ledger_connection(self.path, self.wait_seconds) as connection:
            return _limit(connection, _user(user))

    def spent(self, user: str | int, *, delta: float | None = None) -> Bound:
        """The smallest bound on all ballots of the user; `delta` defaults to that of the limit."""
        name = _user(user)
        with ledger_connection(self.path, self.wait_seconds) as connection:
            limit, costs = _limit(connection, name), _costs(connection, name)
        if delta is None:
            return _spent(costs, limit)
        return composed_bound(costs, delta, adaptive=True)

    def remaining(self, user: str | int) -> float:
        """Limit minus spent, at the limit's delta; infinite for a user without a limit."""
        return _remaining(self.limit(user), self.spent(user))

    def entries(self, user: str | int | None = None) -> list[LedgerEntry]:
        """The entries of one user, or of all, in the order in which they were written."""
        wanted = None if user is None else _user(user)
        with ledger_connection(self.path, self.wait_seconds) as connection:
            return _entries(connection, wanted)

    def users(self) -> list[str]:
        """Every user with an entry or a limit, in alphabetical order."""
        with ledger_connection(self.path, self.wait_seconds) as connection:
            return _users(connection)

    def summary(self) -> list[UserSummary]:
        """One row for each user, from one consistent snapshot of the file."""
        with ledger_connection(self.path, self.wait_seconds) as connection:
            connection.execute("BEGIN")
            rows = [
                (name, _limit(connection, name), _costs(connection, name), _last(connection, name))
                for name in _users(connection)
            ]
        return [_summarise(*row) for row in rows]


def _summarise(
    user: str, limit: Limit | None, costs: list[Cost], last_round: int | None
) -> UserSummary:
    spent = _spent(costs, limit)
    return UserSummary(
        user=user,
        ballots=sum(cost.ballots for cost in costs),
        bits=sum(cost.bits for cost in costs),
        last_round=last_round,
        pure_epsilon=float(pure_total(costs)),
        spent=spent,
        limit=limit,
        remaining=_remaining(limit, spent),
    )


def _spent(costs: list[Cost], limit: Limit | None) -> Bound:
    """The bound at the delta of the limit, pure without one; holds for servers that adapt."""
    return composed_bound(costs, 0.0 if limit is None else limit.delta, adaptive=True)


def _remaining(limit: Limit | None, spent: Bound) -> float:
    if limit is None or math.isinf(limit.epsilon):
        return math.inf
    return max(0.0, limit.epsilon - spent.epsilon)


def _user(user: object) -> str:
    if isinstance(user, numbers.Integral) and not isinstance(user, bool):
        return str(int(user))
    if not isinstance(user, str) or not user or not user.isprintable():
        raise InvalidInput(f"user is {user!r}; give a whole number or a printable name.")
    return user


def _entry(user: object, round: object, cost: object, mechanism: object) -> LedgerEntry:
    if not isinstance(cost, Cost):
        raise InvalidInput(f"cost is {cost!r}; give a Cost, e.g. mechanism.guarantee.cost.")
    if not isinstance(mechanism, str) or not mechanism or not mechanism.isprintable():
        raise InvalidInput(f"mechanism is {mechanism!r}; give the mechanism's name.")
    check_int("ballots", cost.ballots, 1, _MAX_INTEGER)
    return LedgerEntry(_user(user), check_int("round", round, 0, _MAX_INTEGER), mechanism, cost)


def _append(connection: sqlite3.Connection, entry: LedgerEntry) -> None:
    row = (entry.user, entry.round, entry.mechanism, entry.cost.to_text(), entry.cost.ballots)
    connection.execute(
        "INSERT INTO entries (user, round, mechanism, cost, copies, digest)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (*row, _digest(*row)),
    )


def _digest(*row: object) -> bytes:
    """Sixteen bytes that reveal a row that was changed on the disk."""
    return hashlib.blake2b(repr(row).encode(), digest_size=16, person=b"hushbit ledger").digest()


def _users(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT user FROM entries UNION SELECT user FROM limits")
    return sorted(row[0] for row in rows)


def _entries(connection: sqlite3.Connection, user: str | None) -> list[LedgerEntry]:
    """Entries in the order in which they were written, each compared with its digest."""
    query = "SELECT user, round, mechanism, cost, copies, digest FROM entries"
    if user is None:
        rows = connection.execute(f"{query} ORDER BY id")
    else:
        rows = connection.execute(f"{query} WHERE user = ? ORDER BY id", (user,))
    found = []
    for *row, digest in rows:
        if not isinstance(digest, bytes) or digest != _digest(*row):
            raise DamagedFile("A row of the ledger was changed on the disk; restore a copy.")
        name, number, mechanism, text, ballots = row
        found.append(LedgerEntry(name, number, mechanism, _read_cost(text, ballots)))
    return found


def _costs(connection: sqlite3.Connection, user: str) -> list[Cost]:
    """The user's ballots, one Cost for each kind."""
    ballots: dict[str, int] = {}
    for entry in _entries(connection, user):
        text = entry.cost.to_text()
        ballots[text] = ballots.get(text, 0) + entry.cost.ballots
    return [_read_cost(text, total) for text, total in sorted(ballots.items())]


def _limit(connection: sqlite3.Connection, user: str) -> Limit | None:
    row = connection.execute(
        "SELECT epsilon, delta FROM limits WHERE user = ? ORDER BY id DESC LIMIT 1", (user,)
    ).fetchone()
    try:
        return None if row is None else Limit(float(row[0]), float(row[1]))
    except (ValueError, InvalidInput) as error:
        raise DamagedFile(f"The limit of user {user!r} cannot be read: {error}.") from None


def _last(connection: sqlite3.Connection, user: str) -> int | None:
    row = connection.execute("SELECT MAX(round) FROM entries WHERE user = ?", (user,)).fetchone()
    return None if row[0] is None else int(row[0])


def _read_cost(text: str, ballots: int) -> Cost:
    try:
        return Cost.from_text(text, ballots)
    except InvalidInput as error:
        raise DamagedFile(f"A row of the ledger cannot be read: {error}") from None
