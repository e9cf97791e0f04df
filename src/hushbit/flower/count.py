"""Counting the replies of one round: each is accepted once or refused with a word for why."""

import math
from collections import Counter
from collections.abc import Mapping
from logging import WARNING

from flwr.app import Message, MetricRecord, RecordDict
from flwr.supercore import log

from hushbit.ballot import HEADER_BYTES
from hushbit.errors import RefusedBallot
from hushbit.flower.text import one_line
from hushbit.flower.wire import read_ballot, records
from hushbit.tally import Tally

MOST_METRICS = 32


class MetricMeans:
    """Plain means of the metrics that users chose to send; strange ones are passed over."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, content: RecordDict) -> None:
        """Add the finite numbers of one reply."""
        for record in records(content, MetricRecord).values():
            for name, value in record.items():
                known = name in self._sums or len(self._sums) < MOST_METRICS
                if known and isinstance(value, int | float) and math.isfinite(value):
                    total, count = self._sums.get(name, (0.0, 0))
                    self._sums[name] = (total + value, count + 1)

    def means(self) -> dict[str, float]:
        """Each metric's mean over the users that sent it."""
        return {name: total / count for name, (total, count) in self._sums.items()}


class RoundCount:
    """A tally, how many were refused and why, and the metrics that users chose to send.

    `users` names the user that each message of this round was sent to, by message id: a reply
    speaks for that user and no other, whatever it claims.
    """

    def __init__(self, tally: Tally, users: Mapping[str, int]) -> None:
        self.tally = tally
        self.users = users
        self.refused: Counter[str] = Counter()
        self.bytes_up = 0
        self.answered: set[str] = set()
        self.metrics = MetricMeans()
        self._most = HEADER_BYTES + (tally.mechanism.payload_bits + 7) // 8

    @property
    def accepted(self) -> int:
        """Ballots in the tally."""
        return self.tally.count

    def add(self, reply: Message) -> None:
        """Count one reply, or refuse it and go on."""
        try:
            self._add(reply)
        except RefusedBallot as error:
            self.refused[error.reason] += 1
            log(WARNING, "hushbit: refused a reply (%s): %s", error.reason, one_line(error))

    def _add(self, reply: Message) -> None:
        message = reply.metadata.reply_to_message_id
        if message not in self.users:
            raise RefusedBallot("late", "the reply answers no message of this round")
        if message in self.answered:
            raise RefusedBallot("duplicate", "the message was answered before")
        self.answered.add(message)
        user = self.users[message]
        if reply.has_error():
            raise RefusedBallot("error", f"user {user}: {reply.error.reason}")
        ballot = read_ballot(reply.content, self._most)
        if ballot.user != user:
            raise RefusedBallot("forged", f"user {user} sent a ballot of user {ballot.user}")
        self.tally.add(ballot)
        self.bytes_up += HEADER_BYTES + len(ballot.payload)
        self.metrics.add(reply.content)
