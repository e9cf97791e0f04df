"""Keys are reproducible and differ between rounds, users and purposes; wrong input is refused."""

import hmac

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import hushbit as hb
from hushbit.wire.keys import MIN_KEYS_FOR_THREADS, key_to_uint32

SECRET = bytes(range(32))


def test_users_key_is_hchacha20_of_the_rounds_root() -> None:
    """A second implementation with the standard library and the plain block function."""
    from hushbit.kernels.chacha_numpy import CONSTANTS, reference_blocks

    root = hmac.digest(SECRET, b"hushbit/1 round" + (7).to_bytes(8, "little"), "sha256")
    users = key_to_uint32(hmac.digest(root, b"users", "sha256"))
    nonce = key_to_uint32((2**40 + 5).to_bytes(8, "little") + b"hushbit1")
    state = np.concatenate([CONSTANTS, users, nonce])[:, None]
    block = reference_blocks(state)[0] - state[:, 0]
    key = hb.RoundKey(SECRET, 7).user(2**40 + 5)
    assert key.key == np.concatenate([block[:4], block[12:]]).astype("<u4").tobytes()
    assert key.rotation == hmac.digest(root, b"rotation", "sha256")


def test_root_of_a_run_by_a_second_implementation() -> None:
    run = b"spring"
    data = b"hushbit/1 run" + b"\x06" + run + (7).to_bytes(8, "little")
    root = hmac.digest(SECRET, data, "sha256")
    assert hb.RoundKey(SECRET, 7, run).rotation == hmac.digest(root, b"rotation", "sha256")
    assert hb.RoundKey(SECRET, 7, run).key_id == hmac.digest(root, b"mark", "sha256")[:8]


def test_runs_whose_bytes_join_to_the_same_text_have_different_keys() -> None:
    """Without the length, ("a", round) and ("a" + byte, round without that byte) could agree."""
    number = int.from_bytes(b"bcdefghi", "little")
    later = int.from_bytes(b"cdefghij", "little")
    runs = [(b"", 0), (b"\x00", 0), (bytes(2), 0), (bytes(32), 0), (b"a", number), (b"ab", later)]
    runs += [(b"round", 0), (b"nd", 0), (b"\x01a", number)]
    keys = [hb.RoundKey(SECRET, number, run) for run, number in runs]
    for part in ("rotation", "key_id"):
        assert len({getattr(key, part) for key in keys}) == len(keys)
    assert len({key.user(1).key for key in keys}) == len(keys)


@pytest.mark.parametrize("run", [bytes(33), "text", None, bytearray(4), 5])
def test_wrong_runs_are_refused(run: object) -> None:
    with pytest.raises(hb.InvalidInput, match="run must be at most 32 bytes"):
        hb.RoundKey(SECRET, 1, run)  # type: ignore[arg-type]
    with pytest.raises(hb.InvalidInput, match="run must be at most 32 bytes"):
        hb.UserKey(1, 2, bytes(32), bytes(32), run)  # type: ignore[arg-type]


@given(st.binary(max_size=32))
@example(bytes(32))
def test_user_keys_transport_their_run(run: bytes) -> None:
    key = hb.RoundKey(SECRET, 3, run).user(17)
    wire = key.to_bytes()
    assert hb.UserKey.from_bytes(wire) == key
    assert hb.UserKey.from_bytes(wire).run == run
    assert len(wire) == 80 + (1 + len(run) if run else 0)
    for wrong in (wire[:-1], wire + b"x", wire[:80] + b"\x00", wire[:80] + bytes([40]) + bytes(40)):
        with pytest.raises(hb.InvalidInput, match="80 bytes"):
            hb.UserKey.from_bytes(wrong)


def test_keys_of_different_runs_are_not_stacked() -> None:
    one, two = hb.RoundKey(SECRET, 1, b"one"), hb.RoundKey(SECRET, 1, b"two")
    with pytest.raises(hb.InvalidInput, match="runs"):
        hb.UserKeys.stack([one.user(1), two.user(2)])
    same = hb.UserKey(1, 2, two.user(2).key, one.rotation, b"two")
    with pytest.raises(hb.InvalidInput, match="runs"):
        hb.UserKeys.stack([one.user(1), same])
    stacked = hb.UserKeys.stack([one.user(1), one.user(2)])
    assert stacked.run == stacked[1:].run == stacked[0].run == b"one"


def test_rounds_users_and_secrets_have_different_keys() -> None:
    keys = [
        hb.RoundKey(secret, number).user(user).key
        for secret in (SECRET, bytes(32))
        for number in (0, 1, 2**63)
        for user in (0, 1, 2**32, 2**64 - 1)
    ]
    assert len(set(keys)) == len(keys)
    rotations = {hb.RoundKey(SECRET, number).rotation for number in range(5)}
    assert len(rotations) == 5
    assert not rotations & set(keys)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_many_keys_equal_one_at_a_time(ids: list[int]) -> None:
    key = hb.RoundKey(SECRET, 3)
    many = key.users(ids)
    assert list(many) == [key.user(user) for user in ids]
    assert list(many[1:3]) == list(many)[1:3]
    assert key.users(np.array(ids, dtype=np.uint64)).keys.tobytes() == many.keys.tobytes()
    if ids:
        assert hb.UserKeys.stack(list(many)).keys.tobytes() == many.keys.tobytes()


def test_a_user_key_is_80_bytes_on_the_wire() -> None:
    key = hb.RoundKey(SECRET, 3).user(17)
    assert hb.UserKey.from_bytes(key.to_bytes()) == key
    assert len(key.to_bytes()) == 80
    for wrong in (key.to_bytes()[:-1], key.to_bytes() + b"x", "text", None, bytearray(80)):
        with pytest.raises(hb.InvalidInput, match="80 bytes"):
            hb.UserKey.from_bytes(wrong)  # type: ignore[arg-type]


def test_secrets_are_not_shown() -> None:
    round_key = hb.RoundKey(b"S" * 32, 3)
    for shown in (round_key, round_key.user(1), round_key.users([1, 2])):
        assert "SSS" not in repr(shown)
        assert str(round_key.user(1).key) not in repr(shown)
        assert "rotation" not in repr(shown)
    many = repr(round_key.users([1, 2]))
    assert many == "UserKeys(round=3, users=array([1, 2], dtype=uint64), run=b'')"
    with pytest.raises(hb.InvalidInput) as caught:
        hb.CPA(dim=1, epsilon_per_bit=1.0, radius=1.0).encode([0.0], b"S" * 32)  # type: ignore[arg-type]
    assert "SSS" not in str(caught.value)


@pytest.mark.parametrize("secret", [bytes(31), bytes(33), b"", "a" * 32, bytearray(32), None, 5])
def test_wrong_secrets_are_refused(secret: object) -> None:
    with pytest.raises(hb.InvalidInput, match="secret must be 32 bytes"):
        hb.RoundKey(secret, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [-1, 2**64, 1.0, True, "1", None, np.nan])
def test_wrong_rounds_and_users_are_refused(number: object) -> None:
    with pytest.raises(hb.InvalidInput, match="round"):
        hb.RoundKey(SECRET, number)  # type: ignore[arg-type]
    key = hb.RoundKey(SECRET, 1)
    with pytest.raises(hb.InvalidInput, match="user"):
        key.user(number)  # type: ignore[arg-type]
    with pytest.raises(hb.InvalidInput, match="user"):
        key.users([3, number])


@pytest.mark.parametrize(
    "ids",
    [
        None,
        5,
        "12",
        b"12",
        [[1], [2, 3]],
        np.array([[1]]),
        np.array([1.0]),
        np.array([-1]),
        np.array([True]),
        [1, "2"],
        np.array(["a"]),
    ],
)
def test_wrong_lists_of_users_are_refused(ids: object) -> None:
    with pytest.raises(hb.InvalidInput, match="user"):
        hb.RoundKey(SECRET, 1).users(ids)


def test_wrong_batches_of_keys_are_refused() -> None:
    one, two = hb.RoundKey(SECRET, 1), hb.RoundKey(SECRET, 2)
    for wrong in (None, 5, [], [None], one, [one], [one.user(1), 7], b"key", "key"):
        with pytest.raises(hb.InvalidInput, match=r"RoundKey\.user"):
            hb.UserKeys.stack(wrong)  # type: ignore[arg-type]
    with pytest.raises(hb.InvalidInput, match="different rounds"):
        hb.UserKeys.stack([one.user(1), two.user(2)])


@pytest.mark.parametrize(
    "parts",
    [
        ("3", 1, bytes(32), bytes(32)),
        (3, -1, bytes(32), bytes(32)),
        (3, 1, b"abc", bytes(32)),
        (3, 1, bytes(32), "x" * 32),
        (3, 1.0, bytes(32), bytes(32)),
    ],
)
def test_user_keys_with_wrong_fields_are_refused(parts: tuple[object, ...]) -> None:
    with pytest.raises(hb.InvalidInput):
        hb.UserKey(*parts)  # type: ignore[arg-type]


def test_key_id_depends_on_secret_and_round_only() -> None:
    key_ids = {hb.RoundKey(s, r).key_id for s in (SECRET, bytes(32)) for r in (1, 2)}
    assert len(key_ids) == 4
    assert hb.RoundKey(SECRET, 1).key_id == hb.RoundKey(SECRET, 1).key_id


def test_keys_that_threads_derive_are_those_of_one_thread() -> None:
    count = MIN_KEYS_FOR_THREADS + 3
    many = hb.RoundKey(SECRET, 3).users(np.arange(count))
    few = hb.RoundKey(SECRET, 3).users(np.arange(count)[::-1][:50])
    assert (many.keys[::-1][:50] == few.keys).all()
    assert many[0] == hb.RoundKey(SECRET, 3).user(0)
