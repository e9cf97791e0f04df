"""Ballots: the packed bits of one user in one round, and their bytes on the wire.

    "HB" | version 1 | 0 | fingerprint 8 | round 8 | user 8 | bits 8 | CRC-32 4 | payload

Numbers are little-endian; bit i of the payload is bit i mod 8 of byte i div 8; unused bits of
the last byte are zero. The checksum covers everything else, so damage is noticed at once.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import whole
from hushbit.errors import InvalidInput, RefusedBallot

MAGIC = b"HB"
VERSION = 1
HEADER = struct.Struct("<2sBB8sQQQ")
CHECK = struct.Struct("<I")
HEADER_BYTES = HEADER.size + CHECK.size
LAST_NUMBER = 2**64 - 1


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
        _check_head(self)
        object.__setattr__(self, "user", whole("user", self.user, 0, LAST_NUMBER))
        if not isinstance(self.payload, bytes):
            raise InvalidInput(f"a payload is bytes; got {type(self.payload).__name__}")

    def to_bytes(self) -> bytes:
        """The bytes that travel."""
        head = HEADER.pack(MAGIC, VERSION, 0, self.fingerprint, self.round, self.user, self.bits)
        check = zlib.crc32(self.payload, zlib.crc32(head))
        return head + CHECK.pack(check) + self.payload

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
        magic, version, spare, fingerprint, number, user, bits = HEADER.unpack_from(data)
        if magic != MAGIC:
            raise RefusedBallot("damaged", "not a ballot: the first two bytes must be 'HB'")
        if version != VERSION:
            raise RefusedBallot(
                "version", f"ballot version {version} is not known; this is version {VERSION}"
            )
        payload = data[HEADER_BYTES:]
        (check,) = CHECK.unpack_from(data, HEADER.size)
        if zlib.crc32(payload, zlib.crc32(data[: HEADER.size])) != check or spare != 0:
            raise RefusedBallot("damaged", "the ballot's checksum does not match: send it again")
        if len(payload) != (bits + 7) // 8:
            raise RefusedBallot(
                "length", f"{bits} bits need {(bits + 7) // 8} bytes; got {len(payload)}"
            )
        if bits % 8 and payload[-1] >> bits % 8:
            raise RefusedBallot("padding", "unused bits of the last byte must be zero")
        return cls(fingerprint, number, user, bits, payload)


@dataclass(frozen=True, eq=False)
class Ballots(Sequence[Ballot]):
    """Many ballots of one mechanism and round, as arrays."""

    fingerprint: bytes
    round: int
    bits: int
    users: NDArray[np.uint64]
    payload: NDArray[np.uint8] = field(repr=False)
    overloaded: NDArray[np.int64] = field(repr=False)

    def __post_init__(self) -> None:
        _check_head(self)
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
        if isinstance(index, slice):
            return Ballots(
                self.fingerprint, self.round, self.bits, self.users[index],
                self.payload[index], self.overloaded[index],
            )  # fmt: skip
        return Ballot(
            self.fingerprint, self.round, int(self.users[index]), self.bits,
            self.payload[index].tobytes(), int(self.overloaded[index]),
        )  # fmt: skip

    def __iter__(self) -> Iterator[Ballot]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def gather(cls, ballots: Sequence[Ballot]) -> "Ballots":
        """One batch from ballots that agree in mechanism, round and length."""
        if len({(b.fingerprint, b.round, b.bits) for b in ballots}) != 1:
            raise InvalidInput("ballots in one batch must share mechanism, round and length")
        first = ballots[0]
        size = len(first.payload)
        if any(len(b.payload) != size for b in ballots):
            raise InvalidInput("ballots in one batch must have payloads of one length")
        payload = np.frombuffer(b"".join(b.payload for b in ballots), dtype=np.uint8)
        return cls(
            first.fingerprint, first.round, first.bits,
            np.array([b.user for b in ballots], dtype=np.uint64),
            payload.reshape(len(ballots), size),
            np.array([b.overloaded for b in ballots], dtype=np.int64),
        )  # fmt: skip


def _check_head(ballot: Ballot | Ballots) -> None:
    """Refuse numbers that do not fit the header."""
    if not isinstance(ballot.fingerprint, bytes) or len(ballot.fingerprint) != 8:
        raise InvalidInput("a fingerprint is 8 bytes; ballots are made by Mechanism.encode")
    object.__setattr__(ballot, "round", whole("round", ballot.round, 0, LAST_NUMBER))
    object.__setattr__(ballot, "bits", whole("bits", ballot.bits, 0, LAST_NUMBER))
