"""The number of users that reach a smaller epsilon at the noise of a run."""

import math

import pytest

from hushbit.budget import Budget
from hushbit.errors import InvalidInput
from hushbit.lab.sim.clip_and_rate import noise_norm
from hushbit.tuning.calibrate import calibrate, calibrate_gaussian
from hushbit.tuning.users_for_epsilon import users_for_epsilon

DELTA = 1e-5


def budget(epsilon: float) -> Budget:
    return Budget(epsilon, DELTA, per="run", against="model")


@pytest.mark.parametrize(
    ("users", "epsilon", "target", "rounds", "dim"),
    [(200, 4, 1, 30, 650), (100, 8, 1, 10, 650), (300, 20, 10, 20, 400), (50, 4, 1, 5, 2410)],
)
def test_a_budget_of_the_target_has_the_noise_of_the_run(
    users: int, epsilon: float, target: float, rounds: int, dim: int
) -> None:
    """The Gaussian limit against the accountant: at most 5 % less noise, and not more."""
    run = calibrate(dim, budget(epsilon), honest=users, rounds=rounds, clip=1.0)
    needed = users_for_epsilon(
        target,
        users=users,
        epsilon=epsilon,
        delta=DELTA,
        epsilon_per_bit=run.guarantee.epsilon_per_bit,
    )
    larger = calibrate(dim, budget(target), honest=needed, rounds=rounds, clip=1.0)
    assert 0.95 < noise_norm(larger, needed) / noise_norm(run, users) < 1.005
    fewer = int(0.8 * needed)
    private = calibrate(dim, budget(target), honest=fewer, rounds=rounds, clip=1.0)
    assert noise_norm(private, fewer) > 1.1 * noise_norm(run, users)


@pytest.mark.parametrize(("epsilon", "target"), [(4, 1), (20, 10), (8, 0.5)])
def test_the_same_for_noise_of_the_server(epsilon: float, target: float) -> None:
    run, private = (
        calibrate_gaussian(100, budget(one), clip=1.0, rounds=30) for one in (epsilon, target)
    )
    needed = users_for_epsilon(
        target, users=500, epsilon=epsilon, delta=DELTA, epsilon_per_bit=math.inf
    )
    assert 0.95 < noise_norm(private, needed) / noise_norm(run, 500) < 1.005


def test_a_target_that_is_reached_needs_no_more_users() -> None:
    options = {"users": 70, "epsilon": 1.0, "delta": DELTA, "epsilon_per_bit": 0.5}
    assert users_for_epsilon(1.0, **options) == 70
    assert users_for_epsilon(5.0, **options) == 70


@pytest.mark.parametrize("wrong", [{"users": 0}, {"epsilon": 0.0}, {"delta": 0.0}])
def test_wrong_figures_are_refused(wrong: dict[str, float]) -> None:
    options = {"users": 70, "epsilon": 2.0, "delta": DELTA, "epsilon_per_bit": 0.5} | wrong
    with pytest.raises(InvalidInput):
        users_for_epsilon(1.0, **options)
