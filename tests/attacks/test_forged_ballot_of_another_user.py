"""Attack: a user votes in the name of another user, whose key it does not have."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

import hushbit as hb
from hushbit.wire.ballot import parse_rows, wire_rows

ROUND_KEY = hb.RoundKey(bytes(range(32)), 3, b"spring")
MECHANISM = hb.CPA(40, 0.5, 1.0)
ATTACKER, VICTIM = 5, 4
KEY = hb.UserKey.from_bytes(ROUND_KEY.user(ATTACKER).to_bytes())


def forgeries() -> Iterator[hb.Ballot]:
    """Ballots of the victim that the attacker can make from its own key and observed ballots."""
    posing = dataclasses.replace(KEY, user=VICTIM)
    ballot = MECHANISM.encode(np.ones(40), posing)
    yield hb.Ballot.from_bytes(ballot.to_bytes(posing))
    own = MECHANISM.encode(np.ones(40), KEY)
    mac = hb.Ballot.from_bytes(own.to_bytes(KEY)).mac
    yield dataclasses.replace(own, user=VICTIM, mac=mac)
    shared = hb.UserKey(3, VICTIM, KEY.rotation, KEY.rotation, KEY.run)  # what all users know
    yield hb.Ballot.from_bytes(ballot.to_bytes(shared))
    earlier = hb.RoundKey(ROUND_KEY.secret, 2, b"spring").user(VICTIM)  # a ballot of round 2
    old = hb.Ballot.from_bytes(MECHANISM.encode(np.ones(40), earlier).to_bytes(earlier))
    yield dataclasses.replace(old, round=3)
    yield dataclasses.replace(ballot, mac=bytes(16))


@pytest.mark.parametrize("require_mac", [True, False])
def test_forged_ballots_are_refused_and_the_victim_still_votes(require_mac: bool) -> None:
    tally = MECHANISM.tally(ROUND_KEY, require_mac=require_mac)
    count = 0
    for forged in forgeries():
        assert forged.user == VICTIM
        wire = forged.to_bytes()
        with pytest.raises(hb.RefusedBallot) as caught:
            tally.add(hb.Ballot.from_bytes(wire))
        assert caught.value.reason == "forged"
        rows = wire_rows(hb.Ballots.stack([forged]))
        users = np.array([VICTIM], np.uint64)
        parsed = parse_rows(rows, users, MECHANISM, ROUND_KEY, require_mac)
        assert dict(parsed.refused) == {"forged": 1}
        count += 1
    assert count == 5
    victim = ROUND_KEY.user(VICTIM)
    honest = MECHANISM.encode(np.zeros(40), victim).to_bytes(victim)
    tally.add(hb.Ballot.from_bytes(honest))
    assert tally.voters.users().tolist() == [VICTIM]


def test_the_library_refuses_to_sign_for_another_user() -> None:
    ballot = dataclasses.replace(MECHANISM.encode(np.ones(40), KEY), user=VICTIM)
    with pytest.raises(hb.InvalidInput, match="not the key of this ballot"):
        ballot.to_bytes(KEY)
