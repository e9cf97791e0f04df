"""Attack: a tally file whose counters no ballots can add up to, to move the mean at will.

The file has a right MAC, as if the key were known or the server were faulty.
"""

import hmac
import struct
from pathlib import Path

import numpy as np
import pytest

import golden_cases
import hushbit as hb

KEY = hb.RoundKey(golden_cases.SECRET, golden_cases.ROUND)
NUMBERS = 56 + 8 * golden_cases.VOTERS  # where the counters begin in a file of one tally


@pytest.mark.parametrize("value", [2**62, -(2**62), -(2**63)])
@pytest.mark.parametrize("name", golden_cases.MECHANISMS)
def test_impossible_counters_are_refused(name: str, value: int, tmp_path: Path) -> None:
    mechanism, path = golden_cases.MECHANISMS[name], tmp_path / "t"
    tally = golden_cases.counted(mechanism)
    tally.save(path)
    body = path.read_bytes()[:-32]
    at = NUMBERS
    for counter in tally.counters.values():
        forged = body[:at] + struct.pack("<q", value) + body[at + 8 :]
        path.write_bytes(forged + hmac.digest(KEY.tally_key, forged, "sha256"))
        again = mechanism.tally(KEY)
        with pytest.raises(hb.DamagedFile, match="beyond what 12 ballots can add up to"):
            again.load(path)
        assert again.count == 0
        assert not any(array.any() for array in again.counters.values())
        at += counter.nbytes


def test_an_empty_tally_has_zero_counters(tmp_path: Path) -> None:
    mechanism, path = golden_cases.MECHANISMS["two points"], tmp_path / "t"
    mechanism.tally(KEY).save(path)
    body = path.read_bytes()[:-32]
    forged = body[:56] + np.ones(21, dtype="<i8").tobytes()
    path.write_bytes(forged + hmac.digest(KEY.tally_key, forged, "sha256"))
    with pytest.raises(hb.DamagedFile, match="beyond what 0 ballots"):
        mechanism.tally(KEY).load(path)
