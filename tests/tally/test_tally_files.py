"""Tally files after kills, full disks and damage; memory does not grow with users."""

import errno
import hashlib
import hmac
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hushbit as hb
from tally.tally_samples import BALLOTS, KEY, MECHANISMS, USERS, full, state


@pytest.mark.parametrize("name", MECHANISMS)
def test_save_and_load(name: str, tmp_path: Path) -> None:
    tally, path = full(name), tmp_path / "round.tally"
    tally.save(path)
    again = MECHANISMS[name].tally(KEY)
    again.load(str(path))
    assert state(again) == state(tally)
    assert os.listdir(tmp_path) == ["round.tally"]
    with pytest.raises(hb.RefusedBallot, match="already voted"):
        again.add(BALLOTS[name][0])
    one, two = MECHANISMS[name].estimate(tally), MECHANISMS[name].estimate(again)
    assert one.mean.tobytes() == two.mean.tobytes()
    with pytest.raises(hb.InvalidInput, match="empty"):
        again.load(path)


def test_a_killed_server_counts_every_ballot_once(tmp_path: Path) -> None:
    """A process saves after every third ballot and is killed; all ballots are sent again."""
    program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from tally.tally_samples import BALLOTS, KEY, MECHANISMS
tally = MECHANISMS["four"].tally(KEY)
for n, ballot in enumerate(BALLOTS["four"]):
    tally.add(ballot)
    if n % 3 == 2:
        tally.save({str(tmp_path / "t")!r})
    if n == 13:
        os.kill(os.getpid(), 9)
"""
    folder = str(Path(__file__).parents[1])
    run = subprocess.run([sys.executable, "-c", program], cwd=folder, check=False)
    assert run.returncode == -9
    tally = MECHANISMS["four"].tally(KEY)
    tally.load(tmp_path / "t")
    assert tally.count == 12
    refused = 0
    for ballot in BALLOTS["four"]:
        try:
            tally.add(ballot)
        except hb.RefusedBallot:
            refused += 1
    assert refused == 12
    assert state(tally) == state(full("four"))


@pytest.mark.parametrize("place", ["os.replace", "os.fsync", "hmac.new"])
@pytest.mark.parametrize("kind", [errno.ENOSPC, errno.EIO])
def test_a_failed_save_does_not_change_the_old_file(
    place: str, kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tally = tmp_path / "t", MECHANISMS["two"].tally(KEY)
    tally.add_many(BALLOTS["two"][:5])
    tally.save(path)
    old = path.read_bytes()
    tally.add_many(BALLOTS["two"][5:])
    before = state(tally)

    def fail(*args: object, **more: object) -> None:
        raise OSError(kind, os.strerror(kind))

    with monkeypatch.context() as patch:
        patch.setattr(place, fail)
        with pytest.raises(hb.DamagedFile, match="could not be written"):
            tally.save(path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["t"]
    assert state(tally) == before
    tally.save(path)
    again = MECHANISMS["two"].tally(KEY)
    again.load(path)
    assert state(again) == before


def test_an_interrupted_save_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hmac.new", interrupt)
    with pytest.raises(KeyboardInterrupt):
        full("two").save(tmp_path / "t")
    assert os.listdir(tmp_path) == []


def test_an_interrupted_tally_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = hb.CPA(dim=11, epsilon_per_bit=0.5, radius=1.0)
    tally = mechanism.tally(KEY)
    tally.add(BALLOTS["two"][0])

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hb.CPA, "add_payload", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tally.add(BALLOTS["two"][1])
    monkeypatch.undo()
    other = mechanism.tally(KEY)
    for use in (
        lambda: tally.add(BALLOTS["two"][2]),
        lambda: tally.save(tmp_path / "t"),
        lambda: tally.merge(other),
        lambda: other.merge(tally),
        lambda: mechanism.estimate(tally),
    ):
        with pytest.raises(hb.HushbitError, match="interrupted"):
            use()


def test_wrong_files(tmp_path: Path) -> None:
    path, mechanism = tmp_path / "t", MECHANISMS["four"]
    full("four").save(path)
    with pytest.raises(hb.InvalidInput, match="another mechanism"):
        MECHANISMS["two"].tally(KEY).load(path)
    for key in (hb.RoundKey(bytes(32), 3), hb.RoundKey(bytes(range(32)), 4)):
        with pytest.raises(hb.InvalidInput, match="round 3 of another key"):
            mechanism.tally(key).load(path)
    with pytest.raises(hb.DamagedFile, match="counters"):
        mechanism.tally(KEY, histogram=False).load(path)
    for other in ("missing", "."):
        with pytest.raises(hb.DamagedFile):
            mechanism.tally(KEY).load(tmp_path / other)
    for wrong in (None, 5, [1]):
        with pytest.raises(hb.InvalidInput, match="path"):
            mechanism.tally(KEY).load(wrong)  # type: ignore[arg-type]
        with pytest.raises(hb.InvalidInput, match="path"):
            mechanism.tally(KEY).save(wrong)  # type: ignore[arg-type]
    with pytest.raises(hb.DamagedFile, match="could not be written"):
        full("four").save(tmp_path / "no" / "folder")
    np.save(tmp_path / "array.npy", np.arange(50))
    np.savez(tmp_path / "archive.npz", users=np.arange(50))
    (tmp_path / "text").write_text("no tally")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "head").write_bytes(path.read_bytes()[:40])
    for name in ("array.npy", "archive.npz", "text", "empty", "head"):
        with pytest.raises(hb.DamagedFile):
            mechanism.tally(KEY).load(tmp_path / name)


def test_layout_of_a_file_by_a_second_implementation(tmp_path: Path) -> None:
    tally, path = full("nested"), tmp_path / "t"
    tally.save(path)
    wire = path.read_bytes()
    root = hmac.digest(bytes(range(32)), b"hushbit/1 round" + struct.pack("<Q", 3), "sha256")
    body, mac = wire[:-32], wire[-32:]
    assert mac == hmac.digest(hmac.digest(root, b"tally file", "sha256"), body, "sha256")
    assert body[:32] == b"HBTALLY\x02" + KEY.key_id + struct.pack("<QQ", 3, 1)
    assert body[32:40] == MECHANISMS["nested"].fingerprint
    shapes = json.dumps([[name, array.shape] for name, array in tally.counters.items()])
    assert body[40:48] == hashlib.blake2b(shapes.encode(), digest_size=8).digest()
    assert body[48:56] == struct.pack("<Q", USERS)
    users = np.arange(USERS, dtype="<u8").tobytes()
    counters = b"".join(array.astype("<i8").tobytes() for array in tally.counters.values())
    assert body[56:] == users + counters


def resealed(body: bytes, key: hb.RoundKey = KEY) -> bytes:
    """A file with a right MAC, as only the server can write it."""
    return body + hmac.digest(key.tally_key, body, "sha256")


@pytest.mark.parametrize("name", MECHANISMS)
def test_counters_that_no_ballots_can_add_up_to_are_refused(name: str, tmp_path: Path) -> None:
    path, tally = tmp_path / "t", full(name)
    tally.save(path)
    body, start = path.read_bytes()[:-32], 56 + 8 * USERS
    largest = MECHANISMS[name].largest_votes(tally.counters)
    for counter, array in tally.counters.items():
        limit = USERS * int(largest[counter])
        for value, refused in [
            (limit, False),
            (-limit, False),
            (limit + 1, True),
            (-limit - 1, True),
            (2**63 - 1, True),
            (-(2**63), True),
        ]:
            at = start + 8 * (array.size - 1)
            path.write_bytes(resealed(body[:at] + struct.pack("<q", value) + body[at + 8 :]))
            again = MECHANISMS[name].tally(KEY)
            if refused:
                with pytest.raises(hb.DamagedFile, match="beyond what 24 ballots"):
                    again.load(path)
                assert not any(array.any() for array in again.counters.values())
            else:
                again.load(path)
                assert again.counters[counter].reshape(-1)[-1] == value
        start += array.nbytes


def test_users_twice_or_out_of_order_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    full("two").save(path)
    body = path.read_bytes()[:-32]
    for users in ((1, 1), (1, 0), (0, 2, 1), (0, 5, 5)):
        start = struct.pack(f"<{len(users)}Q", *users)
        path.write_bytes(resealed(body[:56] + start + body[56 + len(start) :]))
        with pytest.raises(hb.DamagedFile, match="a user twice"):
            MECHANISMS["two"].tally(KEY).load(path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "t"
    full("nested").save(path)
    return path


def refuse(path: Path, wire: bytes) -> None:
    """The file with these bytes is refused, and the tally stays empty."""
    path.with_name("changed").write_bytes(wire)
    tally = MECHANISMS["nested"].tally(KEY)
    with pytest.raises(hb.HushbitError):
        tally.load(path.with_name("changed"))
    assert tally.count == 0
    assert not any(array.any() for array in tally.counters.values())


def test_every_flipped_bit_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        refuse(saved, bytes(changed))


@given(st.data())
def test_changed_cut_extended_and_joined_files_are_refused(
    saved: Path, data: st.DataObject
) -> None:
    whole = saved.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    more = data.draw(st.binary(min_size=1, max_size=40))
    to = data.draw(st.integers(at + 1, len(whole)))
    changes = [
        whole[:at],
        whole + more,
        whole[:at] + more + whole[at:],
        whole[:at] + whole[to:],
        whole[:to] + whole[at:],  # a part twice
        whole[:at] + more + whole[at + len(more) :],
        whole + whole,
    ]
    changed = data.draw(st.sampled_from(changes))
    if changed != whole:
        refuse(saved, changed)


def test_a_file_of_another_size_is_refused_with_both_sizes(saved: Path) -> None:
    whole, path = saved.read_bytes(), saved.with_name("longer")
    path.write_bytes(whole + b"!")
    sizes = f"has {len(whole) + 1} bytes; a tally of its voters has {len(whole)}"
    with pytest.raises(hb.DamagedFile, match=sizes):
        MECHANISMS["nested"].tally(KEY).load(path)


@given(st.integers(0, 2**64 - 1))
def test_declared_sizes_are_checked_before_anything_is_read(saved: Path, voters: int) -> None:
    """Even with a right MAC, a number of voters that the file does not hold is refused."""
    body = saved.read_bytes()[:-32]
    if voters != USERS:
        refuse(saved, resealed(body[:48] + struct.pack("<Q", voters) + body[56:]))


def test_a_file_of_another_run_is_refused(saved: Path) -> None:
    with pytest.raises(hb.InvalidInput, match="another key"):
        MECHANISMS["nested"].tally(hb.RoundKey(KEY.secret, 3, b"run")).load(saved)


MEMORY = """
import sys
import numpy as np, hushbit as hb
dim, users = int(sys.argv[1]), int(sys.argv[2])
mechanism = hb.CPA(dim=dim, epsilon_per_bit=0.5, radius=1.0)
key = hb.RoundKey(bytes(32), 1)
tally = mechanism.tally(key)
payload = np.random.default_rng(1).integers(0, 256, (100, dim // 8), dtype=np.uint8)
def batch(first):
    return hb.Ballots(mechanism.fingerprint, 1, dim, np.arange(first, first + 100, dtype=np.uint64),
                      payload, np.zeros(100, np.int64))
for first in range(0, users, 100):
    tally.add_many(batch(first))
mechanism.estimate(tally)
# VmHWM, because getrusage also counts the memory of the parent before exec.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(status["VmHWM"].split()[0], tally.count, sum(c.nbytes for c in tally.counters.values()))
"""


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")


def memory(dim: int, users: int) -> int:
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, str(dim), str(users)],
        capture_output=True,
        text=True,
        check=True,
    )
    peak, count, counters = map(int, run.stdout.split())
    assert count == users
    assert counters == 8 * dim
    return peak


@needs_proc
def test_memory_does_not_grow_with_users() -> None:
    assert memory(8000, 20_000) < 1.05 * memory(8000, 200)


@needs_proc
@pytest.mark.slow
def test_memory_at_a_hundred_thousand_users() -> None:
    """dim 100 000 with 1 000 and with 100 000 users: memory within 5 %."""
    assert memory(100_000, 100_000) < 1.05 * memory(100_000, 1000)
