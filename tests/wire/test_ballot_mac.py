"""Ballots of version 2 carry a MAC: its bytes, who can make it, and what a tally refuses."""

import dataclasses
import hmac
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hushbit as hb
from hushbit.wire.ballot import ballot_macs, parse_rows, wire_rows

RUN = b"spring"
KEY = hb.RoundKey(bytes(range(32)), 3, RUN)
CPA = hb.CPA(53, 0.5, 1.0, points=4)
USERS = 6
BALLOTS = CPA.encode_many(np.zeros((USERS, 53)), KEY.users(range(USERS)), hb.SeededCoins(1))


def signed(user: int) -> bytes:
    return BALLOTS[user].to_bytes(KEY.user(user))


def with_checksum(wire: bytes | bytearray) -> bytes:
    """The bytes with a right checksum, which anybody can compute."""
    crc = zlib.crc32(bytes(wire[40:]), zlib.crc32(bytes(wire[:36])))
    return bytes(wire[:36]) + struct.pack("<I", crc) + bytes(wire[40:])


def refusal(tally: hb.Tally, wire: bytes) -> str:
    with pytest.raises(hb.RefusedBallot) as caught:
        tally.add(hb.Ballot.from_bytes(wire))
    assert tally.count == 0
    assert not any(counter.any() for counter in tally.counters.values())
    return caught.value.reason


def row_refusal(wire: bytes, require_mac: bool) -> dict[str, int]:
    rows = np.frombuffer(wire, dtype=np.uint8)[None]
    users = np.array([int.from_bytes(wire[20:28], "little")], np.uint64)
    return dict(parse_rows(rows, users, CPA, KEY, require_mac).refused)


def test_bytes_of_version_2_by_a_second_implementation() -> None:
    wire, payload = signed(4), BALLOTS[4].payload
    start = struct.pack("<2sBB8sQQQ", b"HB", 2, 0, CPA.fingerprint, 3, 4, 53)
    own = hmac.digest(KEY.user(4).key, b"ballot mac", "sha256")
    mac = hmac.digest(own, start + payload, "sha256")[:16]
    assert wire == with_checksum(start + bytes(4) + mac + payload)
    assert len(wire) == len(BALLOTS[4].to_bytes()) + 16


def test_a_mac_survives_reading_and_writing() -> None:
    ballot = hb.Ballot.from_bytes(signed(4))
    assert ballot.mac == signed(4)[40:56]
    assert ballot.to_bytes() == signed(4)
    assert dataclasses.replace(ballot, mac=None) == BALLOTS[4] != ballot
    assert hb.Ballot.from_bytes(BALLOTS[4].to_bytes()).mac is None
    assert ballot.mac.hex() not in repr(ballot)


def test_a_batch_gives_the_macs_of_its_ballots() -> None:
    keys = KEY.users(range(USERS))
    batch = BALLOTS.with_macs(keys)
    assert [ballot.to_bytes() for ballot in batch] == [signed(user) for user in range(USERS)]
    assert [row.tobytes() for row in wire_rows(batch)] == [signed(user) for user in range(USERS)]
    again = hb.Ballots.stack([hb.Ballot.from_bytes(signed(user)) for user in range(USERS)])
    assert again.macs is not None
    assert (again.macs == ballot_macs(BALLOTS, keys)).all()
    for part in (batch[1:3], batch[np.array([1, 2])], batch[np.arange(USERS) % 5 == 1]):
        assert part[0] == batch[1]
    assert len(BALLOTS[:0].with_macs(keys[:0])) == 0
    for wrong in (keys[1:], KEY.users([0, 1, 2, 3, 4, 9]), hb.RoundKey(bytes(32), 4).users([0])):
        with pytest.raises(hb.InvalidInput, match="key of each"):
            BALLOTS.with_macs(wrong)
    with pytest.raises(hb.InvalidInput, match="key of each"):
        BALLOTS.with_macs(hb.RoundKey(bytes(range(32)), 3, b"autumn").users(range(USERS)))


@pytest.mark.parametrize("require_mac", [True, False])
def test_right_macs_are_counted(require_mac: bool) -> None:
    plain, tally = CPA.tally(KEY), CPA.tally(KEY, require_mac=require_mac)
    plain.add_many(BALLOTS)
    tally.add(hb.Ballot.from_bytes(signed(0)))
    tally.add_many([hb.Ballot.from_bytes(signed(user)) for user in (1, 2)])
    rows = np.stack([np.frombuffer(signed(user), np.uint8) for user in (3, 4, 5)])
    parsed = parse_rows(rows, np.array([3, 4, 5], np.uint64), CPA, KEY, require_mac)
    tally.add_many(parsed.ballots)
    assert (tally.counters["stage 0"] == plain.counters["stage 0"]).all()
    assert tally.count == USERS
    assert tally.empty_like().require_mac is require_mac


@pytest.mark.parametrize("require_mac", [True, False])
@pytest.mark.parametrize("at", [*range(4, 36), *range(40, 63)])
def test_every_changed_byte_is_refused_even_with_a_right_checksum(
    at: int, require_mac: bool
) -> None:
    wire = bytearray(signed(4))
    wire[at] ^= 1
    changed = with_checksum(wire)
    found = refusal(CPA.tally(KEY, require_mac=require_mac), changed)
    rows = row_refusal(changed, require_mac)
    if 4 <= at < 12:
        assert found == "mechanism"
    elif 12 <= at < 20:
        assert found == "round"
    elif 28 <= at < 36:
        assert found == "length"
    else:
        assert found == "forged"
    assert rows == {found: 1}


@pytest.mark.parametrize("require_mac", [True, False])
def test_macs_of_other_keys_are_refused(require_mac: bool) -> None:
    strangers = [
        KEY.user(5),
        hb.RoundKey(bytes(32), 3, RUN).user(4),
        hb.RoundKey(KEY.secret, 3, b"autumn").user(4),
        hb.RoundKey(KEY.secret, 3).user(4),
        hb.RoundKey(KEY.secret, 4, RUN).user(4),
    ]
    for stranger in strangers:
        posing = hb.UserKey(3, 4, stranger.key, KEY.rotation, RUN)
        wire = BALLOTS[4].to_bytes(posing)
        assert refusal(CPA.tally(KEY, require_mac=require_mac), wire) == "forged"
        assert row_refusal(wire, require_mac) == {"forged": 1}


def test_version_1_is_refused_only_where_a_mac_is_required() -> None:
    wire = BALLOTS[4].to_bytes()
    assert refusal(CPA.tally(KEY, require_mac=True), wire) == "unauthenticated"
    assert row_refusal(wire, True) == {"unauthenticated": 1}
    assert row_refusal(wire, False) == {}
    tally = CPA.tally(KEY)
    tally.add(hb.Ballot.from_bytes(wire))
    assert tally.count == 1
    strict = CPA.tally(KEY, require_mac=True)
    with pytest.raises(hb.RefusedBallot) as caught:
        strict.add_many(BALLOTS)
    assert caught.value.reason == "unauthenticated"
    with pytest.raises(hb.RefusedBallot) as caught:
        strict.add_many([hb.Ballot.from_bytes(signed(1)), hb.Ballot.from_bytes(wire)])
    assert caught.value.reason == "unauthenticated"
    assert strict.count == 0


def test_one_forged_ballot_refuses_the_whole_batch() -> None:
    wires = [signed(user) for user in range(4)]
    forged = hb.Ballot.from_bytes(wires[2])
    forged = dataclasses.replace(forged, payload=bytes(len(forged.payload)))
    tally = CPA.tally(KEY, require_mac=True)
    with pytest.raises(hb.RefusedBallot, match="user 2") as caught:
        tally.add_many([hb.Ballot.from_bytes(wires[0]), forged])
    assert caught.value.reason == "forged"
    assert tally.count == 0
    rows = np.stack([np.frombuffer(wire, np.uint8) for wire in wires])
    rows[2] = np.frombuffer(forged.to_bytes(), np.uint8)
    parsed = parse_rows(rows, np.arange(4, dtype=np.uint64), CPA, KEY, True)
    assert dict(parsed.refused) == {"forged": 1}
    assert parsed.rows.tolist() == [0, 1, 3]
    assert list(parsed.ballots) == [hb.Ballot.from_bytes(wires[user]) for user in (0, 1, 3)]


def test_tiers_require_macs_too() -> None:
    tiers = hb.Tiers(CPA, hb.CPA(53, 0.5, 1.0))
    tally = tiers.tally(KEY, require_mac=True)
    with pytest.raises(hb.RefusedBallot) as caught:
        tally.add(BALLOTS[1])
    assert caught.value.reason == "unauthenticated"
    tally.add(hb.Ballot.from_bytes(signed(1)))
    assert tally.count == 1


def test_ballots_of_the_inner_mechanism_have_no_mac() -> None:
    """The MAC covers the fingerprint of the outer mechanism."""
    rotated = hb.Rotated(CPA)
    ballots = rotated.encode_many(np.zeros((3, 53)), KEY.users(range(3)))
    inner = rotated.votes.inner_ballots(ballots.with_macs(KEY.users(range(3))))  # type: ignore[union-attr]
    tally = CPA.tally(KEY)
    tally.add_many(inner)
    assert tally.count == 3


@pytest.mark.parametrize(
    "key",
    [
        KEY.user(5),
        hb.RoundKey(KEY.secret, 4, RUN).user(4),
        hb.RoundKey(KEY.secret, 3, b"autumn").user(4),
        hb.RoundKey(KEY.secret, 3).user(4),
    ],
    ids=["user", "round", "run", "no run"],
)
def test_only_the_key_of_the_ballot_makes_its_mac(key: hb.UserKey) -> None:
    with pytest.raises(hb.InvalidInput, match="not the key of this ballot"):
        BALLOTS[4].to_bytes(key)


@pytest.mark.parametrize("wrong", [b"k" * 32, KEY, KEY.users([4]), "key", 5])
def test_only_user_keys_make_macs(wrong: object) -> None:
    with pytest.raises(hb.InvalidInput, match=r"RoundKey\.user"):
        BALLOTS[4].to_bytes(wrong)  # type: ignore[arg-type]


def test_a_ballot_of_another_run_is_refused() -> None:
    other = hb.RoundKey(KEY.secret, 3, b"autumn")
    for add in (CPA.tally(other).add_many, lambda some: CPA.tally(other).add(some[0])):
        with pytest.raises(hb.RefusedBallot) as caught:
            add(BALLOTS)
        assert caught.value.reason == "run"


@given(st.one_of(st.none(), st.binary(max_size=20), st.text(max_size=16)))
def test_macs_have_sixteen_bytes(mac: object) -> None:
    parts = (CPA.fingerprint, 3, 4, 53, bytes(7), 0)
    if mac is None or (isinstance(mac, bytes) and len(mac) == 16):
        assert hb.Ballot(*parts, mac=mac).mac == mac
    else:
        with pytest.raises(hb.InvalidInput, match="MAC"):
            hb.Ballot(*parts, mac=mac)  # type: ignore[arg-type]


def test_batches_with_wrong_macs_or_runs_are_refused() -> None:
    for macs in (np.zeros((5, 16), np.uint8), np.zeros((6, 15), np.uint8), np.zeros((6, 16)), b""):
        with pytest.raises(hb.InvalidInput, match="macs"):
            dataclasses.replace(BALLOTS, macs=macs)
    mixed = [hb.Ballot.from_bytes(signed(1)), BALLOTS[2]]
    with pytest.raises(hb.InvalidInput, match="all or none"):
        hb.Ballots.stack(mixed)
    with pytest.raises(hb.InvalidInput, match="run"):
        hb.Ballots.stack([BALLOTS[1], dataclasses.replace(BALLOTS[2], run=b"autumn")])
    with pytest.raises(hb.InvalidInput, match="run"):
        dataclasses.replace(BALLOTS, run="text")
