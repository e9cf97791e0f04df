"""Calibrated mechanisms spend their budget and no more, encode, and decode without bias."""

import math

import numpy as np
import pytest

import hushbit as hb
from hushbit.encoding.clip_and_rotate import Rotation
from hushbit.errors import InvalidInput
from hushbit.privacy.accountant import Limit, within_limit
from hushbit.tuning.calibrate import best_subset, calibrate, calibrate_message, rotated_radius

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
    made = calibrate_message(dim, epsilon, 0.0, clip=1.0, rotate=rotate)
    spent = made.guarantee.epsilon_per_message()
    assert epsilon * (1 - 1e-12) <= spent <= epsilon
    assert made.payload_bits == min(dim, best_subset(epsilon))
    assert within_limit([made.guarantee.cost], Limit(epsilon, 0.0))


@pytest.mark.parametrize(("dim", "epsilon", "delta", "radius"), BUDGETS)
def test_a_budget_with_delta_is_spent_and_never_exceeded(
    dim: int, epsilon: float, delta: float, radius: float
) -> None:
    made = calibrate_message(dim, epsilon, delta, clip=1.0, radius=radius)
    spent = made.guarantee.epsilon_per_message(delta)
    assert epsilon * (1 - 1e-6) <= spent <= epsilon
    assert made.payload_bits == dim


def test_a_million_entries_are_calibrated() -> None:
    made = calibrate_message(10**6, 4.0, 1e-5, clip=1.0, rotate=True)
    assert 4.0 * (1 - 1e-6) <= made.guarantee.epsilon_per_message(1e-5) <= 4.0


def test_epsilon_per_bit_is_capped_at_the_resolution_of_coins() -> None:
    made = calibrate_message(2, 500.0, 1e-5, clip=1.0, radius=10.0)
    assert made.guarantee.epsilon_per_bit == 64.0
    assert made.guarantee.epsilon_per_message(1e-5) <= 500.0


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("rotate", [False, True])
def test_ballots_are_serialized_and_counted(
    delta: float, rotate: bool, round_key: hb.RoundKey
) -> None:
    made = calibrate_message(50, 4.0, delta, clip=1.0, rotate=rotate)
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
    made = calibrate_message(20, 4.0, delta, clip=1.0, rotate=rotate)
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
    wide, narrow = (calibrate_message(4096, 8.0, 1e-5, clip=1.0, rotate=r) for r in (False, True))

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
        calibrate_message(**(usual | wrong))  # type: ignore[arg-type]


def noise(mechanism: hb.Mechanism) -> float:
    """Standard deviation of an entry of one user."""
    return math.sqrt(mechanism.noise_per_user(0.0))


@pytest.mark.parametrize(
    ("budget", "options", "tolerance"),
    [
        (hb.Budget(0.5, 0.0, per="bit", against="server"), {}, 0.0),
        (hb.Budget(4.0, 0.0, per="message", against="server"), {}, 1e-12),
        (hb.Budget(4.0, 1e-5, per="message", against="server"), {}, 1e-6),
        (hb.Budget(9.0, 0.0, per="run", against="server"), {"rounds": 30}, 1e-12),
        (hb.Budget(9.0, 1e-5, per="run", against="server"), {"rounds": 30}, 1e-6),
        (hb.Budget(1.0, 1e-5, per="message", against="model"), {"honest": 40}, 2e-3),
        (hb.Budget(4.0, 1e-5, per="run", against="model"), {"rounds": 60, "honest": 60}, 2e-3),
        (hb.Budget(2.0, 1e-6, per="run", against="model"), {"rounds": 7, "honest": 20}, 2e-3),
    ],
    ids=str,
)
@pytest.mark.parametrize("rotate", [True, False])
def test_every_kind_of_budget_is_spent_and_never_exceeded(
    budget: hb.Budget, options: dict[str, int], tolerance: float, rotate: bool
) -> None:
    made = calibrate(500, budget, clip=0.3, rotate=rotate, **options)
    spent = budget.spent(made.guarantee, **options)
    assert budget.epsilon * (1 - tolerance) <= spent.epsilon <= budget.epsilon
    assert isinstance(made, hb.Rotated) == rotate


def test_the_published_calibration_of_a_run_against_the_model() -> None:
    """1000 users, 60 rounds: 0.3722 per bit for epsilon 4, with coarser cells."""
    budget = hb.Budget(4.0, 1e-5, per="run", against="model")
    made = calibrate(7850, budget, rounds=60, users=1000, honest=1.0, clip=1.0, radius=0.1071)
    assert made.guarantee.epsilon_per_bit == pytest.approx(0.3722, rel=0.01)


def test_a_share_of_the_users_is_honest() -> None:
    budget = hb.Budget(2.0, 1e-5, per="message", against="model")
    by_share = calibrate(50, budget, users=40, honest=0.5, clip=1.0)
    assert by_share == calibrate(50, budget, honest=20, clip=1.0)
    assert noise(by_share) > noise(calibrate(50, budget, honest=40, clip=1.0))


def test_more_rounds_need_more_noise() -> None:
    for delta in (0.0, 1e-5):
        budget = hb.Budget(8.0, delta, per="run", against="server")
        few, many = (calibrate(300, budget, rounds=rounds, clip=1.0) for rounds in (2, 20))
        assert noise(few) < noise(many)


RUN = {"epsilon": 4.0, "delta": 1e-5, "per": "run", "against": "model"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"delta": 0.0},
        {"delta": 1.0},
        {"per": "round"},
        {"per": "bit"},
        {"per": "bit", "against": "server"},
        {"per": "bit", "delta": 0.0},
        {"against": "users"},
    ],
)
def test_wrong_budgets_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        hb.Budget(**(RUN | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": None},
        {"rounds": 0},
        {"honest": None},
        {"honest": 0},
        {"honest": 0.5},
        {"honest": 1.5, "users": 10},
        {"honest": 0.01, "users": 10},
        {"honest": 20, "users": 19},
        {"budget": hb.Budget(4.0, 1e-5, per="message", against="model")},
        {"budget": hb.Budget(4.0, 1e-5, per="run", against="server")},
        {"clip": None},
        {"rotate": 1},
        {"budget": 4.0},
        {"budget": hb.Budget(1e-9, 1e-300, per="run", against="model"), "honest": 2},
    ],
)
def test_incomplete_calls_of_calibrate_are_refused(wrong: dict[str, object]) -> None:
    usual = {"dim": 10, "budget": hb.Budget(**RUN), "rounds": 5, "honest": 20, "clip": 1.0}
    with pytest.raises(InvalidInput):
        calibrate(**(usual | wrong))  # type: ignore[arg-type]


def test_a_budget_says_what_it_needs() -> None:
    guarantee = hb.CPA(10, 0.5, 1.0).guarantee
    budget = hb.Budget(**RUN)  # type: ignore[arg-type]
    for options, needed in (({"honest": 10}, "rounds="), ({"rounds": 3}, "honest=")):
        with pytest.raises(InvalidInput, match=needed):
            budget.spent(guarantee, **options)


def test_the_tightest_accountant_allows_less_noise_within_the_same_budget():
    budgets = [
        hb.Budget(0.5, 1e-5, per="run", against="model", accountant=accountant)
        for accountant in ("renyi", "tightest")
    ]
    made = [hb.calibrate(100, one, clip=1.0, rounds=60, honest=1000) for one in budgets]
    per_bit = [one.guarantee.epsilon_per_bit for one in made]
    assert 1.02 * per_bit[0] < per_bit[1] < 1.15 * per_bit[0]
    for budget, mechanism in zip(budgets, made, strict=True):
        assert budget.spent(mechanism.guarantee, rounds=60, honest=1000).epsilon <= 0.5
    assert budgets[0].spent(made[1].guarantee, rounds=60, honest=1000).epsilon > 0.5
    with pytest.raises(InvalidInput, match="only to budgets against the model"):
        hb.Budget(1, 1e-5, per="run", against="server", accountant="tightest")


@pytest.mark.parametrize(
    ("rounds", "honest", "epsilon", "dim"),
    [(1, 6, 8, 60), (1, 10, 16, 60), (3, 8, 8, 2), (3, 20, 4, 2), (60, 100, 4, 100)],
)
def test_a_budget_against_the_model_is_spent_also_by_few_voters(rounds, honest, epsilon, dim):
    budget = hb.Budget(epsilon, 1e-5, per="run", against="model")
    made = hb.calibrate(dim, budget, clip=1.0, rounds=rounds, honest=honest)
    spent = budget.spent(made.guarantee, rounds=rounds, honest=honest).epsilon
    assert 0.99 * epsilon < spent <= epsilon
