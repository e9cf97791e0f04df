"""Baselines with Laplace noise: what `guarantee` states, compared with the law of their draws.

They draw noise as integers, by comparisons of 32-bit words with integer thresholds, and add it to
an integer. No probability depends on floating-point arithmetic that an output could reveal (Mironov
2012), so no delta is lost by sampling, and a pure epsilon may be stated.
"""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

import hushbit as hb
from hushbit.baselines import FedAvg, JoPEQ, Laplace, WholeLaplace
from hushbit.baselines.jopeq import dithered_levels
from hushbit.baselines.laplace import FINE_GRID, GRID
from hushbit.kernels.chacha import keystream
from hushbit.kernels.encode import DITHER_TAG
from hushbit.mechanism import Mechanism
from noise_law import law, log_law

KEY = hb.RoundKey(bytes(range(32)), 5)
SCALE = 0.8
EPSILONS = (0.1, 0.5, 2.0, 8.0)
DELTAS = (1e-2, 1e-5)
TOLERANCE = 1e-9


def steps_of(mechanism: Mechanism, update: NDArray[np.float64]) -> NDArray[np.int32]:
    """The grid steps that encode an update without noise, for many roundings."""
    rows = np.tile(update, (400, 1))
    keys = KEY.users(np.arange(len(rows)))
    payload, _ = mechanism.encode_payload(rows, keys, hb.SeededCoins(2).keys(keys))
    return payload.view("<i4")


def worst_updates(dim: int) -> NDArray[np.float64]:
    """Zero, corners, values beyond the clip, and values between grid steps."""
    ones, signs = np.ones(dim), (-1.0) ** np.arange(dim)
    sizes = (0.0, 1e-9, 1 / 3, 1 - 1e-15, 1.0, 1 + 1e-15, 7.0, 1e300)
    return np.array([s * SCALE * v for s in sizes for v in (ones, -ones, signs, np.eye(dim)[0])])


def noise_range(mechanism: Laplace | JoPEQ) -> NDArray[np.int64]:
    """Values of the noise that are missed with a probability below 1e-15."""
    noise = mechanism.noise if isinstance(mechanism, Laplace) else mechanism.code.noise
    reach = math.ceil(36 / noise.rate)
    return np.arange(-reach, reach + 1)


def delta_at(epsilon: float, one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum())


def test_the_law_of_many_values_is_the_exact_one() -> None:
    noise = Laplace(1, 0.5, SCALE).noise
    values = np.array([0, 1, -1, 2, 77, -8191, 8192, 100_000])
    exact = [math.log(law(noise, int(value))) for value in values]
    assert log_law(noise, values) == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("dim", [1, 3])
def test_an_encoded_entry_is_one_of_the_steps_that_the_noise_covers(dim: int) -> None:
    silent = Laplace(dim, math.inf, SCALE)
    for update in worst_updates(dim):
        assert np.abs(steps_of(silent, update)).max() <= GRID
    assert Laplace(dim, 0.5, SCALE).noise.sensitivity == 2 * GRID


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_laplace(epsilon: float) -> None:
    """Pure epsilon, and (epsilon, delta), of the two entries that differ most."""
    mechanism = Laplace(1, epsilon, SCALE)
    values = noise_range(mechanism)
    chances = log_law(mechanism.noise, values)
    worst = max(
        np.abs(chances[shift:] - chances[:-shift]).max() for shift in (1, 63, GRID, 2 * GRID)
    )
    stated = mechanism.guarantee
    assert 0.999 * epsilon - 1e-6 < worst <= stated.epsilon_per_message() + TOLERANCE
    assert np.exp(chances).sum() == pytest.approx(1, abs=1e-9)
    one, other = np.exp(chances[: -2 * GRID]), np.exp(chances[2 * GRID :])
    for delta in DELTAS:
        assert delta_at(stated.epsilon_per_message(delta), one, other) <= delta * (1 + TOLERANCE)


@pytest.mark.parametrize("options", [{}, {"mode": "moment"}, {"preset": "authors"}, {"levels": 2}])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_jopeq(epsilon: float, options: dict[str, str | int]) -> None:
    """The levels that a server sees, which knows the dither, stay within the stated epsilon."""
    mechanism = JoPEQ(1, epsilon, SCALE, **options)
    code, values = mechanism.code, noise_range(mechanism)
    chances = np.exp(log_law(code.noise, values))
    stated = mechanism.guarantee
    dither, symbols = np.empty(1, np.uint32), np.empty(values.size, np.uint32)
    for user in range(5):
        keystream(KEY.users([user]).keys[0], DITHER_TAG, 0, 0, 0, dither)
        laws = []
        for step in (-GRID, -GRID // 3, 0, GRID):
            spread = np.broadcast_to(dither, values.shape)
            dithered_levels(values + step, 1 / (GRID * code.cell), spread, code.levels, symbols)
            laws.append(np.bincount(symbols, chances, code.levels))
        seen = np.array(laws)
        losses = np.log(seen[:, None] / seen)
        assert losses[:, :, seen.min(axis=0) > 1e-6].max() <= stated.epsilon_per_bit + TOLERANCE
        for delta in DELTAS:
            at = stated.epsilon_per_message(delta)
            assert max(delta_at(at, p, q) for p in seen for q in seen) <= delta * (1 + TOLERANCE)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 8.0])
def test_whole_laplace(epsilon: float, dim: int) -> None:
    """Two updates are at most as far apart as the noise covers, and no further in log-law."""
    mechanism, silent = WholeLaplace(dim, epsilon, SCALE), WholeLaplace(dim, math.inf, SCALE)
    noise = mechanism.noise
    encoded = np.array([steps_of(silent, update) for update in worst_updates(dim)], np.int64)
    # Both updates have the same rounding draws: they are public in the worst case.
    gaps = np.abs(encoded[:, None] - encoded).sum(axis=3)
    assert 2 * FINE_GRID * (1 - 1e-6) < gaps.max() <= noise.sensitivity
    assert noise.realised_epsilon <= mechanism.guarantee.epsilon_per_message()
    far = np.unravel_index(gaps.argmax(), gaps.shape)
    gap = encoded[far[0], far[2]] - encoded[far[1], far[2]]
    values = np.random.default_rng(0).integers(-(2**30), 2**30, (200_000, dim))
    values[:1000] = np.random.default_rng(1).integers(-3, 4, (1000, dim)) * FINE_GRID
    losses = (log_law(noise, values) - log_law(noise, values + gap)).sum(axis=1)
    assert 0.99 * epsilon < np.abs(losses).max() <= epsilon + TOLERANCE


def test_the_epsilon_of_large_messages_is_that_of_the_rounded_thresholds() -> None:
    for dim in (1, 1000, 10**6, 10**7):
        for epsilon in (0.5, 1.0, 30.0, 900.0):
            noise = WholeLaplace(dim, epsilon, SCALE).noise
            assert noise.realised_epsilon <= epsilon


def test_mechanisms_without_a_proof_state_an_infinite_epsilon() -> None:
    for mechanism in (FedAvg(3), Laplace(3, 0.5, preset="authors")):
        assert mechanism.guarantee.epsilon_per_message(1e-2) == math.inf
        assert mechanism.guarantee.rho is None
