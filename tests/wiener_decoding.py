"""Wiener decoding of one round, tensor by tensor, which the denoiser is compared with."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hushbit.lab.sim.metrics import shrinkage_factor

Floats = NDArray[np.float64]


def wiener_decoded(mean: Floats, noise: float, shapes: Sequence[tuple[int, ...]]) -> Floats:
    """Return the mean with every tensor shrunk; `noise` is the variance of an entry."""
    parts = np.split(mean, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
    return np.concatenate(
        [_shrunk_tensor(part, noise, shape) for part, shape in zip(parts, shapes, strict=True)]
    )


def _shrunk_tensor(part: Floats, noise: float, shape: tuple[int, ...]) -> Floats:
    if noise == 0:
        return part
    if len(shape) < 2:
        power = float(np.mean(part**2))
        return part * max(0.0, 1 - noise / power) if power > 0 else part
    return shrunk_matrix(part.reshape(shape[0], -1), noise).ravel()


def shrunk_matrix(matrix: Floats, noise: float) -> Floats:
    """Return a matrix with its singular values shrunk."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray((left * (values * shrinkage_factor(values, matrix.shape, noise))) @ right)
