"""The optimisation behind `mvu_design`: alphabet by joint descent, channel by linear program.

Unknowns are the first half of the rows of P, the column floors m_j and half the alphabet, each
symmetric to the other half. Lengths are measured from 1/2 in units of the one-bit alphabet.
"""

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import MissingExtra

UNUSED = 1e-6
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Problem:
    """n inputs, B outputs and the level that their channel must keep."""

    inputs: int
    outputs: int
    epsilon: float

    @property
    def rows(self) -> int:
        """Rows that symmetry leaves to be found."""
        return (self.inputs + 1) // 2

    @property
    def half(self) -> int:
        """Outputs that symmetry leaves to be found."""
        return self.outputs // 2

    @property
    def cells(self) -> int:
        """Unknown entries of the channel."""
        return self.rows * self.outputs

    @cached_property
    def unit(self) -> float:
        """From one end of the one-bit alphabet to the other, 1 + 2 / (e^eps - 1)."""
        return 1 + 2 / math.expm1(self.epsilon)

    @cached_property
    def x(self) -> Floats:
        """The inputs of the unknown rows."""
        return (np.linspace(0.0, 1.0, self.inputs)[: self.rows] - 0.5) / self.unit

    @cached_property
    def weight(self) -> Floats:
        """What each row counts in the mean: twice, except the middle one."""
        weight = np.full((self.rows, 1), 2.0 / self.inputs)
        weight[-1] /= 1 + self.inputs % 2
        return weight

    @cached_property
    def mirror(self) -> Floats:
        """The matrix from half an alphabet to the whole."""
        return np.vstack([np.eye(self.half), -np.eye(self.half)[::-1]])

    @cached_property
    def private(self) -> Floats:
        """Rows that must not be negative: P_ij - m_j and e^eps m_j - P_ij."""
        spread = np.kron(np.ones((self.rows, 1)), np.abs(self.mirror))
        one, ratio = np.eye(self.cells), math.exp(self.epsilon)
        return np.vstack([np.hstack([one, -spread]), np.hstack([-one, ratio * spread])])

    @cached_property
    def sums(self) -> Floats:
        """The matrix from a flattened channel to its row sums."""
        return self.means(np.ones(self.outputs))

    def means(self, alphabet: Floats) -> Floats:
        """The matrix from a flattened channel to the mean output of each row."""
        return np.asarray(np.kron(np.eye(self.rows), alphabet[None]), dtype=np.float64)

    def starts(self) -> list[Floats]:
        """Half alphabets to start from: the inputs' range, the far ends, and half of each."""
        near = (np.linspace(0.0, 1.0, self.outputs)[: self.half] - 0.5) / self.unit
        far = -0.5 * np.linspace(1.15, 0.75, self.half)
        mixed = np.where(np.arange(self.half) < (self.half + 1) // 2, far, 0.5 * near)
        return [near, far, mixed]


@dataclass(frozen=True, eq=False)
class Descent:
    """The variance as a function of v = (channel, floors, half alphabet), with derivatives."""

    problem: Problem

    def split(self, v: Floats) -> tuple[Floats, Floats]:
        """The channel and the whole alphabet."""
        p = self.problem
        return v[: p.cells].reshape(p.rows, -1), p.mirror @ v[p.cells + p.half :]

    def value(self, v: Floats) -> tuple[float, Floats]:
        """Mean variance and its gradient."""
        p = self.problem
        channel, alphabet = self.split(v)
        gap = p.x[:, None] - alphabet
        slope = (-2 * p.weight * channel * gap).sum(axis=0) @ p.mirror
        parts = ((p.weight * gap**2).reshape(-1), np.zeros(p.half), slope)
        return float((p.weight * channel * gap**2).sum()), np.concatenate(parts)

    def cross(self, factor: Floats) -> Floats:
        """The Hessian of sum_ij factor_ij P_ij alpha_j."""
        p = self.problem
        matrix = np.zeros((p.cells + 2 * p.half,) * 2)
        block = (factor[:, :, None] * p.mirror).reshape(p.cells, p.half)
        matrix[: p.cells, p.cells + p.half :] = block
        matrix[p.cells + p.half :, : p.cells] = block.T
        return matrix

    def curvature(self, v: Floats) -> Floats:
        """The Hessian of the mean variance."""
        p = self.problem
        channel, alphabet = self.split(v)
        matrix = self.cross(-2 * p.weight * (p.x[:, None] - alphabet))
        inner = 2 * (p.weight * channel).sum(axis=0)[:, None] * p.mirror
        matrix[p.cells + p.half :, p.cells + p.half :] = p.mirror.T @ inner
        return matrix

    def bias(self, v: Floats) -> Floats:
        """Mean output less input."""
        channel, alphabet = self.split(v)
        return np.asarray(channel @ alphabet - self.problem.x)

    def bias_slope(self, v: Floats) -> Any:
        """The Jacobian of the bias."""
        p = self.problem
        channel, alphabet = self.split(v)
        parts = [p.means(alphabet), np.zeros((p.rows, p.half)), channel @ p.mirror]
        return _scipy()[1].csr_matrix(np.hstack(parts))

    def bias_curvature(self, v: Floats, dual: Floats) -> Floats:
        """The Hessian of the bias, weighted by the multipliers."""
        return self.cross(np.repeat(dual[:, None], self.problem.outputs, axis=1))


def best_alphabet(problem: Problem, start: Floats) -> Floats:
    """Half an alphabet by joint descent from the uniform channel and a first alphabet."""
    optimize, sparse = _scipy()
    p, descent = problem, Descent(problem)
    linear = np.zeros((2 * p.cells + p.rows, p.cells + 2 * p.half))
    linear[: 2 * p.cells, : p.cells + p.half] = p.private
    linear[2 * p.cells :, : p.cells] = p.sums
    low = np.concatenate([np.zeros(2 * p.cells), np.ones(p.rows)])
    high = np.concatenate([np.full(2 * p.cells, np.inf), np.ones(p.rows)])
    floors = np.full(p.half, 0.9 / p.outputs)
    least = np.concatenate([np.zeros(p.cells + p.half), np.full(p.half, -np.inf)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the solver warns of steps that it then rejects
        found = optimize.minimize(
            descent.value, np.concatenate([np.full(p.cells, 1 / p.outputs), floors, start]),
            jac=True, hess=descent.curvature, method="trust-constr",
            constraints=[
                optimize.LinearConstraint(sparse.csr_matrix(linear), low, high),
                optimize.NonlinearConstraint(
                    descent.bias, 0, 0, jac=descent.bias_slope, hess=descent.bias_curvature
                ),
            ],
            bounds=optimize.Bounds(least, np.inf),
            options={"maxiter": 300, "gtol": 1e-6, "xtol": 1e-8},
        )  # fmt: skip
    return np.sort(np.asarray(found.x[p.cells + p.half :], dtype=np.float64))


def best_channel(problem: Problem, half: Floats) -> Floats | None:
    """The best channel for an alphabet; outputs that are hardly used are left out."""
    p = problem
    used = np.ones(p.outputs, dtype=bool)
    for _ in range(2):
        found = _program(p, p.mirror @ half, used)
        if found.status != 0:
            return None
        first = np.asarray(found.x[: p.cells], dtype=np.float64).reshape(p.rows, -1)
        channel = np.vstack([first, first[: p.inputs - p.rows][::-1, ::-1]])
        used = channel.max(axis=0) > UNUSED
        if used.all():
            break
    return np.where(used, np.clip(channel, 0.0, None), 0.0)


def _program(p: Problem, alphabet: Floats, used: NDArray[np.bool_]) -> Any:
    optimize, sparse = _scipy()
    equal = np.zeros((2 * p.rows, p.cells + p.half))
    equal[:, : p.cells] = np.vstack([p.sums, p.means(alphabet)])
    cost = (p.weight * (p.x[:, None] - alphabet) ** 2).reshape(-1)
    top = np.concatenate([np.tile(used.astype(np.float64), p.rows), np.ones(p.half)])
    return optimize.linprog(
        np.concatenate([cost, np.zeros(p.half)]),
        A_ub=sparse.csr_matrix(-p.private), b_ub=np.zeros(2 * p.cells),
        A_eq=sparse.csr_matrix(equal), b_eq=np.concatenate([np.ones(p.rows), p.x]),
        bounds=np.stack([np.zeros_like(top), top], axis=1), method="highs",
        options={"primal_feasibility_tolerance": 1e-10},
    )  # fmt: skip


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        raise MissingExtra(
            "MVU with more than one bit needs SciPy to design its channel: "
            "pip install 'hushbit[lab]', or use bits=1"
        ) from error
    return optimize, sparse
