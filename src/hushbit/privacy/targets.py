"""What an audit aims at: for any keys, two updates whose bits all differ before the noise."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hushbit.cpa import CPA
from hushbit.errors import InvalidInput
from hushbit.kernels.signs import signs_at
from hushbit.keys import UserKeys
from hushbit.mechanism import Mechanism
from hushbit.stage import Stage
from hushbit.subset import Subset

Bits = NDArray[np.bool_]
FAR = 4.0
"""How many radii beyond the edge two-point updates lie."""


@dataclass(frozen=True)
class Target:
    """A CPA, nested or not, or a Subset of one, seen by an attacker who holds the keys."""

    mechanism: Mechanism
    inner: CPA

    @property
    def votes(self) -> int:
        """Bits of one stage."""
        return self.mechanism.report if isinstance(self.mechanism, Subset) else self.inner.blocks

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The claim for one bit of each stage."""
        return tuple(stage.response.epsilon for stage in self.inner.stages)

    @property
    def cells(self) -> int:
        """Numbers to hold for each ballot, entries and signs alike."""
        return self.mechanism.dim + self.votes * max(self.inner.counts)

    @cached_property
    def two_scalars(self) -> bool:
        """Whether the points are ±radius."""
        return self.inner.counts == (2,) and self.inner.block_size == 1

    def pair(self, keys: UserKeys, which: int) -> tuple[NDArray[np.float64], Bits]:
        """Updates for these keys, the first (0) or second (1) of each pair; bits of the first.

        Bits have shape (users, stages, votes).
        """
        signs = [self._signs(stage, keys) for stage in self.inner.stages]
        first = np.stack([sign[0] for sign in signs], axis=1)
        if self.two_scalars:
            side = self.inner.quantizer.points.positions[which, 0]
            return np.full((len(keys), self.mechanism.dim), FAR * side), first > 0
        fine = np.zeros((len(keys), self.votes), dtype=np.int64)
        if which == 1:
            for sign in signs:
                # A balanced word has both signs, so some point always differs from the first.
                fine = fine * len(sign) + np.argmax(sign != sign[0], axis=0)
        places = self.inner.quantizer.points.positions[fine]
        return places.reshape(len(keys), -1), first > 0

    def unpacked(self, payload: NDArray[np.uint8]) -> Bits:
        """The bits of many ballots, (users, stages, votes)."""
        step = (self.votes + 7) // 8
        parts = [
            np.unpackbits(
                payload[:, s * step : (s + 1) * step], axis=1, bitorder="little", count=self.votes
            )
            for s in range(len(self.inner.stages))
        ]
        return np.stack(parts, axis=1).astype(np.bool_)

    def _signs(self, stage: Stage, keys: UserKeys) -> NDArray[np.int8]:
        """Words of a stage, (points, users, votes)."""
        size = stage.points.size
        signs = np.empty((size, len(keys), self.votes), dtype=np.int8)
        places = np.arange(size, dtype=np.int64)
        signs_at(keys.keys, stage.number, stage.family == "hadamard", size, places, signs)
        return signs


def target_of(mechanism: Mechanism) -> Target:
    """The target that a mechanism offers, or a refusal."""
    inner = mechanism.inner if isinstance(mechanism, Subset) else mechanism
    if not isinstance(inner, CPA):
        raise InvalidInput(f"audit attacks CPA, NestedCPA and Subset; got {mechanism!r}")
    target = Target(mechanism, inner)
    if target.two_scalars:
        return target
    if isinstance(mechanism, Subset):
        raise InvalidInput(f"audit attacks a Subset of two points; got {inner.counts[0]} points")
    if inner.quantizer.uses_dither or inner.clip is not None:
        raise InvalidInput("audit attacks more than two points without dither and clip: drop them")
    if inner.dim % inner.block_size:
        raise InvalidInput(f"audit needs a dim that {inner.block_size} divides; got {inner.dim}")
    return target
