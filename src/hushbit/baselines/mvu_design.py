"""Designing the minimum-variance unbiased channel of a few bits (Chaudhuri et al. 2022).

Inputs x_i = i / (n-1), outputs alpha_j, channel P:

    minimise  mean_i sum_j P_ij (x_i - alpha_j)²
    subject to  sum_j P_ij = 1,  sum_j P_ij alpha_j = x_i,  m_j <= P_ij <= e^eps m_j

Channel and alphabet are symmetric, P_ij = P_(n-1-i)(B-1-j) and alpha_j = 1 - alpha_(B-1-j). The
channel is rounded to units of 2^-32 and its epsilon checked in whole numbers.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.mvu_solver import Problem, best_alphabet, best_channel
from hushbit.errors import HushbitError

RANGE = 2**32
DESIGN_LIMIT = 14.0
WIDEST_MARGIN = 0.2
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Design:
    """A channel in whole numbers: of 2^32 coins, counts[i, j] send input i to output j."""

    counts: NDArray[np.int64]
    alphabet: Floats

    @property
    def inputs(self) -> Floats:
        """x_i."""
        return np.linspace(0.0, 1.0, len(self.counts))

    @property
    def realised_epsilon(self) -> float:
        """ln of the largest ratio within a column, from the counts."""
        used = self.counts[:, self.counts.max(axis=0) > 0]
        if used.min() == 0:
            return math.inf
        return max(math.log(int(column.max()) / int(column.min())) for column in used.T)

    @property
    def bias(self) -> Floats:
        """Mean output less input, for each input; only the rounding to 2^-32 is left."""
        return np.asarray(self.counts @ self.alphabet / RANGE - self.inputs)

    @property
    def variance(self) -> Floats:
        """Variance of the output for each input."""
        away = (self.inputs[:, None] - self.alphabet) ** 2
        return np.asarray((self.counts * away).sum(axis=1) / RANGE)


@lru_cache(maxsize=64)
def design(bits: int, inputs: int, epsilon: float) -> Design:
    """The channel of 2^bits outputs whose epsilon, as rounded, is not above the asked one.

    Beyond epsilon 14 a channel of 2^-32 steps gains nothing, so none is designed for more.
    """
    level = min(epsilon, DESIGN_LIMIT)
    problem = Problem(inputs, 2**bits, level)
    designs = [_private_design(problem, best_alphabet(problem, s)) for s in problem.starts()]
    kept = [made for made in designs if made is not None]
    if not kept:
        raise HushbitError(f"no channel of {bits} bits was found for epsilon {epsilon}: try bits=1")
    return min(kept, key=lambda made: float(made.variance.mean()))


def _private_design(problem: Problem, half: Floats) -> Design | None:
    """Solve for a hair less epsilon until the rounded channel keeps what was asked."""
    margin = 1e-6
    while margin < WIDEST_MARGIN:
        tighter = Problem(problem.inputs, problem.outputs, problem.epsilon * (1 - margin))
        found = best_channel(tighter, half * (problem.unit / tighter.unit))
        if found is not None:
            alphabet = 0.5 + problem.unit * (problem.mirror @ half)
            order = np.argsort(alphabet, kind="stable")
            made = Design(_rounded(found[:, order]), alphabet[order])
            if keeps(made.counts, problem.epsilon):
                return made
        # A little less epsilon may need a slightly wider alphabet to stay unbiased.
        half, margin = half * (1 + margin), 2 * margin
    return None


def keeps(counts: NDArray[np.int64], epsilon: float) -> bool:
    """Whether no column has two counts further apart than e^epsilon, in exact arithmetic."""
    most = Fraction(math.exp(epsilon)) * (1 - Fraction(1, 2**50))
    return all(int(column.max()) <= most * int(column.min()) for column in counts.T)


def _rounded(channel: Floats) -> NDArray[np.int64]:
    """Rows in units of 2^-32 that add up exactly; the remainder goes to the largest count."""
    shares = channel / channel.sum(axis=1, keepdims=True)
    counts: NDArray[np.int64] = np.rint(shares * RANGE).astype(np.int64)
    counts[np.arange(len(counts)), counts.argmax(axis=1)] += RANGE - counts.sum(axis=1)
    return counts
