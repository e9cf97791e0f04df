"""Counts that are stored on the client only, in a small file beside the ledger.

The file contains the number of answered requests by outcome ("trained", "the app raised an error",
…). It shows the operator an app that fails, which replies do not show. It also contains the times
of replies with metrics in the last 24 hours, whose number the policy limits.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hushbit.errors import DamagedFile

DAY_SECONDS = 24 * 3600.0
SUFFIX = ".counts"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS outcomes (outcome TEXT PRIMARY KEY, requests INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS metric_replies (at REAL NOT NULL) STRICT;
"""


@dataclass(frozen=True)
class LocalCounts:
    """The counts that belong to the ledger at `ledger`; several processes may use them at once."""

    ledger: Path

    @property
    def path(self) -> Path:
        """The file of the counts; only its owner can read it."""
        return self.ledger.with_name(self.ledger.name + SUFFIX)

    def add(self, outcome: str) -> None:
        """Count one request with this outcome."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO outcomes VALUES (?, 1)"
                " ON CONFLICT (outcome) DO UPDATE SET requests = requests + 1",
                (outcome,),
            )

    def outcomes(self) -> dict[str, int]:
        """The number of requests by outcome."""
        with self._transaction() as connection:
            return dict(connection.execute("SELECT outcome, requests FROM outcomes").fetchall())

    def add_metric_reply(self, per_day: int) -> bool:
        """Count one reply with metrics; return False without counting beyond `per_day` in 24 hours.

        Times in the future count as recent: setting the clock back does not reset the limit.
        """
        now = time.time()
        with self._transaction() as connection:
            connection.execute("DELETE FROM metric_replies WHERE at <= ?", (now - DAY_SECONDS,))
            [recent] = connection.execute("SELECT COUNT(*) FROM metric_replies").fetchone()
            if recent >= per_day:
                return False
            connection.execute("INSERT INTO metric_replies VALUES (?)", (now,))
            return True

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the write lock; a missing file is created."""
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            with closing(sqlite3.connect(self.path, timeout=30.0)) as connection:
                connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA}")
                yield connection
                connection.commit()
        except (OSError, sqlite3.Error) as error:
            raise DamagedFile(
                f"the counts {self.path} cannot be used: {error}; check that the disk is "
                "writable, or remove the file to count from 0"
            ) from error
