"""One open round at the server: the model it started from, whom it asked, how it is counted."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from hushbit.describe import description_text
from hushbit.flower.arrays import Arrays, Slot
from hushbit.flower.count import RoundCount
from hushbit.flower.wire import request_entries
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism


@dataclass
class OpenRound:
    """`nodes` gives the user number of each asked node; `users` that of each message sent.

    `begun` and `deadline` are readings of time.monotonic().
    """

    number: int
    mechanism: Mechanism
    key: RoundKey
    before: Arrays
    slots: tuple[Slot, ...]
    nodes: dict[int, int]
    begun: float
    deadline: float
    users: dict[str, int] = field(default_factory=dict)
    bytes_down: int = 0

    def requests(
        self, arrays: ArrayRecord, config: ConfigRecord, frozen: tuple[str, ...],
        content: Callable[[ArrayRecord, ConfigRecord], RecordDict],
    ) -> Iterator[Message]:  # fmt: skip
        """Each user's request, made when it is taken; it lives as long as the round."""
        text = description_text(self.mechanism)
        for node, user in self.nodes.items():
            entries = request_entries(text, self.key.user(user), frozen)
            # Everything of ours is in the one config record: other mods expect just one.
            own = ConfigRecord({**config, "server-round": self.number, **entries})
            left = self.deadline - time.monotonic()
            if left <= 0:
                break
            self.bytes_down += arrays.count_bytes() + own.count_bytes()
            yield Message(content(arrays, own), node, MessageType.TRAIN, ttl=left)

    def sent(self, messages: Mapping[str, int]) -> None:
        """Note the node that each accepted message was sent to."""
        self.users = {message: self.nodes[node] for message, node in messages.items()}

    def count(self, replies: Iterable[Message]) -> RoundCount:
        """Count replies as they come; each is forgotten once it is counted."""
        tally = self.mechanism.tally(self.key, histogram=False)
        count: RoundCount | None = None
        for reply in replies:
            # The first reply is taken only after all messages were sent and noted.
            count = count or RoundCount(tally, self.users)
            count.add(reply)
        return count or RoundCount(tally, self.users)
