"""Wiener decoding, tensor by tensor: shrink what is mostly noise, since its power is known.

A matrix is shrunk singular value by singular value. For an m x n matrix (m <= n, b = m / n) with
white noise of variance v, a singular value y in units of sqrt(n v) becomes

    sqrt((y² - b - 1)² - 4 b) / y     above 1 + sqrt(b), else 0

which has the least square error for every low-rank signal as sizes grow (Gavish and Donoho 2017).
A vector is multiplied by signal / (signal + noise). Both estimates are biased; they are the best
guess of one round's mean, not a step for training, where noise averages out but a shrunken signal
does not.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import real
from hushbit.errors import InvalidInput

Floats = NDArray[np.float64]


def shrunken(mean: Floats, noise: float, shapes: Sequence[tuple[int, ...]]) -> Floats:
    """The mean with every tensor shrunk; `noise` is the variance of an entry."""
    if not 0 <= real("noise", noise) < math.inf:
        raise InvalidInput(f"noise is a variance, at least 0; got {noise!r}")
    sizes = [math.prod(shape) for shape in shapes]
    if mean.shape != (sum(sizes),):
        raise InvalidInput(f"shapes hold {sum(sizes)} entries; the mean has {mean.shape}")
    parts = np.split(mean, np.cumsum(sizes)[:-1])
    return np.concatenate(
        [_shrunken(part, noise, shape) for part, shape in zip(parts, shapes, strict=True)]
    )


def _shrunken(part: Floats, noise: float, shape: tuple[int, ...]) -> Floats:
    if noise == 0:
        return part
    if len(shape) < 2:
        power = float(np.mean(part**2))
        return part * max(0.0, 1 - noise / power) if power > 0 else part
    return shrunken_matrix(part.reshape(shape[0], -1), noise).ravel()


def shrunken_matrix(matrix: Floats, noise: float) -> Floats:
    """A matrix with its singular values shrunk."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray((left * (values * kept_share(values, matrix.shape, noise))) @ right)


def kept_share(values: Floats, shape: tuple[float, ...], noise: float) -> Floats:
    """What is left of each singular value of a matrix of that shape, as a share of it."""
    rows, columns = sorted(shape)
    y, b = values / math.sqrt(columns * noise), rows / columns
    inside = np.maximum((y**2 - b - 1) ** 2 - 4 * b, 0.0)
    return np.where(y > 1 + math.sqrt(b), np.sqrt(inside) / np.maximum(y, 1e-150) ** 2, 0.0)
