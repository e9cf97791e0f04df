"""Who is who in a simulation, where Flower numbers its nodes afresh in every run."""

import time

from flwr.app import Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from hushbit.checks import positive, whole
from hushbit.errors import HushbitError
from hushbit.flower.exchange import push, replies
from hushbit.flower.wire import records

PARTITION = "partition-id"


def users_by_partition(grid: Grid, count: int, *, seconds: float) -> dict[int, int]:
    """The user number of each node, from what the node itself says: for simulations only.

    Every node is asked by a query message; its app answers with a metric `partition-id`, which
    the client's policy must list. In a deployment the node id itself is the authenticated name.
    """
    wanted = whole("count", count, 1)
    deadline = time.monotonic() + positive("seconds", seconds)
    while len(nodes := list(grid.get_node_ids())) < wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    queries = (Message(RecordDict(), node, MessageType.QUERY) for node in nodes)
    sent = push(grid, queries)
    users: dict[int, int] = {}
    for reply in replies(grid, sent, deadline):
        if reply.has_error():
            continue
        for record in records(reply.content, MetricRecord).values():
            if PARTITION in record:
                node = sent[reply.metadata.reply_to_message_id]
                users[node] = whole(PARTITION, record[PARTITION], 0)
    if len(users) < wanted or len(set(users.values())) < len(users):
        raise HushbitError(f"{len(users)} of {wanted} nodes named a partition of their own")
    return users
