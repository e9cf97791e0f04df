"""From integer tallies to the mean: exactly unbiased, with its variance.

For one stage with points q_j, W = sum over users of bit · sum_j word_j q_j and

    mean = gain · W / K + shift · sum_j q_j ,   histogram_j = gain · votes_j / K + shift
    corrected   gain = 1 / (beta (1 - rho)),  shift = -rho / (1 - rho)      unbiased
    paper       gain = 1 / beta,              shift = 0                     scaled by 1 - rho
    authors     gain = 1,                     shift = 0                     by beta (1 - rho)
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import choice, real, whole
from hushbit.errors import InvalidInput
from hushbit.points import Points

DECODERS = ("corrected", "paper", "authors")
Floats = NDArray[np.float64]


def gain_and_shift(decoder: str, beta: Fraction, rho: Fraction) -> tuple[Fraction, Fraction]:
    """The two constants of a decoder, exactly."""
    choice("decoder", decoder, DECODERS)
    if decoder == "authors":
        return Fraction(1), Fraction(0)
    if decoder == "paper":
        return 1 / beta, Fraction(0)
    return 1 / (beta * (1 - rho)), -rho / (1 - rho)


def noise_power(points: Points, gain: Fraction, rho: Fraction) -> Floats:
    """gain² · E[w_i²] of one user's pull, for each coordinate: ((1-rho) Q_i + rho S_i²) gain²."""
    q = points.positions
    total, power = q.sum(axis=0), (q**2).sum(axis=0)
    return np.asarray(float(gain) ** 2 * (float(1 - rho) * power + float(rho) * total**2))


def signal_power(pull: Floats, noise: Floats, count: int) -> Floats:
    """Mean square of the users' common signal, from the tally alone, never below zero.

    `pull` is gain · W / K, (coordinates, blocks). Users' own deviations from their mean are
    invisible in the bits, so this is at most the power that the exact variance formula subtracts.
    """
    if count < 2:
        return np.zeros_like(noise)
    power = np.add.reduce(pull * pull, axis=1) / pull.shape[1]
    raw = (power - noise / count) / (1 - 1 / count)
    return np.asarray(np.minimum(np.maximum(raw, 0.0), noise))


@dataclass(frozen=True, eq=False)
class Reading:
    """How one decoder reads the counters of a stage of L coordinates.

    centre  shift · sum_j q_j, what the mean has on top of the pull
    noise   gain² · E[w_i²] of one user
    level   squared distance of every point from the centre, (N, L)
    """

    points: Points
    gain: float
    shift: float
    centre: Floats
    noise: Floats
    level: Floats

    @classmethod
    def of(cls, points: Points, decoder: str, beta: Fraction, rho: Fraction) -> "Reading":
        """The constants of a decoder, exact before they are rounded."""
        gain, shift = gain_and_shift(decoder, beta, rho)
        centre = float(shift) * points.positions.sum(axis=0)
        level = (points.positions - centre) ** 2
        noise = noise_power(points, gain, rho)
        return cls(points, float(gain), float(shift), centre, noise, level)

    def pull(self, counter: NDArray[np.int64], count: int, votes: bool) -> Floats:
        """gain · W / K, (L, blocks), from votes for the points or from sums of coordinates."""
        space = self.points.basis
        if votes:
            space = self.points.positions[: len(counter)]
            if len(counter) < self.points.size:
                space = space - self.points.positions[-1]
        space = space * (self.gain / count)
        # NumPy has no fast product of whole numbers and floats, and a line needs none.
        return counter * space[0, 0] if space.size == 1 else np.asarray(space.T @ counter)


@dataclass(frozen=True, eq=False)
class Shares:
    """The unbiased histogram of one stage, computed when it is asked for."""

    reading: Reading
    votes: NDArray[np.int64]
    count: int

    def histogram(self) -> Floats:
        """Share of users at each point, (blocks, N)."""
        votes = stage_votes(self.votes, self.reading.points)
        return np.asarray(self.reading.gain / self.count * votes + self.reading.shift).T

    def level_power(self) -> Floats:
        """Mean square of the users' points about the decoder's centre, for each coordinate."""
        total = stage_votes(np.add.reduce(self.votes, axis=1), self.reading.points)
        scale = self.reading.gain / (self.count * self.votes.shape[1])
        shares = total * scale + self.reading.shift
        return np.asarray(np.maximum(shares @ self.reading.level, 0.0))


@dataclass(frozen=True, eq=False)
class Estimate:
    """What a server learns from a tally.

    `mean` is unbiased when `unbiased` is true; `variance` (of each entry of the mean) is what
    the bits' noise adds, an upper estimate that is tight when users agree. `noise`, if known,
    is the largest variance of an entry as told by the mechanism alone, not by the ballots.
    """

    mean: Floats
    variance: Floats
    count: int
    unbiased: bool
    shares: tuple[Shares, ...] = field(repr=False, default=())
    noise: float | None = field(repr=False, default=None)

    def histogram(self, stage: int = 0) -> Floats:
        """Share of users at each point, (blocks, N), unbiased: entries may be negative."""
        if not self.shares:
            raise InvalidInput(
                "this estimate has no histogram: tally with histogram=True, by a mechanism of "
                "points and words, without rotation"
            )
        return self.shares[whole("stage", stage, 0, len(self.shares) - 1)].histogram()

    def biased_histogram(self, stage: int = 0) -> Floats:
        """The histogram with negative entries cut and the rest renormalised: biased."""
        cut = np.maximum(self.histogram(stage), 0.0)
        total = cut.sum(axis=1, keepdims=True)
        return np.where(total > 0, cut / np.where(total > 0, total, 1.0), 1 / cut.shape[1])

    def shrunken_mean(self) -> Floats:
        """Wiener: the mean times signal / (signal + noise), the signal estimated from the tally."""
        noise = float(self.variance.mean())
        signal = max(0.0, float((self.mean**2).mean()) - noise)
        return self.mean * (signal / (signal + noise) if signal > 0 else 0.0)

    def median(self) -> Floats:
        """Median of the users' points, entry by entry, over the biased histogram."""
        return self._between(0.5, 0.5)

    def trimmed_mean(self, cut: float) -> Floats:
        """Mean of the users' points without the share `cut` at either end: biased, robust."""
        share = real("cut", cut)
        if not 0 <= share < 0.5:
            raise InvalidInput(f"cut must be at least 0 and below 0.5; got {cut!r}")
        return self._between(share, 1 - share)

    def _between(self, low: float, high: float) -> Floats:
        """Mean of the quantiles between two levels of the biased histogram, summed over stages."""
        total = np.zeros((self.histogram().shape[0], self.shares[0].reading.points.dim))
        for stage, points in enumerate(one.reading.points for one in self.shares):
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


def stage_votes(counter: NDArray[np.int64], points: Points) -> NDArray[np.int64]:
    """Votes for every point, (N, ...): for even N the last row is minus the others' sum."""
    if len(counter) == points.size:
        return counter
    return np.concatenate([counter, -counter.sum(axis=0, keepdims=True)])


def check_counted(tally: Any, mechanism: Any) -> None:
    """Refuse a tally of another mechanism and one without ballots."""
    if getattr(tally, "mechanism", None) is None or (
        tally.mechanism.fingerprint != mechanism.fingerprint
    ):
        raise InvalidInput(f"estimate needs a tally made by {mechanism!r}; got {tally!r}")
    tally.check_whole()
    if tally.count == 0:
        raise InvalidInput("the tally has no ballots yet: add some before estimating")
