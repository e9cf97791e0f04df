"""What the baselines share: a wire that packs and counts entries, and a guarantee per entry."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.threads import spread
from hushbit.keys import UserKeys
from hushbit.mechanism import Mechanism
from hushbit.privacy.guarantee import Guarantee

PRESETS = ("honest", "authors")

Row = NDArray[np.uint8]
CastOne = Callable[[NDArray[np.floating], NDArray[np.uint32], NDArray[np.uint32], Row], int]


class Wire(Protocol):
    """How the entries of one ballot travel."""

    @property
    def bits(self) -> int:
        """Bits of one payload."""

    def check(self, payload: NDArray[np.uint8]) -> None:
        """Refuse payloads that no encoder writes."""


class Baseline(Mechanism):
    """A mechanism that treats every entry (or pair of entries) alike and sends it over a wire."""

    wire: Wire

    def _cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: Row,
    ) -> int:  # fmt: skip
        """Write one user's payload into `row`; returns how many entries were clipped."""
        raise NotImplementedError

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
        """Payloads and how many entries of each user were clipped or overloaded."""
        payload = np.zeros((len(updates), (self.payload_bits + 7) // 8), dtype=np.uint8)
        overloaded = np.zeros(len(updates), dtype=np.int64)

        def run(first: int, last: int) -> None:
            for user in range(first, last):
                overloaded[user] = self._cast_one(
                    updates[user], keys.keys[user], coins[user], payload[user]
                )

        spread(run, len(updates))
        return payload, overloaded

    def _promise(
        self, epsilon: float, count: int, unit: str = "entry", note: str = ""
    ) -> Guarantee:
        """Pure local privacy of `epsilon` for each of `count` units."""
        return Guarantee(
            groups=((epsilon, count),), dim=self.dim, message_bits=self.payload_bits,
            k_anonymity=1, unit=unit, note=note,
        )  # fmt: skip


def plain(value: float) -> float | str:
    """A number as it stands in a description, where infinity is a word."""
    return "inf" if math.isinf(value) else value


def level_mean(variance: float, dim: int, count: int) -> NDArray[np.float64]:
    """The same variance for every entry of a mean of `count` users."""
    return np.full(dim, variance / count)


def share_words(name: str) -> int:
    """The nonce word of a purpose: its four letters, little-endian."""
    return int.from_bytes(name.encode(), "little")


__all__: list[Any] = ["PRESETS", "Baseline", "Wire", "level_mean", "plain", "share_words"]
