"""The mean and its variance from integer tallies; the default decoder is exactly unbiased.

For one stage with points q_j, W = sum over users of bit · sum_j word_j q_j and

    mean = gain · W / K + shift · sum_j q_j ,   histogram_j = gain · votes_j / K + shift
    corrected   gain = 1 / (beta (1 - rho)),  shift = -rho / (1 - rho)      unbiased
    paper       gain = 1 / beta,              shift = 0                     (1 - rho) times the mean
    authors     gain = 1,                     shift = 0                beta (1 - rho) times the mean
"""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from hushbit.checks import Floats, Ints, check_choice, check_float, check_int
from hushbit.errors import InvalidInput
from hushbit.lattice.points import PointSet

DECODERS = ("corrected", "paper", "authors")
FROM_HISTOGRAM = ("median", "trimmed-mean")  # estimates that need a tally with a histogram


def decoder_constants(decoder: str, beta: Fraction, rho: Fraction) -> tuple[Fraction, Fraction]:
    """Gain and shift of a decoder, as exact fractions."""
    check_choice("decoder", decoder, DECODERS)
    if decoder == "authors":
        return Fraction(1), Fraction(0)
    if decoder == "paper":
        return 1 / beta, Fraction(0)
    return 1 / (beta * (1 - rho)), -rho / (1 - rho)


def noise_power(points: PointSet, gain: Fraction, rho: Fraction) -> Floats:
    """Noise of one user in each coordinate i: gain² E[w_i²] = gain² ((1-rho) Q_i + rho S_i²)."""
    q = points.positions
    total, power = q.sum(axis=0), (q**2).sum(axis=0)
    return np.asarray(float(gain) ** 2 * (float(1 - rho) * power + float(rho) * total**2))


def signal_power(decoded: Floats, noise: Floats, count: int) -> Floats:
    """Mean square of the signal that users share, estimated from the tally; at least zero.

    `decoded` is gain · W / K, (coordinates, blocks). The bits do not show how users deviate from
    their mean, so the result is at most the power that the exact variance formula subtracts.
    """
    if count < 2:
        return np.zeros_like(noise)
    power = np.add.reduce(decoded * decoded, axis=1) / decoded.shape[1]
    raw = (power - noise / count) / (1 - 1 / count)
    return np.asarray(np.minimum(np.maximum(raw, 0.0), noise))


@dataclass(frozen=True, eq=False)
class StageDecoder:
    """The constants of one decoder for the counters of a stage with L coordinates.

    centre       shift · sum_j q_j, the constant part of the mean
    noise        gain² · E[w_i²] of one user
    point_power  squared distance of every point from the centre, for each coordinate, (N, L)
    votes_to_w   matrix from counted votes to W
    sums_to_w    matrix from sums of coordinates to W
    """

    points: PointSet
    size: int
    gain: float
    shift: float
    centre: Floats
    noise: Floats
    point_power: Floats
    votes_to_w: Floats
    sums_to_w: Floats

    @classmethod
    def of(cls, points: PointSet, decoder: str, beta: Fraction, rho: Fraction) -> "StageDecoder":
        """The constants of a decoder, computed as fractions before they are rounded."""
        gain, shift = decoder_constants(decoder, beta, rho)
        positions = points.positions
        centre = float(shift) * positions.sum(axis=0)
        # For even N words are balanced, so the votes for the last point follow from the others.
        even = points.size % 2 == 0
        return cls(
            points=points,
            size=points.size,
            gain=float(gain),
            shift=float(shift),
            centre=centre,
            noise=noise_power(points, gain, rho),
            point_power=(positions - centre) ** 2,
            votes_to_w=positions[:-1] - positions[-1] if even else positions,
            sums_to_w=points.basis,
        )

    def decode_counter(self, counter: Ints, count: int, votes: bool) -> Floats:
        """gain · W / K, (L, blocks), from votes for the points or from sums of coordinates."""
        matrix = (self.votes_to_w if votes else self.sums_to_w) * (self.gain / count)
        # Products of integer and float matrices are slow in NumPy, so a scalar is multiplied.
        return counter * matrix[0, 0] if matrix.size == 1 else np.asarray(matrix.T @ counter)


@dataclass(frozen=True, eq=False)
class StageHistogram:
    """The unbiased histogram of one stage, computed on demand."""

    decoder: StageDecoder
    votes: Ints
    count: int

    def histogram(self) -> Floats:
        """Share of users at each point, (blocks, N)."""
        votes = stage_votes(self.votes, self.decoder.size)
        return np.asarray(self.decoder.gain / self.count * votes + self.decoder.shift).T

    def mean_point_power(self) -> Floats:
        """Mean of `point_power` over all users and blocks, for each coordinate."""
        total = stage_votes(np.add.reduce(self.votes, axis=1), self.decoder.size)
        scale = self.decoder.gain / (self.count * self.votes.shape[1])
        shares = total * scale + self.decoder.shift
        return np.asarray(np.maximum(shares @ self.decoder.point_power, 0.0))


@dataclass(frozen=True, eq=False)
class Estimate:
    """The decoded mean of a tally, with its variance and, if counted, its histograms.

    mean        mean of the updates, one value for each entry
    variance    variance that the bits add to each entry; an upper estimate, tight if users agree
    count       number of ballots
    unbiased    whether the mean is unbiased
    histograms  one for each stage, or none
    noise       upper bound of the variance of an entry for any ballots, or None if not known
    """

    mean: Floats
    variance: Floats
    count: int
    unbiased: bool
    histograms: tuple[StageHistogram, ...] = field(repr=False, default=())
    noise: float | None = field(repr=False, default=None)

    def histogram(self, stage: int = 0) -> Floats:
        """Unbiased share of users at each point, (blocks, N); entries may be negative."""
        if not self.histograms:
            raise InvalidInput(
                "this estimate has no histogram: use CPA or nested CPA without rotation, and a "
                "tally with histogram=True"
            )
        return self.histograms[check_int("stage", stage, 0, len(self.histograms) - 1)].histogram()

    def biased_histogram(self, stage: int = 0) -> Floats:
        """The histogram with negative entries set to zero, normalized: biased."""
        cut = np.maximum(self.histogram(stage), 0.0)
        total = cut.sum(axis=1, keepdims=True)
        return np.where(total > 0, cut / np.where(total > 0, total, 1.0), 1 / cut.shape[1])

    def shrunken_mean(self) -> Floats:
        """Wiener shrinkage: the mean times signal / (signal + noise), both from this estimate."""
        noise = float(self.variance.mean())
        signal = max(0.0, float((self.mean**2).mean()) - noise)
        return self.mean * (signal / (signal + noise) if signal > 0 else 0.0)

    def median(self) -> Floats:
        """Median of the points of users, entry by entry, from the biased histogram."""
        return self._trimmed(0.5, 0.5)

    def trimmed_mean(self, cut: float) -> Floats:
        """Mean of the points of users without the share `cut` at either end: biased, robust."""
        share = check_float("cut", cut)
        if not 0 <= share < 0.5:
            raise InvalidInput(f"cut must be at least 0 and below 0.5; got {cut!r}")
        return self._trimmed(share, 1 - share)

    def _trimmed(self, low: float, high: float) -> Floats:
        """Mean of the quantiles between two levels of the biased histogram, summed over stages."""
        total = np.zeros((self.histogram().shape[0], self.histograms[0].decoder.points.dim))
        for stage, points in enumerate(one.decoder.points for one in self.histograms):
            share = self.biased_histogram(stage)
            for axis in range(points.dim):
                position = points.positions[:, axis]
                order = np.argsort(position, kind="stable")
                total[:, axis] += _quantile_mean(share[:, order], position[order], low, high)
        return total.reshape(-1)[: self.mean.size]


def _quantile_mean(share: Floats, position: Floats, low: float, high: float) -> Floats:
    top = np.cumsum(share, axis=1)
    top[:, -1] = 1.0
    if low == high:
        return np.asarray(position[np.argmax(top >= low, axis=1)])
    bottom = np.concatenate([np.zeros((share.shape[0], 1)), top[:, :-1]], axis=1)
    kept = np.clip(np.minimum(top, high) - np.maximum(bottom, low), 0.0, None)
    return np.asarray(kept @ position / (high - low))


def stage_votes(counter: Ints, size: int) -> Ints:
    """Votes for every point, (N, ...): for even N the last row is minus the sum of the others."""
    if len(counter) == size:
        return counter
    return np.concatenate([counter, -counter.sum(axis=0, keepdims=True)])
