"""AutoCPA: its guarantee, how it adapts to the updates, and exact resumption."""

import dataclasses
import math

import numpy as np
import pytest

import hushbit as hb
from hushbit.errors import InvalidInput
from hushbit.lab.sim.rounds import initial_state
from hushbit.lab.sim.run import run
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import build_setup
from hushbit.privacy.accountant import pure_total
from hushbit.privacy.composition import decimal_fraction
from hushbit.registry import mechanism_from_description
from hushbit.statement import privacy_statement
from hushbit.tuning.auto import (
    FOLLOW_STEP,
    MAX_GROWTH,
    MIN_VOTE_BETA,
    SEARCH_STEP,
    VOTE_SHARE,
    AutoCPA,
    vote_answers,
)
from hushbit.wrappers import NormVote

DIM = 512


def one_round(mechanism, vectors, number):
    key = hb.RoundKey(bytes(32), number)
    tally = mechanism.tally(key, histogram=False)
    keys = key.users(np.arange(len(vectors)))
    tally.add_many(mechanism.encode_many(vectors, keys, hb.SimulationCoins(7)))
    return tally


def after_rounds(mechanism, vectors, rounds):
    for number in range(rounds):
        tally = one_round(mechanism, vectors, number)
        last, mechanism = mechanism, mechanism.next_round(tally)
    return last, tally, mechanism


def some_users(users, norm, seed=0):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(users, DIM)) + rng.normal(size=DIM)
    return norm * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("norm", [1e-3, 1.0, 200.0])
def test_points_adapt_to_the_norm_of_updates(norm):
    vectors = some_users(600, norm)
    last, tally, after = after_rounds(hb.AutoCPA(DIM, 600, epsilon_per_bit=1.0), vectors, 25)
    assert 0.6 < last.inner.level / norm < 1.6
    estimate, truth = last.estimate(tally), vectors.mean(axis=0)
    assert not estimate.unbiased
    error = np.mean((estimate.mean - truth) ** 2)
    assert error < 0.5 * np.mean(truth**2)
    # Half of the power of every vector is common to all users, as the tally shows.
    assert after.signal == pytest.approx(0.5, abs=0.2)


def test_points_grow_slowly_after_convergence():
    """Points grow slowly with exploding gradients, and return quickly after a decrease."""
    vectors = some_users(200, 1.0)
    _, _, converged = after_rounds(hb.AutoCPA(DIM, 200, epsilon_per_bit=1.0), vectors, 20)
    assert converged.norm_ceiling < 2
    before = converged
    for number in range(20, 24):
        tally = one_round(before, 1000 * vectors, number)
        after = before.next_round(tally)
        assert after.norm <= after.norm_ceiling
        grown = before.norm * MAX_GROWTH * (1 + 1e-12)
        assert after.norm_ceiling <= max(grown, before.norm_ceiling)
        # Points that are a thousand times too small limit the size of the step.
        assert np.linalg.norm(before.estimate(tally).mean) < 20 * before.norm
        before = after
    assert after.belief.quantile(0.5) > 2
    _, _, small = after_rounds(converged, vectors / 4, 8)
    assert small.norm < 0.5
    _, _, back = after_rounds(small, vectors, 8)
    assert back.norm > 0.65


def test_level_and_norm_move_by_at_most_a_step_in_a_round():
    mechanism = hb.AutoCPA(DIM, 200, epsilon_per_bit=1.0)
    for number, norm in enumerate([1e4] * 3 + [1.0] * 15 + [1e-4] * 3):
        limit = SEARCH_STEP if math.isinf(mechanism.norm_ceiling) else FOLLOW_STEP
        after = mechanism.next_round(one_round(mechanism, some_users(200, norm), number))
        for old, new in ((mechanism.inner.level, after.inner.level), (mechanism.norm, after.norm)):
            assert 1 / limit <= new / old * (1 + 1e-12)
            assert new / old <= limit * (1 + 1e-12)
        mechanism = after
    assert limit == FOLLOW_STEP


def test_votes_for_less_than_the_norm_of_the_mean_are_not_followed():
    """All users agree, so the tally shows their norm; forged answers cannot lower the level."""
    mechanism = hb.AutoCPA(DIM, 400, epsilon_per_bit=2.0)
    direction = np.random.default_rng(1).normal(size=DIM)
    vectors = np.tile(direction / np.linalg.norm(direction), (400, 1))
    for number in range(30):
        tally = one_round(mechanism, vectors, number)
        tally.counters["norm votes"][0] = tally.count  # every user answers yes
        mechanism = mechanism.next_round(tally)
    assert mechanism.inner.level > 0.25


@pytest.mark.parametrize("lie", [True, False])
def test_a_third_of_liars_leaves_the_level_among_the_honest_norms(lie):
    """30 % forged votes move the level to a quantile of the honest norms, not beyond them."""
    rng, dim = np.random.default_rng(4), 2000
    mechanism = hb.AutoCPA(dim, 600, epsilon_per_bit=0.5)
    assert mechanism.inner.beta > 0.8
    norms = 2.0 ** rng.normal(scale=0.3, size=600)
    directions = rng.normal(size=(600, dim)) / math.sqrt(dim)
    levels = []
    for number in range(30):
        key = hb.RoundKey(bytes(32), number)
        keys = key.users(np.arange(600))
        made = mechanism.encode_many(norms[:, None] * directions, keys, hb.SimulationCoins(7))
        payload = made.payload.copy()
        inner, _ = mechanism.inner.split_payload(payload[:180])
        answers = np.full((180, mechanism.inner.answers), lie)
        payload[:180] = mechanism.inner.append_answers(inner, answers)
        tally = mechanism.tally(key, histogram=False)
        tally.add_many(dataclasses.replace(made, payload=payload))
        mechanism = mechanism.next_round(tally)
        levels.append(mechanism.inner.level)
    low, high = np.quantile(norms[180:], [0.1, 0.9])
    assert low < min(levels[-15:])
    assert max(levels[-15:]) < high


@pytest.mark.parametrize(
    ("options", "pure", "bits"),
    [
        ({"epsilon_per_bit": 0.5}, DIM * 0.5 + 9 * 0.5, DIM + 9),
        ({"epsilon_per_bit": 0.5, "k": 2}, DIM * 0.5 + 9 * 0.5, DIM + 9),
        ({"epsilon_per_bit": 0.5, "bits_per_weight": 0.25}, DIM / 8 + 0.5, DIM // 4 + 1),
        ({"epsilon_per_bit": 2.0, "bits_per_weight": 2}, DIM * 4 + 3 * 2, 2 * DIM + 3),
        ({"budget": hb.Budget(3.0, 0.0, per="message", against="server")}, 3.0, None),
        ({"epsilon_per_bit": math.inf}, math.inf, DIM + 1),
    ],
)
def test_the_guarantee_includes_every_bit_in_every_round(options, pure, bits):
    mechanism = hb.AutoCPA(DIM, 50, **options)
    vectors = some_users(50, 5.0)
    for number in range(3):
        guarantee = mechanism.guarantee
        assert guarantee.epsilon_per_message() == pytest.approx(pure, rel=1e-12)
        assert guarantee.epsilon_per_message() <= pure or options.get("epsilon_per_bit")
        assert guarantee.message_bits == mechanism.payload_bits
        assert bits is None or mechanism.payload_bits == bits
        assert guarantee.k_anonymity >= options.get("k", 1)
        mechanism = mechanism.next_round(one_round(mechanism, vectors, number))


def test_an_approximate_budget_covers_bits_and_vote():
    mechanism = hb.AutoCPA(DIM, 50, budget=hb.Budget(4.0, 1e-5, per="message", against="server"))
    mechanism = mechanism.next_round(one_round(mechanism, some_users(50, 5.0), 0))
    spent = mechanism.guarantee.epsilon_per_message(1e-5)
    assert 3.95 < spent <= 4.0
    assert mechanism.inner.inner.guarantee.epsilon_per_message(1e-5) < spent


def test_a_client_can_encode_with_the_description_alone():
    mechanism = hb.AutoCPA(DIM, 50, epsilon_per_bit=0.5)
    client = mechanism_from_description(mechanism.description)
    assert type(client) is NormVote
    key = hb.RoundKey(bytes(32), 0)
    tally = mechanism.tally(key)
    tally.add(client.encode(np.zeros(DIM), key.user(3)))
    assert mechanism.estimate(tally).count == 1


def test_with_state_restores_a_mechanism_exactly():
    vectors = some_users(40, 3.0)
    _, _, later = after_rounds(hb.AutoCPA(DIM, 40, epsilon_per_bit=0.5), vectors, 4)
    again = hb.AutoCPA(DIM, 40, epsilon_per_bit=0.5).with_state(later.state)
    assert again.fingerprint == later.fingerprint
    assert again.point_scale == later.point_scale
    next_ones = [m.next_round(one_round(m, vectors, 9)) for m in (later, again)]
    assert next_ones[0].state["belief"].tobytes() == next_ones[1].state["belief"].tobytes()
    assert next_ones[0].fingerprint == next_ones[1].fingerprint


def test_other_mechanisms_have_no_state():
    plain = hb.CPA(DIM, 0.5, 0.1)
    assert plain.state == {}
    assert plain.with_state({}) is plain


def test_a_resumed_run_has_the_same_bits(tmp_path):
    options = {"mechanism": "cpa-auto", "epsilon_per_bit": 1.0, "users": 30, "seed": 2}
    whole = run(Settings(**options, rounds=6), tmp_path / "whole")
    stopped = tmp_path / "stopped"

    class Stop(Exception):
        pass

    def stop(setup, made):
        if made.number == 3:
            raise Stop

    with pytest.raises(Stop):
        run(Settings(**options, rounds=6), stopped, watch=stop)
    rest = run(Settings(**options, rounds=6), stopped, resume=True)
    plain = [
        [{k: v for k, v in row.items() if "seconds" not in k} for row in made["history"]]
        for made in (whole, rest)
    ]
    assert plain[0] == plain[1]
    kept = [np.load(folder / "checkpoint.npz") for folder in (tmp_path / "whole", stopped)]
    first = initial_state(build_setup(Settings(**options, rounds=6))).tuning["belief"]
    assert kept[0]["tuning belief"].shape == first.shape
    assert not np.array_equal(kept[0]["tuning belief"], first)
    assert all(kept[0][name].tobytes() == kept[1][name].tobytes() for name in kept[0].files)
    assert whole["bits_per_entry"] == (650 + 7) / 650


def test_runs_by_message_and_by_bit():
    made = run(
        Settings(
            mechanism="cpa-auto",
            epsilon=8.0,
            delta=0.0,
            per="message",
            against="server",
            users=20,
            rounds=1,
        )
    )
    assert made["pure_epsilon_message_server"] == pytest.approx(8.0)
    with pytest.raises(InvalidInput, match="epsilon"):
        run(Settings(mechanism="cpa-auto", users=20, rounds=1))
    with pytest.raises(InvalidInput, match="radius"):
        run(Settings(mechanism="cpa-auto", epsilon_per_bit=0.5, radius=0.1, users=20, rounds=1))


BUDGETS = {
    "message, server, pure": (hb.Budget(3.0, 0.0, per="message", against="server"), {}),
    "message, server": (hb.Budget(4.0, 1e-5, per="message", against="server"), {}),
    "run, server, pure": (hb.Budget(7.3, 0.0, per="run", against="server"), {"rounds": 6}),
    "run, server": (hb.Budget(12.0, 1e-5, per="run", against="server"), {"rounds": 6}),
    "message, model": (hb.Budget(1.0, 1e-5, per="message", against="model"), {"honest": 40}),
    "run, model": (hb.Budget(4.0, 1e-5, per="run", against="model"), {"rounds": 6, "honest": 40}),
    "large run, model": (
        hb.Budget(60.0, 1e-5, per="run", against="model"),
        {"rounds": 6, "honest": 0.8},
    ),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_a_budget_covers_updates_and_votes_of_every_round(name):
    """Every round costs the same, and all rounds together at most the budget, by the accountant."""
    budget, options = BUDGETS[name]
    mechanism = hb.AutoCPA(DIM, 50, budget=budget, **options)
    stated = mechanism.guarantee
    counts = {"honest": 40} if budget.against == "model" else {}
    counts |= {"rounds": 6} if budget.per == "run" else {}
    spent = budget.spent(stated, **counts).epsilon
    assert 0.99 * budget.epsilon <= spent <= budget.epsilon
    assert budget.spent(mechanism.inner.inner.guarantee, **counts).epsilon < spent
    sizes = set()
    for number in range(5):
        mechanism = mechanism.next_round(one_round(mechanism, some_users(50, 5.0), number))
        assert mechanism.guarantee == stated
        own = mechanism.inner.guarantee  # as a client computes it from the description
        assert own.groups == stated.groups
        if stated.rho is not None:
            assert own.rho == pytest.approx(stated.rho, rel=1e-12)
            assert own.sums.clip_ratio == pytest.approx(stated.sums.clip_ratio, rel=1e-12)
            assert own.sums.extra == stated.sums.extra
        sizes.add(mechanism.norm)
    assert len(sizes) == 5
    if budget.per == "run":
        whole = privacy_statement(
            [stated] * 6, budget=budget, delta=1e-5, users=50, rounds=6, honest=40
        )
        assert whole.spent == spent


def test_a_pure_budget_is_kept_as_exact_fractions():
    for rounds, epsilon in ((1, 3.0), (7, 0.7), (60, 4.1)):
        budget = hb.Budget(epsilon, 0.0, per="run", against="server")
        made = hb.AutoCPA(DIM, 50, budget=budget, rounds=rounds)
        assert pure_total([made.guarantee.cost.times(rounds)]) <= decimal_fraction(epsilon)


def test_a_budget_per_bit_is_epsilon_per_bit():
    budget = hb.Budget(0.5, 0.0, per="bit", against="server")
    by_budget = hb.AutoCPA(DIM, 50, budget=budget, k=2)
    assert by_budget.fingerprint == hb.AutoCPA(DIM, 50, epsilon_per_bit=0.5, k=2).fingerprint


def test_the_vote_takes_at_most_its_share_of_a_budget_against_the_model():
    """Rényi divergences of the vote, at the order that decides, against those of all votes."""
    budget = hb.Budget(4.0, 1e-5, per="run", against="model")
    made = hb.AutoCPA(5000, 40, budget=budget, rounds=10, honest=40)
    sums = made.guarantee.sums
    orders = (8.0,)
    whole = sums.divergences(40, "replace", orders)[0]
    update = dataclasses.replace(sums, extra=()).divergences(40, "replace", orders)[0]
    assert 0.5 * VOTE_SHARE < 1 - update / whole < 1.1 * VOTE_SHARE
    assert made.inner.answers > 1
    assert made.inner.epsilon == made.inner.inner.guarantee.epsilon_per_bit


def test_a_large_budget_against_the_model_makes_votes_robust():
    """With many voters the budget allows the beta that keeps forged votes harmless."""
    budget = hb.Budget(60.0, 1e-5, per="run", against="model")
    made = hb.AutoCPA(5000, 100, budget=budget, rounds=3, honest=20)
    assert made.inner.beta >= MIN_VOTE_BETA
    small = hb.Budget(1.0, 1e-5, per="run", against="model")
    weak = hb.AutoCPA(5000, 100, budget=small, rounds=3, honest=20)
    assert weak.inner.beta < MIN_VOTE_BETA


@pytest.mark.parametrize(
    ("bits", "square", "answers"), [(7850, math.inf, 27), (500, math.inf, 9), (7850, 0.01, 1)]
)
def test_number_of_answers(bits, square, answers):
    assert vote_answers(0.5, bits, square) == answers


def test_points_adapt_under_a_budget_against_the_model():
    budget = hb.Budget(99.0, 1e-5, per="run", against="model")
    mechanism = hb.AutoCPA(DIM, 300, budget=budget, rounds=25, honest=0.1)
    last, tally, _ = after_rounds(mechanism, some_users(300, 20.0), 25)
    assert 0.5 < last.inner.level / 20.0 < 2.0
    assert last.clip == pytest.approx(last.point_scale.ratio * last.norm)
    truth = some_users(300, 20.0).mean(axis=0)
    assert np.corrcoef(last.estimate(tally).mean, truth)[0, 1] > 0.5


def test_no_tally_after_the_last_round_of_the_budget():
    budget = hb.Budget(9.0, 0.0, per="run", against="server")
    mechanism = hb.AutoCPA(DIM, 5, budget=budget, rounds=2)
    for number in range(2):
        mechanism = mechanism.next_round(one_round(mechanism, some_users(5, 1.0), number))
    again = hb.AutoCPA(DIM, 5, budget=budget, rounds=2).with_state(mechanism.state)
    for spent in (mechanism, again):
        with pytest.raises(hb.BudgetSpent, match="covers 2 rounds"):
            spent.tally(hb.RoundKey(bytes(32), 2))


MODEL_RUN = hb.Budget(4.0, 1e-5, per="run", against="model")
PER_BIT = hb.Budget(0.5, 0.0, per="bit", against="server")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "either a budget or epsilon_per_bit"),
        ({"epsilon_per_bit": 0.5, "budget": PER_BIT}, "either a budget or epsilon_per_bit"),
        ({"budget": 4.0}, "must be a Budget"),
        ({"budget": MODEL_RUN, "honest": 50}, "needs the number of rounds"),
        ({"budget": MODEL_RUN, "rounds": 9}, "needs the number of honest voters"),
        ({"budget": MODEL_RUN, "rounds": 9, "honest": 51}, "honest"),
        ({"budget": MODEL_RUN, "rounds": 0, "honest": 50}, "rounds"),
        ({"budget": MODEL_RUN, "rounds": 9, "honest": 50, "k": 2}, "leave out k"),
        ({"budget": MODEL_RUN, "rounds": 9, "honest": 50, "bits_per_weight": 1}, "leave out k"),
        ({"budget": PER_BIT, "rounds": 9}, "does not depend on rounds"),
        ({"budget": PER_BIT, "honest": 9}, "does not depend on honest voters"),
        ({"epsilon_per_bit": 0.5, "rounds": 9}, "does not depend on rounds"),
        ({"epsilon_per_bit": 0.0}, "epsilon_per_bit"),
        ({"epsilon_per_bit": True}, "epsilon_per_bit"),
        ({"epsilon_per_bit": 0.5, "k": 0}, "k"),
        ({"epsilon_per_bit": 0.5, "bits_per_weight": 1.5}, "bits_per_entry"),
        ({"epsilon_per_bit": 0.5, "first_norm": 0.0}, "first_norm"),
        ({"epsilon_per_bit": 0.5, "first_norm": 1e60}, "first_norm"),
    ],
)
def test_invalid_requirements_are_refused(options, words):
    with pytest.raises(InvalidInput, match=words):
        hb.AutoCPA(DIM, 50, **options)


def test_wrong_states_are_refused():
    mechanism = hb.AutoCPA(DIM, 50, epsilon_per_bit=0.5)
    for state in (
        {},
        {"belief": np.ones(3), "signal": np.ones(1)},
        {**mechanism.state, "signal": np.array([np.nan])},
        {**mechanism.state, "round": np.zeros(1)},
        {**mechanism.state, "ceiling": np.zeros(1)},
        {**mechanism.state, "ceiling": np.array([np.nan])},
        {**mechanism.state, "signal": np.ones(2)},
        {**mechanism.state, "level": np.zeros(1)},
        {**mechanism.state, "norm": np.array([np.inf])},
    ):
        with pytest.raises(InvalidInput):
            mechanism.with_state(state)
    with pytest.raises(InvalidInput):
        mechanism.next_round(mechanism.tally(hb.RoundKey(bytes(32), 0)))
    assert isinstance(mechanism, AutoCPA)
