"""The ledger: a durable record of what each user has spent, charged before a ballot is sent.

Every ballot that is sent spends privacy again, so charging the same user, round and mechanism twice
adds two charges. After a crash between charge and send the charge remains: the ledger may count a
ballot that was never sent, but it counts every ballot that was sent.

Every epsilon in a ledger is that of one user over all ballots, against the server, which sees
ballots. Guarantees against those who see only tallies (`Guarantee.of_tally`) are not part of it.
"""

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import time as wall_clock

from hushbit.checks import check_int, check_nonnegative
from hushbit.errors import (
    AlreadyCharged,
    BudgetSpent,
    DamagedFile,
    InvalidInput,
    TooManyRequests,
)
from hushbit.privacy.accountant import Bound, Cost, Limit, composed_bound, pure_total, within_limit
from hushbit.privacy.ledger_file import LedgerFile, LedgerRow

LEDGER_UNIT = "per user over all ballots, against the server, which sees ballots"
"""Unit and observer of every epsilon of a ledger."""

_MAX_SQLITE_INTEGER = 2**63 - 1
_SECONDS_PER_DAY = 24 * 60 * 60


@dataclass(frozen=True)
class LedgerEntry:
    """One charge; `time` is in seconds since 1970 by the clock of the machine that wrote it."""

    user: str
    round: int
    mechanism: str
    cost: Cost
    run: str
    time: float


@dataclass(frozen=True)
class UserSummary:
    """What one user has spent and what remains, as `hushbit audit --ledger` prints it.

    Unit and observer of every epsilon are those of LEDGER_UNIT.
    """

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

    A user is a string; an integer is converted to its decimal digits. Every operation reads and
    checks the whole file and raises DamagedFile if a row was changed, removed or inserted.
    """

    path: Path
    wait_seconds: float

    @staticmethod
    def open(path: str | Path, *, create: bool = True, wait_seconds: float = 30.0) -> "Ledger":
        """Open the ledger at `path`; create it if there is no file and `create` is true.

        If the ledger is missing but its marker (`path` with `.mark` appended) exists, DamagedFile
        is raised; to start a new budget, delete the marker too. `wait_seconds` is the longest time
        that an operation waits for the lock of another process.
        """
        if not isinstance(path, str | Path) or not str(path) or "\0" in str(path):
            raise InvalidInput(f"path is {path!r}; give the path of a ledger file.")
        ledger = Ledger(Path(path), check_nonnegative("wait_seconds", wait_seconds))
        if create:
            ledger._file.create_if_absent()
        ledger._file.check_integrity()
        ledger._file.rows()
        return ledger

    @property
    def _file(self) -> LedgerFile:
        return LedgerFile(self.path, self.wait_seconds)

    def set_limit(self, user: str | int, *, epsilon: float, delta: float) -> None:
        """Set the limit on all charges of the user, past ones included; delta 0 is pure epsilon.

        With `epsilon=math.inf` no charge exceeds the limit. A limit below what the user has spent
        is refused.
        """
        name, limit = _user(user), Limit(epsilon, delta)
        with self._file.append() as (rows, new):
            costs = _costs(_entries(rows, name))
            if not within_limit(costs, limit):
                raise InvalidInput(
                    f"The limit {limit.epsilon:g} ({limit.unit} {LEDGER_UNIT}) is below what user "
                    f"{name!r} has spent, {_spent(costs, limit).epsilon:g}; give a larger one."
                )
            row = LedgerRow(wall_clock(), "limit", name)
            new.append(row._replace(epsilon=repr(limit.epsilon), delta=repr(limit.delta)))

    def charge(
        self,
        user: str | int,
        round: int,
        cost: Cost,
        *,
        mechanism: str,
        run: str = "",
        once: bool = False,
        per_day: int | None = None,
    ) -> None:
        """Charge a ballot before it is sent; when this returns, the charge is on the disk.

        `run` is the identifier of the run in hexadecimal. With `once`, a second charge of the same
        user, run and round raises AlreadyCharged. With `per_day`, more than `per_day` charges
        within 24 hours raise TooManyRequests; charges with a time in the future count as recent, so
        that setting the clock back does not raise the limit. A charge that would exceed the user's
        limit raises BudgetSpent. These three errors write nothing. After any error the ballot must
        not be sent.
        """
        row = _ballot_row(user, round, cost, mechanism, run)
        allowed = _MAX_SQLITE_INTEGER if per_day is None else check_int("per_day", per_day, 1)
        with self._file.append() as (rows, new):
            entries, limit = _entries(rows, row.user), _limit(rows, row.user)
            if limit is None:
                raise InvalidInput(f"User {row.user!r} has no limit; call set_limit first.")
            if once and any((entry.run, entry.round) == (row.run, row.round) for entry in entries):
                raise AlreadyCharged(
                    f"User {row.user!r} has already been charged for round {row.round} of run "
                    f"{row.run!r}; a round is answered once. Nothing was charged; send nothing."
                )
            recent = sum(entry.time > row.time - _SECONDS_PER_DAY for entry in entries)
            if recent >= allowed:
                raise TooManyRequests(
                    f"User {row.user!r} was charged {recent} times within 24 hours; {allowed} are "
                    "allowed. Nothing was charged; send nothing."
                )
            costs = _costs(entries)
            if not within_limit([*costs, cost], limit):
                raise BudgetSpent(
                    f"User {row.user!r} has spent "
                    f"{_spent(costs, limit).epsilon:g} of {limit.epsilon:g} ({limit.unit} "
                    f"{LEDGER_UNIT}); a ballot of {cost.bits} bits would exceed the limit. Nothing "
                    "was charged; send nothing."
                )
            new.append(row)

    def record(
        self, user: str | int, round: int, cost: Cost, *, mechanism: str, run: str = ""
    ) -> None:
        """Add a ballot that was already sent, whatever the limit is; for reports by a server."""
        row = _ballot_row(user, round, cost, mechanism, run)
        with self._file.append() as (_, new):
            new.append(row)

    def limit(self, user: str | int) -> Limit | None:
        """The user's current limit, or None."""
        return _limit(self._file.rows(), _user(user))

    def spent(self, user: str | int, *, delta: float | None = None) -> Bound:
        """The smallest bound on all ballots of the user; `delta` defaults to that of the limit."""
        rows, name = self._file.rows(), _user(user)
        costs = _costs(_entries(rows, name))
        if delta is None:
            return _spent(costs, _limit(rows, name))
        return composed_bound(costs, delta, adaptive=True)

    def remaining(self, user: str | int) -> float:
        """Limit minus spent, at the limit's delta; infinite for a user without a limit."""
        return _summarise(self._file.rows(), _user(user)).remaining

    def entries(self, user: str | int | None = None) -> list[LedgerEntry]:
        """The entries of one user, or of all, in the order in which they were written."""
        return _entries(self._file.rows(), None if user is None else _user(user))

    def users(self) -> list[str]:
        """Every user with an entry or a limit, in alphabetical order."""
        return sorted({row.user for row in self._file.rows()})

    def summary(self) -> list[UserSummary]:
        """One row for each user, from one consistent snapshot of the file."""
        of_user: dict[str, list[LedgerRow]] = {}
        for row in self._file.rows():
            of_user.setdefault(row.user, []).append(row)
        return [_summarise(rows, user) for user, rows in sorted(of_user.items())]


def _summarise(rows: list[LedgerRow], user: str) -> UserSummary:
    entries, limit = _entries(rows, user), _limit(rows, user)
    costs = _costs(entries)
    spent = _spent(costs, limit)
    allowed = math.inf if limit is None else limit.epsilon
    return UserSummary(
        user=user,
        ballots=sum(cost.ballots for cost in costs),
        bits=sum(cost.bits for cost in costs),
        last_round=max((entry.round for entry in entries), default=None),
        pure_epsilon=float(pure_total(costs)),
        spent=spent,
        limit=limit,
        remaining=math.inf if math.isinf(allowed) else max(0.0, allowed - spent.epsilon),
    )


def _spent(costs: list[Cost], limit: Limit | None) -> Bound:
    """The bound at the limit's delta (0 without a limit); valid against an adaptive server."""
    return composed_bound(costs, 0.0 if limit is None else limit.delta, adaptive=True)


def _user(user: object) -> str:
    if isinstance(user, numbers.Integral) and not isinstance(user, bool):
        return str(int(user))
    if not isinstance(user, str) or not user or not user.isprintable():
        raise InvalidInput(f"user is {user!r}; give a whole number or a printable name.")
    return user


def _run(run: object) -> str:
    try:
        if isinstance(run, str) and bytes.fromhex(run).hex() == run:
            return run
    except ValueError:
        pass
    raise InvalidInput(f"run is {run!r}; give the run identifier in hexadecimal, as bytes.hex().")


def _ballot_row(
    user: object, round: object, cost: object, mechanism: object, run: object
) -> LedgerRow:
    if not isinstance(cost, Cost):
        raise InvalidInput(f"cost is {cost!r}; give a Cost, e.g. mechanism.guarantee.cost.")
    if not isinstance(mechanism, str) or not mechanism or not mechanism.isprintable():
        raise InvalidInput(f"mechanism is {mechanism!r}; give the mechanism's name.")
    return LedgerRow(
        wall_clock(),
        "ballot",
        _user(user),
        _run(run),
        check_int("round", round, 0, _MAX_SQLITE_INTEGER),
        mechanism,
        cost.to_text(),
        check_int("ballots", cost.ballots, 1, _MAX_SQLITE_INTEGER),
    )


def _entries(rows: Iterable[LedgerRow], user: str | None) -> list[LedgerEntry]:
    """The ballots of one user, or of all."""
    found = []
    for row in rows:
        if row.kind == "ballot" and user in (None, row.user):
            try:
                cost = Cost.from_text(row.cost, row.ballots)
            except InvalidInput as error:
                raise DamagedFile(f"A row of the ledger cannot be read: {error}") from None
            found.append(LedgerEntry(row.user, row.round, row.mechanism, cost, row.run, row.time))
    return found


def _costs(entries: Iterable[LedgerEntry]) -> list[Cost]:
    """The costs of the entries; equal costs are combined into one Cost."""
    ballots: dict[str, int] = {}
    for entry in entries:
        text = entry.cost.to_text()
        ballots[text] = ballots.get(text, 0) + entry.cost.ballots
    return [Cost.from_text(text, total) for text, total in sorted(ballots.items())]


def _limit(rows: Iterable[LedgerRow], user: str) -> Limit | None:
    """The last limit of the user."""
    limits = [row for row in rows if row.kind == "limit" and row.user == user]
    try:
        return Limit(float(limits[-1].epsilon), float(limits[-1].delta)) if limits else None
    except (ValueError, InvalidInput) as error:
        raise DamagedFile(f"The limit of user {user!r} cannot be read: {error}.") from None
