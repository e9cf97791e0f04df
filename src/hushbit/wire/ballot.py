"""Ballots: the packed bits of one user in one round, and their bytes on the wire.

    "HB" | version | 0 | fingerprint | round | user | bits | CRC-32 | MAC          | payload
    2      1         1   8             8       8      8      4        16 or absent

Sizes are in bytes. Version 1 has no MAC, version 2 has one. Numbers are little-endian. Bit i of the
payload is bit i mod 8 of byte i div 8; unused bits of the last byte are zero. The checksum covers
all other bytes and detects damage, not forgery. The MAC detects forgery: it is HMAC-SHA256,
truncated to 16 bytes, of the 36 bytes before the checksum and the payload, under a key that only
the user and the server know.

`Ballot` is one message, `Ballots` a batch of one mechanism and round. `Ballot.from_bytes` reads one
message of any mechanism. `parse_rows` reads many messages of one mechanism and counts refused ones
by reason. Both check the header in the same way.
"""

import hmac
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import check_int
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.wire.keys import MAX_UINT64, RoundKey, UserKey, UserKeys, check_run, mac_key

Rows = NDArray[np.uint8]

MAGIC = b"HB"
PLAIN, AUTHENTICATED = 1, 2  # versions: without and with a MAC
MAC_BYTES = 16
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
HEADER = struct.Struct("<" + "".join(FIELDS.values()))  # one header
HEADER_ROW = np.dtype(  # an array of headers
    [(name, {"2s": "S2", "8s": "V8"}.get(code, f"<{code}")) for name, code in FIELDS.items()]
)
HEADER_BYTES = HEADER.size
CHECKSUM_START = HEADER_BYTES - 4


@dataclass(frozen=True)
class Ballot:
    """One user's message.

    `overloaded` is the number of blocks beyond the radius. `run` is the run identifier of the key
    that encoded the ballot, or None if it is not known. Neither is part of the bytes, so only the
    user knows them. `mac` is None in version 1.
    """

    fingerprint: bytes
    round: int
    user: int
    bits: int
    payload: bytes = field(repr=False)
    overloaded: int = field(default=0, compare=False)
    mac: bytes | None = field(default=None, repr=False)
    run: bytes | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_header(self)
        if self.mac is not None and (not isinstance(self.mac, bytes) or len(self.mac) != MAC_BYTES):
            raise InvalidInput(
                f"a MAC must have {MAC_BYTES} bytes; Ballot.to_bytes(key) computes it"
            )
        object.__setattr__(self, "user", check_int("user", self.user, 0, MAX_UINT64))
        if not isinstance(self.payload, bytes):
            raise InvalidInput(f"payload must be bytes; got {type(self.payload).__name__}")

    def to_bytes(self, key: UserKey | None = None) -> bytes:
        """The bytes on the wire: version 2 with a MAC under the user's key, otherwise version 1.

        A ballot that was read with a MAC keeps it.
        """
        mac = self.mac
        if key is not None:
            if not isinstance(key, UserKey):
                raise InvalidInput(f"key must come from RoundKey.user; got {type(key).__name__}")
            if (key.round, key.user) != (self.round, self.user) or self.run not in (None, key.run):
                raise InvalidInput(
                    f"the key of user {key.user} in round {key.round} of run {key.run.hex()!r} is "
                    f"not the key of this ballot of user {self.user} in round {self.round}"
                )
            mac = _mac(key.key, self._signed_header(AUTHENTICATED), self.payload)
        start = self._signed_header(PLAIN if mac is None else AUTHENTICATED)
        body = self.payload if mac is None else mac + self.payload
        return start + zlib.crc32(body, zlib.crc32(start)).to_bytes(4, "little") + body

    def _signed_header(self, version: int) -> bytes:
        """The header before the checksum."""
        numbers = (self.round, self.user, self.bits)
        return HEADER.pack(MAGIC, version, 0, self.fingerprint, *numbers, 0)[:CHECKSUM_START]

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
        body = data[HEADER_BYTES:]
        checksum = zlib.crc32(body, zlib.crc32(data[:CHECKSUM_START]))
        faults = _header_faults(magic, version, zero, checksum != stored)
        for (reason, faulty), message in zip(faults, HEADER_FAULT_MESSAGES, strict=True):
            if faulty:
                raise RefusedBallot(reason, message.format(version))
        mac_size = MAC_BYTES if version == AUTHENTICATED else 0
        if len(body) != mac_size + (bits + 7) // 8:
            raise RefusedBallot(
                "length",
                f"{bits} bits need {mac_size + (bits + 7) // 8} bytes after the header; "
                f"got {len(body)}",
            )
        payload = body[mac_size:]
        if bits % 8 and payload[-1] >> bits % 8:
            raise RefusedBallot("padding", "unused bits of the last byte must be zero")
        mac = body[:mac_size] if mac_size else None
        return cls(fingerprint, number, user, bits, payload, mac=mac)


@dataclass(frozen=True, eq=False)
class Ballots(Sequence[Ballot]):
    """Ballots of one mechanism and round, as arrays.

    `ballots[i]` is one `Ballot`; a slice, a boolean mask or an array of indices gives `Ballots`.
    `macs` has a row of 16 bytes for each ballot, or is None if the ballots have no MAC. `run` is
    the run identifier of their keys, or None if it is not known.
    """

    fingerprint: bytes
    round: int
    bits: int
    users: NDArray[np.uint64]
    payload: NDArray[np.uint8] = field(repr=False)
    overloaded: NDArray[np.int64] = field(repr=False)
    macs: Rows | None = field(default=None, repr=False)
    run: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_header(self)
        wanted = {"users": (np.uint64, 1), "payload": (np.uint8, 2), "overloaded": (np.int64, 1)}
        if self.macs is not None:
            wanted["macs"] = (np.uint8, 2)
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
        if self.macs is not None and self.macs.shape != (self.users.size, MAC_BYTES):
            raise InvalidInput(f"macs must have a row of {MAC_BYTES} bytes for each ballot")

    def __len__(self) -> int:
        return self.users.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, np.ndarray) and index.dtype == np.bool_ and index.all():
            index = slice(None) if index.shape == self.users.shape else index  # no copies
        users, payload, overloaded = (
            array[index] for array in (self.users, self.payload, self.overloaded)
        )
        macs = None if self.macs is None else self.macs[index]
        head = (self.fingerprint, self.round)
        if isinstance(index, slice | np.ndarray):
            return Ballots(*head, self.bits, users, payload, overloaded, macs, self.run)
        mac = None if macs is None else macs.tobytes()
        numbers = (int(users), self.bits)
        return Ballot(*head, *numbers, payload.tobytes(), int(overloaded), mac, self.run)

    def __iter__(self) -> Iterator[Ballot]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def stack(cls, ballots: Sequence[Ballot]) -> "Ballots":
        """One batch from ballots that agree in mechanism, round, run, length and version."""
        runs = {b.run for b in ballots} - {None}
        heads = {(b.fingerprint, b.round, b.bits, b.mac is None) for b in ballots}
        if len(heads) != 1 or len(runs) > 1:
            raise InvalidInput(
                "ballots in one batch must share mechanism, round, run and length, and all or none "
                "of them must have a MAC"
            )
        first = ballots[0]
        size = len(first.payload)
        if any(len(b.payload) != size for b in ballots):
            raise InvalidInput("ballots in one batch must have payloads of one length")
        payload = np.frombuffer(b"".join(b.payload for b in ballots), dtype=np.uint8)
        macs = [b.mac for b in ballots if b.mac is not None]
        return cls(
            first.fingerprint,
            first.round,
            first.bits,
            np.array([b.user for b in ballots], dtype=np.uint64),
            payload.reshape(len(ballots), size),
            np.array([b.overloaded for b in ballots], dtype=np.int64),
            _mac_rows(macs) if macs else None,
            runs.pop() if runs else None,
        )

    def with_macs(self, keys: UserKeys) -> "Ballots":
        """The same ballots with a MAC under the key of each user."""
        return replace(self, macs=ballot_macs(self, keys))


def _header_faults(magic: Any, version: Any, zero: Any, damaged: Any) -> list[tuple[str, Any]]:
    """Reasons to refuse a ballot of any mechanism, in order; the arguments may be arrays."""
    return [
        ("damaged", magic != MAGIC),
        ("version", (version != PLAIN) & (version != AUTHENTICATED)),
        ("damaged", damaged | (zero != 0)),
    ]


HEADER_FAULT_MESSAGES = (
    "not a ballot: the first two bytes must be 'HB'",
    f"ballot version {{}} is not supported; this release reads {PLAIN} and {AUTHENTICATED}",
    "the ballot's checksum does not match: send it again",
)


def _check_header(ballot: Ballot | Ballots) -> None:
    """Refuse numbers that do not fit the header."""
    if not isinstance(ballot.fingerprint, bytes) or len(ballot.fingerprint) != 8:
        raise InvalidInput("a fingerprint must have 8 bytes; make ballots with Mechanism.encode")
    object.__setattr__(ballot, "round", check_int("round", ballot.round, 0, MAX_UINT64))
    object.__setattr__(ballot, "bits", check_int("bits", ballot.bits, 0, MAX_UINT64))
    if ballot.run is not None:
        check_run(ballot.run)


def _mac(key: bytes, start: bytes, payload: bytes) -> bytes:
    """The MAC of a ballot under a user's key; `start` is the header before the checksum."""
    return hmac.digest(mac_key(key), start + payload, "sha256")[:MAC_BYTES]


def _mac_rows(macs: list[bytes]) -> Rows:
    return np.frombuffer(b"".join(macs), dtype=np.uint8).reshape(len(macs), MAC_BYTES)


def ballot_macs(ballots: Ballots, keys: UserKeys) -> Rows:
    """The MAC of each ballot under the key of its user, shape (ballots, 16)."""
    same_run = ballots.run in (None, keys.run)
    if keys.round != ballots.round or not same_run or not np.array_equal(keys.users, ballots.users):
        raise InvalidInput("MACs need the key of each ballot's user in its round and run")
    starts = _header_rows(ballots, AUTHENTICATED)[:, :CHECKSUM_START]
    rows = zip(keys.keys.astype("<u4"), starts, ballots.payload, strict=True)
    return _mac_rows([_mac(*(part.tobytes() for part in row)) for row in rows])


def valid_macs(ballots: Ballots, keys: UserKeys) -> NDArray[np.bool_]:
    """Which ballots of a batch have a correct MAC; the comparison takes constant time."""
    assert ballots.macs is not None
    pairs = zip(ballots.macs, ballot_macs(ballots, keys), strict=True)
    same = [hmac.compare_digest(got.tobytes(), right.tobytes()) for got, right in pairs]
    return np.array(same, dtype=np.bool_)


def _header_rows(ballots: Ballots, version: int) -> Rows:
    """The header of each ballot with a zero checksum, shape (ballots, HEADER_BYTES)."""
    heads = np.zeros(len(ballots), dtype=HEADER_ROW)
    heads["magic"], heads["version"], heads["round"] = MAGIC, version, ballots.round
    heads["fingerprint"] = np.void(ballots.fingerprint)
    heads["user"], heads["bits"] = ballots.users, ballots.bits
    return heads.view(np.uint8).reshape(-1, HEADER_BYTES)


class PayloadFormat(Protocol):
    """The part of a mechanism that determines whether a ballot belongs to it and is valid."""

    @property
    def fingerprint(self) -> bytes:
        """Eight bytes that identify the mechanism."""

    @property
    def payload_bits(self) -> int:
        """Bits of one ballot's payload."""

    def check_payload(self, payload: NDArray[np.uint8]) -> None:
        """Raise RefusedBallot if a row of `payload` cannot come from the encoder."""


@dataclass(frozen=True)
class ParsedRows:
    """The valid ballots, their row numbers, and the number of refused rows by reason."""

    ballots: Ballots
    rows: NDArray[np.int64]
    refused: Counter[str]


def wire_rows(ballots: Ballots) -> Rows:
    """The bytes of each ballot, as `Ballot.to_bytes` gives them, shape (ballots, bytes)."""
    version = PLAIN if ballots.macs is None else AUTHENTICATED
    parts = [_header_rows(ballots, version), ballots.payload]
    if ballots.macs is not None:
        parts.insert(1, ballots.macs)
    rows = np.concatenate(parts, axis=1)
    rows[:, CHECKSUM_START:HEADER_BYTES] = _checksums(rows)[:, None].view(np.uint8)
    return rows


def parse_rows(
    rows: Rows,
    users: NDArray[np.uint64],
    rule: PayloadFormat,
    round_key: RoundKey,
    require_mac: bool = False,
) -> ParsedRows:
    """Parse rows of ballot bytes, with the same checks as for single ballots.

    `users` gives the sender of each row, as the file or the channel states it; a ballot of another
    user is refused as damaged. A wrong MAC is always refused, a missing one with `require_mac`.
    """
    if rows.shape[1] < HEADER_BYTES:  # too short: replaced by zeros, which are refused as damaged
        rows = np.zeros((len(rows), HEADER_BYTES), dtype=np.uint8)
    bits, size = rule.payload_bits, (rule.payload_bits + 7) // 8
    heads = np.ascontiguousarray(rows[:, :HEADER_BYTES]).view(HEADER_ROW).reshape(-1)
    mac_sizes = np.where(heads["version"] == AUTHENTICATED, MAC_BYTES, 0)
    faults = [
        *_header_faults(
            heads["magic"], heads["version"], heads["zero"], _checksums(rows) != heads["checksum"]
        ),
        ("damaged", heads["user"] != users),
        ("mechanism", heads["fingerprint"] != np.void(rule.fingerprint)),
        ("round", heads["round"] != round_key.round),
        ("unauthenticated", (mac_sizes == 0) & require_mac),
        ("length", (heads["bits"] != bits) | (rows.shape[1] != HEADER_BYTES + mac_sizes + size)),
    ]
    reasons = np.full(len(rows), "", dtype=object)
    for reason, faulty in reversed(faults):  # the first fault of a row is its reason
        reasons[faulty] = reason
    left = np.flatnonzero(reasons == "")
    # Rows of the right length are all of one version.
    start = rows.shape[1] - size if left.size else HEADER_BYTES
    payload = rows[left, start:] if left.size else np.zeros((0, size), dtype=np.uint8)
    macs = rows[left, HEADER_BYTES:start] if start > HEADER_BYTES else None
    overloaded = np.zeros(left.size, dtype=np.int64)
    head = (rule.fingerprint, round_key.round, bits)
    ballots = Ballots(*head, users[left], payload, overloaded, macs)
    if macs is not None:
        valid = valid_macs(ballots, round_key.users(ballots.users))
        reasons[left[~valid]] = "forged"
        ballots, left = ballots[valid], left[valid]
    reasons[left] = _payload_reasons(ballots.payload, rule)
    valid = reasons[left] == ""
    return ParsedRows(ballots[valid], left[valid], Counter(filter(None, reasons)))


def _checksums(rows: Rows) -> NDArray[np.uint32]:
    """CRC-32 of each row without its checksum field."""
    found = np.empty(len(rows), dtype="<u4")
    for number, row in enumerate(rows):
        found[number] = zlib.crc32(row[HEADER_BYTES:], zlib.crc32(row[:CHECKSUM_START]))
    return found


def _payload_reasons(payload: Rows, rule: PayloadFormat) -> list[str]:
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
