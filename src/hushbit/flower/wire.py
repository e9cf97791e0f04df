"""What travels: a request inside the train message's config, a ballot as bytes in the reply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from hushbit.ballot import Ballot
from hushbit.describe import description_from_text
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.keys import UserKey

MECHANISM_KEY, USER_KEY, FROZEN_KEY = "hushbit-mechanism", "hushbit-key", "hushbit-frozen"
BALLOT_RECORD, BALLOT_ARRAY = "ballot", "bits"
SERIALIZED = "hushbit.ballot"


@dataclass(frozen=True)
class Request:
    """What a server asks of one user: a mechanism, the user's key, arrays that stay as they are."""

    description: Mapping[str, Any]
    key: UserKey = field(repr=False)
    frozen: tuple[str, ...]


def request_entries(text: str, key: UserKey, frozen: Sequence[str]) -> dict[str, Any]:
    """A request as entries for the one ConfigRecord of a train message."""
    return {MECHANISM_KEY: text, USER_KEY: key.to_bytes(), FROZEN_KEY: list(frozen)}


def read_request(content: RecordDict) -> Request:
    """The request in a train message; a message without a whole one is refused."""
    found = [record for record in content.config_records.values() if MECHANISM_KEY in record]
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
    records = content.array_records
    if list(records) != [BALLOT_RECORD] or list(records[BALLOT_RECORD]) != [BALLOT_ARRAY]:
        raise RefusedBallot("damaged", "a reply holds one ballot and no other arrays")
    array = records[BALLOT_RECORD][BALLOT_ARRAY]
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
