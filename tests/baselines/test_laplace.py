"""Laplace: variance of the specification, unbiasedness, WholeLaplace, preset "authors"."""

import math

import numpy as np
import pytest

from hushbit.baselines.fedavg import FedAvg
from hushbit.baselines.laplace import Laplace, WholeLaplace
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey

KEY = RoundKey(secret=bytes(32), round=1)


def one_mean(mechanism, update, seed=1):
    tally = mechanism.tally(KEY)
    tally.add(mechanism.encode(update, KEY.user(0), SeededCoins(seed)))
    return mechanism.estimate(tally)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0])
def test_variance_and_mean_of_the_specification(epsilon):
    scale, size = 0.3, 400_000
    mechanism = Laplace(size, epsilon, scale)
    estimate = one_mean(mechanism, np.full(size, 0.5 * scale))
    wanted = 8 / epsilon**2 * scale**2
    assert estimate.variance[0] == pytest.approx(wanted, rel=1e-5)
    # The sample variance of Laplace noise has relative deviation sqrt(5/size) = 0.35 %.
    assert estimate.mean.var() == pytest.approx(wanted, rel=0.018)
    assert estimate.mean.mean() == pytest.approx(0.5 * scale, abs=5 * math.sqrt(wanted / size))


def test_realised_epsilon_and_units():
    mechanism = Laplace(100, 0.5, 0.3)
    assert mechanism.noise.realised_epsilon <= 0.5
    assert mechanism.noise.sensitivity == 2 * 4096
    assert mechanism.guarantee.epsilon_per_bit == 0.5
    assert mechanism.guarantee.epsilon_per_message() == 50
    assert mechanism.guarantee.epsilon_per_run(10) == 500
    assert mechanism.guarantee.unit == "entry"


def test_without_noise_only_clipping_and_the_grid_remain():
    update = np.array([0.1, -0.2, 5.0, -5.0, 0.0])
    estimate = one_mean(Laplace(5, math.inf, 0.25), update)
    assert np.abs(estimate.mean - np.clip(update, -0.25, 0.25)).max() <= 0.25 / 4096
    ballot = Laplace(5, math.inf, 0.25).encode(update, KEY.user(0))
    assert ballot.overloaded == 2


def test_noise_and_clip_of_whole_laplace():
    size, clip, epsilon = 100_000, 2.0, 20.0
    mechanism = WholeLaplace(size, epsilon, clip)
    assert mechanism.guarantee.epsilon_per_message() == epsilon
    assert mechanism.noise.sensitivity >= 2 * 2**20 + size
    update = np.full(size, 2 * clip / size)  # l1 norm 2 clip: halved
    estimate = one_mean(mechanism, update)
    wanted = 2 * (2 * clip / epsilon) ** 2
    assert estimate.mean.var() == pytest.approx(wanted, rel=0.15)  # the grid adds 4.8 %
    assert estimate.variance[0] == pytest.approx(estimate.mean.var(), rel=0.05)
    free = WholeLaplace(4, math.inf, 1.0)
    got = one_mean(free, np.array([3.0, -1.0, 0.0, 0.0])).mean
    assert np.abs(got - [0.75, -0.25, 0, 0]).max() < 3e-6
    assert one_mean(free, np.full(4, 1e308)).mean == pytest.approx(0.25, abs=3e-6)


def test_preset_authors_scales_with_each_layer_and_has_no_finite_epsilon():
    sizes = (150_000, 150_000)
    mechanism = Laplace(sum(sizes), 1.0, preset="authors", layers=sizes)
    rng = np.random.default_rng(2)
    update = np.concatenate([rng.normal(0.2, 0.1, sizes[0]), rng.normal(0, 0.01, sizes[1])])
    noise = one_mean(mechanism, update).mean - update
    for part, deviation in ((noise[: sizes[0]], 0.1), (noise[sizes[0] :], 0.01)):
        assert part.std() == pytest.approx(math.sqrt(2) * 6 * deviation / 1.0, rel=0.02)
    assert mechanism.guarantee.epsilon_per_message() == math.inf


def test_fedavg_is_the_mean():
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(50, 33)).astype(np.float32)
    mechanism = FedAvg(33)
    tally = mechanism.tally(KEY)
    tally.add_many(mechanism.encode_many(updates, KEY.users(range(50))))
    estimate = mechanism.estimate(tally)
    exact = updates.astype(np.float64).mean(axis=0)
    assert np.abs(estimate.mean - exact).max() < 1e-14
    assert estimate.unbiased
    assert not estimate.variance.any()
    assert len(mechanism.encode(updates[0], KEY.user(0)).payload) == 4 * 33
