"""Sending requests and taking replies as they come, a few at a time, until a deadline.

Flower's own `send_and_receive` gathers all replies in a list; here each is handed on and
forgotten, so that memory does not grow with the number of users.
"""

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from logging import INFO, WARNING

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

REPLIES_AT_ONCE = 8
POLL_SECONDS = 0.2
LONGEST_POLL_SECONDS = 2.0
GRACE_SECONDS = 10.0


def push(grid: Grid, messages: Iterable[Message]) -> dict[str, int]:
    """Send messages one by one; the node that each accepted message was sent to, by its id."""
    sent: dict[str, int] = {}
    for message in messages:
        for accepted in grid.push_messages([message]):
            if accepted:
                sent[str(accepted)] = message.metadata.dst_node_id
    return sent


def replies(grid: Grid, asked: Collection[str], deadline: float) -> Iterator[Message]:
    """Replies to the asked messages as they arrive, until all are there or time is up.

    `deadline` is a reading of time.monotonic().
    """
    waiting = list(asked)
    pause = POLL_SECONDS
    while waiting:
        answered: set[str] = set()
        for first in range(0, len(waiting), REPLIES_AT_ONCE):
            for reply in grid.pull_messages(waiting[first : first + REPLIES_AT_ONCE]):
                answered.add(reply.metadata.reply_to_message_id)
                yield reply
        waiting = [one for one in waiting if one not in answered]
        left = deadline - time.monotonic()
        if not waiting or left <= 0:
            break
        pause = POLL_SECONDS if answered else min(1.5 * pause, LONGEST_POLL_SECONDS)
        time.sleep(min(pause, left))
    if waiting:
        log(WARNING, "hushbit: %d users gave no answer by the deadline", len(waiting))


def sample_nodes(
    grid: Grid, known: Callable[[int], bool], most: int | None, quorum: int, deadline: float
) -> list[int]:
    """At most `most` of the known nodes, drawn by the system's entropy.

    Waits for the quorum until the deadline, and for the rest of `most` a little while.
    """
    begun = time.monotonic()
    # Sampling and voting share one deadline: waiting for more users must leave time to vote.
    grace = begun + min(GRACE_SECONDS, (deadline - begun) / 4)
    wanted = quorum if most is None else max(most, quorum)
    while True:
        nodes = sorted(node for node in grid.get_node_ids() if known(node))
        now = time.monotonic()
        patient = now < (grace if len(nodes) >= quorum else deadline)
        if len(nodes) >= wanted or not patient or now >= deadline:
            break
        log(INFO, "hushbit: %d users are there, waiting for %d", len(nodes), wanted)
        time.sleep(min(1.0, deadline - now))
    if most is None or len(nodes) <= most:
        return nodes
    return sorted(secrets.SystemRandom().sample(nodes, most))
