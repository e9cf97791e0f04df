"""Predictions against exact formulas and against simulations with real ballots."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

import hushbit as hb
from hushbit.errors import InvalidInput
from hushbit.tuning.plan import plan

EPSILONS = (0.5, 1.0, 2.0, 4.0)


def mechanisms(dim: int, epsilon: float) -> dict[str, hb.Mechanism]:
    return {
        "2 points": hb.CPA(dim, epsilon, 1.0),
        "4 points": hb.CPA(dim, epsilon, 1.0, points=4),
        "8 points": hb.CPA(dim, epsilon, 1.0, points=8),
        "nested 2 x 2": hb.NestedCPA(dim, epsilon, 1.0, stages=(2, 2)),
        "nested 2 x 4": hb.NestedCPA(dim, epsilon, 1.0, stages=(2, 4)),
        "subset": hb.Subset(hb.CPA(dim, epsilon, 1.0), dim // 4),
        "rotated": hb.Rotated(hb.CPA(dim, epsilon, 1.0)),
    }


def population(dim: int, users: int, seed: int) -> NDArray[np.float64]:
    """Users around a common update, all within the radius."""
    generator = np.random.default_rng(seed)
    common = 0.15 * generator.standard_normal(dim)
    own = 0.2 * generator.standard_normal((users, dim))
    return np.asarray(np.clip(common + own, -1, 1))


def measured_db(mechanism: hb.Mechanism, updates: NDArray[np.float64], rounds: int) -> float:
    mean, error = updates.mean(axis=0), 0.0
    for number in range(rounds):
        key = hb.RoundKey(bytes(range(32)), number)
        tally = mechanism.tally(key, histogram=False)
        keys = key.users(range(len(updates)))
        tally.add_many(mechanism.encode_many(updates, keys, hb.SeededCoins(number)))
        error += float(((mechanism.estimate(tally).mean - mean) ** 2).sum()) / rounds
    return 10 * math.log10(float((mean**2).sum()) / error)


def predicted_db(mechanism: hb.Mechanism, updates: NDArray[np.float64]) -> float:
    signal = float((updates.mean(axis=0) ** 2).mean())
    noise = mechanism.noise_per_user(math.sqrt(float((updates**2).mean())))
    return 10 * math.log10(len(updates) * signal / noise)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("kind", mechanisms(4, 1.0))
def test_prediction_holds_for_fifty_users(kind: str, epsilon: float) -> None:
    """The standard deviation over 8 000 entries, or two rounds of 4 000, is 0.07 dB."""
    dim = 8000 if epsilon < 2 else 4000
    mechanism = mechanisms(dim, epsilon)[kind]
    updates = population(dim, 50, seed=3)
    measured = measured_db(mechanism, updates, rounds=8000 // dim)
    assert abs(measured - predicted_db(mechanism, updates)) < 0.5


@pytest.mark.parametrize("kind", mechanisms(4, 1.0))
def test_prediction_holds_for_a_thousand_users(kind: str) -> None:
    """The standard deviation over four rounds of 500 entries is 0.14 dB."""
    mechanism = mechanisms(500, 1.0)[kind]
    updates = population(500, 1000, seed=4)
    measured = measured_db(mechanism, updates, rounds=4)
    assert abs(measured - predicted_db(mechanism, updates)) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dim", [500, 2000, 8000])
@pytest.mark.parametrize("kind", mechanisms(4, 1.0))
def test_prediction_holds_on_the_whole_grid(kind: str, dim: int, epsilon: float) -> None:
    mechanism = mechanisms(dim, epsilon)[kind]
    updates = population(dim, 1000, seed=5)
    measured = measured_db(mechanism, updates, rounds=max(1, 4000 // dim))
    assert abs(measured - predicted_db(mechanism, updates)) < 0.5


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_prediction_holds_for_whole_message_budgets(delta: float) -> None:
    dim, users = 2000, 300
    updates = population(dim, users, seed=6)
    rms, signal = (math.sqrt(float((u**2).mean())) for u in (updates, updates.mean(axis=0)))
    clip = 1.01 * float(np.linalg.norm(updates, axis=1).max())
    budget = hb.Budget(8.0, delta, per="message", against="server")
    made = plan(dim, users, budget=budget, clip=clip, signal=signal, user_rms=rms)
    assert len(made.options) == (2 if delta == 0 else 4)
    for option in made.options:
        assert abs(measured_db(option.mechanism, updates, rounds=2) - option.snr_db) < 0.5
        cost = 0.0 if "pure" in option.name else delta
        assert option.mechanism.guarantee.epsilon_per_message(cost) == pytest.approx(8.0)
    ratios = [option.snr_db for option in made.options]
    assert ratios == sorted(ratios, reverse=True)


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_cost_of_k_equals_the_formula(k: int, epsilon: float) -> None:
    """Even N: X² (N+1) / (3 beta²) - x², so k = N/2 multiplies the first term by (2k+1)/3."""
    beta, x = math.tanh(epsilon / 2), 0.1
    made = plan(100, 10, epsilon_per_bit=epsilon, signal=x, k=k).best
    noise = (2 * k + 1) / (3 * beta**2) - x**2
    assert made.k == k
    assert made.mechanism.noise_per_user(x) == pytest.approx(noise, rel=1e-6)
    assert made.cost_of_k_db == pytest.approx(10 * math.log10(noise / (1 / beta**2 - x**2)))
    assert made.snr_db == pytest.approx(10 * math.log10(10 * x**2 / noise))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("bits", [2, 3])
def test_nested_plans_reach_k_with_the_least_noise(k: int, bits: int) -> None:
    made = plan(50, 10, epsilon_per_bit=4.0, bits_per_entry=bits, k=k).best
    assert made.k >= k
    assert made.mechanism.guarantee.bits_per_entry >= bits
    assert isinstance(made.mechanism, hb.NestedCPA)
    wasteful = hb.NestedCPA(50, 4.0, 1.0, stages=(2 * k,) + (2,) * (bits - 1))
    assert made.mechanism.noise_per_user(0.1) <= wasteful.noise_per_user(0.1)


def test_all_stages_encode_one_point() -> None:
    """2 x 2 points at x = 0 without response: V = E q² = X² / 9, all of it rounding."""
    silent = hb.NestedCPA(1, math.inf, 1.0, stages=(2, 2))
    assert silent.noise_per_user(1e-9) == pytest.approx(1 / 9, rel=1e-3)


def test_users_needed_is_the_least_number_that_reaches_the_target() -> None:
    needed = plan(1000, 10, epsilon_per_bit=1.0, snr_db=5.0).best.users_needed
    assert needed is not None
    assert plan(1000, needed, epsilon_per_bit=1.0).best.snr_db >= 5.0
    assert plan(1000, needed - 1, epsilon_per_bit=1.0).best.snr_db < 5.0


def test_bytes_are_those_of_a_real_ballot(round_key: hb.RoundKey) -> None:
    for bits in (0.1, 1, 2):
        option = plan(777, 10, epsilon_per_bit=1.0, bits_per_entry=bits).best
        wire = option.mechanism.encode(np.zeros(777), round_key.user(0)).to_bytes()
        assert option.bits == option.mechanism.payload_bits
        assert option.message_bytes == len(wire)


def test_rows_hold_every_unit() -> None:
    row = plan(100, 10, epsilon_per_bit=1.0, rounds=5).rows()[0]
    units = [level["unit"] for level in row["guarantee"]]
    assert units[0] == "one bit"
    assert units[1].startswith("one message")
    assert units[3].startswith("run of 5 rounds")


BUDGETS = {
    "bit": (hb.Budget(0.5, 0.0, per="bit", against="server"), {}, 1),
    "message, pure": (hb.Budget(4.0, 0.0, per="message", against="server"), {}, 2),
    "message": (hb.Budget(4.0, 1e-6, per="message", against="server"), {}, 4),
    "run, pure": (hb.Budget(9.0, 0.0, per="run", against="server"), {"rounds": 5}, 2),
    "run": (hb.Budget(9.0, 1e-6, per="run", against="server"), {"rounds": 5}, 4),
    "message, model": (hb.Budget(2.0, 1e-6, per="message", against="model"), {"honest": 20}, 2),
    "run, model": (
        hb.Budget(4.0, 1e-6, per="run", against="model"),
        {"honest": 0.5, "rounds": 5},
        2,
    ),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_every_option_is_within_the_budget(name: str) -> None:
    budget, options, count = BUDGETS[name]
    made = plan(300, 40, budget=budget, **options)  # type: ignore[arg-type]
    assert len(made.options) == count
    rounds = 5 if budget.per == "run" else None
    honest = 20 if budget.against == "model" else None
    for option, row in zip(made.options, made.rows(), strict=True):
        stated = option.statement
        guarantee = option.mechanism.guarantee
        assert stated.spent == budget.spent(guarantee, rounds=rounds, honest=honest).epsilon
        assert stated.within_budget
        if "pure" not in option.name:
            assert stated.spent >= 0.99 * budget.epsilon
        assert stated.delta == (budget.delta or 1e-5)
        assert stated.honest == honest
        assert math.isfinite(stated.epsilon_run_model) == (honest is not None)
        assert stated.row().items() <= row.items()
        assert row["epsilon_spent"] == stated.spent
    budget_row = made.assumptions.row()["budget"]
    assert budget_row["per"] == budget.per


def test_more_honest_voters_give_a_better_plan() -> None:
    budget = hb.Budget(2.0, 1e-5, per="message", against="model")
    few, many = (plan(100, 9, budget=budget, honest=honest).best for honest in (1, 1.0))
    assert few.snr_db < many.snr_db
    assert (few.statement.honest, many.statement.honest) == (1, 9)


def test_the_note_names_the_plan_and_its_guarantee() -> None:
    budget = hb.Budget(2.0, 1e-5, per="message", against="model")
    best = plan(100, 50, budget=budget, honest=9).best
    note = best.note()
    assert "Plan for 50 users and updates of 100 entries" in note
    assert f"{best.message_bytes} bytes for each message" in " ".join(note.split())
    assert "Within the budget: epsilon" in note


PURE = hb.Budget(1.0, 0.0, per="message", against="server")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"epsilon_per_bit": 1.0, "budget": PURE},
        {"budget": 1.0},
        {"budget": hb.Budget(1.0, 1e-5, per="run", against="server")},
        {"budget": hb.Budget(1.0, 1e-5, per="run", against="server"), "rounds": 0},
        {"budget": hb.Budget(1.0, 1e-5, per="message", against="model")},
        {"budget": hb.Budget(1.0, 1e-5, per="message", against="model"), "honest": 11},
        {"epsilon_per_bit": 1.0, "honest": 0.01},
        {"epsilon_per_bit": 0.0},
        {"epsilon_per_bit": math.nan},
        {"epsilon_per_bit": 1.0, "dim": 0},
        {"epsilon_per_bit": 1.0, "users": 0},
        {"epsilon_per_bit": 1.0, "signal": 0.0},
        {"epsilon_per_bit": 1.0, "signal": 1.5},
        {"epsilon_per_bit": 1.0, "user_rms": 0.01},
        {"epsilon_per_bit": 1.0, "k": 0},
        {"epsilon_per_bit": 1.0, "bits_per_entry": 1.5},
        {"epsilon_per_bit": 1.0, "bits_per_entry": 0.0},
        {"epsilon_per_bit": 1.0, "snr_db": math.nan},
        {"epsilon_per_bit": 1.0, "rounds": 0},
        {"epsilon_per_bit": 1.0, "radius": -1.0},
        {"budget": PURE, "k": 2},
        {"budget": PURE, "bits_per_entry": 2},
        {"budget": PURE, "clip": 0.0},
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        plan(**({"dim": 100, "users": 10} | wrong))  # type: ignore[arg-type]
