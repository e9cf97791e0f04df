"""ChaCha20 and HChaCha20 equal the vectors of the RFC, the XChaCha draft and another library."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from hushbit.kernels.chacha import derive_keys, keystream
from hushbit.kernels.chacha_numpy import CONSTANTS, reference_blocks
from hushbit.kernels.words import stream
from hushbit.wire.keys import key_to_uint32

RFC_KEY = bytes(range(32))
# RFC 8439, section 2.3.2: counter 1, nonce 000000090000004a00000000.
RFC_NONCE = bytes.fromhex("000000090000004a00000000")
RFC_BLOCK = bytes.fromhex(
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
)
# RFC 8439, appendix A.1: (key, nonce, counter, first sixteen bytes of the block).
RFC_MORE = [
    (bytes(32), bytes(12), 0, "76b8e0ada0f13d90405d6ae55386bd28"),
    (bytes(32), bytes(12), 1, "9f07e7be5551387a98ba977c732d080d"),
    (bytes(31) + b"\x01", bytes(12), 1, "3aeb5224ecf849929b9d828db1ced4dd"),
    (b"\x00\xff" + bytes(30), bytes(12), 2, "72d54dfbf12ec44b362692df94137f32"),
    (bytes(32), bytes(11) + b"\x02", 0, "c2c64d378cd536374ae204b9ef933fcd"),
]


def drawn(key: bytes, nonce: bytes, counter: int, words: int) -> bytes:
    out = np.empty(words, dtype=np.uint32)
    n = np.frombuffer(nonce, dtype="<u4").tolist()
    keystream(key_to_uint32(key), n[0], n[1], n[2], counter, out)
    return out.astype("<u4").tobytes()


def test_block_of_the_rfc() -> None:
    assert drawn(RFC_KEY, RFC_NONCE, 1, 16) == RFC_BLOCK


@pytest.mark.parametrize(("key", "nonce", "counter", "start"), RFC_MORE)
def test_vectors_of_the_appendix(key: bytes, nonce: bytes, counter: int, start: str) -> None:
    assert drawn(key, nonce, counter, 4).hex() == start


def test_cipher_text_of_the_rfc() -> None:
    plain = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        b"future, sunscreen would be it."
    )
    pad = drawn(RFC_KEY, bytes.fromhex("000000000000004a00000000"), 1, 29)[: len(plain)]
    cipher = bytes(a ^ b for a, b in zip(plain, pad, strict=True))
    assert cipher.hex().startswith(
        "6e2e359a2568f98041ba0728dd0d6981e97e7aec1d4360c20a27afccfd9fae0b"
    )
    assert cipher.hex().endswith("8eedf2785e42874d")


@given(
    key=st.binary(min_size=32, max_size=32),
    nonce=st.binary(min_size=12, max_size=12),
    counter=st.integers(0, 2**32 - 200),
    words=st.integers(1, 700),
)
def test_equals_another_library(key: bytes, nonce: bytes, counter: int, words: int) -> None:
    start = counter.to_bytes(4, "little") + nonce
    other = Cipher(algorithms.ChaCha20(key, start), mode=None).encryptor()
    assert drawn(key, nonce, counter, words) == other.update(bytes(4 * words))


@given(key=st.binary(min_size=32, max_size=32), words=st.integers(1, 400))
def test_kernel_equals_the_reference(key: bytes, words: int) -> None:
    nonce = (7, 0xFFFFFFFF, 2**31 + 5)
    out = np.empty(words, dtype=np.uint32)
    keystream(key_to_uint32(key), *nonce, 0, out)
    assert (out == stream(key_to_uint32(key), nonce, words)).all()


def test_hchacha20_of_the_xchacha_draft() -> None:
    nonce = bytes.fromhex("000000090000004a0000000031415927")
    keys = np.empty((1, 8), dtype=np.uint32)
    number = np.array([int.from_bytes(nonce[:8], "little")], dtype=np.uint64)
    derive_keys(key_to_uint32(RFC_KEY), number, np.frombuffer(nonce[8:], dtype="<u4"), keys)
    assert keys.astype("<u4").tobytes().hex() == (
        "82413b4227b27bfed30e42508a877d73a0f9e4d58a74a853c12ec41326d3ecdc"
    )


@pytest.mark.parametrize("users", [1, 7, 8, 9, 17])
def test_derived_keys_equal_the_reference(users: int) -> None:
    rng = np.random.default_rng(users)
    root, label = (rng.integers(0, 2**32, size, dtype=np.uint32) for size in (8, 2))
    ids = rng.integers(0, 2**64 - 1, users, dtype=np.uint64, endpoint=True)
    keys = np.empty((users, 8), dtype=np.uint32)
    derive_keys(root, ids, label, keys)
    states = np.empty((16, users), dtype=np.uint32)
    states[:4], states[4:12] = CONSTANTS[:, None], root[:, None]
    states[12], states[13] = ids & 0xFFFFFFFF, ids >> 32
    states[14:] = label[:, None]
    blocks = reference_blocks(states) - states.T
    assert (keys == np.concatenate([blocks[:, :4], blocks[:, 12:]], axis=1)).all()
