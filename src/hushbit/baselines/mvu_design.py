"""Designing the minimum-variance unbiased channel of a few bits (Chaudhuri et al. 2022).

Inputs x_i = i / (n-1), outputs alpha_j, channel P:

    minimise  mean_i sum_j P_ij (x_i - alpha_j)²
    subject to  sum_j P_ij = 1,  sum_j P_ij alpha_j = x_i,  m_j <= P_ij <= e^eps m_j

Channel and alphabet are symmetric, P_ij = P_(n-1-i)(B-1-j) and alpha_j = 1 - alpha_(B-1-j), which
halves the problem. A joint descent finds the alphabet, a linear program the channel for it, and
the channel is rounded to 2^-32 with its epsilon checked in whole numbers.
"""

import math
import warnings
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import HushbitError, MissingExtra

RANGE = 2**32
DESIGN_LIMIT = 14.0
UNUSED = 1e-6
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
    """The channel of 2^bits outputs whose epsilon, as rounded, is not above the asked one."""
    level = min(epsilon, DESIGN_LIMIT)
    shape = _Shape(inputs, 2**bits, level)
    half = _best_alphabet(shape)
    margin = 1e-6
    while margin < 0.2:
        found = _channel(_Shape(inputs, 2**bits, level * (1 - margin)), half)
        if found is not None:
            made = Design(_rounded(found), shape.alphabet(half))
            if keeps(made.counts, level):
                return made
        # A little less epsilon needs a slightly wider alphabet to stay unbiased.
        half, margin = 0.5 + (half - 0.5) * (1 + margin), 2 * margin
    raise HushbitError(f"no channel of {bits} bits was found for epsilon {epsilon}: try bits=1")


def keeps(counts: NDArray[np.int64], epsilon: float) -> bool:
    """Whether no column has two counts further apart than e^epsilon, in exact arithmetic."""
    most = Fraction(math.exp(epsilon)) * (1 - Fraction(1, 2**50))
    return all(int(c.max()) <= most * int(c.min()) for c in counts.T)


class _Shape:
    """The symmetric problem: its first half of rows, weights, and the map from half alphabets."""

    def __init__(self, inputs: int, outputs: int, epsilon: float) -> None:
        self.rows = (inputs + 1) // 2
        self.outputs, self.half = outputs, outputs // 2
        self.x = np.linspace(0.0, 1.0, inputs)[: self.rows]
        self.weight = np.full((self.rows, 1), 2.0 / inputs)
        if inputs % 2:
            self.weight[-1] = 1.0 / inputs
        self.ratio = math.exp(epsilon)
        fold = np.vstack([np.eye(self.half), np.eye(self.half)[::-1]])
        self.mirror = np.repeat([1.0, -1.0], self.half)[:, None] * fold
        cells = self.rows * outputs
        spread = np.kron(np.ones((self.rows, 1)), fold)
        self.private = np.vstack(
            [np.hstack([np.eye(cells), -spread]), np.hstack([-np.eye(cells), self.ratio * spread])]
        )
        self.sums = np.kron(np.eye(self.rows), np.ones((1, outputs)))
        self.cells = cells

    def alphabet(self, half: Floats) -> Floats:
        """The half alphabet and its mirror image about 1/2."""
        return np.asarray(np.repeat([0.0, 1.0], self.half) + self.mirror @ half)

    def means(self, alphabet: Floats) -> Floats:
        """The matrix that takes a flattened channel to the mean output of each row."""
        return np.kron(np.eye(self.rows), alphabet[None])


def _best_alphabet(shape: _Shape) -> Floats:
    """Joint descent over channel, column floors m_j and alphabet, from the uniform channel."""
    optimize = _scipy()
    cells, half, rows, weight = shape.cells, shape.half, shape.rows, shape.weight
    size = cells + 2 * half

    def split(v: Floats) -> tuple[Floats, Floats]:
        return v[:cells].reshape(rows, -1), shape.alphabet(v[cells + half :])

    def value(v: Floats) -> tuple[float, Floats]:
        channel, alphabet = split(v)
        gap = shape.x[:, None] - alphabet
        slope = (-2 * weight * channel * gap).sum(axis=0) @ shape.mirror
        parts = ((weight * gap**2).reshape(-1), np.zeros(half), slope)
        return float((weight * channel * gap**2).sum()), np.concatenate(parts)

    def cross(factor: Floats) -> Floats:
        matrix = np.zeros((size, size))
        block = (factor[:, :, None] * shape.mirror).reshape(cells, half)
        matrix[:cells, cells + half :], matrix[cells + half :, :cells] = block, block.T
        return matrix

    def curvature(v: Floats) -> Floats:
        channel, alphabet = split(v)
        matrix = cross(-2 * weight * (shape.x[:, None] - alphabet))
        inner = 2 * (weight * channel).sum(axis=0)[:, None] * shape.mirror
        matrix[cells + half :, cells + half :] = shape.mirror.T @ inner
        return matrix

    def means_slope(v: Floats) -> Floats:
        channel, alphabet = split(v)
        return np.hstack([shape.means(alphabet), np.zeros((rows, half)), channel @ shape.mirror])

    linear = np.vstack(
        [
            np.hstack([shape.private, np.zeros((2 * cells, half))]),
            np.hstack([shape.sums, np.zeros((rows, 2 * half))]),
        ]
    )
    low = np.concatenate([np.zeros(2 * cells), np.ones(rows)])
    high = np.concatenate([np.full(2 * cells, np.inf), np.ones(rows)])
    unbiased = optimize.NonlinearConstraint(
        lambda v: split(v)[0] @ split(v)[1] - shape.x, 0, 0, jac=means_slope,
        hess=lambda v, dual: cross(np.repeat(dual[:, None], shape.outputs, axis=1)),
    )  # fmt: skip
    start = np.concatenate(
        [
            np.full(cells, 1 / shape.outputs),
            np.full(half, 0.9 / shape.outputs),
            np.linspace(0.0, 1.0, shape.outputs)[:half],
        ]
    )
    least = np.concatenate([np.zeros(cells + half), np.full(half, -np.inf)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = optimize.minimize(
            value, start, jac=True, hess=curvature, method="trust-constr",
            constraints=[optimize.LinearConstraint(linear, low, high), unbiased],
            bounds=optimize.Bounds(least, np.inf),
            options={"maxiter": 300, "gtol": 1e-6, "xtol": 1e-8},
        )  # fmt: skip
    return np.asarray(np.sort(np.asarray(found.x[cells + half :], dtype=np.float64)))


def _channel(shape: _Shape, half: Floats) -> Floats | None:
    """The best channel for an alphabet by linear programming, columns hardly used left out."""
    alphabet = shape.alphabet(half)
    cost = (shape.weight * (shape.x[:, None] - alphabet) ** 2).reshape(-1)
    floors = np.zeros(shape.half)
    used = np.ones(shape.outputs, dtype=bool)
    for _ in range(2):
        top = np.concatenate([np.tile(np.where(used, 1.0, 0.0), shape.rows), floors + 1.0])
        found = _scipy().linprog(
            np.concatenate([cost, floors]), A_ub=-shape.private, b_ub=np.zeros(2 * shape.cells),
            A_eq=np.hstack(
                [np.vstack([shape.sums, shape.means(alphabet)]), np.zeros((2 * shape.rows, shape.half))]
            ),
            b_eq=np.concatenate([np.ones(shape.rows), shape.x]),
            bounds=np.stack([np.zeros_like(top), top], axis=1), method="highs",
            options={"primal_feasibility_tolerance": 1e-10},
        )  # fmt: skip
        if found.status != 0:
            return None
        first = np.asarray(found.x[: shape.cells], dtype=np.float64).reshape(shape.rows, -1)
        inputs = 2 * shape.rows - (shape.weight[-1] < shape.weight[0]).item()
        channel = np.vstack([first, first[: inputs - shape.rows][::-1, ::-1]])
        used = channel.max(axis=0) > UNUSED
    return np.where(used, np.clip(channel, 0.0, None), 0.0)


def _rounded(channel: Floats) -> NDArray[np.int64]:
    """Rows in units of 2^-32 that add up exactly; the remainder goes to the largest count."""
    counts = np.rint(channel / channel.sum(axis=1, keepdims=True) * RANGE).astype(np.int64)
    largest = counts.argmax(axis=1)
    counts[np.arange(len(counts)), largest] += RANGE - counts.sum(axis=1)
    return counts


def _scipy() -> Any:
    try:
        from scipy import optimize
    except ImportError as error:
        raise MissingExtra(
            "MVU with more than one bit needs SciPy to design its channel: "
            "pip install 'hushbit[lab]', or use bits=1"
        ) from error
    return optimize
