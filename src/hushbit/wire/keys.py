"""Shared randomness: keys for every round and user, derived from one secret.

    root      = HMAC-SHA256(secret, "hushbit/1 round" ‖ round)                    without a run
    root      = HMAC-SHA256(secret, "hushbit/1 run" ‖ length of run ‖ run ‖ round)   with a run
    rotation  = HMAC-SHA256(root, "rotation")
    key(user) = HChaCha20(HMAC-SHA256(root, "users"), user ‖ "hushbit1")
    MAC key   = HMAC-SHA256(key(user), "ballot mac")
    tally key = HMAC-SHA256(root, "tally file")

Words, dither and subsets are ChaCha20 keystreams under a user's key, with the purpose in the nonce.
Numbers are 8 bytes, little-endian; the length of the run is one byte. A run identifier makes the
keys of two runs differ. Private coins are never derived from these keys (see `coins.py`).
The server keeps its secret in a file that only its owner can read (`load_secret`).
"""

import hmac
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import check_int
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.kernels.chacha import derive_keys
from hushbit.kernels.threads import parallel_for

SECRET_BYTES = 32
MAX_RUN_BYTES = 32
USER_KEY_BYTES = 16 + 2 * SECRET_BYTES  # without a run
MAX_UINT64 = 2**64 - 1
MIN_KEYS_FOR_THREADS = 4096  # with fewer keys one thread is faster
LABEL = np.frombuffer(b"hushbit1", dtype="<u4").astype(np.uint32)


def key_to_uint32(key: bytes) -> NDArray[np.uint32]:
    """The eight 32-bit little-endian words of a 32-byte key."""
    return np.frombuffer(key, dtype="<u4").astype(np.uint32)


def check_run(run: Any) -> bytes:
    """The run identifier, after a check: up to 32 bytes; empty for keys without a run."""
    if not isinstance(run, bytes) or len(run) > MAX_RUN_BYTES:
        size = f" of {len(run)} bytes" if isinstance(run, bytes) else ""
        raise InvalidInput(
            f"run must be at most {MAX_RUN_BYTES} bytes (for instance secrets.token_bytes(16)); "
            f"got {type(run).__name__}{size}"
        )
    return run


def mac_key(key: bytes) -> bytes:
    """The key of ballot MACs, derived from a user's key."""
    return hmac.digest(key, b"ballot mac", "sha256")


def user_ids(ids: Any) -> NDArray[np.uint64]:
    """User numbers as uint64; refuses anything but whole numbers from 0 to 2^64 - 1."""
    if isinstance(ids, np.ndarray):
        if ids.ndim == 1 and ids.dtype.kind in "iu" and (ids.size == 0 or ids.min() >= 0):
            return ids.astype(np.uint64)
    elif isinstance(ids, Iterable) and not isinstance(ids, str | bytes):
        return np.array([check_int("user", user, 0, MAX_UINT64) for user in ids], dtype=np.uint64)
    raise InvalidInput(
        "users takes a list or array of user numbers from 0 to 2^64-1 (RoundKey.user takes one); "
        f"got {type(ids).__name__}"
    )


@dataclass(frozen=True)
class UserKey:
    """The keys that one user shares with the server in one round of a run."""

    round: int
    user: int
    key: bytes = field(repr=False)
    rotation: bytes = field(repr=False)
    run: bytes = b""

    def __post_init__(self) -> None:
        check_run(self.run)
        object.__setattr__(self, "round", check_int("round", self.round, 0, MAX_UINT64))
        object.__setattr__(self, "user", check_int("user", self.user, 0, MAX_UINT64))
        for part in (self.key, self.rotation):
            if not isinstance(part, bytes) or len(part) != SECRET_BYTES:
                raise InvalidInput(
                    f"a key must have {SECRET_BYTES} bytes; make keys with RoundKey.user"
                )

    def to_bytes(self) -> bytes:
        """80 bytes (round, user, key, rotation key), and the length and bytes of a run if any."""
        return (
            self.round.to_bytes(8, "little")
            + self.user.to_bytes(8, "little")
            + self.key
            + self.rotation
            + (bytes([len(self.run)]) + self.run if self.run else b"")
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "UserKey":
        """The inverse of `to_bytes`."""
        size = USER_KEY_BYTES
        if isinstance(data, bytes) and len(data) > size:
            run = data[size + 1 :]
            valid = 0 < len(run) == data[size] <= MAX_RUN_BYTES
        else:
            run, valid = b"", isinstance(data, bytes) and len(data) == size
        if not valid:
            raise InvalidInput(
                f"a user key is {size} bytes, and the length and bytes of a run if there is one, "
                "as written by UserKey.to_bytes"
            )
        number = [int.from_bytes(data[at : at + 8], "little") for at in (0, 8)]
        return cls(number[0], number[1], data[16:48], data[48:80], run)


@dataclass(frozen=True, eq=False)
class UserKeys(Sequence[UserKey]):
    """The keys of many users of one round of a run, as arrays."""

    round: int
    users: NDArray[np.uint64]
    keys: NDArray[np.uint32] = field(repr=False)
    rotation: bytes = field(repr=False)
    run: bytes = b""

    def __len__(self) -> int:
        return self.users.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return replace(self, users=self.users[index], keys=self.keys[index])
        return UserKey(
            self.round,
            int(self.users[index]),
            self.keys[index].astype("<u4").tobytes(),
            self.rotation,
            self.run,
        )

    def __iter__(self) -> Iterator[UserKey]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def stack(cls, keys: "UserKey | UserKeys | Sequence[UserKey]") -> "UserKeys":
        """One batch from a key, a batch or a list of keys, all of the same round and run."""
        if isinstance(keys, UserKeys):
            return keys
        listed = keys if isinstance(keys, Iterable) else ()
        several = [keys] if isinstance(keys, UserKey) else list(listed)
        if not several or not all(isinstance(key, UserKey) for key in several):
            raise InvalidInput(
                "keys must come from RoundKey.user or RoundKey.users, one for each update; "
                f"got {type(keys).__name__}"
            )
        if len({(key.round, key.run, key.rotation) for key in several}) > 1:
            raise InvalidInput(
                "keys of different rounds or runs cannot be used in one call; split them"
            )
        return cls(
            several[0].round,
            np.array([key.user for key in several], dtype=np.uint64),
            np.stack([key_to_uint32(key.key) for key in several]),
            several[0].rotation,
            several[0].run,
        )


@dataclass(frozen=True)
class RoundKey:
    """The server's key of one round of a run; only `user(n)` is given to user n.

    With the same secret, two runs need different values of `run`: otherwise their words are equal.

    >>> RoundKey(secret=bytes(32), round=3, run=b"spring").user(17)
    UserKey(round=3, user=17, run=b'spring')
    """

    secret: bytes = field(repr=False)
    round: int
    run: bytes = b""

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != SECRET_BYTES:
            raise InvalidInput(
                f"secret must be {SECRET_BYTES} bytes (for instance secrets.token_bytes(32)); "
                f"got {type(self.secret).__name__}"
                + (f" of {len(self.secret)} bytes" if isinstance(self.secret, bytes) else "")
            )
        object.__setattr__(self, "round", check_int("round", self.round, 0, MAX_UINT64))
        check_run(self.run)

    @cached_property
    def _root(self) -> bytes:
        run, number = self.run, self.round.to_bytes(8, "little")
        label = b"hushbit/1 run" + bytes([len(run)]) + run if run else b"hushbit/1 round"
        return hmac.digest(self.secret, label + number, "sha256")

    @cached_property
    def _users_root(self) -> NDArray[np.uint32]:
        return key_to_uint32(hmac.digest(self._root, b"users", "sha256"))

    @cached_property
    def rotation(self) -> bytes:
        """The key of the rotation that all users of the round share."""
        return hmac.digest(self._root, b"rotation", "sha256")

    @cached_property
    def key_id(self) -> bytes:
        """Eight bytes that identify the key in a tally file without revealing it."""
        return hmac.digest(self._root, b"mark", "sha256")[:8]

    @cached_property
    def tally_key(self) -> bytes:
        """The key of the MAC of tally files; only the server has it."""
        return hmac.digest(self._root, b"tally file", "sha256")

    def users(self, ids: Any) -> UserKeys:
        """The keys of many users at once."""
        numbers = user_ids(ids)
        keys = np.empty((numbers.size, 8), dtype=np.uint32)
        root = self._users_root

        def derive(first: int, last: int) -> None:
            derive_keys(root, numbers[first:last], LABEL, keys[first:last])

        if numbers.size < MIN_KEYS_FOR_THREADS:
            derive(0, numbers.size)
        else:
            parallel_for(derive, numbers.size)
        return UserKeys(self.round, numbers, keys, self.rotation, self.run)

    def user(self, user: int) -> UserKey:
        """The key of one user."""
        key: UserKey = self.users([check_int("user", user, 0, MAX_UINT64)])[0]
        return key


def load_secret(path: str | Path) -> bytes:
    """Read the secret from a file; a missing file is created with 32 random bytes."""
    source = Path(path)
    try:
        with suppress(FileExistsError):
            source.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(source, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
        found = source.read_bytes()
    except OSError as error:
        raise DamagedFile(f"the secret {source} cannot be read or created: {error}") from error
    if len(found) != SECRET_BYTES:
        raise DamagedFile(f"{source} does not hold {SECRET_BYTES} bytes; delete it or restore it")
    return found
