"""Many ballots as rows of their bytes on the wire, and the reasons to refuse rows."""

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import HEADER, HEADER_BYTES, MAGIC, VERSION, Ballots
from hushbit.errors import RefusedBallot
from hushbit.mechanism import Mechanism

Rows = NDArray[np.uint8]
HEAD = np.dtype(
    [("magic", "S2"), ("version", "u1"), ("spare", "u1"), ("fingerprint", "V8"), ("round", "<u8"),
     ("user", "<u8"), ("bits", "<u8"), ("check", "<u4")]
)  # fmt: skip


@dataclass(frozen=True)
class Verified:
    """The rows that are ballots of this mechanism and round, and why the others are not."""

    ballots: Ballots
    rows: NDArray[np.int64]
    refused: Counter[str]


def wire_rows(ballots: Ballots) -> Rows:
    """The bytes of each ballot, as `Ballot.to_bytes` gives them, shape (ballots, bytes)."""
    rows = np.zeros((len(ballots), HEADER_BYTES + ballots.payload.shape[1]), dtype=np.uint8)
    head = np.zeros(len(ballots), dtype=HEAD)
    head["magic"], head["version"], head["round"] = MAGIC, VERSION, ballots.round
    head["fingerprint"] = np.void(ballots.fingerprint)
    head["user"], head["bits"] = ballots.users, ballots.bits
    rows[:, :HEADER_BYTES] = head.view(np.uint8).reshape(-1, HEADER_BYTES)
    rows[:, HEADER_BYTES:] = ballots.payload
    head["check"] = checksums(rows)
    rows[:, :HEADER_BYTES] = head.view(np.uint8).reshape(-1, HEADER_BYTES)
    return rows


def checksums(rows: Rows) -> NDArray[np.uint32]:
    """CRC-32 of each row but for the four bytes that hold it."""
    found = np.empty(len(rows), dtype=np.uint32)
    for number, row in enumerate(rows):
        found[number] = zlib.crc32(row[HEADER_BYTES:], zlib.crc32(row[: HEADER.size]))
    return found


def verify(
    rows: Rows, users: NDArray[np.uint64], mechanism: Mechanism, round_number: int
) -> Verified:
    """Look at every row as a server looks at a ballot; `users` is what the file says beside it."""
    refused: Counter[str] = Counter()
    left = np.arange(len(rows))
    if rows.shape[1] < HEADER_BYTES:
        refused["damaged"] = len(rows)
        left = left[:0]
        rows = np.zeros((0, HEADER_BYTES), dtype=np.uint8)
    head = np.ascontiguousarray(rows[:, :HEADER_BYTES]).view(HEAD).reshape(-1)
    bits, size = mechanism.payload_bits, HEADER_BYTES + (mechanism.payload_bits + 7) // 8
    fingerprint = np.void(mechanism.fingerprint)
    # In the order in which a reader of single ballots would find fault with them.
    faults: list[tuple[str, Callable[[NDArray[np.int64]], NDArray[np.bool_]]]] = [
        ("damaged", lambda at: head["magic"][at] != MAGIC),
        ("version", lambda at: head["version"][at] != VERSION),
        ("damaged", lambda at: (checksums(rows[at]) != head["check"][at])
         | (head["spare"][at] != 0) | (head["user"][at] != users[at])),
        ("mechanism", lambda at: head["fingerprint"][at] != fingerprint),
        ("round", lambda at: head["round"][at] != round_number),
        ("length", lambda at: (head["bits"][at] != bits) | (rows.shape[1] != size)),
    ]  # fmt: skip
    for reason, wrong in faults:
        bad = wrong(left)
        refused[reason] += int(bad.sum())
        left = left[~bad]
    if left.size:
        left = _legal(rows, left, mechanism, refused)
    ballots = Ballots(
        mechanism.fingerprint, round_number, bits, users[left],
        rows[left, HEADER_BYTES:] if left.size else np.zeros((0, size - HEADER_BYTES), np.uint8),
        np.zeros(left.size, dtype=np.int64),
    )  # fmt: skip
    return Verified(ballots, left, +refused)


def _legal(
    rows: Rows, left: NDArray[np.int64], mechanism: Mechanism, refused: Counter[str]
) -> NDArray[np.int64]:
    """The rows whose payload an encoder can have written."""
    try:
        mechanism.check_payload(rows[left, HEADER_BYTES:])
        return left
    except RefusedBallot:
        pass
    kept = []
    for number in left:
        try:
            mechanism.check_payload(rows[number : number + 1, HEADER_BYTES:])
            kept.append(number)
        except RefusedBallot as error:
            refused[error.reason] += 1
    return np.array(kept, dtype=np.int64)
