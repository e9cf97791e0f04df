"""Coins: private randomness of one ballot, 32 fresh bytes that ChaCha20 expands.

Coins are never derived from a key that anybody else holds; `OsCoins` takes them from the operating
system.
"""

import hashlib
import os
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import check_int
from hushbit.errors import InvalidInput
from hushbit.kernels.chacha import derive_keys
from hushbit.wire.keys import UserKeys, key_to_uint32

COIN_LABEL = np.frombuffer(b"hb-coins", dtype="<u4").astype(np.uint32)


class Coins(Protocol):
    """A source of private keys, one for each ballot."""

    def keys(self, users: UserKeys) -> NDArray[np.uint32]:
        """One fresh 32-byte key (eight words) for each user."""


class OsCoins:
    """Coins from the operating system; ballots that leave a machine must use these."""

    def keys(self, users: UserKeys) -> NDArray[np.uint32]:
        """Fresh keys; they are never printed, stored or reused."""
        return key_to_uint32(os.urandom(32 * len(users))).reshape(-1, 8)


class _Reproducible:
    """Coins that a seed reproduces: for simulation and tests only."""

    def __init__(self, seed: int) -> None:
        self.seed = check_int("seed", seed, 0)
        name = f"{type(self).__name__}/{self.seed}".encode()
        self._root = hashlib.sha256(b"hushbit simulation coins " + name).digest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.seed})"


class SeededCoins(_Reproducible):
    """A reproducible sequence of coins: one for each ballot, in the order of encoding.

    For simulation and tests only: anybody who knows the seed can undo randomized response.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._next = 0

    def keys(self, users: UserKeys) -> NDArray[np.uint32]:
        """The next keys of the sequence."""
        numbers = np.arange(self._next, self._next + len(users), dtype=np.uint64)
        self._next += len(users)
        return _derive(self._root, numbers)


class SimulationCoins(_Reproducible):
    """Reproducible coins that depend only on (seed, round, user), not on the order of encoding.

    For simulation only. Encoding twice for one user and round repeats the coins.
    """

    def keys(self, users: UserKeys) -> NDArray[np.uint32]:
        """The keys of these users in this round."""
        root = hashlib.sha256(self._root + users.round.to_bytes(8, "little")).digest()
        return _derive(root, users.users)


def _derive(root: bytes, numbers: NDArray[np.uint64]) -> NDArray[np.uint32]:
    keys = np.empty((numbers.size, 8), dtype=np.uint32)
    derive_keys(key_to_uint32(root), numbers, COIN_LABEL, keys)
    return keys


def coin_source(coins: Any) -> Coins:
    """The given coins, or OsCoins for None; keys and seeds are refused."""
    if coins is None:
        return OsCoins()
    if not isinstance(coins, OsCoins | SeededCoins | SimulationCoins):
        raise InvalidInput(
            "coins must be OsCoins (the default), or SeededCoins or SimulationCoins in a "
            "simulation; keys and seeds cannot serve as private coins; got "
            f"{type(coins).__name__}"
        )
    return coins
