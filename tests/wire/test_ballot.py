"""Ballots on the wire are small, read strictly, and every kind of damage is refused."""

import pickle
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hushbit as hb
from hushbit.baselines.mvu import MVU
from hushbit.wire.ballot import HEADER_BYTES, Ballots, parse_rows, wire_rows
from hushbit.wire.coins import SimulationCoins

HEADER = struct.Struct("<2sBB8sQQQ")  # written out: the tests do not use the layout of the library
KEY = hb.RoundKey(bytes(32), 3)
FINGERPRINT = b"12345678"
CPA = hb.CPA(53, 0.5, 1.0, points=4)


def one(bits: int = 10, payload: bytes = b"\x01\x02") -> hb.Ballot:
    return hb.Ballot(FINGERPRINT, 3, 17, bits, payload)


def with_checksum(head: bytes, payload: bytes) -> bytes:
    """Wire bytes with the right checksum for any header and payload."""
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
        (with_checksum(HEADER.pack(b"HB", 3, 0, FINGERPRINT, 3, 17, 10), b"\x01\x02"), "version"),
        (with_checksum(HEADER.pack(b"HB", 2, 0, FINGERPRINT, 3, 17, 10), b"\x01\x02"), "length"),
        (with_checksum(HEADER.pack(b"HB", 2, 0, FINGERPRINT, 3, 17, 10), bytes(16)), "length"),
        (with_checksum(HEADER.pack(b"HB", 1, 0, FINGERPRINT, 3, 17, 10), bytes(18)), "length"),
        (with_checksum(HEADER.pack(b"HB", 0, 0, FINGERPRINT, 3, 17, 10), b"\x01\x02"), "version"),
        (with_checksum(HEADER.pack(b"HB", 1, 1, FINGERPRINT, 3, 17, 10), b"\x01\x02"), "damaged"),
        (with_checksum(HEADER.pack(b"HB", 1, 0, FINGERPRINT, 3, 17, 10), b"\x01"), "length"),
        (
            with_checksum(HEADER.pack(b"HB", 1, 0, FINGERPRINT, 3, 17, 10), b"\x01\x02\x03"),
            "length",
        ),
        (with_checksum(HEADER.pack(b"HB", 1, 0, FINGERPRINT, 3, 17, 2**64 - 1), b"\x01"), "length"),
        (with_checksum(HEADER.pack(b"HB", 1, 0, FINGERPRINT, 3, 17, 10), b"\x01\x04"), "padding"),
    ],
)
def test_damaged_ballots_are_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(hb.RefusedBallot) as caught:
        hb.Ballot.from_bytes(data)
    assert caught.value.reason == reason
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize("data", [None, "HB", 5, [1, 2], np.zeros(60, np.uint8)])
def test_only_bytes_are_read(data: object) -> None:
    with pytest.raises(hb.InvalidInput, match="bytes"):
        hb.Ballot.from_bytes(data)


@pytest.mark.parametrize("bit", range(0, 8 * 42, 5))
def test_every_flipped_bit_is_found(bit: int) -> None:
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
def test_ballots_with_wrong_fields_are_refused(parts: tuple[object, ...]) -> None:
    with pytest.raises(hb.InvalidInput):
        hb.Ballot(*parts)  # type: ignore[arg-type]


def test_batches_with_inconsistent_arrays_are_refused() -> None:
    users, count = np.array([1, 2], np.uint64), np.zeros(2, np.int64)
    payload = np.zeros((2, 2), np.uint8)
    good = (FINGERPRINT, 3, 10, users, payload, count)
    assert len(hb.Ballots(*good)) == 2
    for place, wrong in [
        (0, b"x"),
        (1, -1),
        (2, 17),
        (2, "10"),
        (3, users.astype(np.int64)),
        (3, users[:1]),
        (3, [1, 2]),
        (4, payload[:1]),
        (4, payload[:, :1]),
        (4, payload.astype(float)),
        (4, payload[0]),
        (4, b"1234"),
        (5, count[:1]),
        (5, count.astype(float)),
    ]:
        parts = list(good)
        parts[place] = wrong
        with pytest.raises(hb.InvalidInput):
            hb.Ballots(*parts)  # type: ignore[arg-type]


def test_a_batch_holds_the_ballots_it_is_made_of() -> None:
    ballots = [one(), hb.Ballot(FINGERPRINT, 3, 18, 10, b"\x07\x01", overloaded=2)]
    batch = hb.Ballots.stack(ballots)
    assert list(batch) == ballots
    assert [ballot.overloaded for ballot in batch] == [0, 2]
    assert list(batch[1:]) == ballots[1:]
    for other in (one(bits=9), one(payload=b"\x01"), hb.Ballot(FINGERPRINT, 4, 1, 10, b"\x01\x02")):
        with pytest.raises(hb.InvalidInput):
            hb.Ballots.stack([one(), other])
    with pytest.raises(hb.InvalidInput):
        hb.Ballots.stack([])


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
    # Half of them get the right checksum, so that the later checks are tried as well.
    if rng.integers(2) and len(raw) >= HEADER_BYTES:
        return with_checksum(bytes(raw[: HEADER.size]), bytes(raw[HEADER_BYTES:]))
    return bytes(raw)


def test_a_hundred_thousand_mutated_ballots() -> None:
    """Each is accepted or refused with HushbitError, and the tally counts the accepted ones."""
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
    assert sorted(b.user for b in accepted) == tally.voters.users().tolist()


def encode_users(users: object, mechanism: hb.Mechanism = CPA, key: hb.RoundKey = KEY) -> Ballots:
    """Ballots of users whose updates depend on their numbers."""
    numbers = np.asarray(users)
    updates = np.sin(np.outer(numbers + 1.0, np.arange(1, mechanism.dim + 1)))
    return mechanism.encode_many(updates, key.users(numbers), SimulationCoins(1))


@pytest.mark.parametrize(
    "index",
    [
        slice(1, 5, 2),
        np.array([True, False, True, True, False, False]),
        np.ones(6, dtype=np.bool_),
        np.zeros(6, dtype=np.bool_),
        np.array([4, 0, 0]),
        np.array([5, 4, 3, 2, 1, 1]),
        np.array([], dtype=np.int64),
    ],
)
def test_slices_masks_and_index_arrays_select_ballots(index: object) -> None:
    ballots = encode_users(range(6))
    ballots.overloaded[:] = np.arange(6)
    numbers = np.arange(6)[index]  # type: ignore[index]
    chosen = ballots[index]
    assert isinstance(chosen, Ballots)
    assert list(chosen) == [ballots[int(number)] for number in numbers]
    assert chosen.overloaded.tolist() == numbers.tolist()


def test_a_mask_of_another_length_is_refused() -> None:
    for mask in (np.ones(3, dtype=np.bool_), np.zeros(3, dtype=np.bool_)):
        with pytest.raises(IndexError):
            encode_users(range(6))[mask]


@pytest.mark.parametrize("dim", [53, 56, 57])
def test_rows_are_the_bytes_of_ballots(dim: int) -> None:
    mechanism = hb.CPA(dim, 0.5, 1.0, points=4)
    ballots = encode_users(range(5), mechanism)
    rows = wire_rows(ballots)
    assert [row.tobytes() for row in rows] == [ballot.to_bytes() for ballot in ballots]
    parsed = parse_rows(rows, ballots.users, mechanism, KEY)
    assert (parsed.ballots.payload == ballots.payload).all()
    assert (parsed.ballots.users == ballots.users).all()
    assert parsed.rows.tolist() == [0, 1, 2, 3, 4]
    assert not parsed.refused


@pytest.mark.parametrize("mechanism", [CPA, MVU(9, 1.0, 1.0)], ids=["cpa", "mvu"])
def test_a_flipped_bit_has_one_reason_in_a_row_and_in_a_ballot(mechanism: hb.Mechanism) -> None:
    ballots = encode_users([7], mechanism)
    clean = wire_rows(ballots)
    for bit in range(8 * clean.shape[1]):
        rows = clean.copy()
        rows[0, bit // 8] ^= 1 << bit % 8
        found = parse_rows(rows, ballots.users, mechanism, KEY)
        assert len(found.ballots) == 0
        with pytest.raises(hb.RefusedBallot) as error:
            hb.Ballot.from_bytes(rows[0].tobytes())
        assert dict(found.refused) == {error.value.reason: 1}


def test_both_parsers_agree_on_mutated_ballots() -> None:
    """`parse_rows` refuses a row for the reason of `from_bytes` followed by `Tally.add`."""
    rng = np.random.default_rng(7)
    mechanism = hb.NestedCPA(dim=13, epsilon_per_bit=0.5, radius=1.0, stages=(2, 4))
    wires = [ballot.to_bytes() for ballot in encode_users(range(9), mechanism)]
    # Ballots of another round, mechanism and length that are otherwise valid.
    wires += [encode_users([1], mechanism, hb.RoundKey(bytes(32), 4))[0].to_bytes()]
    wires += [encode_users([1], CPA)[0].to_bytes()]
    seen = set()
    for trial in range(20_000):
        wire, other = (wires[int(n)] for n in rng.integers(len(wires), size=2))
        data = mutated(rng, wire, other) if trial >= len(wires) else wires[trial]
        user = int.from_bytes(data[20:28], "little")
        rows = np.frombuffer(data, dtype=np.uint8)[None]
        parsed = parse_rows(rows, np.array([user], np.uint64), mechanism, KEY)
        try:
            ballot = hb.Ballot.from_bytes(data)
            mechanism.tally(KEY).add(ballot)
            reason = ""
        except hb.RefusedBallot as error:
            reason = error.reason
        if reason in ("length", "padding"):
            # `from_bytes` knows no mechanism: it checks length and padding before the others.
            number, _, bits = struct.unpack("<QQQ", data[12:36])
            faults = {
                "mechanism": data[4:12] != mechanism.fingerprint,
                "round": number != 3,
                "length": bits != mechanism.payload_bits,
            }
            reason = next((name for name, faulty in faults.items() if faulty), reason)
        seen.add(reason)
        if reason:
            assert dict(parsed.refused) == {reason: 1}, data
        else:
            assert list(parsed.ballots) == [ballot]
    assert seen == {"", "damaged", "version", "mechanism", "round", "length", "padding"}


def test_rows_are_refused_by_reason() -> None:
    other = hb.CPA(53, 0.5, 2.0, points=4)
    longer = hb.CPA(99, 0.5, 1.0, points=4)
    one_user = np.array([4], np.uint64)
    rows = wire_rows(encode_users([1, 2], other))
    assert parse_rows(rows, np.array([1, 2], np.uint64), CPA, KEY).refused == {"mechanism": 2}
    late = encode_users([1], key=hb.RoundKey(bytes(32), 4))
    assert parse_rows(wire_rows(late), late.users, CPA, KEY).refused == {"round": 1}
    long_rows = wire_rows(encode_users([4], longer))
    assert parse_rows(long_rows, one_user, CPA, KEY).refused == {"mechanism": 1}
    own = encode_users([1, 2])
    assert parse_rows(wire_rows(own), own.users[::-1].copy(), CPA, KEY).refused == {"damaged": 2}
    padded = Ballots(own.fingerprint, 3, own.bits, own.users, own.payload | 0x80, own.overloaded)
    assert parse_rows(wire_rows(padded), own.users, CPA, KEY).refused == {"padding": 2}
    short = np.zeros((2, HEADER_BYTES - 1), np.uint8)
    assert parse_rows(short, own.users, CPA, KEY).refused == {"damaged": 2}


def test_the_first_fault_of_each_row_is_counted_and_the_other_rows_are_kept() -> None:
    ballots = encode_users(range(6))
    rows = wire_rows(ballots)
    rows[1, 0] = 0  # magic and checksum
    rows[2, 2] = 9  # version and checksum
    rows[4, HEADER_BYTES] ^= 1  # checksum
    parsed = parse_rows(rows, ballots.users, CPA, KEY)
    assert parsed.refused == {"damaged": 2, "version": 1}
    assert parsed.rows.tolist() == [0, 3, 5]
    assert list(parsed.ballots) == [ballots[0], ballots[3], ballots[5]]


def test_errors_do_not_show_the_payload() -> None:
    payload = bytes(range(200, 207))
    wire = hb.Ballot(FINGERPRINT, 3, 17, 56, payload).to_bytes()
    texts = [repr(hb.Ballot.from_bytes(wire))]
    for data in (wire[:-1], wire[:2] + bytes([7]) + wire[3:], wire + b"x"):
        with pytest.raises(hb.RefusedBallot) as caught:
            hb.Ballot.from_bytes(data)
        texts.append(str(caught.value))
    for text in texts:
        assert payload.hex() not in text
        assert repr(payload)[2:-1] not in text


def test_a_shown_ballot_has_no_payload_mac_or_run() -> None:
    head = (FINGERPRINT, 3, 17, 56)
    plain = hb.Ballot(*head, bytes(7))
    full = hb.Ballot(*head, b"payload", mac=b"sixteen byte mac", run=b"run")
    assert repr(full) == repr(plain)
    assert repr(Ballots.stack([full])) == repr(Ballots.stack([plain]))
    clipped = hb.Ballot(*head, bytes(7), overloaded=5)
    assert repr(Ballots.stack([clipped])) == repr(Ballots.stack([plain]))


def test_a_refusal_can_be_pickled() -> None:
    refusal = pickle.loads(pickle.dumps(hb.RefusedBallot("round", "of another round")))
    assert (refusal.reason, str(refusal)) == ("round", "of another round")


def test_a_row_of_a_header_alone_is_too_short() -> None:
    head = wire_rows(encode_users([1]))[0].tobytes()[:36]
    row = np.frombuffer(with_checksum(head, b""), np.uint8)[None]
    assert row.shape[1] == HEADER_BYTES
    assert parse_rows(row, np.array([1], np.uint64), CPA, KEY).refused == {"length": 1}


def test_one_row_with_wrong_padding_is_refused_alone() -> None:
    own = encode_users([1, 2, 3])
    payload = own.payload.copy()
    payload[1, -1] |= 0x80
    padded = Ballots(own.fingerprint, 3, own.bits, own.users, payload, own.overloaded)
    parsed = parse_rows(wire_rows(padded), own.users, CPA, KEY)
    assert parsed.refused == {"padding": 1}
    assert parsed.rows.tolist() == [0, 2]


def test_ballots_are_equal_if_their_bytes_are() -> None:
    """`overloaded` and `run` are not part of the bytes."""
    head = (FINGERPRINT, 3, 17, 56, bytes(7))
    plain = hb.Ballot(*head)
    assert (plain.overloaded, plain.mac, plain.run) == (0, None, None)
    assert plain == hb.Ballot(*head, overloaded=5, run=b"run")
    assert plain != hb.Ballot(*head, mac=bytes(16))
    assert plain != hb.Ballot(FINGERPRINT, 3, 18, 56, bytes(7))
