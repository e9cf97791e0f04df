"""Ballots: the packed bits of one user in one round, and their bytes on the wire.

    "HB" | version 1 | 0 | fingerprint 8 | round 8 | user 8 | bits 8 | CRC-32 4 | payload

Numbers are little-endian. Bit i of the payload is bit i mod 8 of byte i div 8; unused bits of the
last byte are zero. The checksum covers all other bytes and detects damage, not forgery.

`Ballot` is one message, `Ballots` a batch of one mechanism and round. `Ballot.from_bytes` reads one
message of any mechanism; `parse_rows` reads many of one mechanism and counts why others are
refused. Both apply the same checks of the header.
"""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import check_int
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.wire.keys import MAX_UINT64

Rows = NDArray[np.uint8]

MAGIC = b"HB"
VERSION = 1
FIELDS = {
    "magic": "2s",
    "version": "B",
    "zero": "B",
    "fingerprint": "8s",
    "round": "Q",
    "user": "Q",
    "bits": "Q",
    "checksum": "I",
}
HEADER = struct.Struct("<" + "".join(FIELDS.values()))  # of one ballot
HEADER_ROW = np.dtype(  # of many
    [(name, {"2s": "S2", "8s": "V8"}.get(code, f"<{code}")) for name, code in FIELDS.items()]
)
HEADER_BYTES = HEADER.size
CHECKSUM_START = HEADER_BYTES - 4


@dataclass(frozen=True)
class Ballot:
    """One user's message. `overloaded` stays with the user: it is not part of the bytes."""

    fingerprint: bytes
    round: int
    user: int
    bits: int
    payload: bytes = field(repr=False)
    overloaded: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        _check_header(self)
        object.__setattr__(self, "user", check_int("user", self.user, 0, MAX_UINT64))
        if not isinstance(self.payload, bytes):
            raise InvalidInput(f"payload must be bytes; got {type(self.payload).__name__}")

    def to_bytes(self) -> bytes:
        """The bytes on the wire."""
        numbers = (self.round, self.user, self.bits)
        start = HEADER.pack(MAGIC, VERSION, 0, self.fingerprint, *numbers, 0)[:CHECKSUM_START]
        checksum = zlib.crc32(self.payload, zlib.crc32(start))
        return start + checksum.to_bytes(4, "little") + self.payload

    @classmethod
    def from_bytes(cls, data: Any) -> "Ballot":
        """Read a ballot; anything but exactly one undamaged ballot is refused."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidInput(f"a ballot is read from bytes; got {type(data).__name__}")
        data = bytes(data)
        if len(data) < HEADER_BYTES:
            raise RefusedBallot(
                "damaged", f"a ballot has at least {HEADER_BYTES} bytes; got {len(data)}"
            )
        magic, version, zero, fingerprint, number, user, bits, stored = HEADER.unpack_from(data)
        payload = data[HEADER_BYTES:]
        checksum = zlib.crc32(payload, zlib.crc32(data[:CHECKSUM_START]))
        faults = _header_faults(magic, version, zero, checksum != stored)
        for (reason, faulty), message in zip(faults, FAULT_MESSAGES, strict=True):
            if faulty:
                raise RefusedBallot(reason, message.format(version))
        if len(payload) != (bits + 7) // 8:
            raise RefusedBallot(
                "length", f"{bits} bits need {(bits + 7) // 8} bytes; got {len(payload)}"
            )
        if bits % 8 and payload[-1] >> bits % 8:
            raise RefusedBallot("padding", "unused bits of the last byte must be zero")
        return cls(fingerprint, number, user, bits, payload)


@dataclass(frozen=True, eq=False)
class Ballots(Sequence[Ballot]):
    """Ballots of one mechanism and round, as arrays.

    `ballots[i]` is one `Ballot`; a slice, a boolean mask or an array of indices gives `Ballots`.
    """

    fingerprint: bytes
    round: int
    bits: int
    users: NDArray[np.uint64]
    payload: NDArray[np.uint8] = field(repr=False)
    overloaded: NDArray[np.int64] = field(repr=False)

    def __post_init__(self) -> None:
        _check_header(self)
        wanted = {"users": (np.uint64, 1), "payload": (np.uint8, 2), "overloaded": (np.int64, 1)}
        for name, (kind, axes) in wanted.items():
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or (array.dtype, array.ndim) != (kind, axes):
                raise InvalidInput(f"{name} must be an array of {kind.__name__} with {axes} axes")
        shape = (self.users.size, (self.bits + 7) // 8)
        if self.payload.shape != shape or self.overloaded.size != self.users.size:
            raise InvalidInput(
                f"{shape[0]} ballots of {self.bits} bits need a payload of shape {shape}; got "
                f"{self.payload.shape} and {self.overloaded.size} overload counts"
            )

    def __len__(self) -> int:
        return self.users.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, np.ndarray) and index.dtype == np.bool_ and index.all():
            index = slice(None) if index.shape == self.users.shape else index  # no copies
        users, payload, overloaded = (
            array[index] for array in (self.users, self.payload, self.overloaded)
        )
        if isinstance(index, slice | np.ndarray):
            return Ballots(self.fingerprint, self.round, self.bits, users, payload, overloaded)
        return Ballot(
            self.fingerprint, self.round, int(users), self.bits, payload.tobytes(), int(overloaded)
        )

    def __iter__(self) -> Iterator[Ballot]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def stack(cls, ballots: Sequence[Ballot]) -> "Ballots":
        """One batch from ballots that agree in mechanism, round and length."""
        if len({(b.fingerprint, b.round, b.bits) for b in ballots}) != 1:
            raise InvalidInput("ballots in one batch must share mechanism, round and length")
        first = ballots[0]
        size = len(first.payload)
        if any(len(b.payload) != size for b in ballots):
            raise InvalidInput("ballots in one batch must have payloads of one length")
        payload = np.frombuffer(b"".join(b.payload for b in ballots), dtype=np.uint8)
        return cls(
            first.fingerprint,
            first.round,
            first.bits,
            np.array([b.user for b in ballots], dtype=np.uint64),
            payload.reshape(len(ballots), size),
            np.array([b.overloaded for b in ballots], dtype=np.int64),
        )


def _header_faults(magic: Any, version: Any, zero: Any, damaged: Any) -> list[tuple[str, Any]]:
    """Reasons to refuse a ballot of any mechanism, in order; for numbers as for arrays."""
    return [
        ("damaged", magic != MAGIC),
        ("version", version != VERSION),
        ("damaged", damaged | (zero != 0)),
    ]


FAULT_MESSAGES = (
    "not a ballot: the first two bytes must be 'HB'",
    f"ballot version {{}} is not supported; this release reads version {VERSION}",
    "the ballot's checksum does not match: send it again",
)


def _check_header(ballot: Ballot | Ballots) -> None:
    """Refuse numbers that do not fit the header."""
    if not isinstance(ballot.fingerprint, bytes) or len(ballot.fingerprint) != 8:
        raise InvalidInput("a fingerprint is 8 bytes; ballots are made by Mechanism.encode")
    object.__setattr__(ballot, "round", check_int("round", ballot.round, 0, MAX_UINT64))
    object.__setattr__(ballot, "bits", check_int("bits", ballot.bits, 0, MAX_UINT64))


class PayloadRule(Protocol):
    """The part of a mechanism that decides which ballots are its own and well-formed."""

    @property
    def fingerprint(self) -> bytes:
        """Eight bytes that identify the mechanism."""

    @property
    def payload_bits(self) -> int:
        """Bits of one ballot's payload."""

    def check_payload(self, payload: NDArray[np.uint8]) -> None:
        """Raise `RefusedBallot` for payloads (ballots, bytes) that no encoder writes."""


@dataclass(frozen=True)
class ParsedRows:
    """The valid ballots among some rows, their row numbers, and how many others for each reason."""

    ballots: Ballots
    rows: NDArray[np.int64]
    refused: Counter[str]


def wire_rows(ballots: Ballots) -> Rows:
    """The bytes of each ballot, as `Ballot.to_bytes` gives them, shape (ballots, bytes)."""
    rows = np.zeros((len(ballots), HEADER_BYTES + ballots.payload.shape[1]), dtype=np.uint8)
    heads = np.zeros(len(ballots), dtype=HEADER_ROW)
    heads["magic"], heads["version"], heads["round"] = MAGIC, VERSION, ballots.round
    heads["fingerprint"] = np.void(ballots.fingerprint)
    heads["user"], heads["bits"] = ballots.users, ballots.bits
    rows[:, :HEADER_BYTES] = heads.view(np.uint8).reshape(-1, HEADER_BYTES)
    rows[:, HEADER_BYTES:] = ballots.payload
    rows[:, CHECKSUM_START:HEADER_BYTES] = _checksums(rows)[:, None].view(np.uint8)
    return rows


def parse_rows(
    rows: Rows, users: NDArray[np.uint64], rule: PayloadRule, round_number: int
) -> ParsedRows:
    """Check rows of ballot bytes as a server checks single ballots.

    `users` names the sender of each row as the file or channel does; a ballot that names another
    user is refused as damaged.
    """
    if rows.shape[1] < HEADER_BYTES:  # too short: zeros instead, which are refused as damaged
        rows = np.zeros((len(rows), HEADER_BYTES), dtype=np.uint8)
    bits, size = rule.payload_bits, (rule.payload_bits + 7) // 8
    heads = np.ascontiguousarray(rows[:, :HEADER_BYTES]).view(HEADER_ROW).reshape(-1)
    faults = [
        *_header_faults(
            heads["magic"], heads["version"], heads["zero"], _checksums(rows) != heads["checksum"]
        ),
        ("damaged", heads["user"] != users),
        ("mechanism", heads["fingerprint"] != np.void(rule.fingerprint)),
        ("round", heads["round"] != round_number),
        ("length", (heads["bits"] != bits) | (rows.shape[1] != HEADER_BYTES + size)),
    ]
    reasons = np.full(len(rows), "", dtype=object)
    for reason, faulty in reversed(faults):  # the first fault of a row is its reason
        reasons[faulty] = reason
    left = np.flatnonzero(reasons == "")
    payload = rows[left, HEADER_BYTES:] if left.size else np.zeros((0, size), dtype=np.uint8)
    reasons[left] = _payload_reasons(payload, rule)
    overloaded = np.zeros(left.size, dtype=np.int64)
    ballots = Ballots(rule.fingerprint, round_number, bits, users[left], payload, overloaded)
    valid = reasons[left] == ""
    return ParsedRows(ballots[valid], left[valid], Counter(filter(None, reasons)))


def _checksums(rows: Rows) -> NDArray[np.uint32]:
    """CRC-32 of each row without the four bytes that hold it."""
    found = np.empty(len(rows), dtype="<u4")
    for number, row in enumerate(rows):
        found[number] = zlib.crc32(row[HEADER_BYTES:], zlib.crc32(row[:CHECKSUM_START]))
    return found


def _payload_reasons(payload: Rows, rule: PayloadRule) -> list[str]:
    """Why each payload is refused, "" if it is valid."""
    reasons = [""] * len(payload)
    try:
        if len(payload):
            rule.check_payload(payload)
    except RefusedBallot:
        for row in range(len(payload)):
            try:
                rule.check_payload(payload[row : row + 1])
            except RefusedBallot as error:
                reasons[row] = error.reason
    return reasons
