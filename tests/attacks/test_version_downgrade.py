"""Attack: the MAC is removed and the ballot is sent as version 1, or version 2 is claimed."""

import dataclasses

import numpy as np
import pytest

import hushbit as hb
from hushbit.wire.ballot import parse_rows

ROUND_KEY = hb.RoundKey(bytes(range(32)), 3, b"spring")
MECHANISM = hb.CPA(40, 0.5, 1.0)
KEY = ROUND_KEY.user(4)
SIGNED = hb.Ballot.from_bytes(MECHANISM.encode(np.zeros(40), KEY).to_bytes(KEY))


def changed_payload(ballot: hb.Ballot) -> hb.Ballot:
    return dataclasses.replace(ballot, payload=bytes([ballot.payload[0] ^ 1]) + ballot.payload[1:])


def refusals(wire: bytes) -> set[str]:
    """Why a single ballot, a batch and a row of a file are refused."""
    reasons = set()
    for add in ("add", "add_many"):
        tally = MECHANISM.tally(ROUND_KEY, require_mac=True)
        ballot = hb.Ballot.from_bytes(wire)
        with pytest.raises(hb.RefusedBallot) as caught:
            getattr(tally, add)(ballot if add == "add" else hb.Ballots.stack([ballot]))
        assert tally.count == 0
        reasons.add(caught.value.reason)
    rows = np.frombuffer(wire, np.uint8)[None]
    parsed = parse_rows(rows, np.array([4], np.uint64), MECHANISM, ROUND_KEY, require_mac=True)
    assert len(parsed.ballots) == 0
    return reasons | set(parsed.refused)


def test_version_1_is_refused_where_a_mac_is_required() -> None:
    stripped = dataclasses.replace(SIGNED, mac=None)
    assert stripped.to_bytes()[2] == 1
    assert refusals(stripped.to_bytes()) == {"unauthenticated"}
    assert refusals(changed_payload(stripped).to_bytes()) == {"unauthenticated"}


def test_a_mac_of_version_1_does_not_make_version_2() -> None:
    for mac in (bytes(16), SIGNED.mac):
        forged = changed_payload(dataclasses.replace(SIGNED, mac=mac))
        assert forged.to_bytes()[2] == 2
        assert refusals(forged.to_bytes()) == {"forged"}


def test_a_stripped_ballot_does_not_use_up_the_vote_of_its_user() -> None:
    tally = MECHANISM.tally(ROUND_KEY, require_mac=True)
    with pytest.raises(hb.RefusedBallot):
        tally.add(dataclasses.replace(SIGNED, mac=None))
    tally.add(SIGNED)
    assert tally.count == 1
