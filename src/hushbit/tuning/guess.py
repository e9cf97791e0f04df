"""The best guess of a round's mean, from its noisy estimate and those of the rounds before it.

All of it is post-processing. A tensor of a round, in units of its known noise, is a matrix M with
a column for each output. Three things take noise away:

    rounds  The matrices of the last rounds side by side, B = [M_1 ... M_t], have few directions in
            common: singular values are shrunk (`wiener.py`), J = B A, and J's last block is kept.
    pixels  A layer that reads an image has a weight for each pixel, and what it learns is smooth.
            The cosine transform over the image leaves the noise white and gathers the signal at
            low frequencies; rows are weighed by sqrt(w), w = max(0, 1 - 1 / power) of their band
            of frequencies over all rounds, when A is looked for.
    bands   Each band of J is multiplied by the factor of the least square error,
            (<J, M> - noise in common) / <J, J>, cut to [0, 1]; for a filter A that were fixed the
            noise in common is trace(A) over the last block.

Where an image layer's signal is not smooth all bands have the same weight, and nothing is lost.
The guess is biased, as Wiener's is, and for reports: training goes by the estimate itself.
"""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import real, whole
from hushbit.errors import InvalidInput
from hushbit.tuning.wiener import kept_share

Floats = NDArray[np.float64]
Shape = tuple[int, ...]

ROUNDS = 5
"""Rounds that are looked at together; ten or twenty would gain a few tenths of a decibel."""

BAND = 2.0
"""Width of a band in half-waves over the image."""


class BestGuess:
    """Guesses of the means of successive rounds of one run.

    `shapes` are the model's tensors (outputs first), `image` is what its first layer reads as
    (channels, height, width). `guess(mean, noise)` takes the next round; `noise` is the variance of
    an entry.
    """

    def __init__(self, shapes: Sequence[Shape], image: tuple[int, int, int] | None = None) -> None:
        if not shapes or any(whole("a side", side, 1) < 1 for shape in shapes for side in shape):
            raise InvalidInput("shapes must hold the shape of at least one tensor")
        if image is not None and len(image) != 3:
            raise InvalidInput(f"image is (channels, height, width); got {image!r}")
        self._tensors = [_Tensor(tuple(shape), image) for shape in shapes]
        self._ends = np.cumsum([math.prod(shape) for shape in shapes])

    def guess(self, mean: Floats, noise: float) -> Floats:
        """The best guess of this round's mean."""
        if not 0 <= real("noise", noise) < math.inf:
            raise InvalidInput(f"noise is a variance, at least 0; got {noise!r}")
        mean = np.asarray(mean)
        if mean.shape != (self._ends[-1],) or mean.dtype.kind != "f":
            raise InvalidInput(
                f"the mean must hold {self._ends[-1]} real numbers; got {mean.dtype} {mean.shape}"
            )
        # In units of a noise that rounding alone exceeds squares overflow: then there is none.
        largest, unit = float(np.abs(mean).max()), math.sqrt(noise)
        if not math.isfinite(largest):
            raise InvalidInput("the mean must be finite; got NaN or infinite entries")
        if unit <= 1e-12 * largest:
            return np.array(mean, dtype=np.float64)
        parts = np.split(mean / unit, self._ends[:-1])
        pairs = zip(self._tensors, parts, strict=True)
        return np.concatenate([tensor.guess(part) for tensor, part in pairs]) * unit


class _Tensor:
    """One tensor's rounds, in units of their noise."""

    def __init__(self, shape: Shape, image: tuple[int, int, int] | None) -> None:
        self._outputs = shape[0] if len(shape) > 1 else 1
        self._seen: deque[Floats] = deque(maxlen=ROUNDS)
        inputs = math.prod(shape) // self._outputs
        self._image = image if image and len(shape) == 2 and inputs == math.prod(image) else None
        self._bands = _bands(self._image) if self._image else np.zeros(inputs, dtype=np.int64)

    def guess(self, part: Floats) -> Floats:
        rows = self._turned(part.reshape(self._outputs, -1))
        self._seen.append(rows)
        columns = np.concatenate(self._seen)  # a row of it is a column of B
        weights = self._weights(columns) if self._image else np.ones(self._bands.size)
        last = slice(len(columns) - self._outputs, None)
        mixing = _mixing(columns * np.sqrt(weights), weights, last)
        found = mixing @ columns
        in_common = float(np.trace(mixing[:, last])) / self._outputs
        agree, power = self._in_band(found * rows) - in_common, self._in_band(found**2)
        factor = np.clip(agree / np.maximum(power, 1e-300), 0.0, 1.0)
        return self._turned(found * factor, back=True).ravel()

    def _weights(self, columns: Floats) -> Floats:
        return np.maximum(0.0, 1 - 1 / np.maximum(self._in_band(columns**2), 1.0))

    def _in_band(self, values: Floats) -> Floats:
        """The mean over rows and bands, at every input of its band."""
        sums = np.bincount(self._bands, values.mean(axis=0))
        return np.asarray((sums / np.bincount(self._bands))[self._bands])

    def _turned(self, rows: Floats, back: bool = False) -> Floats:
        if self._image is None:
            return rows
        down, across = (_cosines(size) for size in self._image[1:])
        if back:
            down, across = down.T, across.T
        turned = down @ rows.reshape(len(rows), *self._image) @ across.T
        return np.asarray(turned.reshape(len(rows), -1))


def _mixing(columns: Floats, weights: Floats, last: slice) -> Floats:
    """A transposed, its last block: which mixture of all columns each of the last ones becomes."""
    if not weights.any():
        return np.zeros((len(columns[last]), len(columns)))
    # As many rows of as much noise as have the sum of these and the sum of their squares.
    noise = float((weights**2).sum() / weights.sum())
    size = (len(columns), float(weights.sum()) / noise)
    wide = columns.shape[0] > columns.shape[1]
    squares, ways = np.linalg.eigh(columns.T @ columns if wide else columns @ columns.T)
    squares = np.maximum(squares, 0.0)
    kept = kept_share(np.sqrt(squares), size, noise)
    if wide:  # the same from the shorter side: ways of inputs, told as mixtures of columns
        ways, kept = columns @ ways, kept / np.maximum(squares, 1e-300)
    return np.asarray((ways[last] * kept) @ ways.T)


def _cosines(size: int) -> Floats:
    """The orthonormal cosine transform of so many values."""
    k = np.arange(size)
    waves = math.sqrt(2 / size) * np.cos(math.pi * np.outer(k, 2 * k + 1) / (2 * size))
    waves[0] /= math.sqrt(2)
    return np.asarray(waves)


def _bands(image: tuple[int, int, int]) -> NDArray[np.int64]:
    """The band of each frequency, the same for all channels."""
    channels, height, width = image
    away = np.hypot(*np.meshgrid(np.arange(height), np.arange(width), indexing="ij"))
    return np.tile((away / BAND).astype(np.int64).ravel(), channels)
