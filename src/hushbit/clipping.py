"""Scaling updates down to an l2 norm, on which whole-message guarantees rest."""

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import InvalidInput


def clipped(updates: NDArray[np.floating], clip: float | None) -> NDArray[np.floating]:
    """Scale every row whose l2 norm exceeds `clip` down to it, never a hair above."""
    if clip is None:
        return updates
    norms = np.sqrt(np.einsum("ud,ud->u", updates, updates, dtype=np.float64))
    if not np.isfinite(norms).all():
        raise InvalidInput("updates are too large to be clipped; scale them down first")
    longest = clip * (1 - 1e-6)
    long = norms > longest
    if not long.any():
        return updates
    scaled = updates.copy()
    # In double precision: a float32 factor of a huge update is too coarse to keep the bound.
    scaled[long] = updates[long].astype(np.float64) * (longest / norms[long])[:, None]
    return scaled
