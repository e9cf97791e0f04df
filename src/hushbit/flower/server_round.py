"""One round at the server: sample nodes, send requests, count replies, compute metrics.

Flower's `send_and_receive` collects all replies in a list. Here each reply is counted when it
arrives and then discarded, so memory does not grow with the number of users. Only a defence needs
all ballots at once: K · dim / 8 bytes for K users, and a multiple of it while they are tested.
"""

import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from logging import WARNING, getLogger
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid

from hushbit.checks import check_int, check_positive
from hushbit.errors import HushbitError, RefusedBallot
from hushbit.flower.defended_run import DefendedRun
from hushbit.flower.records import (
    PULL_SECONDS,
    Arrays,
    ArraySlot,
    flat_model,
    read_ballot,
    records,
    request_entries,
)
from hushbit.flower.refusals import cause_of, one_line
from hushbit.mechanism import Mechanism
from hushbit.registry import description_text
from hushbit.tally.estimate import Estimate
from hushbit.tally.tally import Tally
from hushbit.wire.ballot import HEADER_BYTES, MAC_BYTES, Ballot, Ballots
from hushbit.wire.keys import RoundKey

log = getLogger("flwr").log

MAX_METRICS = 32
MAX_TEXTS = 32
REPORTED_TEXTS = 5
REPLIES_PER_PULL = 8
POLL_SECONDS = 0.2
MAX_POLL_SECONDS = 2.0
MAX_WAIT_BEYOND_QUORUM = 10.0
PARTITION_METRIC = "partition-id"
NO_REPLY, REMOVED = "no reply before the deadline", "removed by the defence"


def send_all(grid: Grid, messages: Iterable[Message]) -> dict[str, int]:
    """Send messages one by one; return the destination node of each message, by message id."""
    sent: dict[str, int] = {}
    for message in messages:
        for message_id in grid.push_messages([message]):
            if message_id:
                sent[str(message_id)] = message.metadata.dst_node_id
    return sent


def replies(grid: Grid, sent: Collection[str], deadline: float) -> Iterator[Message]:
    """Replies to the sent messages as they arrive, until all have arrived or the deadline passes.

    `deadline` is in seconds of time.monotonic().
    """
    waiting = list(sent)
    pause = POLL_SECONDS
    while waiting:
        answered: set[str] = set()
        for first in range(0, len(waiting), REPLIES_PER_PULL):
            for reply in grid.pull_messages(waiting[first : first + REPLIES_PER_PULL]):
                answered.add(reply.metadata.reply_to_message_id)
                yield reply
        waiting = [message_id for message_id in waiting if message_id not in answered]
        left = deadline - time.monotonic()
        if not waiting or left <= 0:
            break
        pause = POLL_SECONDS if answered else min(1.5 * pause, MAX_POLL_SECONDS)
        time.sleep(min(pause, left))


def sample_nodes(
    grid: Grid, known: Callable[[int], bool], limit: int | None, quorum: int, deadline: float
) -> list[int]:
    """At most `limit` of the known nodes, drawn with the entropy of the operating system.

    Waits for the quorum until the deadline, and for more nodes, up to `limit`, for a shorter time.
    """
    begun = time.monotonic()
    # One deadline covers sampling and voting, so the wait for more nodes must leave time to vote.
    wait_end = begun + min(MAX_WAIT_BEYOND_QUORUM, (deadline - begun) / 4)
    wanted = quorum if limit is None else max(limit, quorum)
    online = -1
    while True:
        nodes = sorted(node for node in grid.get_node_ids() if known(node))
        now = time.monotonic()
        may_wait = now < (wait_end if len(nodes) >= quorum else deadline)
        if len(nodes) >= wanted or not may_wait or now >= deadline:
            break
        if len(nodes) != online:
            online = len(nodes)
            until = wait_end if online >= quorum else deadline
            text = (
                "hushbit: %d nodes are online, waiting for %d (quorum %d) for at most %.0f s; if "
                "there are no more nodes, lower honest, quorum or users_per_round"
            )
            log(WARNING, text, online, wanted, quorum, until - now)
        time.sleep(min(1.0, deadline - now))
    if limit is None or len(nodes) <= limit:
        return nodes
    return sorted(secrets.SystemRandom().sample(nodes, limit))


def users_by_partition(grid: Grid, count: int, *, seconds: float) -> dict[int, int]:
    """The user number that each node reports; for simulations only.

    In a simulation, Flower assigns new node ids in every run. Each node receives a query message,
    and its app replies with the metric `partition-id`, which the client's policy must list. In a
    deployment the node id is authenticated and is used as the user number.
    """
    wanted = check_int("count", count, 1)
    deadline = time.monotonic() + check_positive("seconds", seconds)
    while len(nodes := list(grid.get_node_ids())) < wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    queries = (Message(RecordDict(), node, MessageType.QUERY) for node in nodes)
    sent = send_all(grid, queries)
    users: dict[int, int] = {}
    for reply in replies(grid, sent, deadline):
        if reply.has_error():
            continue
        for record in records(reply.content, MetricRecord).values():
            stated = record.get(PARTITION_METRIC)
            if isinstance(stated, int | float) and stated % 1 == 0:  # NaN where the app failed
                node = sent[reply.metadata.reply_to_message_id]
                users[node] = check_int(PARTITION_METRIC, int(stated), 0)
    if len(users) < wanted or len(set(users.values())) < len(users):
        raise HushbitError(
            f"{len(users)} of {wanted} nodes reported a partition, and {len(set(users.values()))} "
            "partitions are distinct: list partition-id in the metrics of every policy"
        )
    return users


class MetricMeans:
    """Means of the metrics that users send; values other than finite numbers are ignored."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, content: RecordDict) -> None:
        """Add the finite numbers of one reply."""
        for record in records(content, MetricRecord).values():
            for name, value in record.items():
                known = name in self._sums or len(self._sums) < MAX_METRICS
                if known and isinstance(value, int | float) and math.isfinite(value):
                    total, count = self._sums.get(name, (0.0, 0))
                    self._sums[name] = (total + value, count + 1)

    def means(self) -> dict[str, float]:
        """The mean of each metric over the users that sent it."""
        return {name: total / count for name, (total, count) in self._sums.items()}


class RoundCount:
    """The tally of a round, what happened to all other requests, and the users' metrics.

    `users` gives the user to whom each message of this round was sent, by message id. A reply
    counts only for the user of its message, whatever the ballot states. Every request is accepted,
    removed, refused, lost or unanswered. With `keep`, valid ballots are kept and not yet counted.

    removed    number of ballots that the defence removed, by test
    refused    number of requests by reason: the cause that the client states (only "simulation" is
               charged), or why the server refuses the ballot
    lost       requests for which Flower reports an error, such as a node that is gone; their
               ballots may have been charged
    late       ballots of earlier rounds that arrived in this round
    duplicate  further replies to a request that was answered
    texts      number of refused and lost requests by the text that states why
    """

    def __init__(self, tally: Tally, users: Mapping[str, int], keep: bool = False) -> None:
        self.tally = tally
        self.kept: list[Ballot] | None = [] if keep else None
        self.removed: dict[str, int] = {}
        self.users = users
        self.refused: Counter[str] = Counter()
        self.lost = self.late = self.duplicate = 0
        self.texts: Counter[str] = Counter()
        self.bytes_up = 0
        self.answered: set[str] = set()
        self.metrics = MetricMeans()
        self._ballot_bytes = HEADER_BYTES + MAC_BYTES + (tally.mechanism.payload_bits + 7) // 8

    @property
    def accepted(self) -> int:
        """Ballots in the tally."""
        return self.tally.count

    def add(self, reply: Message) -> None:
        """Count one reply, or why it is not counted."""
        message = reply.metadata.reply_to_message_id
        if message not in self.users:
            self.late += not reply.has_error()
        elif message in self.answered:
            self.duplicate += 1
        else:
            self.answered.add(message)
            if reply.has_error():
                self._add_error(reply.error)
            else:
                self._add_ballot(reply.content, self.users[message])

    def _add_error(self, error: Error) -> None:
        cause = cause_of(error)
        if cause is None:
            self.lost += 1
            self._add_text(f"lost: Flower reports error {error.code}: {error.reason}")
        else:
            self.refused[cause] += 1
            self._add_text(error.reason)

    def _add_ballot(self, content: RecordDict, user: int) -> None:
        try:
            ballot = read_ballot(content, self._ballot_bytes)
            if ballot.user != user:
                raise RefusedBallot("forged", "the ballot names another user")
            if self.kept is None:
                self.tally.add(ballot)
            else:
                self.tally.check_ballots(Ballots.stack([ballot]))
                self.kept.append(replace(ballot, mac=None))  # which was checked
        except RefusedBallot as error:
            self.refused[error.reason] += 1
            self._add_text(f"{error.reason}: {error}")
            return
        self.bytes_up += self._ballot_bytes
        self.metrics.add(content)

    def failures(self, asked: int) -> Counter[str]:
        """Number of requests without a counted ballot, by the text that states why."""
        removed = sum(self.removed.values())
        return self.texts + Counter({NO_REPLY: asked - len(self.answered), REMOVED: removed})

    def _add_text(self, text: str) -> None:
        """Count a text; clients write some of them, so their number and length are limited."""
        text = one_line(text)
        self.texts[text if text in self.texts or len(self.texts) < MAX_TEXTS else "others"] += 1


@dataclass
class OpenRound:
    """A round that has started: its mechanism, key, initial model and users.

    nodes            user number of each sampled node
    users            user number of each sent message id
    begun, deadline  in seconds of time.monotonic()
    """

    number: int
    mechanism: Mechanism
    key: RoundKey
    before: Arrays
    slots: tuple[ArraySlot, ...]
    nodes: dict[int, int]
    begun: float
    deadline: float
    users: dict[str, int] = field(default_factory=dict)
    bytes_down: int = 0

    def requests(
        self,
        arrays: ArrayRecord,
        config: ConfigRecord,
        frozen: tuple[str, ...],
        content: Callable[[ArrayRecord, ConfigRecord], RecordDict],
    ) -> Iterator[Message]:
        """The requests to all users, built one by one; they live PULL_SECONDS after the round."""
        text = description_text(self.mechanism)
        for node, user in self.nodes.items():
            entries = request_entries(text, self.key.user(user), frozen)
            # Other mods expect exactly one config record, so the request is part of it.
            own = ConfigRecord({**config, "server-round": self.number, **entries})
            left = self.deadline - time.monotonic()
            if left <= 0:
                break
            self.bytes_down += arrays.count_bytes() + own.count_bytes()
            ttl = left + PULL_SECONDS
            yield Message(content(arrays, own), node, MessageType.TRAIN, ttl=ttl)

    def record_sent(self, messages: Mapping[str, int]) -> None:
        """Record the destination node of each accepted message."""
        self.users.update((message, self.nodes[node]) for message, node in messages.items())

    def count(self, replies: Iterable[Message], defended: DefendedRun | None = None) -> RoundCount:
        """Count replies as they arrive, or with a defence when all have arrived."""
        tally = self.mechanism.tally(self.key, histogram=False, require_mac=True)
        count = RoundCount(tally, self.users, keep=defended is not None)
        for reply in replies:
            count.add(reply)
        if defended is not None and count.kept:
            ballots = Ballots.stack(sorted(count.kept, key=lambda ballot: ballot.user))
            count.kept.clear()
            model = flat_model(self.slots, self.before)
            count.tally, count.removed = defended.count(tally, ballots, model)
        return count


def snr_estimate_db(estimate: Estimate) -> float:
    """Signal-to-noise ratio in dB, from the tally: 10 log10((|mean|² - noise) / noise)."""
    noise = float(estimate.variance.sum())
    if noise == 0:
        return math.inf
    signal = float(estimate.mean @ estimate.mean) - noise
    if math.isnan(signal):
        return math.nan
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def privacy_metrics(mechanism: Mechanism, rounds: int, delta: float) -> dict[str, float]:
    """Epsilons against the server, for a user who has voted in every round so far."""
    guarantee = mechanism.guarantee
    return {
        "epsilon_bit": guarantee.epsilon_per_bit,
        "pure_epsilon_message_server": guarantee.epsilon_per_message(),
        "epsilon_message_server": guarantee.epsilon_per_message(delta),
        "pure_epsilon_run_server": guarantee.epsilon_per_run(rounds),
        "epsilon_run_server": guarantee.epsilon_per_run(rounds, delta),
        "delta": delta,
    }


def vote_metrics(count: RoundCount, asked: int) -> dict[str, Any]:
    """What happened to the requests of a round, and the means of the users' metrics.

    asked = accepted + removed + refused + lost + unanswered
    """
    removed = {f"removed_{test}": number for test, number in count.removed.items()}
    if removed:
        removed["removed"] = sum(count.removed.values())
    reasons = {f"refused_{reason}": number for reason, number in sorted(count.refused.items())}
    means = {f"users_{name}": value for name, value in count.metrics.means().items()}
    return {
        "asked": asked,
        "accepted": count.accepted,
        "refused": sum(count.refused.values()),
        "lost": count.lost,
        "unanswered": asked - len(count.answered),
        "late": count.late,
        "duplicate": count.duplicate,
        "bytes_up": count.bytes_up,
        **removed,
        **reasons,
        **means,
    }


def round_line(metrics: Mapping[str, Any]) -> str:
    """The result of a round in one line, for the log; the metrics of the run have everything."""
    text = (
        f"{metrics['accepted']} of {metrics['asked']} ballots accepted ({metrics['refused']} "
        f"refused, {metrics['lost']} lost, {metrics['unanswered']} unanswered), "
        f"{metrics['late']} late"
    )
    if "removed" in metrics:
        text += f", {metrics['removed']} removed by the defence"
    if "snr_estimate_db" in metrics:
        text += f", SNR {metrics['snr_estimate_db']:.1f} dB"
    tests = [(name, value) for name, value in metrics.items() if name.startswith("test_")]
    return text + "".join(f", {name} {value:.4g}" for name, value in tests)


def failure_report(failures: Counter[str]) -> str:
    """Why requests brought no ballot: the most frequent texts with their counts, in one line."""
    return "; ".join(f"{number} x {text}" for text, number in failures.most_common(REPORTED_TEXTS))
