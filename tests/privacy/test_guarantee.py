"""The guarantee of every mechanism states every unit, and its bounds are those of the rules."""

import math
import re

import pytest

import hushbit as hb
from hushbit.baselines.laplace import Laplace
from hushbit.errors import InvalidInput
from hushbit.privacy import accountant
from hushbit.privacy.accountant import composed_bound
from hushbit.privacy.binomial import log_tail
from hushbit.privacy.composition import delta_of_bits, epsilon_of_bits, epsilon_of_groups
from hushbit.privacy.guarantee import QUICK_BITS, Guarantee, participation_bound
from hushbit.privacy.renyi import epsilon_of_renyi, epsilon_of_zcdp

MODELS = [
    (7850, "3925", "117750"),
    (25818, "12909", "387270"),
    (6422, "3211", "96330"),
    (9422, "4711", "141330"),
    (169578, "84789", "2543670"),
]
MECHANISMS = [
    hb.CPA(1, 0.5, 1.0),
    hb.CPA(7850, 0.5, 1.0),
    hb.CPA(10, math.inf, 1.0),
    hb.CPA(800, 0.5, 1.0, clip=1.0),
    hb.CPA(800, 0.5, 1.0, lattice="E8", points=16),
    hb.NestedCPA(100, (0.5, 1.0), 1.0, stages=(2, 8)),
    hb.Subset(hb.CPA(100, 2.0, 1.0), 2),
    hb.Rotated(hb.CPA(100, 2.0, 1.0)),
    Laplace(100, 0.5, 1.0),
]


def of_bits(*groups: tuple[float, int], **more: float) -> Guarantee:
    bits = sum(count for _, count in groups)
    return Guarantee(groups, dim=bits, message_bits=bits, k_anonymity=1, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("dim", "message", "run"), MODELS)
def test_pure_levels_of_the_published_models(dim: int, message: str, run: str) -> None:
    found = hb.CPA(dim, 0.5, 1.0).guarantee
    assert f"{found.epsilon_per_message():.0f}" == message
    assert f"{found.epsilon_per_run(30):.0f}" == run


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.description["mechanism"])
def test_repr_names_every_unit(mechanism: hb.Mechanism) -> None:
    for text in (repr(mechanism.guarantee), str(mechanism.guarantee)):
        unit = mechanism.guarantee.unit
        for words in (f"per {unit}", "per message", "per run of 100 rounds"):
            assert words in text
        assert text.count("at delta 1e-5") == 2
        assert not re.search(r"epsilon [^,]*per round", text)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.description["mechanism"])
def test_report_has_every_unit_with_its_proof(mechanism: hb.Mechanism) -> None:
    levels = mechanism.guarantee.levels(30, delta=1e-5)
    assert [level.delta for level in levels] == [0.0, 0.0, 1e-5, 0.0, 1e-5]
    assert all(level.proof for level in levels)
    assert levels[0].epsilon <= levels[1].epsilon <= levels[3].epsilon
    assert levels[2].epsilon <= levels[1].epsilon
    text = mechanism.guarantee.report(30, delta=1e-5)
    for level in levels:
        assert level.unit in text
        assert level.proof in text
    assert "k = " in text


def test_each_rule_wins_where_it_is_smallest() -> None:
    assert of_bits((0.5, 10)).bound(1, 0.0).method == "sum over bits"
    assert of_bits((0.5, 1000)).bound(1, 1e-5).method == "exact composition"
    assert of_bits((0.5, 1000), rho=0.1).bound(1, 1e-5).method == "l2 clip, zCDP"
    assert of_bits((0.5, 4), rho=9.0).bound(1, 1e-5).method == "exact composition"


def test_bounds_are_those_of_the_rules() -> None:
    assert of_bits((0.5, 100)).epsilon_per_run(3, 1e-5) == epsilon_of_bits(0.5, 300, 1e-5)
    mixed = epsilon_of_groups([(0.5, 300), (1.0, 150)], 1e-5)
    assert of_bits((0.5, 100), (1.0, 50)).epsilon_per_run(3, 1e-5) == mixed
    clipped = of_bits((0.5, 10**6), rho=0.2)
    assert clipped.epsilon_per_run(7, 1e-6) == epsilon_of_zcdp(1.4, 1e-6)
    assert of_bits((0.5, 100)).bound(0, 1e-5).epsilon == 0


def test_a_ledger_is_charged_the_same_cost() -> None:
    for found in (of_bits((0.5, 100)), of_bits((0.5, 100), rho=0.01), of_bits((math.inf, 3))):
        for delta in (0.0, 1e-5):
            # The ledger also holds against servers that adapt, which costs half of delta.
            charged = composed_bound([found.cost.times(3)], 2 * delta, adaptive=True).epsilon
            assert charged <= found.epsilon_per_run(3, delta) * (1 + 1e-12)
            assert charged >= found.epsilon_per_run(3, delta) * (1 - 1e-6)
    unclipped = hb.CPA(5, math.inf, 1.0, clip=1.0).guarantee
    assert unclipped.cost.rho is None


def test_bits_without_privacy_cost_infinity() -> None:
    found = of_bits((math.inf, 10))
    assert math.isinf(found.epsilon_per_message(1e-5))
    assert "inf per message" in found.summary()


def test_more_bits_than_exact_composition_accepts_are_bounded_by_renyi_orders() -> None:
    found = of_bits((0.01, 10**6)).bound(10**5, 1e-5)
    assert found.method == "Renyi orders"
    assert found.epsilon < 0.01 * 10**11


@pytest.mark.parametrize(
    ("per_bit", "bits"), [(0.5, 10), (0.5, 1000), (2.0, 1000), (1e-4, 10**6), (0.5, 7850), (5.0, 3)]
)
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_renyi_orders_are_never_below_the_exact_bound(
    per_bit: float, bits: int, delta: float
) -> None:
    exact = epsilon_of_bits(per_bit, bits, delta)
    quick = epsilon_of_renyi([(per_bit, bits)], delta)
    assert quick >= exact * (1 - 1e-12)
    assert min(quick, per_bit * bits) <= 1.5 * exact


def test_summary_never_composes_millions_of_bits_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    composed = []

    def record(groups: tuple[tuple[float, int], ...], delta: float) -> float:
        composed.append(sum(bits for _, bits in groups))
        return epsilon_of_groups(groups, delta)

    monkeypatch.setattr(accountant, "_cached_exact", record)
    assert "Renyi orders" in hb.CPA(1_234_567, 0.5, 1.0).guarantee.summary()
    assert "exact composition" in hb.CPA(200, 0.5, 1.0).guarantee.summary()
    assert composed == [200, 20_000]
    assert QUICK_BITS == 20_000


def test_k_of_each_stage_and_its_decay() -> None:
    found = Guarantee(((0.5, 20),), 10, 20, 8, points=(4, 8))
    assert found.anonymity(3) == (
        "k-anonymity: k = 8 per block and round (stages: 2 x 4) without noise; decays over rounds: "
        "1.723 of 32 points expected after 3. Does not replace epsilon."
    )
    unknown = Guarantee(((0.5, 20),), 10, 20, 8)
    assert "decays over rounds. Does not" in unknown.anonymity(3)
    assert "k-anonymity: k = 8 per block and round" in found.summary()


def test_k_of_one_is_stated_as_none() -> None:
    found = hb.CPA(20, 0.5, 1.0).guarantee
    assert found.anonymity(3) == "k-anonymity: none (k = 1)."
    assert "k-anonymity: none (k = 1)" in found.summary()
    assert found.report(3, delta=1e-5).endswith("k-anonymity: none (k = 1).")


def test_only_rounds_taken_part_in_count() -> None:
    found = of_bits((0.5, 100))
    assert found.run_bound(30, 1e-5, 3) == found.bound(3, 1e-5)
    assert found.run_bound(30, 1e-5) == found.bound(30, 1e-5)
    assert found.run_bound(30, 1e-5, 1.0) == found.bound(30, 1e-5)
    assert found.run_bound(30, 0.0, 0.1) == found.bound(30, 0.0)
    assert found.epsilon_per_run(30, 1e-5, 0) == 0
    assert "3 taken part in" in found.report(30, delta=1e-5, participation=3)


@pytest.mark.parametrize(
    ("delta", "participation", "counted"),
    [(1e-5, None, 30), (1e-5, 3, 3), (1e-5, 1.0, 30), (0.0, 0.1, 30), (1e-5, 0.9, 30)],
)
def test_all_of_delta_is_left_where_more_rounds_are_impossible(
    delta: float, participation: float | None, counted: int
) -> None:
    assert participation_bound(30, delta, participation) == (counted, delta, 0.0)
    assert participation_bound(0, delta, participation and 0) == (0, delta, 0.0)


@pytest.mark.parametrize("chance", [0.01, 0.1, 0.5, 0.9])
def test_rounds_beyond_those_counted_have_probability_below_half_of_delta(chance: float) -> None:
    counted, left, more = participation_bound(200, 1e-4, chance)
    assert left + more == 1e-4
    assert log_tail(counted + 1, 200, chance) <= math.log(5e-5)
    assert log_tail(counted, 200, chance) > math.log(5e-5)
    assert counted > chance * 200


@pytest.mark.parametrize("delta", [1e-3, 0.02, 0.2])
def test_random_participation_is_within_delta_exactly(delta: float) -> None:
    """The true delta of a run at the stated epsilon, summed over the number of rounds."""
    found, rounds, chance = of_bits((1.0, 3)), 12, 0.2
    epsilon = found.run_bound(rounds, delta, chance).epsilon
    true = sum(
        math.comb(rounds, j)
        * chance**j
        * (1 - chance) ** (rounds - j)
        * (delta_of_bits(1.0, 3 * j, epsilon) if j else 0.0)
        for j in range(rounds + 1)
    )
    assert true <= delta
    assert epsilon < found.bound(rounds, delta).epsilon


@pytest.mark.parametrize("wrong", [-1, 31, True, "3", 0.0, 1.5, math.nan, math.inf, -0.5])
def test_wrong_participation_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidInput, match="participation "):
        of_bits((0.5, 10)).run_bound(30, 1e-5, wrong)


@pytest.mark.parametrize(
    ("rounds", "delta"),
    [(-1, 1e-5), (1.5, 1e-5), (True, 1e-5), (1, 1.0), (1, -0.1), (1, math.nan), (1, "x")],
)
def test_wrong_rounds_and_deltas_are_refused(rounds: int, delta: float) -> None:
    with pytest.raises(InvalidInput):
        of_bits((0.5, 10)).bound(rounds, delta)
    with pytest.raises(InvalidInput):
        of_bits((0.5, 10)).report(rounds, delta=delta)


def test_report_of_nested_mechanisms_states_k_of_each_stage() -> None:
    text = hb.NestedCPA(10, 0.5, 1.0, stages=(4, 8)).guarantee.report(3, delta=1e-5)
    assert "stages: 2 x 4" in text
    assert "of 32 points expected after 3" in text


def test_sums_of_epsilon_are_exact() -> None:
    assert of_bits((0.1, 3)).epsilon_per_message() == 0.3
    assert of_bits((0.1, 1), (0.2, 1)).epsilon_per_run(10) == 3.0
    assert 0.1 * 3 != 0.3


def test_only_several_stages_are_listed() -> None:
    one = hb.CPA(8, 0.5, 1.0, points=4).guarantee.anonymity(3)
    two = hb.NestedCPA(8, 0.5, 1.0, stages=(2, 4)).guarantee.anonymity(3)
    assert "k = 2 per block" in one
    assert "stages" not in one
    assert "(stages: 1 x 2)" in two


def test_the_words_of_a_report_agree_in_number() -> None:
    units = {row.unit for row in of_bits((0.5, 1)).levels(1, delta=1e-5)}
    assert units == {"one bit", "one message of 1 bit", "run of 1 round, 1 taken part in"}
    entries = Guarantee(((0.5, 2), (1.0, 3)), 5, 40, 1, unit="entry", note="a remark")
    rows = entries.levels(3, delta=1e-5, participation=2)
    assert rows[1].unit == "one message of 5 entries"
    assert rows[3].unit == "run of 3 rounds, 2 taken part in"
    assert (rows[0].epsilon, rows[0].proof) == (1.0, "its own noise")
    assert rows[1].proof == "sum over entries"
    assert entries.report(3, delta=1e-5).endswith("\nnote: a remark")
    assert "note" not in of_bits((0.5, 1)).report(1, delta=1e-5)
    half = of_bits((0.5, 1)).levels(8, delta=1e-5, participation=0.5)
    assert half[4].unit == "run of 8 rounds, taking part with probability 0.5, 8 counted"
    assert half[0].row() == {
        "unit": "one bit",
        "epsilon": 0.5,
        "delta": 0.0,
        "proof": "randomized response",
    }


def test_the_bound_of_random_participation_names_the_rounds_it_counts() -> None:
    found = of_bits((0.5, 4)).run_bound(200, 1e-4, 0.1)
    counted = participation_bound(200, 1e-4, 0.1)[0]
    assert found.delta == 1e-4
    assert found.method.endswith(f"; more than {counted} rounds with probability <= 5e-05")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.123456, "0.1235"),
        (9999.4, "9999"),
        (10_000.0, "10000"),
        (123_456.7, "123457"),
        (9e14, "900000000000000"),
        (1e15, "1e+15"),
        (math.inf, "inf"),
    ],
)
def test_epsilons_are_shown_with_four_digits_or_as_whole_numbers(value: float, shown: str) -> None:
    assert f"epsilon {shown} per bit" in of_bits((value, 1)).summary()


def test_the_summary_states_the_bits_of_an_entry() -> None:
    assert (
        "bits per entry: 0.125"
        in hb.CPA(800, 0.5, 1.0, lattice="E8", points=16).guarantee.summary()
    )
    assert Guarantee(((0.5, 30),), 10, 30, 1).bits_per_entry == 3.0


def test_the_bound_of_the_tally_is_the_smaller_of_both() -> None:
    """Few honest voters: the ballot itself reveals less than the bound of the tally states."""
    guarantee = hb.CPA(3, 1.0, 1.0, clip=1.0).guarantee
    alone, crowd = (guarantee.of_tally(honest, delta=1e-5) for honest in (1, 1000))
    assert alone.epsilon == guarantee.bound(1, 1e-5).epsilon
    assert alone.delta == crowd.delta == 1e-5
    assert crowd.method == "sums of votes, Renyi orders"
    assert crowd.epsilon < alone.epsilon


def test_one_round_and_no_delta_are_the_defaults() -> None:
    found = of_bits((0.5, 100))
    assert found.bound() == found.bound(1, 0.0)
    assert found.epsilon_per_message() == found.bound().epsilon == 50.0
    assert found.epsilon_per_run(3) == found.run_bound(3).epsilon == 150.0
    crowd = hb.CPA(3, 1.0, 1.0, clip=1.0).guarantee
    assert crowd.of_tally(50, delta=1e-5) == crowd.of_tally(50, 1, delta=1e-5)


def test_a_report_needs_a_delta_above_zero() -> None:
    for call in (of_bits((0.5, 10)).levels, of_bits((0.5, 10)).report):
        with pytest.raises(InvalidInput, match="delta"):
            call(3, delta=0.0)
