"""Clip and server rate under a budget: the rule, and where it is applied."""

import math

import numpy as np
import pytest

from hushbit.baselines import Gaussian
from hushbit.cpa import CPA
from hushbit.lab.sim.clip_and_rate import noise_norm, private_clip, private_server_rate
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import build_setup
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey
from hushbit.wrappers import Rotated

BUDGET = {"epsilon": 4.0, "delta": 1e-5, "per": "run", "against": "model"}
SMALL = Settings(**BUDGET, users=40, rounds=4)


@pytest.mark.parametrize(
    "mechanism", [Rotated(CPA(512, 0.5, 0.2, clip=1.0)), Gaussian(512, 4.0, clip=1.0)]
)
def test_the_noise_norm_is_that_of_estimates(mechanism) -> None:
    users, norms = 30, []
    for number in range(20):
        key = RoundKey(bytes(32), number)
        tally = mechanism.tally(key)
        zeros = np.zeros((users, 512), np.float32)
        tally.add_many(mechanism.encode_many(zeros, key.users(range(users)), SeededCoins(number)))
        options = {"coins": SeededCoins(number)} if mechanism.server_noise else {}
        norms.append(np.linalg.norm(mechanism.estimate(tally, **options).mean))
    assert np.sqrt(np.mean(np.square(norms))) == pytest.approx(
        noise_norm(mechanism, users), rel=0.05
    )


def test_the_rate_falls_with_clip_noise_and_rounds_alike() -> None:
    rate = private_server_rate(0.3, 0.4, 100, 25)
    assert rate == pytest.approx(8 / (0.5 * 10))
    assert private_server_rate(0.6, 0.8, 100, 25) == pytest.approx(rate / 2)
    assert private_server_rate(0.3, 0.4, 400, 25) == pytest.approx(rate / 2)


def test_the_rate_is_limited_where_there_is_little_noise() -> None:
    limit = 4 / (0.5 * 5)
    assert private_server_rate(0.5, 0.0, 1, 25) == pytest.approx(limit)
    assert private_server_rate(0.5, 0.0, 100, 25) == pytest.approx(limit)
    assert private_server_rate(0.5, 1.0, 100, 25) < limit


@pytest.mark.parametrize("mechanism", ["cpa", "gaussian", "cpa-auto"])
def test_runs_under_a_budget_follow_the_rule(mechanism) -> None:
    setup = build_setup(_with(mechanism=mechanism))
    noise = noise_norm(setup.mechanism, 40)
    assert setup.server.rate == private_server_rate(setup.mechanism.clip, noise, 4, 5)
    slower = build_setup(_with(mechanism=mechanism, rate=0.25))
    assert slower.mechanism.clip == pytest.approx(setup.mechanism.clip / 2, rel=1e-3)
    assert slower.server.rate == pytest.approx(2 * setup.server.rate, rel=1e-3)


def test_the_clip_is_a_share_of_the_simulated_norm() -> None:
    assert private_clip(2.0) == pytest.approx(0.4)
    assert build_setup(_with(clip=0.7)).mechanism.clip == 0.7


def test_other_runs_have_rate_1_unless_it_is_given() -> None:
    assert build_setup(Settings(users=4, mechanism="fedavg")).server.rate == 1.0
    assert build_setup(_with(server_rate=0.3)).server.rate == 0.3
    assert build_setup(_with(server="adam")).server.rate == 1.0
    assert build_setup(Settings(users=4, epsilon_per_bit=1.0)).server.rate == 1.0


def test_the_rate_of_the_rule_stays_open_in_stored_settings() -> None:
    assert SMALL.resolved().server_rate is None
    assert Settings(users=4, epsilon_per_bit=1.0).resolved().server_rate == 1.0
    assert not math.isnan(build_setup(SMALL).server.rate)


def _with(**options) -> Settings:
    return Settings(**(BUDGET | {"users": 40, "rounds": 4} | options))
