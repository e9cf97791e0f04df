"""The paper's two theorems as formulas: as published, corrected, and exact where that is known.

Notation: M blocks, K users, points q_1 ... q_N, beta = 2p - 1, Q = sum |q|^2 and Qc the same
around the points' mean.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.cpa import CPA

Floats = NDArray[np.float64]


def published_moment(mechanism: CPA) -> float:
    """sigma^2 as printed: (1/L) int |x|^2 / V^(2/L) over the basic cell: D V^(1 - 2/L) / L."""
    lattice = mechanism.quantizer.points.lattice
    return float(lattice.second_moment * lattice.volume ** (1 - 2 / lattice.dim) / lattice.dim)


def published_term(mechanism: CPA) -> float:
    """Bracket of Theorem 1 as published: Q / beta^2 + sigma^2."""
    return _energy(mechanism, centred=False) / _beta(mechanism) ** 2 + published_moment(mechanism)


def corrected_term(mechanism: CPA) -> float:
    """Bracket that holds for balanced words and stochastic rounding: (1 - 1/N) Qc / beta^2."""
    share = 1 - 1 / mechanism.quantizer.points.size
    return share * _energy(mechanism, centred=True) / _beta(mechanism) ** 2


def distortion_bound(term: float, blocks: int, users: int) -> float:
    """Theorem 1: E|w_CPA - w_FA|^2 <= (M / K) term."""
    return blocks / users * term


def exact_distortion(mechanism: CPA, updates: Floats) -> float:
    """E|estimate - mean|^2 for these updates: sum of (1-1/N) Qc / beta^2 - |x - qbar|^2 over K^2.

    Exact for even N with stochastic rounding and no block beyond the unbiased radius.
    """
    users, blocks = len(updates), mechanism.blocks
    padded = np.zeros((users, blocks * mechanism.block_size))
    padded[:, : mechanism.dim] = updates
    centre = mechanism.quantizer.points.positions.mean(axis=0)
    places = padded.reshape(users, blocks, mechanism.block_size) - centre
    return (users * blocks * corrected_term(mechanism) - float(np.sum(places**2))) / users**2


@dataclass(frozen=True)
class Convexity:
    """What Theorem 2 needs to know of a problem.

    smooth, convex  rho_s and rho_c of every user's objective
    gradient        mean over users of xi_r^2, which bounds E|gradient of a sample|^2
    gap             heterogeneity psi = F(w*) - mean of the users' own minima
    start           |w_0 - w*|^2
    """

    smooth: float
    convex: float
    gradient: float
    gap: float
    start: float


def step_offset(problem: Convexity, steps: int) -> float:
    """phi = tau max(1, 4 rho_s / rho_c)."""
    return steps * max(1.0, 4 * problem.smooth / problem.convex)


def step_size(problem: Convexity, steps: int, t: int) -> float:
    """eta_t = tau / (rho_c (t + phi)), with t counting local steps."""
    return steps / (problem.convex * (t + step_offset(problem, steps)))


def convergence_bound(
    problem: Convexity, *, steps: int, users: int, blocks: int, scale: float, term: float, t: int
) -> float:
    """Theorem 2: rho_s / (2 (t + phi)) max((rho_c^2 + tau^2 b) / (tau rho_c^2), phi |w_0 - w*|^2).

    `term` is the bracket of Theorem 1 for points at unit scale and `scale` the constant C with
    zeta_t^2 <= C eta_t^2; term = 0 is local SGD without compression or privacy.
    """
    noise = blocks * scale * term + problem.gradient
    noise += 8 * (steps - 1) ** 2 * users * problem.gradient
    b = noise / users + 6 * problem.smooth * problem.gap
    offset = step_offset(problem, steps)
    first = (problem.convex**2 + steps**2 * b) / (steps * problem.convex**2)
    return problem.smooth / (2 * (t + offset)) * max(first, offset * problem.start)


def _energy(mechanism: CPA, centred: bool) -> float:
    positions = mechanism.quantizer.points.positions
    return float(np.sum((positions - positions.mean(axis=0) * centred) ** 2))


def _beta(mechanism: CPA) -> float:
    return float(mechanism.stages[0].response.beta)
