"""What a server would decode, gathered user by user and drawn as a sum.

As published (and what `hushbit.lab.sums` has of vanilla training, Laplace and JoPEQ):

CPA       how many users stand on each point; the tally is drawn from its exact law
signSGD   how many users lean to +; the count of heard signs is binomial, exactly
Laplace   the sum of the users' updates; the noise of at least 100 users is drawn as one Gaussian
          of the same variance (its excess kurtosis is 3 over their number)
"""

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.fl.metrics import add_rows
from hushbit.fl.settings import Settings
from hushbit.kernels.jit import njit
from hushbit.lab.law import draw_tally, vote_laws
from hushbit.lab.sums import Clipped, Levels, Plain
from hushbit.response import Response

STAGES = {"cpa": (3,), "cpa-no-rr": (3,), "nested": (3, 3)}
DEFAULT_RADIUS = 0.05
FEWEST_FOR_GAUSS = 100


class Standings(Protocol):
    """Users of one round, added chunk by chunk; then the decoded mean.

    `noise` is the variance of its entries as far as the server knows it.
    """

    @property
    def noise(self) -> float | None:
        """Variance that the server knows of; None if it knows none."""

    def add(self, updates: NDArray[np.float32], apart: NDArray[np.bool_]) -> None:
        """Add users; those apart are attackers whose bits ignore their words."""

    def decode(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """The decoded mean update."""


def standings(settings: Settings, layers: tuple[slice, ...], dim: int) -> Standings | None:
    """What gathers a round of these settings; None where ballots must be cast one by one."""
    if settings.participation != 1 or settings.defence != "none" or settings.average_weights:
        return None
    summed = _summed(settings, dim)
    if summed is not None or settings.preset != "authors" or settings.rotate:
        return summed
    fixed = ("lattice", "rounding", "words", "stages", "clip")
    if settings.mechanism in STAGES and all(getattr(settings, name) is None for name in fixed):
        known = settings.attack in ("none", "ones", "flip")
        return Points(settings, dim) if known else None
    if settings.attack != "none":
        return None
    if settings.mechanism == "signsgd":
        return Signs(settings, dim)
    if settings.mechanism == "laplace" and settings.users >= FEWEST_FOR_GAUSS:
        return Noisy(settings, layers, dim)
    return None


def _summed(settings: Settings, dim: int) -> Standings | None:
    """Vanilla training, honest Laplace and JoPEQ, whose entries are all treated alike."""
    if settings.attack != "none":
        return None
    if settings.mechanism == "fedavg":
        return Plain(settings, dim)
    finite = math.isfinite(settings.epsilon_per_bit or math.inf)
    if settings.mechanism == "laplace" and settings.preset != "authors" and finite:
        return Clipped(settings, dim)
    scalar = settings.lattice is None and settings.mode is None
    if settings.mechanism == "jopeq" and scalar and settings.users >= FEWEST_FOR_GAUSS:
        return Levels(settings, dim)
    return None


class Points:
    """Nearest of 3 (or 3 x 3) points, nothing divided by 2p - 1."""

    noise = None

    def __init__(self, settings: Settings, dim: int) -> None:
        self.users = settings.users
        counts = (settings.points,) if settings.points else STAGES[settings.mechanism]
        self.stages: tuple[int, ...] = counts
        self.points = math.prod(counts)
        self.step = 2 * (settings.radius or DEFAULT_RADIUS) / self.points
        silent = settings.mechanism == "cpa-no-rr" or settings.epsilon_per_bit is None
        self.epsilon = math.inf if silent else float(settings.epsilon_per_bit or 0)
        self.counts = np.zeros((self.points + 1, dim), np.int64)

    def add(self, updates: NDArray[np.float32], apart: NDArray[np.bool_]) -> None:
        """Count users at their nearest fine points; attackers in the last row."""
        count_nearest(updates, apart, self.step, self.counts)

    def decode(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Add the stages up: each hears only its own digit of the fine point."""
        decoded, unit = np.zeros(self.counts.shape[1]), self.points
        for size in self.stages:
            unit //= size
            own = np.zeros((size + 1, self.counts.shape[1]), np.int64)
            np.add.at(own, np.arange(self.points) // unit % size, self.counts[:-1])
            own[size] = self.counts[-1]
            decoded += self.step * unit * draw_tally(own, vote_laws(size, self.epsilon), rng)
        return decoded / self.users


class Signs:
    """Mean of signs after randomized response, as a step of 1; zero counts as +."""

    noise = None

    def __init__(self, settings: Settings, dim: int) -> None:
        self.users = settings.users
        self.right = float(1 + Response(settings.epsilon_per_bit or math.inf).beta) / 2
        self.plus = np.zeros(dim, np.int64)

    def add(self, updates: NDArray[np.float32], apart: NDArray[np.bool_]) -> None:
        """Count the users that lean to +."""
        self.plus += (updates >= 0).sum(axis=0)

    def decode(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """(heard + minus heard -) / users."""
        heard = rng.binomial(self.plus, self.right)
        heard = heard + rng.binomial(self.users - self.plus, 1 - self.right)
        return np.asarray(2 * heard / self.users - 1, dtype=np.float64)


class Noisy:
    """Updates plus Laplace noise of 2/epsilon times three deviations of a user's own layer."""

    noise = None

    def __init__(self, settings: Settings, layers: tuple[slice, ...], dim: int) -> None:
        self.users, self.layers = settings.users, layers
        self.scale = 2 / float(settings.epsilon_per_bit or math.inf)
        self.total, self.squares = np.zeros(dim), np.zeros(len(layers))

    def add(self, updates: NDArray[np.float32], apart: NDArray[np.bool_]) -> None:
        """Add updates, and the squares of their users' noise scales."""
        add_rows(self.total, updates, np.ones(len(updates), dtype=np.bool_))
        for number, layer in enumerate(self.layers):
            spread = 3 * np.std(updates[:, layer], axis=1, dtype=np.float64)
            self.squares[number] += float(np.sum(spread**2))

    def decode(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """The noisy mean; Var = 2 b^2 for a Laplace variable of scale b."""
        noise = rng.standard_normal(self.total.size)
        for layer, square in zip(self.layers, self.squares, strict=True):
            noise[layer] *= self.scale * math.sqrt(2 * square)
        return np.asarray((self.total + noise) / self.users, dtype=np.float64)


def reference_nearest(
    updates: NDArray[np.float32], apart: NDArray[np.bool_], step: float, counts: NDArray[np.int64]
) -> None:
    """counts[nearest point, entry] += 1 for every user; users set apart go to the last row."""
    points = counts.shape[0] - 1
    middle = (points - 1) // 2
    levels = np.clip(np.rint(updates[~apart] / step), -middle, middle).astype(np.int64) + middle
    for point in range(points):
        counts[point] += (levels == point).sum(axis=0)
    counts[points] += apart.sum()


@njit
def count_nearest(
    updates: NDArray[np.float32], apart: NDArray[np.bool_], step: float, counts: NDArray[Any]
) -> None:
    """As `reference_nearest`: users above each of the borders between points, then differences."""
    points, dim = counts.shape[0] - 1, counts.shape[1]
    middle = (points - 1) // 2
    above = np.zeros((points - 1, dim), np.int32)
    together = 0
    for user in range(updates.shape[0]):
        if apart[user]:
            continue
        together += 1
        row = updates[user]
        for border in range(points - 1):
            # A tie goes to the even one of two points, as np.rint rounds.
            left = border - middle
            edge, ties, own = np.float32((left + 0.5) * step), left % 2 != 0, above[border]
            if ties:
                for entry in range(dim):
                    own[entry] += np.int32(row[entry] >= edge)
            else:
                for entry in range(dim):
                    own[entry] += np.int32(row[entry] > edge)
    for entry in range(dim):
        higher = together
        for border in range(points - 1):
            counts[border, entry] += higher - above[border, entry]
            higher = above[border, entry]
        counts[points - 1, entry] += higher
        counts[points, entry] += updates.shape[0] - together
