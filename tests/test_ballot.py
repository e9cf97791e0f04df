"""Ballots on the wire: small, strict, and unharmed by a hundred thousand mutations."""

import pickle
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hushbit as hb
from hushbit.ballot import HEADER, HEADER_BYTES

KEY = hb.RoundKey(bytes(32), 3)
FINGERPRINT = b"12345678"


def one(bits: int = 10, payload: bytes = b"\x01\x02") -> hb.Ballot:
    return hb.Ballot(FINGERPRINT, 3, 17, bits, payload)


def sealed(head: bytes, payload: bytes) -> bytes:
    """Wire bytes with a right checksum, whatever they say."""
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 60), st.data())
def test_round_trip(number: int, user: int, bits: int, data: st.DataObject) -> None:
    size = (bits + 7) // 8
    raw = bytearray(data.draw(st.binary(min_size=size, max_size=size)))
    if bits % 8:
        raw[-1] &= (1 << bits % 8) - 1
    ballot = hb.Ballot(FINGERPRINT, number, user, bits, bytes(raw), overloaded=3)
    wire = ballot.to_bytes()
    assert len(wire) == HEADER_BYTES + size
    for form in (wire, bytearray(wire), memoryview(wire)):
        assert hb.Ballot.from_bytes(form) == ballot
    assert hb.Ballot.from_bytes(wire).overloaded == 0


def test_layout_of_the_header() -> None:
    wire = one().to_bytes()
    assert wire[:4] == b"HB\x01\x00"
    assert wire[4:12] == FINGERPRINT
    assert struct.unpack("<QQQ", wire[12:36]) == (3, 17, 10)
    assert struct.unpack("<I", wire[36:40])[0] == zlib.crc32(b"\x01\x02", zlib.crc32(wire[:36]))
    assert wire[40:] == b"\x01\x02"


def test_size_at_a_million_entries() -> None:
    large = hb.CPA(dim=1_000_000, epsilon_per_bit=0.5, radius=1.0)
    ballot = large.encode(np.zeros(1_000_000, dtype=np.float32), KEY.user(1))
    assert len(ballot.to_bytes()) == 125_040 <= 125_064
    eights = hb.CPA(dim=100_000, epsilon_per_bit=0.5, radius=1.0, lattice="E8", points=16)
    ballot = eights.encode(np.zeros(100_000), KEY.user(1))
    assert len(ballot.to_bytes()) == HEADER_BYTES + 100_000 // 64 + 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "damaged"),
        (b"HB", "damaged"),
        (one().to_bytes()[:39], "damaged"),
        (one().to_bytes()[:-1], "damaged"),
        (one().to_bytes() + b"\x00", "damaged"),
        (b"XX" + one().to_bytes()[2:], "damaged"),
        (sealed(HEADER.pack(b"HB", 2, 0, FINGERPRINT, 3, 17, 10), b"\x01\x02"), "version"),
        (sealed(HEADER.pack(b"HB", 0, 0, FINGERPRINT, 3, 17, 10), b"\x01\x02"), "version"),
        (sealed(HEADER.pack(b"HB", 1, 1, FINGERPRINT, 3, 17, 10), b"\x01\x02"), "damaged"),
        (sealed(HEADER.pack(b"HB", 1, 0, FINGERPRINT, 3, 17, 10), b"\x01"), "length"),
        (sealed(HEADER.pack(b"HB", 1, 0, FINGERPRINT, 3, 17, 10), b"\x01\x02\x03"), "length"),
        (sealed(HEADER.pack(b"HB", 1, 0, FINGERPRINT, 3, 17, 2**64 - 1), b"\x01"), "length"),
        (sealed(HEADER.pack(b"HB", 1, 0, FINGERPRINT, 3, 17, 10), b"\x01\x04"), "padding"),
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(hb.RefusedBallot) as caught:
        hb.Ballot.from_bytes(data)
    assert caught.value.reason == reason
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize("data", [None, "HB", 5, [1, 2], np.zeros(60, np.uint8)])
def test_only_bytes_are_read(data: object) -> None:
    with pytest.raises(hb.InvalidInput, match="bytes"):
        hb.Ballot.from_bytes(data)


@pytest.mark.parametrize("bit", range(0, 8 * 42, 5))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    wire = bytearray(one().to_bytes())
    wire[bit // 8] ^= 1 << bit % 8
    with pytest.raises(hb.RefusedBallot):
        hb.Ballot.from_bytes(bytes(wire))


@pytest.mark.parametrize(
    "parts",
    [
        (b"short", 3, 17, 10, b"ab"),
        ("12345678", 3, 17, 10, b"ab"),
        (FINGERPRINT, -1, 17, 10, b"ab"),
        (FINGERPRINT, 3, 2**64, 10, b"ab"),
        (FINGERPRINT, 3, "17", 10, b"ab"),
        (FINGERPRINT, True, 17, 10, b"ab"),
        (FINGERPRINT, 3, 17, 10.0, b"ab"),
        (FINGERPRINT, 3, 17, 10, "ab"),
        (FINGERPRINT, 3, 17, 10, bytearray(2)),
    ],
)
def test_a_ballot_cannot_be_made_of_anything(parts: tuple[object, ...]) -> None:
    with pytest.raises(hb.InvalidInput):
        hb.Ballot(*parts)  # type: ignore[arg-type]


def test_batches_must_agree_with_themselves() -> None:
    users, count = np.array([1, 2], np.uint64), np.zeros(2, np.int64)
    payload = np.zeros((2, 2), np.uint8)
    good = (FINGERPRINT, 3, 10, users, payload, count)
    assert len(hb.Ballots(*good)) == 2
    for place, wrong in [
        (0, b"x"), (1, -1), (2, 17), (2, "10"), (3, users.astype(np.int64)), (3, users[:1]),
        (3, [1, 2]), (4, payload[:1]), (4, payload[:, :1]), (4, payload.astype(float)),
        (4, payload[0]), (4, b"1234"), (5, count[:1]), (5, count.astype(float)),
    ]:  # fmt: skip
        parts = list(good)
        parts[place] = wrong
        with pytest.raises(hb.InvalidInput):
            hb.Ballots(*parts)  # type: ignore[arg-type]


def test_gathering_and_taking_apart() -> None:
    ballots = [one(), hb.Ballot(FINGERPRINT, 3, 18, 10, b"\x07\x01", overloaded=2)]
    batch = hb.Ballots.gather(ballots)
    assert list(batch) == ballots
    assert [ballot.overloaded for ballot in batch] == [0, 2]
    assert list(batch[1:]) == ballots[1:]
    for other in (one(bits=9), one(payload=b"\x01"), hb.Ballot(FINGERPRINT, 4, 1, 10, b"\x01\x02")):
        with pytest.raises(hb.InvalidInput):
            hb.Ballots.gather([one(), other])
    with pytest.raises(hb.InvalidInput):
        hb.Ballots.gather([])


def mutated(rng: np.random.Generator, wire: bytes, other: bytes) -> bytes:
    kind, raw = rng.integers(6), bytearray(wire)
    place = int(rng.integers(len(raw)))
    if kind == 0:
        for _ in range(int(rng.integers(1, 4))):
            raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        raw = raw[:place]
    elif kind == 2:
        raw += rng.bytes(int(rng.integers(1, 9)))
    elif kind == 3:
        raw = raw[:place] + bytearray(other[place:])
    elif kind == 4:
        raw = bytearray(rng.bytes(int(rng.integers(0, 80))))
    else:
        raw[place : place + 8] = rng.bytes(8)
    # Half of them get a right checksum, so that what lies behind it is tried as well.
    if rng.integers(2) and len(raw) >= HEADER_BYTES:
        return sealed(bytes(raw[: HEADER.size]), bytes(raw[HEADER_BYTES:]))
    return bytes(raw)


def test_a_hundred_thousand_mutated_ballots() -> None:
    """Only HushbitError or acceptance of what is a valid ballot; the tally stays right."""
    rng = np.random.default_rng(2024)
    mechanism = hb.NestedCPA(dim=13, epsilon_per_bit=0.5, radius=1.0, stages=(2, 4))
    tally = mechanism.tally(KEY)
    ballots = mechanism.encode_many(np.zeros((50, 13)), KEY.users(range(50)), hb.SeededCoins(1))
    tally.add_many(ballots)
    wires = [ballot.to_bytes() for ballot in ballots]
    accepted, parsed = list(ballots), 0
    for _ in range(100_000):
        wire, other = (wires[int(n)] for n in rng.integers(len(wires), size=2))
        try:
            ballot = hb.Ballot.from_bytes(mutated(rng, wire, other))
            parsed += 1
            tally.add(ballot)
            accepted.append(ballot)
        except hb.HushbitError:
            continue
    assert parsed > 1000
    assert 50 < len(accepted) == tally.count
    again = mechanism.tally(KEY)
    again.add_many(accepted)
    assert all((again.counters[n] == c).all() for n, c in tally.counters.items())
    assert sorted(b.user for b in accepted) == tally.roll.users().tolist()


def test_a_refusal_survives_the_way_between_processes() -> None:
    refusal = pickle.loads(pickle.dumps(hb.RefusedBallot("round", "of another round")))
    assert (refusal.reason, str(refusal)) == ("round", "of another round")
