"""Mechanisms calibrated to a whole-message budget spend it, encode and decode without bias."""

import math

import numpy as np
import pytest

import hushbit as hb
from hushbit.encoding.clip_and_rotate import Rotation
from hushbit.errors import InvalidInput
from hushbit.privacy.accountant import Limit, within_limit
from hushbit.tuning.calibrate import best_subset, calibrate, rotated_radius

DIMS = (1, 3, 100, 7850)
EPSILONS = (0.1, 1.0, 4.0, 7.0, 16.0)
DELTAS, RADII = (1e-9, 1e-5, 1e-2), (0.1, 1.0, 5.0)
# Every pair of values of two parameters occurs, and every value with each rule that can bound it:
# composition of bits, or zCDP of the clipped update. The first case is that of bits at radius 5.
BUDGETS = [
    (1, 16.0, 1e-9, 5.0),
    *(
        (dim, epsilon, DELTAS[(i + j) % 3], RADII[(i + 2 * j + j // 3) % 3])
        for i, dim in enumerate(DIMS)
        for j, epsilon in enumerate(EPSILONS)
    ),
]


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("rotate", [False, True])
def test_a_pure_budget_is_spent_and_never_exceeded(dim: int, epsilon: float, rotate: bool) -> None:
    made = calibrate(dim, epsilon, 0.0, clip=1.0, rotate=rotate)
    spent = made.guarantee.epsilon_per_message()
    assert epsilon * (1 - 1e-12) <= spent <= epsilon
    assert made.payload_bits == min(dim, best_subset(epsilon))
    assert within_limit([made.guarantee.cost], Limit(epsilon, 0.0))


@pytest.mark.parametrize(("dim", "epsilon", "delta", "radius"), BUDGETS)
def test_a_budget_with_delta_is_spent_and_never_exceeded(
    dim: int, epsilon: float, delta: float, radius: float
) -> None:
    made = calibrate(dim, epsilon, delta, clip=1.0, radius=radius)
    spent = made.guarantee.epsilon_per_message(delta)
    assert epsilon * (1 - 1e-6) <= spent <= epsilon
    assert made.payload_bits == dim


def test_a_million_entries_are_calibrated() -> None:
    made = calibrate(10**6, 4.0, 1e-5, clip=1.0, rotate=True)
    assert 4.0 * (1 - 1e-6) <= made.guarantee.epsilon_per_message(1e-5) <= 4.0


def test_epsilon_per_bit_is_capped_at_the_resolution_of_coins() -> None:
    made = calibrate(2, 500.0, 1e-5, clip=1.0, radius=10.0)
    assert made.guarantee.epsilon_per_bit == 64.0
    assert made.guarantee.epsilon_per_message(1e-5) <= 500.0


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("rotate", [False, True])
def test_ballots_are_serialized_and_counted(
    delta: float, rotate: bool, round_key: hb.RoundKey
) -> None:
    made = calibrate(50, 4.0, delta, clip=1.0, rotate=rotate)
    update = np.full(50, 0.1)
    ballot = made.encode(update, round_key.user(1))
    again = hb.Ballot.from_bytes(ballot.to_bytes())
    tally = made.tally(round_key)
    tally.add(again)
    assert made.estimate(tally).mean.shape == (50,)
    assert again.to_bytes() == ballot.to_bytes()


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("rotate", [False, True])
def test_the_mean_is_unbiased(delta: float, rotate: bool, round_key: hb.RoundKey) -> None:
    """5 standard errors over 20 entries: one false alarm in 1e5 seeds, and the seed is fixed."""
    made = calibrate(20, 4.0, delta, clip=1.0, rotate=rotate)
    update = np.linspace(-0.3, 0.3, 20)
    users = 4000
    tally = made.tally(round_key)
    updates = np.tile(update, (users, 1))
    tally.add_many(made.encode_many(updates, round_key.users(range(users)), hb.SeededCoins(5)))
    found = made.estimate(tally)
    assert np.abs((found.mean - update) / np.sqrt(found.variance)).max() < 5
    assert found.unbiased


@pytest.mark.parametrize("dim", [1, 2, 100, 4097, 20_000])
def test_rotated_entries_stay_within_their_radius(dim: int) -> None:
    radius = rotated_radius(dim, 2.0)
    assert radius <= 2.0
    spike, flat = np.zeros(dim), np.full(dim, 2.0 / math.sqrt(dim))
    spike[-1] = 2.0
    for key in range(20):
        turned = Rotation(dim, bytes([key]) * 32).apply(np.stack([spike, flat]))
        assert np.abs(turned).max() <= radius * (1 + 1e-6)


def test_a_smaller_radius_never_adds_noise_at_the_same_budget() -> None:
    wide, narrow = (calibrate(4096, 8.0, 1e-5, clip=1.0, rotate=r) for r in (False, True))

    def noise(mechanism: hb.Mechanism) -> float:
        beta = math.tanh(mechanism.guarantee.epsilon_per_bit / 2)
        return float(mechanism.unbiased_radius / beta)  # type: ignore[attr-defined]

    assert noise(narrow) < noise(wide)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"epsilon": "4"},
        {"delta": 1.0},
        {"delta": -1e-5},
        {"delta": math.nan},
        {"dim": 0},
        {"dim": 2.5},
        {"dim": True},
        {"clip": 0.0},
        {"clip": math.inf},
        {"clip": None},
        {"radius": -1.0},
        {"radius": math.nan},
        {"rotate": 1},
        {"clip": None, "delta": 0.0},
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, object]) -> None:
    usual = {"dim": 10, "epsilon": 4.0, "delta": 1e-5, "clip": 1.0}
    with pytest.raises(InvalidInput):
        calibrate(**(usual | wrong))  # type: ignore[arg-type]
