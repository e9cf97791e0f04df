"""What the baselines share: a wire that carries entries, and a guarantee for each entry."""

import math
from abc import abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.keys import UserKeys
from hushbit.mechanism import Mechanism
from hushbit.privacy.guarantee import Guarantee
from hushbit.stage import spread_users

PRESETS = ("honest", "authors")


class Wire(Protocol):
    """How the entries of one ballot travel."""

    @property
    def bits(self) -> int:
        """Bits of one payload."""

    def check(self, payload: NDArray[np.uint8]) -> None:
        """Refuse payloads that no encoder writes."""


class Baseline(Mechanism):
    """A mechanism that treats all entries alike and sends them over a wire, user by user."""

    wire: Wire

    @abstractmethod
    def cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: NDArray[np.uint8],
    ) -> int:  # fmt: skip
        """Write one user's payload into `row`; returns how many entries were cut off."""

    @property
    def payload_bits(self) -> int:
        """Bits of one ballot's payload."""
        return self.wire.bits

    def check_payload(self, payload: NDArray[np.uint8]) -> None:
        """Refuse payloads that no encoder writes."""
        super().check_payload(payload)
        self.wire.check(payload)

    def cast(
        self, updates: NDArray[np.floating], keys: UserKeys, coins: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Payloads, and how many entries of each user were cut off."""
        payload = np.zeros((len(updates), (self.payload_bits + 7) // 8), dtype=np.uint8)
        overloaded = np.zeros(len(updates), dtype=np.int64)
        spread_users(self.cast_one, updates, keys, coins, payload, overloaded)
        return payload, overloaded

    def promise(self, epsilon: float, count: int, unit: str = "entry", note: str = "") -> Guarantee:
        """Pure local privacy of level `epsilon` for each of `count` units."""
        return Guarantee(
            groups=((epsilon, count),), dim=self.dim, message_bits=self.payload_bits,
            k_anonymity=1, unit=unit, note=note,
        )  # fmt: skip


def plain(value: float) -> float | str:
    """A number as it stands in a description, where infinity is a word."""
    return "inf" if math.isinf(value) else value


def purpose(letters: str) -> int:
    """The word of a nonce that keeps the streams of one key apart: four letters."""
    return int.from_bytes(letters.encode(), "little")
