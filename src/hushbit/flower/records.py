"""The contents of Flower messages: the model as a flat vector, the request, the ballot.

The flat vector contains the entries of all floating-point arrays, in the order of the record,
except arrays whose names match a pattern in `frozen`. Frozen arrays and integer arrays (such as a
batch count) keep the server's value. The ConfigRecord of a train message contains the request; the
reply contains the bytes of the ballot.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.registry import description_from_text
from hushbit.wire.ballot import Ballot
from hushbit.wire.keys import UserKey

Arrays = dict[str, NDArray[Any]]
FLOAT_TYPES = ("float16", "float32", "float64")
NONNEGATIVE_PATTERN = "*running_var"
MECHANISM_KEY, USER_KEY, FROZEN_KEY = "hushbit-mechanism", "hushbit-key", "hushbit-frozen"
BALLOT_RECORD, BALLOT_ARRAY = "ballot", "bits"
BALLOT_STYPE = "hushbit.ballot"
PULL_SECONDS = 10.0
"""A request to train lives this much longer than its round.

The server can so receive a reply that arrives at the end of the round. Clients refuse a request
that has no more than this left.
"""
MAX_DESCRIPTION_LENGTH = 10_000  # characters
MAX_PATTERNS = 256  # largest number of patterns of frozen arrays, and of characters in each
Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)


@dataclass(frozen=True)
class ArraySlot:
    """The position of one array in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


def numpy_arrays(record: ArrayRecord) -> Arrays:
    """Copies of all arrays in a record, bfloat16 as float32; refuses all but numbers."""
    found: Arrays = {}
    for name, array in record.items():
        try:
            found[str(name)] = _numbers(array)
        except Exception as error:
            raise InvalidInput(f"array {name!r} cannot be read: {type(error).__name__}") from error
        if found[str(name)].dtype.kind not in "fiub":
            raise InvalidInput(f"array {name!r} has no numbers: {found[str(name)].dtype.name}")
    return found


def _numbers(array: Array) -> NDArray[Any]:
    """A copy of an array. NumPy has no bfloat16, the upper half of float32: it is widened."""
    found = np.array(array.numpy())
    if array.dtype == "bfloat16" or found.dtype.name == "bfloat16":
        return (found.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return found


def only_model(content: RecordDict) -> Arrays:
    """The arrays of the only ArrayRecord of a message."""
    found = list(records(content, ArrayRecord).values())
    if len(found) != 1:
        raise InvalidInput(
            f"a message must have exactly one ArrayRecord, the model; got {len(found)}"
        )
    return numpy_arrays(found[0])


def array_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """A record of arrays."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def encoded_layout(
    arrays: Mapping[str, NDArray[Any]], frozen: Sequence[str]
) -> tuple[ArraySlot, ...]:
    """The encoded arrays and their positions in the flat vector."""
    slots: list[ArraySlot] = []
    start = 0
    for name, array in arrays.items():
        if array.dtype.name not in FLOAT_TYPES or any(
            fnmatchcase(name, pattern) for pattern in frozen
        ):
            continue
        slots.append(ArraySlot(name, array.shape, start, start + array.size))
        start += array.size
    if start == 0:
        raise InvalidInput("the model has no floating-point entries to encode")
    return tuple(slots)


def dimension(slots: Sequence[ArraySlot]) -> int:
    """The number of entries of the flat vector."""
    return slots[-1].stop


def flat_model(slots: Sequence[ArraySlot], arrays: Arrays) -> NDArray[np.float64]:
    """The encoded arrays as one vector."""
    return np.concatenate([arrays[slot.name].astype(np.float64).ravel() for slot in slots])


def layout(arrays: Arrays) -> dict[str, Any]:
    """Shape and type of each array."""
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


def flat_update(slots: Sequence[ArraySlot], before: Arrays, after: Arrays) -> NDArray[np.floating]:
    """after - before as one vector; float32 if all arrays are float32, else float64.

    A NumPyClient returns arrays without names, which Flower numbers; they are taken in order.
    """
    if list(after) == [str(number) for number in range(len(before))]:
        after = dict(zip(before, after.values(), strict=True))
    for slot in slots:
        found = after.get(slot.name)
        if found is None or found.shape != slot.shape or found.dtype.name not in FLOAT_TYPES:
            raise InvalidInput(
                f"the app returned no floating-point array {slot.name!r} of shape {slot.shape}: "
                "return the whole trained model, with the array names of the message"
            )
    single = all(before[slot.name].dtype == np.float32 == after[slot.name].dtype for slot in slots)
    kind = np.float32 if single else np.float64
    parts = [np.subtract(after[slot.name], before[slot.name], dtype=kind).ravel() for slot in slots]
    return np.concatenate(parts)


def apply_update(slots: Sequence[ArraySlot], before: Arrays, mean: NDArray[np.float64]) -> Arrays:
    """The encoded arrays plus the mean update, each in its own dtype."""
    out: Arrays = {}
    for slot in slots:
        old = before[slot.name]
        new = old.astype(np.float64) + mean[slot.start : slot.stop].reshape(slot.shape)
        if fnmatchcase(slot.name, NONNEGATIVE_PATTERN):
            new = np.maximum(new, 0.0)  # noise must not make a variance negative
        out[slot.name] = new.astype(old.dtype)
    return out


def records(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """The records of one type.

    `content.array_records` of Flower is not used: it creates reference cycles, which keep a reply
    in memory until the garbage collector runs.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


@dataclass(frozen=True)
class Request:
    """The request to one user: a mechanism, the key of the user, patterns of frozen arrays."""

    description: Mapping[str, Any]
    key: UserKey = field(repr=False)
    frozen: tuple[str, ...]


def request_entries(text: str, key: UserKey, frozen: Sequence[str]) -> dict[str, Any]:
    """A request as entries of the ConfigRecord of a train message."""
    entries: dict[str, Any] = {MECHANISM_KEY: text, USER_KEY: key.to_bytes()}
    if frozen:  # as text, because Flower accepts no list in the configuration of a NumPyClient
        entries[FROZEN_KEY] = json.dumps(list(frozen))
    return entries


def read_request(content: RecordDict) -> Request:
    """The request in a train message; refuses a message without a complete request."""
    found = [
        record for record in records(content, ConfigRecord).values() if MECHANISM_KEY in record
    ]
    if len(found) != 1:
        raise InvalidInput(
            f"a train message must have one request for a ballot; got {len(found)}: the server "
            "must use HushbitStrategy"
        )
    config: ConfigRecord = found[0]
    text, key = config[MECHANISM_KEY], config.get(USER_KEY)
    if not isinstance(text, str) or len(text) > MAX_DESCRIPTION_LENGTH:
        raise InvalidInput(
            f"a mechanism must be JSON text of at most {MAX_DESCRIPTION_LENGTH} characters"
        )
    if not isinstance(key, bytes):
        raise InvalidInput("the request contains no user key")
    frozen = _frozen_patterns(config.get(FROZEN_KEY, "[]"))
    return Request(description_from_text(text), UserKey.from_bytes(key), frozen)


def _frozen_patterns(text: Any) -> tuple[str, ...]:
    """The name patterns in JSON text."""
    longest = MAX_PATTERNS * (MAX_PATTERNS + 4)
    try:
        found = json.loads(text) if isinstance(text, str) and len(text) <= longest else None
    except (ValueError, RecursionError):
        found = None
    if (
        not isinstance(found, list)
        or len(found) > MAX_PATTERNS
        or not all(isinstance(name, str) and len(name) <= MAX_PATTERNS for name in found)
    ):
        raise InvalidInput(
            f"frozen must be a JSON list of at most {MAX_PATTERNS} name patterns of at most "
            f"{MAX_PATTERNS} characters"
        )
    return tuple(found)


def ballot_record(ballot: Ballot, key: UserKey) -> ArrayRecord:
    """A record with one array: the bytes of the ballot and its MAC, without another encoding."""
    data = ballot.to_bytes(key)
    return ArrayRecord({BALLOT_ARRAY: Array("uint8", (len(data),), BALLOT_STYPE, data)})


def read_ballot(content: RecordDict, max_bytes: int) -> Ballot:
    """The ballot of a reply; refuses a reply with any other array."""
    found = records(content, ArrayRecord)
    if list(found) != [BALLOT_RECORD] or list(found[BALLOT_RECORD]) != [BALLOT_ARRAY]:
        raise RefusedBallot("damaged", "a reply must contain one ballot and no other arrays")
    array = found[BALLOT_RECORD][BALLOT_ARRAY]
    if array.stype != BALLOT_STYPE or not isinstance(array.data, bytes):
        raise RefusedBallot(
            "damaged", f"a ballot must have stype {BALLOT_STYPE}; got {array.stype!r}"
        )
    if len(array.data) > max_bytes:
        raise RefusedBallot(
            "length", f"a ballot must have at most {max_bytes} bytes; got {len(array.data)}"
        )
    return Ballot.from_bytes(array.data)
