"""Attack: the network flips a bit of a ballot and computes the checksum again."""

import zlib

import numpy as np
import pytest

import hushbit as hb

ROUND_KEY = hb.RoundKey(bytes(range(32)), 3, b"spring")
MECHANISM = hb.CPA(40, 0.5, 1.0)
KEY = ROUND_KEY.user(4)
BALLOT = MECHANISM.encode(np.zeros(40), KEY)


def flipped(wire: bytes, bit: int) -> bytes:
    """The bytes with one flipped bit and a right checksum."""
    raw = bytearray(wire)
    raw[bit // 8] ^= 1 << bit % 8
    raw[36:40] = zlib.crc32(raw[40:], zlib.crc32(raw[:36])).to_bytes(4, "little")
    return bytes(raw)


@pytest.mark.parametrize("require_mac", [True, False])
def test_no_flipped_bit_is_counted(require_mac: bool) -> None:
    wire = BALLOT.to_bytes(KEY)
    tally = MECHANISM.tally(ROUND_KEY, require_mac=require_mac)
    reasons = set()
    for bit in range(8 * len(wire)):
        if bit // 8 in range(36, 40):
            continue  # the checksum itself, which is computed again
        with pytest.raises(hb.RefusedBallot) as caught:
            tally.add(hb.Ballot.from_bytes(flipped(wire, bit)))
        reasons.add(caught.value.reason)
    assert tally.count == 0
    assert "forged" in reasons
    tally.add(hb.Ballot.from_bytes(wire))
    assert tally.count == 1


def test_without_a_mac_the_attack_works() -> None:
    """This is why a server requires MACs: version 1 detects damage only."""
    tally = MECHANISM.tally(ROUND_KEY)
    tally.add(hb.Ballot.from_bytes(flipped(BALLOT.to_bytes(), 8 * 40)))
    assert tally.count == 1


def test_a_ballot_moved_to_another_tier_is_refused() -> None:
    """Both tiers have ballots of 40 bits, so only the fingerprint has to be changed."""
    tiers = hb.Tiers(MECHANISM, hb.CPA(40, 2.0, 1.0))
    moved = bytearray(BALLOT.to_bytes(KEY))
    moved[4:12] = tiers[1].fingerprint
    moved[36:40] = zlib.crc32(moved[40:], zlib.crc32(moved[:36])).to_bytes(4, "little")
    tally = tiers.tally(ROUND_KEY, require_mac=True)
    with pytest.raises(hb.RefusedBallot) as caught:
        tally.add(hb.Ballot.from_bytes(bytes(moved)))
    assert caught.value.reason == "forged"
    assert tally.count == 0
    tally.add(hb.Ballot.from_bytes(BALLOT.to_bytes(KEY)))
    assert tally.parts[0].count == 1
