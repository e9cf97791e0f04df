"""The ledger in one process: exact sums, limits, refusals that change nothing."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbit.errors import AlreadyCharged, BudgetSpent, InvalidInput, TooManyRequests
from hushbit.privacy.accountant import (
    Cost,
    Limit,
    composed_bound,
    pure_total,
    within_limit,
    zcdp_total,
)
from hushbit.privacy.composition import epsilon_of_bits, epsilon_of_groups
from hushbit.privacy.ledger import Ledger, LedgerEntry
from hushbit.privacy.renyi import epsilon_of_zcdp
from privacy.ledger_costs import TENTH, charge


def test_ten_tenths_are_one_and_the_eleventh_is_refused(ledger: Ledger) -> None:
    ledger.set_limit("ann", epsilon=1.0, delta=0.0)
    charge(ledger, "ann", TENTH, 10)
    assert ledger.spent("ann").epsilon == 1.0
    assert ledger.remaining("ann") == 0.0
    before = ledger.path.read_bytes()
    with pytest.raises(BudgetSpent, match="Nothing was charged"):
        charge(ledger, "ann", Cost(((1e-300, 1),)))
    assert ledger.path.read_bytes() == before


def test_refusals_state_unit_and_observer(ledger: Ledger) -> None:
    words = "epsilon at delta 1e-5 per user over all ballots, against the server, which sees"
    ledger.set_limit("ann", epsilon=1.0, delta=1e-5)
    charge(ledger, "ann", TENTH, 9)
    with pytest.raises(BudgetSpent, match=words):
        charge(ledger, "ann", Cost(((1.0, 1),)))
    with pytest.raises(InvalidInput, match=words):
        ledger.set_limit("ann", epsilon=0.01, delta=1e-5)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("cost", [TENTH, Cost(((0.3, 7), (0.11, 2)), rho=0.013)], ids=repr)
def test_n_charges_equal_one_n_fold_charge(tmp_path: Path, cost: Cost, delta: float) -> None:
    many, once = Ledger.open(tmp_path / "many"), Ledger.open(tmp_path / "once")
    for book in (many, once):
        book.set_limit("ann", epsilon=1e6, delta=delta)
    charge(many, "ann", cost, 23)
    charge(once, "ann", cost.times(23))
    assert many.spent("ann") == once.spent("ann")
    assert many.remaining("ann") == once.remaining("ann")
    assert many.summary()[0].bits == once.summary()[0].bits == 23 * cost.bits


COSTS = st.builds(
    Cost,
    st.lists(st.tuples(st.floats(1e-3, 4), st.integers(1, 50)), min_size=1, max_size=2).map(tuple),
    st.none() | st.floats(0, 2),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(COSTS, min_size=1, max_size=4), st.integers(1, 30), st.randoms())
def test_bound_depends_on_the_multiset_of_ballots_only(
    costs: list[Cost], times: int, shuffle: object
) -> None:
    repeated = [cost for cost in costs for _ in range(times)]
    shuffle.shuffle(repeated)  # type: ignore[attr-defined]
    folded = [cost.times(times) for cost in costs]
    assert pure_total(repeated) == pure_total(folded)
    assert zcdp_total(repeated) == zcdp_total(folded)
    for delta in (0.0, 1e-6):
        bound = composed_bound(repeated, delta, adaptive=True)
        assert bound == composed_bound(folded, delta, adaptive=True)
        assert bound.epsilon <= float(pure_total(folded))
        assert within_limit(folded, Limit(bound.epsilon * (1 + 1e-12) + 1e-300, delta))


def test_approximate_limit_counts_by_exact_composition(ledger: Ledger) -> None:
    ballot = Cost(((0.01, 1000),))
    limit = epsilon_of_bits(0.01, 5000, 5e-6)  # half of delta: see composed_bound
    ledger.set_limit(7, epsilon=limit, delta=1e-5)
    charge(ledger, 7, ballot, 5)
    assert ledger.spent(7).epsilon == limit
    assert ledger.spent(7).method == "exact composition"
    assert ledger.spent(7, delta=0.0).epsilon == 50.0
    with pytest.raises(BudgetSpent):
        charge(ledger, 7, ballot)
    assert len(ledger.entries("7")) == 5


def test_proven_rho_is_used_where_it_is_smaller() -> None:
    claimed = Cost(((0.5, 7850),), rho=0.125)
    bound = composed_bound([claimed.times(4)], 1e-5, adaptive=True)
    assert bound.method == "zCDP"
    assert bound.epsilon == epsilon_of_zcdp(0.5, 5e-6)
    mixed = composed_bound([claimed, Cost(((0.5, 2),))], 1e-5, adaptive=True)
    assert mixed.epsilon == min(
        epsilon_of_zcdp(0.125 + 2 * 0.125, 5e-6), epsilon_of_groups([(0.5, 7852)], 5e-6)
    )


def test_history_longer_than_exact_composition_falls_back_to_zcdp() -> None:
    endless = Cost(((1e-4, 10**10),)).times(10**6)
    bound = composed_bound([endless], 1e-5, adaptive=True)
    assert bound.method == "zCDP"
    assert within_limit([endless], Limit(bound.epsilon, 1e-5))
    assert not within_limit([endless], Limit(bound.epsilon / 2, 1e-5))


def test_infinite_costs_and_limits(ledger: Ledger) -> None:
    open_bits = Cost(((math.inf, 3), (0.5, 2)))
    ledger.set_limit("ann", epsilon=5.0, delta=1e-5)
    with pytest.raises(BudgetSpent):
        charge(ledger, "ann", open_bits)
    ledger.set_limit("ann", epsilon=math.inf, delta=1e-5)
    charge(ledger, "ann", open_bits)
    assert ledger.spent("ann").epsilon == math.inf
    assert ledger.remaining("ann") == math.inf
    with pytest.raises(InvalidInput):
        ledger.set_limit("ann", epsilon=1e300, delta=1e-5)


def test_a_limit_below_what_is_spent_is_refused(ledger: Ledger) -> None:
    ledger.set_limit("ann", epsilon=2.0, delta=0.0)
    charge(ledger, "ann", TENTH, 5)
    before = ledger.path.read_bytes()
    with pytest.raises(InvalidInput, match="below what user 'ann' has spent"):
        ledger.set_limit("ann", epsilon=0.4, delta=0.0)
    assert ledger.path.read_bytes() == before
    ledger.set_limit("ann", epsilon=0.5, delta=0.0)
    assert ledger.limit("ann") == Limit(0.5, 0.0)


def test_users_rounds_and_restarts(ledger: Ledger) -> None:
    for user in ("ann", 12):
        ledger.set_limit(user, epsilon=10.0, delta=0.0)
    charge(ledger, "ann", TENTH, 3)
    charge(ledger, np.int64(12), TENTH)  # type: ignore[arg-type]
    charge(ledger, 12, TENTH)
    again = Ledger.open(ledger.path, create=False)
    assert again.users() == ["12", "ann"]
    assert [entry.round for entry in again.entries("ann")] == [0, 1, 2]
    assert len(again.entries()) == 5
    twelve, ann = again.summary()
    assert (twelve.user, twelve.ballots, twelve.bits, twelve.last_round) == ("12", 2, 2, 0)
    assert (ann.pure_epsilon, ann.remaining, ann.limit) == (0.3, 9.7, Limit(10.0, 0.0))
    assert again.spent("nobody").epsilon == 0.0
    assert again.remaining("nobody") == math.inf


def test_charging_needs_a_limit_and_recording_does_not(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="set_limit first"):
        charge(ledger, "bob", TENTH)
    ledger.record("bob", 1, TENTH, mechanism="cpa")
    assert ledger.spent("bob").epsilon == 0.1
    assert ledger.summary()[0].limit is None


def test_bad_arguments_are_refused_and_change_nothing(ledger: Ledger) -> None:
    ledger.set_limit("ann", epsilon=100.0, delta=0.0)
    before = ledger.path.read_bytes()
    calls: list[Callable[[], object]] = [
        lambda: ledger.set_limit("ann", epsilon=0.0, delta=0.0),
        lambda: ledger.set_limit("ann", epsilon=math.nan, delta=0.0),
        lambda: ledger.set_limit("ann", epsilon=1.0, delta=1.0),
        lambda: ledger.set_limit("", epsilon=1.0, delta=0.0),
        lambda: ledger.set_limit(True, epsilon=1.0, delta=0.0),
        lambda: ledger.set_limit("a\0b", epsilon=1.0, delta=0.0),
        lambda: ledger.charge("ann", -1, TENTH, mechanism="cpa"),
        lambda: ledger.charge("ann", 2**63, TENTH, mechanism="cpa"),
        lambda: ledger.charge("ann", 1.0, TENTH, mechanism="cpa"),  # type: ignore[arg-type]
        lambda: ledger.charge("ann", 1, 0.5, mechanism="cpa"),  # type: ignore[arg-type]
        lambda: ledger.charge("ann", 1, TENTH, mechanism=""),
        lambda: ledger.charge("ann", 1, TENTH.times(2**63), mechanism="cpa"),
        lambda: ledger.charge("ann", 1, TENTH, mechanism="cpa", run="run 1"),
        lambda: ledger.charge("ann", 1, TENTH, mechanism="cpa", run="AB"),
        lambda: ledger.charge("ann", 1, TENTH, mechanism="cpa", run="abc"),
        lambda: ledger.charge("ann", 1, TENTH, mechanism="cpa", run=b"ab"),  # type: ignore[arg-type]
        lambda: ledger.record("ann", 1, TENTH, mechanism="cpa", run="x"),
        lambda: ledger.charge("ann", 1, TENTH, mechanism="cpa", per_day=0),
        lambda: ledger.charge("ann", 1, TENTH, mechanism="cpa", per_day=1.5),  # type: ignore[arg-type]
        lambda: Ledger.open(3),  # type: ignore[arg-type]
        lambda: Ledger.open("a\0b"),
        lambda: Ledger.open(ledger.path, wait_seconds=-1.0),
        lambda: Cost(()),
        lambda: Cost(0.5),  # type: ignore[arg-type]
        lambda: Cost(((0.5,),)),  # type: ignore[arg-type]
        lambda: Cost(((0.5, 0),)),
        lambda: Cost(((0.5, 1),), rho=-1.0),
        lambda: Cost(((0.5, 1),), ballots=0),
        lambda: Cost.from_text("[]", 1),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    assert ledger.path.read_bytes() == before


def test_a_round_of_a_run_is_charged_once(ledger: Ledger) -> None:
    ledger.set_limit("ann", epsilon=10.0, delta=0.0)
    ledger.set_limit("bob", epsilon=10.0, delta=0.0)
    ledger.charge("ann", 1, TENTH, mechanism="cpa", run="aa", once=True)
    before = ledger.path.read_bytes()
    for mechanism in ("cpa", "another"):
        with pytest.raises(AlreadyCharged, match="round 1 of run 'aa'"):
            ledger.charge("ann", 1, TENTH, mechanism=mechanism, run="aa", once=True)
    assert ledger.path.read_bytes() == before
    ledger.charge("ann", 2, TENTH, mechanism="cpa", run="aa", once=True)
    ledger.charge("ann", 1, TENTH, mechanism="cpa", run="bb", once=True)
    ledger.charge("ann", 1, TENTH, mechanism="cpa", once=True)
    ledger.charge("bob", 1, TENTH, mechanism="cpa", run="aa", once=True)
    ledger.charge("ann", 1, TENTH, mechanism="cpa", run="aa")
    assert [(entry.run, entry.round) for entry in ledger.entries("ann")] == [
        ("aa", 1),
        ("aa", 2),
        ("bb", 1),
        ("", 1),
        ("aa", 1),
    ]


def test_a_recorded_ballot_counts_as_charged(ledger: Ledger) -> None:
    ledger.set_limit("ann", epsilon=10.0, delta=0.0)
    ledger.record("ann", 1, TENTH, mechanism="cpa", run="aa")
    with pytest.raises(AlreadyCharged):
        ledger.charge("ann", 1, TENTH, mechanism="cpa", run="aa", once=True)


def test_charges_per_day(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = 3600.0

    def charge_at(seconds: float, allowed: int | None = 2, user: str = "ann") -> None:
        monkeypatch.setattr("hushbit.privacy.ledger.wall_clock", lambda: seconds)
        ledger.charge(user, 0, TENTH, mechanism="cpa", per_day=allowed)

    for user in ("ann", "bob"):
        ledger.set_limit(user, epsilon=10.0, delta=0.0)
    charge_at(100 * hours)
    charge_at(110 * hours)
    before = ledger.path.read_bytes()
    for clock in (111, 123.9, 100, 50):  # the last two: the clock was set back
        with pytest.raises(TooManyRequests, match="2 times within 24 hours; 2 are allowed"):
            charge_at(clock * hours)
    assert ledger.path.read_bytes() == before
    charge_at(111 * hours, user="bob")
    charge_at(124 * hours)
    with pytest.raises(TooManyRequests):
        charge_at(133.9 * hours)
    charge_at(133.9 * hours, allowed=3)
    charge_at(133.9 * hours, allowed=None)
    times = [entry.time / hours for entry in ledger.entries("ann")]
    assert times == [100, 110, 124, 133.9, 133.9]


def test_entries_carry_the_time_of_the_charge(ledger: Ledger) -> None:
    before = time.time()
    ledger.record("ann", 1, TENTH, mechanism="cpa", run="00ff")
    [entry] = ledger.entries()
    assert before <= entry.time <= time.time()
    assert entry == LedgerEntry("ann", 1, "cpa", TENTH, "00ff", entry.time)


def test_one_charge_per_day_can_be_allowed(ledger: Ledger) -> None:
    ledger.set_limit("ann", epsilon=10.0, delta=0.0)
    ledger.charge("ann", 0, TENTH, mechanism="cpa", per_day=1)
    with pytest.raises(TooManyRequests, match="1 times within 24 hours; 1 are allowed"):
        ledger.charge("ann", 1, TENTH, mechanism="cpa", per_day=1)


def test_what_is_spent_holds_against_a_server_that_adapts_at_any_delta(ledger: Ledger) -> None:
    ballot = Cost(((0.01, 1000),))
    ledger.set_limit("ann", epsilon=1e6, delta=1e-5)
    charge(ledger, "ann", ballot, 3)
    for delta in (1e-6, 1e-5):
        assert ledger.spent("ann", delta=delta).epsilon == epsilon_of_bits(0.01, 3000, delta / 2)


def test_an_operation_waits_half_a_minute_by_default(ledger: Ledger) -> None:
    assert ledger.wait_seconds == 30.0
    assert Ledger.open(ledger.path, wait_seconds=0.5).wait_seconds == 0.5
