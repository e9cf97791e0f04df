"""The privacy statement: its figures against the accountant, its words, and what it refuses."""

import dataclasses
import math
import re

import pytest

import hushbit as hb
from hushbit.errors import InvalidInput
from hushbit.privacy.accountant import composed_bound
from hushbit.privacy.central import GaussianSum, TallyRelease, VoteSums, bound_of_tallies
from hushbit.privacy.guarantee import Guarantee, participation_bound
from hushbit.statement import WIDTH, PrivacyStatement, privacy_statement

DELTA = 1e-5


def clipped(epsilon: float, dim: int = 40) -> Guarantee:
    return hb.Rotated(hb.CPA(dim, epsilon, 0.5, clip=1.0)).guarantee


def state(guarantees: object, **options: object) -> PrivacyStatement:
    usual = {"rounds": 6, "delta": DELTA, "honest": 20, "users": 30}
    return privacy_statement(guarantees, **(usual | options))  # type: ignore[arg-type]


def words(statement: PrivacyStatement) -> str:
    return " ".join(str(statement).split())


def test_the_figures_are_those_of_the_accountant() -> None:
    one = clipped(0.5)
    assert state(one).row() == {
        "epsilon_bit": 0.5,
        "epsilon_message_server": one.epsilon_per_message(DELTA),
        "epsilon_run_server": one.epsilon_per_run(6, DELTA),
        "epsilon_run_model": one.of_tally(20, 6, delta=DELTA).epsilon,
        "delta": DELTA,
        "honest": 20,
        "relation": "replace",
    }
    zero_out = state(one, relation="zero-out")
    expected = one.of_tally(20, 6, delta=DELTA, relation="zero-out").epsilon
    assert zero_out.epsilon_run_model == expected < state(one).epsilon_run_model
    assert "becomes zero (zero-out)" in words(zero_out)


def test_equal_rounds_in_a_list_cost_what_one_guarantee_costs() -> None:
    assert state([clipped(0.5)] * 6) == state(clipped(0.5))


def test_rounds_with_different_guarantees_add_up() -> None:
    small, large = clipped(0.25), clipped(0.5)
    found = state([large, small, small], rounds=3)
    assert isinstance(small.sums, VoteSums)
    assert isinstance(large.sums, VoteSums)
    tallies = [TallyRelease(small.sums, 20, 2), TallyRelease(large.sums, 20, 1)]
    assert found.epsilon_run_model == bound_of_tallies(tallies, DELTA).epsilon
    ballots = [small.cost.times(2), large.cost]
    expected = composed_bound(ballots, DELTA, adaptive=True).epsilon
    assert found.epsilon_run_server == expected
    assert found.epsilon_bit == 0.5
    assert found.epsilon_message_server == large.epsilon_per_message(DELTA)
    costliest = state(large, rounds=3)
    assert found.epsilon_run_model < costliest.epsilon_run_model
    assert found.epsilon_run_model <= found.epsilon_run_server


def test_different_gaussian_rounds_add_up() -> None:
    gaussian = [hb.baselines.Gaussian(9, noise, clip=1.0).guarantee for noise in (20.0, 10.0)]
    sums = [one.sums for one in gaussian]
    releases = [TallyRelease(one, 20) for one in sums if isinstance(one, GaussianSum)]
    expected = bound_of_tallies(releases, DELTA).epsilon
    assert state(gaussian, rounds=2).epsilon_run_model == expected > 0


def test_the_server_of_the_gaussian_mechanism_has_to_be_trusted() -> None:
    found = state(hb.baselines.Gaussian(9, 20.0, clip=1.0).guarantee)
    note = " ".join(found.note().split())
    for text in (words(found), note):
        assert "a trusted server, which sees every update, adds the noise" in text
        assert "secure aggregation" not in text
        assert "coins" not in text.partition("What the figures mean")[0]
    assert "Against the server: there is no guarantee." in note


def test_the_model_never_reveals_more_than_the_ballots() -> None:
    """One honest voter among different rounds: the bound of the ballots is the smaller one."""
    found = state([clipped(2.0, 1), clipped(1.0, 1)], rounds=2, honest=1)
    assert found.epsilon_run_model == found.epsilon_run_server


@pytest.mark.parametrize("participation", [2, 0.3])
def test_rounds_in_which_a_user_takes_part_are_counted(participation: float) -> None:
    one = clipped(0.5)
    found = state(one, participation=participation, rounds=40)
    counted, left, _ = participation_bound(40, DELTA, participation)
    assert found.epsilon_run_server == one.epsilon_per_run(40, DELTA, participation)
    assert found.epsilon_run_model == one.of_tally(20, counted, delta=left).epsilon
    assert found.taken_part == counted < 40
    assert f"run of 40 rounds ({counted} counted)" in words(found)


BUDGETS = {
    hb.Budget(0.5, 0.0, per="bit", against="server"): 0.5,
    hb.Budget(9.0, 0.0, per="message", against="server"): 20.0,
    hb.Budget(9.0, 1e-6, per="message", against="server"): clipped(0.5).epsilon_per_message(1e-6),
    hb.Budget(99.0, 1e-6, per="run", against="server"): clipped(0.5).epsilon_per_run(6, 1e-6),
    hb.Budget(9.0, 1e-6, per="message", against="model"): (
        clipped(0.5).of_tally(20, delta=1e-6).epsilon
    ),
    hb.Budget(9.0, 1e-6, per="run", against="model"): (
        clipped(0.5).of_tally(20, 6, delta=1e-6).epsilon
    ),
}


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_the_budget_is_stated_first_in_its_own_unit(budget: hb.Budget) -> None:
    found = state(clipped(0.5), budget=budget)
    assert found.spent == BUDGETS[budget]
    assert found.within_budget == (found.spent <= budget.epsilon)
    first = found.budget_line
    assert words(found).startswith(first)
    assert first.startswith("within" if found.within_budget else "over")
    assert first.endswith(str(budget).removeprefix("epsilon "))
    assert f"epsilon {found.spent:.4g} of {budget.epsilon:g}" in first


def test_every_row_states_unit_observer_and_assumptions() -> None:
    printed = words(state(clipped(0.5)))
    server, model = printed.split("Against those who see only the model")
    assert "Against the server, which sees ballots" in server
    assert re.search(r"epsilon \S+ per bit, \S+ per message and \S+ per run of 6 rounds", server)
    assert re.search(r"epsilon \S+ per run of 6 rounds at delta 1e-5", model)
    for assumption in (
        "releases nothing but tallies (sums of all users' votes)",
        "secure aggregation",
        "in every round at least 20 voters whose coins stay secret",
        "taking part does not depend on data",
        "changes arbitrarily (replace)",
    ):
        assert assumption in model
    assert "Simulated" not in printed


@pytest.mark.parametrize("simulated", [False, True])
def test_a_simulated_run_says_so(simulated: bool) -> None:
    printed = words(state(clipped(0.5), simulated=simulated))
    assert ("the deployment that it simulates" in printed) == simulated


@pytest.mark.parametrize(
    ("guarantee", "options", "reason"),
    [
        (hb.baselines.Laplace(9, epsilon_per_entry=0.5, scale=1.0).guarantee, {}, "two points"),
        (hb.CPA(9, 0.5, 1.0, points=4).guarantee, {}, "two points"),
        (hb.CPA(9, math.inf, 1.0).guarantee, {}, "without randomized response"),
        (clipped(0.5), {"not_a_sum": "a defence reads single ballots"}, "a defence reads"),
        (clipped(0.5), {"honest": None}, "honest voters, which was not stated"),
    ],
)
def test_the_model_row_is_void_with_a_reason(
    guarantee: Guarantee, options: dict[str, object], reason: str
) -> None:
    found = state(guarantee, **options)
    assert found.epsilon_run_model == math.inf
    assert reason in found.reason
    text = f"no smaller epsilon than against the server is proved: {found.reason}"
    assert (text in words(found)) == found.is_private
    assert (found.reason in " ".join(found.note().split())) == found.is_private
    budget = hb.Budget(4.0, DELTA, per="run", against="model")
    with pytest.raises(InvalidInput, match="budget against the model cannot be stated"):
        state(guarantee, budget=budget, **options)


def test_other_mechanisms_state_their_own_unit() -> None:
    laplace = state(hb.baselines.Laplace(9, epsilon_per_entry=0.5, scale=1.0).guarantee)
    assert laplace.unit == "entry"
    assert "epsilon 0.5 per entry" in words(laplace)


@pytest.mark.parametrize(
    ("delta", "users", "warned"), [(0.01, 100, True), (0.009, 100, False), (1e-5, 10**5, True)]
)
def test_a_delta_of_one_user_or_more_is_warned_of(delta: float, users: int, warned: bool) -> None:
    found = state(clipped(0.5), delta=delta, users=users)
    assert ("Warning: delta" in words(found)) == warned
    assert ("Warning: delta" in found.note()) == warned
    alone = state(clipped(0.5), delta=delta, users=None, honest=min(users, 100))
    assert ("Warning: delta" in words(alone)) == (delta * min(users, 100) >= 1)


def test_a_share_of_the_users_is_honest() -> None:
    assert state(clipped(0.5), honest=0.5, users=40).honest == 20
    assert state(clipped(0.5), honest=1.0, users=20).honest == 20
    assert state(clipped(0.5), honest=1, users=20).honest == 1


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize("epsilon", [0.123456, 30.0])
def test_lines_fit_a_terminal(simulated: bool, epsilon: float) -> None:
    budget = hb.Budget(0.12345678, 1.2345e-9, per="message", against="model")
    found = state(
        clipped(epsilon), budget=budget, simulated=simulated, rounds=10**5, delta=0.987654
    )
    assert max(map(len, found.lines())) <= WIDTH
    assert max(map(len, found.note().splitlines())) <= WIDTH


def test_the_note_has_every_section() -> None:
    budget = hb.Budget(9.0, DELTA, per="run", against="model")
    found = state(clipped(0.5), budget=budget)
    evidence: dict[str, float | str] = {
        "membership attack on the trained model, AUC": 0.51234,
        "tally audit": "0.9 of 2",
    }
    note = found.note("Note on a run", evidence=evidence, details=["30 users, 40 weights."])
    assert note.startswith("# Note on a run\n")
    flat = " ".join(note.split())
    twice = f"epsilon {2 * found.epsilon_run_model:.4g} for both runs at delta 2e-5, against the "
    for part in (
        "30 users, 40 weights.",
        "Within the budget: epsilon",
        "The unit of protection is one user",
        "19 other users in every round must keep their coins secret",
        "Membership attack on the trained model, AUC: 0.5123",
        "Tally audit: 0.9 of 2",
        "## Not covered",
        "such as error feedback",
        "## Before another run with the same users",
        f"{twice}model",
    ):
        assert part in flat
    assert "No attack was measured" in found.note()
    assert "No attack was measured" not in note


def test_a_run_without_privacy_says_only_that() -> None:
    found = state(hb.baselines.FedAvg(40).guarantee)
    assert words(found).startswith("No privacy: users send messages without noise")
    note = found.note("Note", details=["30 users."], evidence={"membership attack, AUC": 0.9})
    assert [line for line in note.splitlines() if line.startswith("#")] == [
        "# Note",
        "## Summary",
        "## Attack evidence",
    ]
    assert "Membership attack, AUC: 0.9" in note
    assert "Attack evidence" not in found.note()


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"rounds": 2.5},
        {"delta": 0.0},
        {"delta": 1.0},
        {"honest": 0},
        {"honest": 31},
        {"honest": 0.5, "users": None},
        {"relation": "add"},
        {"participation": 7},
        {"participation": 1.5},
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        state(clipped(0.5), **wrong)


def test_lists_must_have_a_guarantee_for_each_round() -> None:
    with pytest.raises(InvalidInput, match="got 2 for 6 rounds"):
        state([clipped(0.5)] * 2)
    with pytest.raises(InvalidInput, match="same guarantee in every round"):
        state([clipped(0.5), clipped(1.0)], rounds=2, participation=1)


def test_a_statement_is_a_value() -> None:
    found = state(clipped(0.5))
    assert found == state(clipped(0.5))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.delta = 0.5  # type: ignore[misc]
