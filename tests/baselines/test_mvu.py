"""MVU: the closed form is optimal, and the estimate is unbiased with the stated variance."""

import math

import numpy as np
import pytest
from scipy import optimize

from hushbit.baselines.mvu import MVU
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey

KEY = RoundKey(secret=bytes(32), round=1)


def least_variance(epsilon: float, x: np.ndarray, alphabet: np.ndarray) -> float:
    """The linear program of the paper: the best private unbiased channel for an alphabet.

    Unknowns are P(j | x_i), flattened, and the least probability m_j of each output.
    """
    inputs, outputs = len(x), len(alphabet)
    spread = np.kron(np.ones((inputs, 1)), np.eye(outputs))
    cells = np.eye(inputs * outputs)
    private = [np.hstack([-cells, spread]), np.hstack([cells, -math.exp(epsilon) * spread])]
    rows = [np.kron(np.eye(inputs), line) for line in (np.ones(outputs), alphabet)]
    cost = ((x[:, None] - alphabet) ** 2).ravel() / inputs
    found = optimize.linprog(
        np.concatenate([cost, np.zeros(outputs)]),
        A_ub=np.vstack(private),
        b_ub=np.zeros(2 * cells.shape[0]),
        A_eq=np.hstack([np.vstack(rows), np.zeros((2 * inputs, outputs))]),
        b_eq=np.concatenate([np.ones(inputs), x]),
    )
    assert found.status == 0
    return float(found.fun)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_the_closed_form_of_one_bit_is_optimal(epsilon):
    a, x = 1 / math.expm1(epsilon), np.linspace(0, 1, 8)
    closed = ((x + a) * (1 + a - x)).mean()
    alphabet = np.array([-a, 1 + a])
    assert least_variance(epsilon, x, alphabet * (1 + 1e-9)) == pytest.approx(closed, rel=1e-6)
    assert least_variance(epsilon, x, 0.5 + 1.1 * (alphabet - 0.5)) > closed * 1.01
    tally = (mechanism := MVU(1, epsilon, 1.0)).tally(KEY)
    tally.add(mechanism.encode([0.3], KEY.user(0), SeededCoins(1)))
    estimate = mechanism.estimate(tally)
    assert abs(estimate.mean[0]) == pytest.approx(1 + 2 * a, rel=1e-8)
    assert estimate.variance[0] == pytest.approx(4 * (0.5 + a) ** 2, rel=1e-8)


def test_mean_over_uniform_inputs_matches_the_reference_column():
    """1/beta² - 1/3 for one bit, on z uniform in [-1, 1]."""
    size, epsilon = 300_000, 1.0
    z = np.linspace(-1, 1, size)
    mechanism = MVU(size, epsilon, 1.0)
    tally = mechanism.tally(KEY)
    tally.add(mechanism.encode(z, KEY.user(0), SeededCoins(1)))
    error = mechanism.estimate(tally).mean - z
    assert (error**2).mean() == pytest.approx(4.349, rel=0.01)
    for part in np.split(error, 10):  # everywhere, not only on average
        assert abs(part.mean()) < 5 * part.std() / math.sqrt(part.size)
