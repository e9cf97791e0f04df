"""Shared randomness: from one secret to a keystream for every round, user and purpose.

    root(round)      = HMAC-SHA256(secret, "hushbit/1 round" ‖ round)
    rotation(round)  = HMAC-SHA256(root, "rotation")
    key(round, user) = HChaCha20(HMAC-SHA256(root, "users"), user ‖ "hushbit1")

Words, dither and subsets are ChaCha20 keystreams under a user's key with the purpose in the
nonce. Numbers are 8 bytes, little-endian. Private coins never come from here: see `coins.py`.
"""

import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import whole
from hushbit.errors import InvalidInput
from hushbit.kernels.chacha import derive_keys
from hushbit.kernels.threads import spread

SECRET_BYTES = 32
LAST_ID = 2**64 - 1
MANY = 4096  # keys from which on a second thread pays
LABEL = np.frombuffer(b"hushbit1", dtype="<u4").astype(np.uint32)


def as_words(key: bytes) -> NDArray[np.uint32]:
    """The eight 32-bit little-endian words of a 32-byte key."""
    return np.frombuffer(key, dtype="<u4").astype(np.uint32)


def user_ids(ids: Any) -> NDArray[np.uint64]:
    """User numbers as uint64; refuses what is not a whole number below 2^64."""
    if isinstance(ids, np.ndarray):
        if ids.ndim == 1 and ids.dtype.kind in "iu" and (ids.size == 0 or ids.min() >= 0):
            return ids.astype(np.uint64)
    elif isinstance(ids, Iterable) and not isinstance(ids, str | bytes):
        return np.array([whole("user", user, 0, LAST_ID) for user in ids], dtype=np.uint64)
    raise InvalidInput(f"users must be whole numbers from 0 to 2^64-1; got {ids!r}")


@dataclass(frozen=True)
class UserKey:
    """What one user shares with the server for one round."""

    round: int
    user: int
    key: bytes = field(repr=False)
    rotation: bytes = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "round", whole("round", self.round, 0, LAST_ID))
        object.__setattr__(self, "user", whole("user", self.user, 0, LAST_ID))
        for part in (self.key, self.rotation):
            if not isinstance(part, bytes) or len(part) != SECRET_BYTES:
                raise InvalidInput(f"a key is {SECRET_BYTES} bytes; make keys with RoundKey.user")

    def to_bytes(self) -> bytes:
        """80 bytes: round, user, key, rotation key. Whoever holds them knows the user's words."""
        return (
            self.round.to_bytes(8, "little") + self.user.to_bytes(8, "little")
            + self.key + self.rotation
        )  # fmt: skip

    @classmethod
    def from_bytes(cls, data: bytes) -> "UserKey":
        """The inverse of `to_bytes`."""
        if not isinstance(data, bytes) or len(data) != 16 + 2 * SECRET_BYTES:
            raise InvalidInput("a user key is exactly 80 bytes, as written by UserKey.to_bytes")
        number = [int.from_bytes(data[at : at + 8], "little") for at in (0, 8)]
        return cls(number[0], number[1], data[16:48], data[48:80])


@dataclass(frozen=True, eq=False)
class UserKeys(Sequence[UserKey]):
    """The keys of many users of one round, as arrays."""

    round: int
    users: NDArray[np.uint64]
    keys: NDArray[np.uint32] = field(repr=False)
    rotation: bytes = field(repr=False)

    def __len__(self) -> int:
        return self.users.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return UserKeys(self.round, self.users[index], self.keys[index], self.rotation)
        return UserKey(
            self.round, int(self.users[index]), self.keys[index].astype("<u4").tobytes(),
            self.rotation,
        )  # fmt: skip

    def __iter__(self) -> Iterator[UserKey]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def gather(cls, keys: "UserKey | UserKeys | Sequence[UserKey]") -> "UserKeys":
        """One batch from a key, a batch or a list of keys, all of the same round."""
        if isinstance(keys, UserKeys):
            return keys
        listed = keys if isinstance(keys, Iterable) else ()
        several = [keys] if isinstance(keys, UserKey) else list(listed)
        if not several or not all(isinstance(key, UserKey) for key in several):
            raise InvalidInput(
                "keys must come from RoundKey.user or RoundKey.users, one for each update; "
                f"got {type(keys).__name__}"
            )
        if len({(key.round, key.rotation) for key in several}) > 1:
            raise InvalidInput("keys of different rounds cannot be used in one call; split them")
        return cls(
            several[0].round,
            np.array([key.user for key in several], dtype=np.uint64),
            np.stack([as_words(key.key) for key in several]),
            several[0].rotation,
        )


@dataclass(frozen=True)
class RoundKey:
    """The server's key of one round; `user(n)` is the part that user n may know.

    >>> RoundKey(secret=bytes(32), round=3).user(17)
    UserKey(round=3, user=17)
    """

    secret: bytes = field(repr=False)
    round: int

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != SECRET_BYTES:
            raise InvalidInput(
                f"secret must be {SECRET_BYTES} bytes (for instance secrets.token_bytes(32)); "
                f"got {type(self.secret).__name__}"
                + (f" of {len(self.secret)} bytes" if isinstance(self.secret, bytes) else "")
            )
        object.__setattr__(self, "round", whole("round", self.round, 0, LAST_ID))

    @cached_property
    def _root(self) -> bytes:
        label = b"hushbit/1 round" + self.round.to_bytes(8, "little")
        return hmac.digest(self.secret, label, "sha256")

    @cached_property
    def _users_root(self) -> NDArray[np.uint32]:
        return as_words(hmac.digest(self._root, b"users", "sha256"))

    @cached_property
    def rotation(self) -> bytes:
        """The key of the rotation that all users of the round share."""
        return hmac.digest(self._root, b"rotation", "sha256")

    @cached_property
    def mark(self) -> bytes:
        """Eight bytes by which a saved tally recognises its key without holding it."""
        return hmac.digest(self._root, b"mark", "sha256")[:8]

    def users(self, ids: Any) -> UserKeys:
        """The keys of many users at once."""
        numbers = user_ids(ids)
        keys = np.empty((numbers.size, 8), dtype=np.uint32)
        root = self._users_root

        def run(first: int, last: int) -> None:
            derive_keys(root, numbers[first:last], LABEL, keys[first:last])

        if numbers.size < MANY:
            run(0, numbers.size)
        else:
            spread(run, numbers.size)
        return UserKeys(self.round, numbers, keys, self.rotation)

    def user(self, user: int) -> UserKey:
        """The key of one user."""
        key: UserKey = self.users([whole("user", user, 0, LAST_ID)])[0]
        return key
