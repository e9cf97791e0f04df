"""Counts that stay on the machine of the client, in a small file beside the ledger.

The file has the number of answered requests by outcome ("trained", "app raised", …), so that the
operator notices an app that fails: replies do not show it. It also has the times of the replies
with metrics in the last 24 hours, which the policy limits.
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
    """The counts beside the ledger at `ledger`; safe for several processes."""

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
        """Count one reply with metrics; False, and nothing counted, beyond `per_day` in 24 hours.

        A time in the future counts, so that a clock that was set back does not reset the limit.
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
        """A transaction that holds the write lock; the file is created if there is none."""
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
