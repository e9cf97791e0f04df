"""What travels: a request inside the train message's config, a ballot as bytes in the reply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from hushbit.ballot import Ballot
from hushbit.describe import description_from_text
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.keys import UserKey

MECHANISM_KEY, USER_KEY, FROZEN_KEY = "hushbit-mechanism", "hushbit-key", "hushbit-frozen"
BALLOT_RECORD, BALLOT_ARRAY = "ballot", "bits"
SERIALIZED = "hushbit.ballot"


Kind = TypeVar("Kind", ArrayRecord, ConfigRecord, MetricRecord)


def records(content: RecordDict, kind: type[Kind]) -> dict[str, Kind]:
    """The records of one kind.

    Flower's own views (`content.array_records`) refer to themselves, so that a reply would stay
    in memory until the garbage collector comes by.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


@dataclass(frozen=True)
class Request:
    """What a server asks of one user: a mechanism, the user's key, arrays that stay as they are."""

    description: Mapping[str, Any]
    key: UserKey = field(repr=False)
    frozen: tuple[str, ...]


def request_entries(text: str, key: UserKey, frozen: Sequence[str]) -> dict[str, Any]:
    """A request as entries for the one ConfigRecord of a train message."""
    entries: dict[str, Any] = {MECHANISM_KEY: text, USER_KEY: key.to_bytes()}
    if frozen:  # Flower cannot count the bytes of an empty list
        entries[FROZEN_KEY] = list(frozen)
    return entries


def read_request(content: RecordDict) -> Request:
    """The request in a train message; a message without a whole one is refused."""
    found = [
        record for record in records(content, ConfigRecord).values() if MECHANISM_KEY in record
    ]
    if len(found) != 1:
        raise InvalidInput(
            "the train message asks for no private ballot; the server needs HushbitStrategy"
        )
    config: ConfigRecord = found[0]
    frozen = config.get(FROZEN_KEY, [])
    if not isinstance(frozen, list) or not all(isinstance(name, str) for name in frozen):
        raise InvalidInput("frozen arrays are named by a list of patterns")
    description = description_from_text(config[MECHANISM_KEY])
    names = tuple(str(name) for name in frozen)
    return Request(description, UserKey.from_bytes(_bytes(config.get(USER_KEY))), names)


def ballot_record(ballot: Ballot) -> ArrayRecord:
    """A ballot as the one array of a record: its bytes, with no other encoding around them."""
    data = ballot.to_bytes()
    return ArrayRecord({BALLOT_ARRAY: Array("uint8", (len(data),), SERIALIZED, data)})


def read_ballot(content: RecordDict, most_bytes: int) -> Ballot:
    """The ballot of a reply; whatever else came as an array is refused unread."""
    found = records(content, ArrayRecord)
    if list(found) != [BALLOT_RECORD] or list(found[BALLOT_RECORD]) != [BALLOT_ARRAY]:
        raise RefusedBallot("damaged", "a reply holds one ballot and no other arrays")
    array = found[BALLOT_RECORD][BALLOT_ARRAY]
    if array.stype != SERIALIZED or not isinstance(array.data, bytes):
        raise RefusedBallot("damaged", f"a ballot is sent as {SERIALIZED}; got {array.stype!r}")
    if len(array.data) > most_bytes:
        raise RefusedBallot(
            "length", f"a ballot has at most {most_bytes} bytes; got {len(array.data)}"
        )
    return Ballot.from_bytes(array.data)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise InvalidInput("the request holds no user key")
    return value
