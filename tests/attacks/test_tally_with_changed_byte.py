"""Attack: somebody with access to the disk changes a saved tally, or puts another in its place."""

import struct
from pathlib import Path

import numpy as np
import pytest

import hushbit as hb

SECRET = bytes(range(32))
KEY = hb.RoundKey(SECRET, 3, b"spring")
MECHANISM = hb.CPA(40, 0.5, 1.0)
USERS = 20


def saved(path: Path, key: hb.RoundKey) -> bytes:
    tally = MECHANISM.tally(key)
    keys = key.users(range(USERS))
    tally.add_many(MECHANISM.encode_many(np.zeros((USERS, 40)), keys, hb.SeededCoins(1)))
    tally.save(path)
    return path.read_bytes()


def test_a_plausible_counter_is_refused(tmp_path: Path) -> None:
    """A value within the limits, which only the MAC can tell from the counted one."""
    raw = saved(tmp_path / "t", KEY)
    at = 56 + 8 * USERS
    (counter,) = struct.unpack_from("<q", raw, at)
    for value in {counter - 2, counter + 2, -counter, 0} - {counter}:
        (tmp_path / "t").write_bytes(raw[:at] + struct.pack("<q", value) + raw[at + 8 :])
        with pytest.raises(hb.DamagedFile, match="its MAC is wrong"):
            MECHANISM.tally(KEY).load(tmp_path / "t")


def test_another_user_number_is_refused(tmp_path: Path) -> None:
    """Without its number in the file, a user could vote twice."""
    raw = saved(tmp_path / "t", KEY)
    at = 56 + 8 * (USERS - 1)
    (tmp_path / "t").write_bytes(raw[:at] + struct.pack("<Q", 999) + raw[at + 8 :])
    with pytest.raises(hb.DamagedFile, match="its MAC is wrong"):
        MECHANISM.tally(KEY).load(tmp_path / "t")


@pytest.mark.parametrize(
    "other",
    [
        hb.RoundKey(SECRET, 4, b"spring"),
        hb.RoundKey(SECRET, 3, b"autumn"),
        hb.RoundKey(SECRET, 3),
        hb.RoundKey(bytes(32), 3, b"spring"),
    ],
    ids=["round", "run", "no run", "secret"],
)
def test_a_tally_of_another_key_is_refused_even_under_the_right_key_id(
    other: hb.RoundKey, tmp_path: Path
) -> None:
    raw = saved(tmp_path / "t", other)
    with pytest.raises(hb.InvalidInput, match="another key"):
        MECHANISM.tally(KEY).load(tmp_path / "t")
    (tmp_path / "t").write_bytes(raw[:8] + KEY.key_id + struct.pack("<Q", 3) + raw[24:])
    with pytest.raises(hb.DamagedFile, match="its MAC is wrong"):
        MECHANISM.tally(KEY).load(tmp_path / "t")


def test_no_user_can_make_the_mac_of_a_tally() -> None:
    user = KEY.user(1)
    assert KEY.tally_key not in (user.key, user.rotation, KEY.key_id)
