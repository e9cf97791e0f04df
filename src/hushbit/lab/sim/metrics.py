"""Metrics of one round: the error of the decoded mean, of a denoised mean, and of the worst class.

`distortion` compares a decoded mean with the true one. `MeanDenoiser` estimates the mean of a round
from its noisy estimate and those of the rounds before it, by post-processing only. In units of the
known noise, a tensor of a round is a matrix M with one column per output. Three steps remove noise:

    rounds  The matrices of the last rounds side by side, B = [M_1 ... M_t], share few directions.
            Their singular values are shrunk, J = B A, and the last block of J is kept.
    pixels  A layer that reads an image has one weight per pixel, and what it learns is smooth. The
            cosine transform over the image leaves the noise white and moves the signal to low
            frequencies. A is computed from rows weighted by sqrt(w), with w = max(0, 1 - 1 / power)
            and the power of the row's frequency band over all rounds.
    bands   Each band of J is multiplied by the factor of least square error,
            (<J, M> - shared noise) / <J, J>, clipped to [0, 1]. If the filter A were fixed, the
            shared noise would be trace(A) over the last block.

For an m x n matrix (m <= n, b = m / n) with white noise of variance v, a singular value y in units
of sqrt(n v) is shrunk to

    sqrt((y² - b - 1)² - 4 b) / y     above 1 + sqrt(b), else 0,

which has the least square error for every low-rank signal as sizes grow (Gavish and Donoho 2017).
If the signal of an image layer is not smooth, all bands have the same weight and nothing is lost.
The denoised mean is biased and serves reports only: in training noise averages out over rounds, but
a shrunken signal does not.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels import njit
from hushbit.kernels.threads import parallel_for

Floats = NDArray[np.float64]
TensorShape = tuple[int, ...]

DENOISE_ROUNDS = 5
"""Rounds that are denoised together; ten or twenty would gain a few tenths of a decibel."""

BAND_WIDTH = 2.0
"""Width of a frequency band, in half-waves over the image."""


def add_rows(total: Floats, rows: NDArray[np.float32], chosen: NDArray[np.bool_]) -> None:
    """Add the chosen rows to the total one after the other, so that grouping has no effect."""
    parallel_for(lambda first, last: _add_columns(total, rows, chosen, first, last), total.size)


@njit
def _add_columns(
    total: Floats, rows: NDArray[np.float32], chosen: NDArray[np.bool_], first: int, last: int
) -> None:
    part = total[first:last]
    for number in range(rows.shape[0]):
        if chosen[number]:
            row = rows[number, first:last]
            for i in range(part.size):
                part[i] += row[i]


@dataclass(frozen=True)
class Distortion:
    """Error of one round's estimate.

    snr_db          10 log10 of var(mean update) / var(error)
    snr_weights_db  10 log10 of var(w_FA) / var(w_FA - w): the paper's equation, on the weights
    snr_authors_db  20 log10 of var(mean update) / var(error), as the published code prints
    snr_layers      var(mean update) / var(error), averaged over tensors, not in decibels: the
                    published code averages it over rounds before taking the logarithm
    mse             mean squared error per entry
    """

    snr_db: float
    snr_weights_db: float
    snr_authors_db: float
    mse: float
    snr_layers: float = math.nan


def distortion(
    params: NDArray[np.floating], true_mean: Floats, decoded: Floats, layers: Sequence[slice] = ()
) -> Distortion:
    """Compare a decoded mean update with the true mean of the honest users' updates."""
    error = decoded - true_mean
    noise = float(np.var(error))
    signal = _decibel(float(np.var(true_mean)), noise)
    return Distortion(
        snr_db=signal,
        snr_weights_db=_decibel(float(np.var(params + true_mean)), noise),
        snr_authors_db=2 * signal,
        snr_layers=_mean_ratio(true_mean, error, layers or (slice(None),)),
        mse=float(np.mean(error**2)),
    )


def _mean_ratio(signal: Floats, error: Floats, layers: Sequence[slice]) -> float:
    """Mean of the ratios of variances; tensors of one entry have no variance and are left out."""
    ratios = []
    for layer in layers:
        noise = float(np.var(error[layer]))
        if error[layer].size > 1:
            ratios.append(float(np.var(signal[layer])) / noise if noise else math.inf)
    return sum(ratios) / len(ratios) if ratios else math.nan


def _decibel(signal: float, noise: float) -> float:
    if math.isnan(noise):
        return math.nan
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


WORST_CLASS = "worst_class_accuracy"


def worst_class_accuracy(correct: NDArray[np.bool_], labels: NDArray[np.integer]) -> float:
    """The lowest accuracy of a class that occurs; negative labels are no class.

    >>> worst_class_accuracy(np.array([True, False, True]), np.array([7, 7, 2]))
    0.5
    """
    known = labels >= 0
    counts = np.bincount(labels[known])
    hits = np.bincount(labels[known], weights=correct[known])
    return float(np.min(hits[counts > 0] / counts[counts > 0], initial=1.0))


def shrinkage_factor(values: Floats, shape: tuple[float, ...], noise: float) -> Floats:
    """The factor by which each singular value of a matrix of that shape is shrunk."""
    rows, columns = sorted(shape)
    y, b = values / math.sqrt(columns * noise), rows / columns
    inside = np.maximum((y**2 - b - 1) ** 2 - 4 * b, 0.0)
    return np.where(y > 1 + math.sqrt(b), np.sqrt(inside) / np.maximum(y, 1e-150) ** 2, 0.0)


class MeanDenoiser:
    """Denoises the estimated means of successive rounds of one run.

    `shapes` are the model's tensors (outputs first), `image` is the shape (channels, height, width)
    of the images that the first layer reads.
    """

    def __init__(
        self, shapes: Sequence[TensorShape], image: tuple[int, int, int] | None = None
    ) -> None:
        self._tensors = [_TensorDenoiser(tuple(shape), image) for shape in shapes]
        self._ends = np.cumsum([math.prod(shape) for shape in shapes])

    def denoise(self, mean: Floats, noise: float) -> Floats:
        """Return the denoised mean of the next round; `noise` is the variance of an entry."""
        # Noise below the rounding of the mean counts as none: in its units, squares overflow.
        unit = math.sqrt(noise)
        if unit <= 1e-12 * float(np.abs(mean).max()):
            return mean.copy()
        parts = np.split(mean / unit, self._ends[:-1])
        pairs = zip(self._tensors, parts, strict=True)
        return np.concatenate([tensor.denoise(part) for tensor, part in pairs]) * unit


class _TensorDenoiser:
    """The last rounds of one tensor, in units of their noise."""

    def __init__(self, shape: TensorShape, image: tuple[int, int, int] | None) -> None:
        self._outputs = shape[0] if len(shape) > 1 else 1
        self._rounds: deque[Floats] = deque(maxlen=DENOISE_ROUNDS)
        inputs = math.prod(shape) // self._outputs
        self._image = image if image and len(shape) == 2 and inputs == math.prod(image) else None
        self._bands = _bands(self._image) if self._image else np.zeros(inputs, dtype=np.int64)

    def denoise(self, part: Floats) -> Floats:
        rows = self._transformed(part.reshape(self._outputs, -1))
        self._rounds.append(rows)
        columns = np.concatenate(self._rounds)  # its rows are the columns of B
        weights = np.ones(self._bands.size)
        if self._image:
            weights = np.maximum(0.0, 1 - 1 / np.maximum(self._band_means(columns**2), 1.0))
        last = slice(len(columns) - self._outputs, None)
        mixing = _combination(columns * np.sqrt(weights), weights, last)
        found = mixing @ columns
        shared_noise = float(np.trace(mixing[:, last])) / self._outputs
        product = self._band_means(found * rows) - shared_noise
        power = self._band_means(found**2)
        factor = np.clip(product / np.maximum(power, 1e-300), 0.0, 1.0)
        return self._transformed(found * factor, inverse=True).ravel()

    def _band_means(self, values: Floats) -> Floats:
        """The mean over rows and band, for every input."""
        sums = np.bincount(self._bands, values.mean(axis=0))
        return np.asarray((sums / np.bincount(self._bands))[self._bands])

    def _transformed(self, rows: Floats, inverse: bool = False) -> Floats:
        """The cosine transform over the image, or its inverse."""
        if self._image is None:
            return rows
        down, across = (_cosines(size) for size in self._image[1:])
        if inverse:
            down, across = down.T, across.T
        images = down @ rows.reshape(len(rows), *self._image) @ across.T
        return np.asarray(images.reshape(len(rows), -1))


def _combination(columns: Floats, weights: Floats, last: slice) -> Floats:
    """The last block of A transposed: each of the last columns as a mixture of all columns."""
    if not weights.any():
        return np.zeros((len(columns[last]), len(columns)))
    # The number of equally noisy rows with the same sum of weights and sum of squared weights.
    noise = float((weights**2).sum() / weights.sum())
    size = (len(columns), float(weights.sum()) / noise)
    wide = columns.shape[0] > columns.shape[1]
    squares, vectors = np.linalg.eigh(columns.T @ columns if wide else columns @ columns.T)
    squares = np.maximum(squares, 0.0)
    kept = shrinkage_factor(np.sqrt(squares), size, noise)
    if wide:  # from the shorter side: right singular vectors, mapped to the left ones
        vectors, kept = columns @ vectors, kept / np.maximum(squares, 1e-300)
    return np.asarray((vectors[last] * kept) @ vectors.T)


def _cosines(size: int) -> Floats:
    """The matrix of the orthonormal cosine transform (DCT-II) of `size` values."""
    k = np.arange(size)
    waves = math.sqrt(2 / size) * np.cos(math.pi * np.outer(k, 2 * k + 1) / (2 * size))
    waves[0] /= math.sqrt(2)
    return np.asarray(waves)


def _bands(image: tuple[int, int, int]) -> NDArray[np.int64]:
    """The band of each frequency, the same for all channels."""
    channels, height, width = image
    radius = np.hypot(*np.meshgrid(np.arange(height), np.arange(width), indexing="ij"))
    return np.tile((radius / BAND_WIDTH).astype(np.int64).ravel(), channels)
