"""The law of a tally, given how many users stand on each point.

A user at point l adds t = Z v_l · sum_j v_j q_j, with v a random balanced word and Z the flip of
randomized response. Users are independent, so the tally of n_l users at each l is a sum of
multinomial draws: the same law as casting and counting every ballot, at the cost of one entry
instead of one user. Simulations of the published code use it; it sends nothing.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import whole
from hushbit.errors import InvalidInput
from hushbit.response import Response
from hushbit.words import all_words

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class VoteLaw:
    """What a user at one point adds to the tally: integer values and their exact chances."""

    values: tuple[int, ...]
    chances: tuple[Fraction, ...]

    @property
    def mean(self) -> Fraction:
        """E[t]."""
        return sum((v * p for v, p in zip(self.values, self.chances, strict=True)), Fraction(0))

    @property
    def variance(self) -> Fraction:
        """Var(t)."""
        square = sum(
            (v * v * p for v, p in zip(self.values, self.chances, strict=True)), Fraction(0)
        )
        return square - self.mean**2


@lru_cache(maxsize=64)
def vote_laws(points: int, epsilon_per_bit: float) -> tuple[VoteLaw, ...]:
    """The law for each of N equidistant points -(N-1)/2 ... (N-1)/2 (doubled for even N).

    The last law is that of a user whose bit ignores its word: constant ones or random flips.
    """
    whole("points", points, 2, 9)
    words = all_words("uniform", points)
    unit = 1 if points % 2 else 2
    places = np.array([unit * j - unit * (points - 1) // 2 for j in range(points)])
    pulls = words.astype(np.int64) @ places
    right = (1 + Response(epsilon_per_bit).beta) / 2
    laws = [_law(words[:, level] * pulls, right) for level in range(points)]
    return (*laws, _law(pulls, Fraction(1, 2)))


def _law(pulls: NDArray[np.int64], right: Fraction) -> VoteLaw:
    chances: dict[int, Fraction] = {}
    for pull in pulls.tolist():
        for value, chance in ((pull, right), (-pull, 1 - right)):
            chances[value] = chances.get(value, Fraction(0)) + chance / len(pulls)
    values = tuple(sorted(chances))
    return VoteLaw(values, tuple(chances[value] for value in values))


def draw_tally(
    counts: NDArray[np.int64], laws: tuple[VoteLaw, ...], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Sums of t over users, for counts (points, entries) of users at each point."""
    if counts.ndim != 2 or len(counts) > len(laws) or (counts < 0).any():
        raise InvalidInput(f"counts of shape {counts.shape} do not fit {len(laws)} laws")
    total = np.zeros(counts.shape[1], np.int64)
    for row, law in zip(counts, laws, strict=False):
        drawn = rng.multinomial(row, [float(chance) for chance in law.chances])
        total += drawn @ np.array(law.values)
    return total
