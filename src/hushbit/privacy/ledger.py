"""A durable record of what each user has spent, charged before a ballot leaves.

Every ballot that leaves is a new release: charging the same user, round and mechanism twice
charges twice. After a crash between charge and send the charge stands: the ledger may count a
ballot that was never sent, never the reverse.
"""

import hashlib
import math
import numbers
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from hushbit.checks import whole
from hushbit.errors import BudgetSpent, DamagedFile, InvalidInput
from hushbit.privacy.arguments import not_negative
from hushbit.privacy.composition import Bound
from hushbit.privacy.cost import Cost, Limit, fits, pure_total, spending
from hushbit.privacy.ledger_file import (
    check_pages,
    create_ledger_file,
    ledger_connection,
    writing,
)

_MOST_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    user: str
    round: int
    mechanism: str
    cost: Cost


@dataclass(frozen=True)
class UserSummary:
    """What one user has released and what is left, as `hushbit audit --ledger` prints it."""

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

    Users are named by text; a whole number names the user of its decimal digits.
    """

    path: Path
    wait_seconds: float

    @staticmethod
    def open(path: str | Path, *, create: bool = True, wait_seconds: float = 30.0) -> "Ledger":
        """Opens the ledger at `path`; makes a new one if nothing is there and `create` is true.

        `wait_seconds` bounds how long an operation waits for another process.
        """
        if not isinstance(path, str | Path) or not str(path) or "\0" in str(path):
            raise InvalidInput(f"path is {path!r}; give the path of a ledger file.")
        ledger = Ledger(Path(path), not_negative("wait_seconds", wait_seconds))
        if create and not ledger.path.exists():
            create_ledger_file(ledger.path)
        with ledger_connection(ledger.path, ledger.wait_seconds) as connection:
            check_pages(connection, ledger.path)
        return ledger

    def set_limit(self, user: str | int, *, epsilon: float, delta: float) -> None:
        """Sets what the user may spend from the first entry on; delta 0 means pure epsilon.

        `epsilon=math.inf` records without refusing. A limit below what is spent is refused.
        """
        name, limit = _user(user), Limit(epsilon, delta)
        with ledger_connection(self.path, self.wait_seconds) as connection, writing(connection):
            costs = _costs(connection, name)
            if not fits(costs, limit):
                raise InvalidInput(
                    f"The limit {limit.epsilon:g} ({limit.unit}) is below what user {name!r} has "
                    f"spent, {spending(costs, limit.delta).epsilon:g}; give a larger one."
                )
            connection.execute(
                "INSERT INTO limits (user, epsilon, delta) VALUES (?, ?, ?)",
                (name, repr(limit.epsilon), repr(limit.delta)),
            )

    def charge(self, user: str | int, round: int, cost: Cost, *, mechanism: str) -> None:
        """Charges a ballot before it leaves; when this returns, the charge is on the disk.

        Raises BudgetSpent, with nothing charged, if the user's limit would be passed.
        """
        entry = _entry(user, round, cost, mechanism)
        with ledger_connection(self.path, self.wait_seconds) as connection, writing(connection):
            limit = _limit(connection, entry.user)
            if limit is None:
                raise InvalidInput(f"User {entry.user!r} has no limit; call set_limit first.")
            costs = _costs(connection, entry.user)
            if not fits([*costs, cost], limit):
                raise BudgetSpent(
                    f"User {entry.user!r} has spent {spending(costs, limit.delta).epsilon:g} of "
                    f"{limit.epsilon:g} ({limit.unit}); a ballot of {cost.bits} bits would pass "
                    "it. Nothing was charged; send nothing."
                )
            _append(connection, entry)

    def record(self, user: str | int, round: int, cost: Cost, *, mechanism: str) -> None:
        """Adds a ballot that has already arrived, whatever the limit: the server's own view."""
        entry = _entry(user, round, cost, mechanism)
        with ledger_connection(self.path, self.wait_seconds) as connection, writing(connection):
            _append(connection, entry)

    def limit(self, user: str | int) -> Limit | None:
        """The limit in force, or None if none was set."""
        with ledger_connection(self.path, self.wait_seconds) as connection:
            return _limit(connection, _user(user))

    def spent(self, user: str | int, *, delta: float | None = None) -> Bound:
        """The smallest bound on all the user's ballots, at the limit's delta if none is given."""
        name = _user(user)
        with ledger_connection(self.path, self.wait_seconds) as connection:
            limit, costs = _limit(connection, name), _costs(connection, name)
        if delta is None:
            delta = 0.0 if limit is None else limit.delta
        return spending(costs, delta)

    def remaining(self, user: str | int) -> float:
        """Limit minus spent, at the limit's delta; infinite for a user without a limit."""
        return _remaining(self.limit(user), self.spent(user))

    def entries(self, user: str | int | None = None) -> list[Entry]:
        """All lines in the order they were written, of one user or of all."""
        wanted = None if user is None else _user(user)
        with ledger_connection(self.path, self.wait_seconds) as connection:
            return _lines(connection, wanted)

    def users(self) -> list[str]:
        """Every user with an entry or a limit, in alphabetical order."""
        with ledger_connection(self.path, self.wait_seconds) as connection:
            rows = connection.execute("SELECT user FROM entries UNION SELECT user FROM limits")
            return sorted(row[0] for row in rows)

    def summary(self) -> list[UserSummary]:
        """One row per user, from one consistent view of the file."""
        with ledger_connection(self.path, self.wait_seconds) as connection:
            connection.execute("BEGIN")
            rows = connection.execute("SELECT user FROM entries UNION SELECT user FROM limits")
            facts = [
                (name, _limit(connection, name), _costs(connection, name), _last(connection, name))
                for name in sorted(row[0] for row in rows.fetchall())
            ]
        return [_summarise(*fact) for fact in facts]


def _summarise(
    user: str, limit: Limit | None, costs: list[Cost], last_round: int | None
) -> UserSummary:
    spent = spending(costs, 0.0 if limit is None else limit.delta)
    return UserSummary(
        user=user,
        ballots=sum(cost.copies for cost in costs),
        bits=sum(cost.bits for cost in costs),
        last_round=last_round,
        pure_epsilon=float(pure_total(costs)),
        spent=spent,
        limit=limit,
        remaining=_remaining(limit, spent),
    )


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


def _entry(user: object, round: object, cost: object, mechanism: object) -> Entry:
    if not isinstance(cost, Cost):
        raise InvalidInput(f"cost is {cost!r}; give a Cost of (epsilon_per_bit, bits) tiers.")
    if not isinstance(mechanism, str) or not mechanism or not mechanism.isprintable():
        raise InvalidInput(f"mechanism is {mechanism!r}; give the mechanism's name.")
    whole("copies", cost.copies, 1, _MOST_INTEGER)
    return Entry(_user(user), whole("round", round, 0, _MOST_INTEGER), mechanism, cost)


def _append(connection: sqlite3.Connection, entry: Entry) -> None:
    line = (entry.user, entry.round, entry.mechanism, entry.cost.to_text(), entry.cost.copies)
    connection.execute(
        "INSERT INTO entries (user, round, mechanism, cost, copies, digest)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (*line, _digest(*line)),
    )


def _digest(*line: object) -> bytes:
    """Sixteen bytes by which a line that was changed on the disk is noticed."""
    return hashlib.blake2b(repr(line).encode(), digest_size=16, person=b"hushbit ledger").digest()


def _lines(connection: sqlite3.Connection, user: str | None) -> list[Entry]:
    """Lines in the order they were written, each compared with its digest."""
    what = "SELECT user, round, mechanism, cost, copies, digest FROM entries"
    if user is None:
        rows = connection.execute(f"{what} ORDER BY id")
    else:
        rows = connection.execute(f"{what} WHERE user = ? ORDER BY id", (user,))
    found = []
    for *line, digest in rows:
        if not isinstance(digest, bytes) or digest != _digest(*line):
            raise DamagedFile("A line of the ledger was changed on the disk; restore a copy.")
        name, number, mechanism, text, copies = line
        found.append(Entry(name, number, mechanism, _read_cost(text, copies)))
    return found


def _costs(connection: sqlite3.Connection, user: str) -> list[Cost]:
    """The user's ballots, equal ones counted together in whole numbers."""
    copies: dict[str, int] = {}
    for entry in _lines(connection, user):
        text = entry.cost.to_text()
        copies[text] = copies.get(text, 0) + entry.cost.copies
    return [_read_cost(text, total) for text, total in sorted(copies.items())]


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


def _read_cost(text: str, copies: int) -> Cost:
    try:
        return Cost.from_text(text, copies)
    except InvalidInput as error:
        raise DamagedFile(f"A line of the ledger cannot be read: {error}") from None
