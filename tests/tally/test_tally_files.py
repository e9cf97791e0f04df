"""Tally files after kills, full disks and damage; memory does not grow with users."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hushbit as hb
from tally.tally_samples import BALLOTS, KEY, MECHANISMS, full, state


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


@pytest.mark.parametrize("place", ["os.replace", "os.fsync", "numpy.savez"])
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

    monkeypatch.setattr("numpy.savez", interrupt)
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
    with np.load(path) as file:
        good = {name: file[name] for name in file.files}
    head = good["head"].copy()
    head[0] = 2
    repeated = np.repeat(good["users"], 2)
    for wrong in (
        {"head": head},
        {"head": head[:5]},
        {"users": repeated},
        {"more": head},
        {"users": good["users"].astype(float)},
        {"users": good["users"].reshape(2, -1)},
        {"counter stage 0": good["counter stage 0"].astype(np.int32)},
    ):
        np.savez(tmp_path / "wrong.npz", **(good | wrong))
        tally = mechanism.tally(KEY)
        with pytest.raises(hb.DamagedFile):
            tally.load(tmp_path / "wrong.npz")
        assert tally.count == 0
        assert not tally.counters["stage 0"].any()
    np.save(tmp_path / "array.npy", good["users"])
    (tmp_path / "text").write_text("no tally")
    (tmp_path / "empty").write_bytes(b"")
    for name in ("array.npy", "text", "empty"):
        with pytest.raises(hb.DamagedFile, match="not a readable tally"):
            mechanism.tally(KEY).load(tmp_path / name)


def test_damaged_files_are_refused_or_load_the_saved_values(tmp_path: Path) -> None:
    """Six hundred flipped bits and truncations: a HushbitError, or exactly the saved tally."""
    path, right = tmp_path / "t", full("two")
    right.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(5)
    for _ in range(600):
        raw = bytearray(whole)
        if rng.integers(4) == 0:
            raw = raw[: int(rng.integers(len(raw)))]
        else:
            raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(raw)
        tally = MECHANISMS["two"].tally(KEY)
        try:
            tally.load(path)
        except hb.HushbitError:
            assert tally.count == 0
        else:
            assert state(tally) == state(right)


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
