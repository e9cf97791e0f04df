"""What colluding users know of the others, and how long the updates are that they compare with."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.clipping import clipped
from hushbit.cpa import CPA
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.robust.layers import bare, is_rotated
from hushbit.robust.pulls import largest_norm
from hushbit.rotation import Rotation
from hushbit.subset import Subset

Rows = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Pull:
    """What honest ballots decode to, points cutting updates off: mean, and spread along it."""

    mean: NDArray[np.float64]
    natural: float


@dataclass(frozen=True, eq=False)
class View:
    """What the coalition knows of the others: mean and spread of honest updates, head counts.

    pull  what honest ballots decode to, where points cut updates off
    way   how the model has moved since the first round
    round which round it is
    """

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]
    users: int
    attackers: int
    pull: Pull | None = None
    way: NDArray[np.float64] | None = None
    round: int = 0


def pull_of(mechanism: Mechanism, updates: Rows, round_key: RoundKey) -> Pull | None:
    """What the updates' ballots decode to; None where it is not known."""
    inner = bare(mechanism)
    if not isinstance(inner, CPA) or inner.block_size > 1:
        return None
    turn = Rotation(mechanism.dim, round_key.rotation) if is_rotated(mechanism) else None
    cut = clipped(updates, inner.clip)
    cut = np.clip(cut if turn is None else turn.forward(cut), -inner.radius, inner.radius)
    mean = cut.mean(axis=0, dtype=np.float64)
    natural = float((cut @ mean).std() / (float(np.linalg.norm(mean)) or 1.0))
    return Pull(mean if turn is None else turn.back(mean), natural)


def honest_norm(mechanism: Mechanism, view: View) -> float:
    """The longest update that an honest user may send: the clip, or what the points reach.

    Without a clip, the length that updates have.
    """
    inner = bare(mechanism)
    if isinstance(inner, CPA | Subset):
        cpa = inner.inner if isinstance(inner, Subset) else inner
        if cpa.clip is not None:
            return largest_norm(inner)
    return float(np.sqrt(view.mean @ view.mean + view.spread @ view.spread))


def extreme_norm(mechanism: Mechanism, view: View) -> float:
    """Twice the longest honest update."""
    return 2 * honest_norm(mechanism, view)
