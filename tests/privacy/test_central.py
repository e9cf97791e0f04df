"""The guarantee of the tally against published values, lower bounds and random attacks."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hushbit as hb
from hushbit.baselines import Laplace, SignRR
from hushbit.errors import InvalidInput
from hushbit.kernels.vote_sums import reference_excess, vote_sum_excess, vote_sum_law
from hushbit.privacy import central
from hushbit.privacy.central import (
    ORDERS,
    OUTSIDE,
    WHOLE_ORDERS,
    TallyCurve,
    TallyRelease,
    VoteSums,
    _ExcessOfOrder,
    _sampled_divergences,
    bound_of_tallies,
    epsilon_of_orders,
    interval_bounds,
    splits,
    tally_curve,
)
from hushbit.privacy.gaussian import epsilon_of_gaussian
from hushbit.privacy.renyi import epsilon_of_zcdp
from hushbit.wrappers import NormVote

SPEC_ORDERS = tuple(order for order in ORDERS if 1.05 <= order <= 256)
RATIOS = (0.3, 1.0, 3.0, 10.0, 30.0, math.sqrt(7850))
RUNS = {  # epsilon of 60 rounds at delta 1e-5, "replace", by ratio of clip and points
    (10, 0.5): (1.803, 6.408, 24.58, 139.1, 906.8, 6845),
    (100, 0.1): (0.0823, 0.2879, 0.9379, 3.544, 12.91, 55.01),
    (100, 0.5): (0.4884, 1.689, 5.740, 25.52, 124.2, 776.4),
    (100, 2.0): (3.190, 10.72, 43.31, 280.0, 1969, 15690),
    (1000, 0.5): (0.1387, 0.4820, 1.578, 6.114, 24.14, 112.8),
}


def run_epsilon(curve, epsilon: float, ratio: float, rounds: int = 60) -> float:
    square = (math.tanh(epsilon / 2) * ratio) ** 2
    divergences = rounds * curve.per_square * square
    return epsilon_of_orders(curve.orders, divergences, 1e-5)


def lower_curve(honest: int, epsilon: float, orders=ORDERS) -> np.ndarray:
    """D / step² of one configuration: all others at b, the target moves up from a.

    P_p(t) = Bin(H, b)(t) [(p/b)(t/H) + ((1-p)/a)(1 - t/H)], independent of the kernels.
    """
    a = 1 / (1 + math.exp(epsilon))
    b, beta = 1 - a, math.tanh(epsilon / 2)
    t = np.arange(honest + 1)
    steps = np.append(0, np.cumsum(np.log(honest - t[:-1]) - np.log(t[1:])))
    log_law = steps + t * math.log(b) + (honest - t) * math.log(a)

    def log_p(p: float) -> np.ndarray:
        return log_law + np.log(p / b * t / honest + (1 - p) / a * (1 - t / honest))

    best = np.zeros(len(orders))
    for step in beta * np.array([0.05, 0.25, 0.5, 0.75, 1.0]):
        for p, q in ((a + step, a), (a, a + step)):
            up, down = log_p(p), log_p(q)
            for i, order in enumerate(orders):
                total = np.logaddexp.reduce(order * up + (1 - order) * down)
                best[i] = max(best[i], total / (order - 1) / step**2)
    return best


@pytest.mark.parametrize(("honest", "epsilon"), RUNS)
def test_runs_lie_between_the_lower_check_and_the_published_table(honest, epsilon) -> None:
    curve = tally_curve(honest, epsilon)
    lower = lower_curve(honest, epsilon)
    assert (curve.per_square >= lower * (1 - 1e-6)).all()
    for ratio, published in zip(RATIOS, RUNS[honest, epsilon], strict=True):
        square = (math.tanh(epsilon / 2) * ratio) ** 2
        least = epsilon_of_orders(curve.orders, 60 * lower * square, 1e-5)
        found = run_epsilon(curve, epsilon, ratio)
        assert least * (1 - 1e-5) <= found <= published * 1.0005


@pytest.mark.parametrize(("honest", "epsilon"), [(1000, 0.1), (1000, 0.2), (10_000, 0.5)])
def test_the_tightest_accountant_lies_between_gaussian_noise_and_renyi_orders(
    honest, epsilon
) -> None:
    guarantee = hb.CPA(7850, epsilon, 1.0, clip=3.0).guarantee
    orders = guarantee.of_tally(honest, 60, delta=1e-5)
    tightest = guarantee.of_tally(honest, 60, delta=1e-5, accountant="tightest")
    assert orders.method == "sums of votes, Renyi orders"
    assert tightest.method == "sums of votes, Gaussian DP"
    expected = run_epsilon(tally_curve(honest, epsilon), epsilon, 3.0)
    assert orders.epsilon == pytest.approx(expected, rel=1e-5)
    deviations = math.sqrt(60 * 4 / honest) * 3.0 * math.sinh(epsilon / 2)  # of the worst variance
    assert epsilon_of_gaussian(deviations, 1e-5) <= tightest.epsilon < orders.epsilon
    with pytest.raises(InvalidInput, match="accountant must be one of renyi, tightest; got 'pld'"):
        guarantee.of_tally(honest, 60, delta=1e-5, accountant="pld")


def test_the_published_grid_gives_the_published_figures() -> None:
    """64 cells, where the steps between places do not matter."""
    curve = tally_curve(1000, 0.5, SPEC_ORDERS, 64)
    for ratio, published in ((10.0, 6.114), (30.0, 24.14), (math.sqrt(7850), 112.8)):
        assert run_epsilon(curve, 0.5, ratio) == pytest.approx(published, rel=5e-4)


@pytest.mark.parametrize(("honest", "epsilon"), [(10, 0.5), (100, 1.0), (1000, 0.5)])
def test_no_bound_is_below_the_gaussian_of_the_worst_variance(honest, epsilon) -> None:
    curve, beta = tally_curve(honest, epsilon), math.tanh(epsilon / 2)
    kept = curve.orders * epsilon <= 100
    gaussian = curve.orders / 2 * 4 / (honest * (1 - beta**2))
    assert (curve.per_square >= gaussian * (1 - 1e-9)).all()
    assert np.isinf(curve.per_square[~kept]).all()


@pytest.mark.parametrize(("honest", "epsilon"), [(1000, 0.5), (1000, 1.0), (5000, 0.2)])
def test_the_bound_is_close_to_the_lower_check(honest, epsilon) -> None:
    lower = epsilon_of_orders(
        np.array(ORDERS), 60 * lower_curve(honest, epsilon) * math.tanh(epsilon / 2) ** 2 * 9, 1e-5
    )
    assert run_epsilon(tally_curve(honest, epsilon), epsilon, 3.0) <= 1.1 * lower


def exact_divergence(p, q, others, order) -> float:
    """D of the sum by convolution of any votes."""
    law = np.ones(1)
    for chance in others:
        law = np.convolve(law, [1 - chance, chance])
    both = [np.convolve(law, [1 - x, x]) for x in (p, q)]
    return float(np.log(np.sum(both[0] ** order * both[1] ** (1 - order))) / (order - 1))


@settings(max_examples=60, deadline=None)
@given(
    epsilon=st.sampled_from([0.1, 0.5, 1.0, 2.0]),
    places=st.lists(st.floats(0, 1), min_size=3, max_size=11),
    order=st.sampled_from([1.5, 2.0, 3.0, 8.0, 24.0]),
)
def test_no_votes_exceed_the_bound(epsilon, places, order) -> None:
    a, beta = 1 / (1 + math.exp(epsilon)), math.tanh(epsilon / 2)
    p, q, *others = (a + beta * place for place in places)
    if abs(p - q) < 1e-3:
        return
    curve = tally_curve(len(others) + 1, epsilon)
    found = exact_divergence(p, q, others, order)
    at = ORDERS.index(order)
    assert found <= curve.per_square[at] * (p - q) ** 2 * (1 + 1e-9)
    assert found <= curve.largest[at] * (1 + 1e-9)


def test_one_voter_has_the_divergence_of_a_single_vote() -> None:
    for epsilon in (0.1, 0.5, 2.0):
        a = 1 / (1 + math.exp(epsilon))
        curve = tally_curve(1, epsilon)
        for order in (1.5, 2.0, 8.0):
            one = exact_divergence(1 - a, a, [], order)
            assert curve.largest[ORDERS.index(order)] == pytest.approx(one, rel=1e-9)


def test_no_order_lies_where_the_excess_need_not_be_convex() -> None:
    assert not [order for order in ORDERS if 2 < order < 3]
    assert list(ORDERS) == sorted(set(ORDERS))


@pytest.mark.parametrize("rho", [1.4e-7, 2.1e-7, *np.geomspace(7e-7, 100, 30)])
def test_the_grid_of_orders_costs_little(rho: float) -> None:
    """A divergence of rho times the order, compared with the best of all orders."""
    orders = np.array(ORDERS)
    best = epsilon_of_zcdp(rho, 1e-5)
    assert best <= epsilon_of_orders(orders, rho * orders, 1e-5) * (1 + 1e-9) <= 1.05 * best


def test_epsilon_of_orders_is_never_negative() -> None:
    assert epsilon_of_orders(np.array(ORDERS), np.zeros(len(ORDERS)), 0.5) == 0.0


@pytest.mark.parametrize("others", [0, 1, 255, 256, 257, 999, 12_345, 999_999])
def test_cells_cover_every_split(others: int) -> None:
    """Each split has at least as many voters of each kind as one of the cells."""
    for cells in (24, 64, 128):
        found = splits(others, cells)
        plus, minus = np.array(found).T
        assert (plus.max(), minus[plus.argmax()]) in found
        tried = np.unique(np.linspace(0, others, 1000).astype(int))
        for number in tried:
            assert ((plus <= number) & (minus <= others - number)).any()
        # The worst split, with all others at b, is bounded by a cell that reaches it.
        assert minus[-1] == 0
        assert max(p + m for p, m in found) <= others


def test_the_bound_is_monotone() -> None:
    def epsilon(honest=100, per_bit=0.5, ratio=3.0, rounds=60, relation="replace"):
        sums = VoteSums(per_bit, 7850, ratio, True)
        return bound_of_tallies([TallyRelease(sums, honest, rounds, relation)], 1e-5).epsilon

    assert epsilon(honest=101) < epsilon() < epsilon(honest=99)
    assert epsilon(rounds=59) < epsilon() < epsilon(rounds=61)
    assert epsilon(ratio=2.9) < epsilon() < epsilon(ratio=3.1)
    assert epsilon(per_bit=0.49) < epsilon() < epsilon(per_bit=0.51)
    assert epsilon(relation="zero-out") < 0.55 * epsilon()
    assert epsilon(ratio=1e6) == epsilon(ratio=None)
    assert epsilon(rounds=0) == 0


@pytest.mark.parametrize(
    "voters", [(256, 257, 258, 260, 262, 270, 290), (9_999, 10_000, 10_001, 10_300, 10_600)]
)
def test_coarser_cells_do_not_raise_the_bound(voters: tuple[int, ...]) -> None:
    curves = [tally_curve(honest, 0.5, (2.0, 16.0)) for honest in voters]
    for fewer, more in itertools.pairwise(curves):
        assert (more.per_square <= fewer.per_square * (1 + 1e-12)).all()
        assert (more.largest <= fewer.largest * (1 + 1e-12)).all()


def test_published_runs_of_mechanisms() -> None:
    guarantee = hb.Rotated(hb.CPA(7850, 0.5, 1.0, clip=3.0)).guarantee
    found = guarantee.of_tally(1000, rounds=60, delta=1e-5)
    assert 1.562 < found.epsilon < 1.578
    assert found.delta == 1e-5
    zero = guarantee.of_tally(1000, rounds=60, delta=1e-5, relation="zero-out")
    assert 0.735 < zero.epsilon < 0.7402
    free = hb.CPA(7850, 0.5, 1.0).guarantee.of_tally(1000, rounds=60, delta=1e-5)
    assert 111 < free.epsilon < 112.9


@pytest.mark.parametrize(
    ("rounds", "share", "published"),
    [(600, 0.01, 0.430), (60, 0.05, 1.07), (60, 0.07, 1.53), (600, 0.1, 4.84)],
)
def test_published_runs_with_sampled_users(rounds, share, published) -> None:
    guarantee = hb.CPA(7850, 0.5, 1.0, clip=3.0).guarantee
    found = guarantee.of_tally(1000, rounds=rounds, delta=1e-5, participation=share)
    assert found.epsilon == pytest.approx(published, rel=6e-3)
    whole = guarantee.of_tally(1000, rounds=rounds, delta=1e-5, participation=1.0)
    assert found.epsilon < whole.epsilon


def test_the_clip_is_that_of_the_points() -> None:
    """A wrong factor of two in the clip or in the points changes the bound."""
    plain = hb.CPA(100, 0.5, 1.0, clip=2.0).guarantee.of_tally(50, delta=1e-5)
    paper = hb.CPA(100, 0.5, 2.0, clip=2.0, preset="paper", rounding="stochastic")
    assert paper.guarantee.of_tally(50, delta=1e-5).epsilon == pytest.approx(plain.epsilon)
    double = hb.CPA(100, 0.5, 1.0, clip=4.0).guarantee.of_tally(50, delta=1e-5)
    assert double.epsilon > 1.5 * plain.epsilon


def test_a_message_is_attacked_through_the_tally() -> None:
    """Two updates of norm C in opposite directions, others at the ends: exact delta is smaller."""
    dim, honest, epsilon = 3, 4, 1.0
    mechanism = hb.CPA(dim, epsilon, 1.0, clip=1.0)
    a = 1 / (1 + math.exp(epsilon))
    stated = mechanism.guarantee.of_tally(honest, delta=1e-2).epsilon
    for direction in ([1, 0, 0], [1, 1, 1], [3, 1, 0]):
        update = np.array(direction) / np.linalg.norm(direction)
        laws = []
        for sign in (1, -1):
            chances = (1 + math.tanh(epsilon / 2) * sign * update) / 2
            single = []
            for chance in chances:
                law = np.array([1 - chance, chance])
                for _ in range(honest - 1):
                    law = np.convolve(law, [a, 1 - a])
                single.append(law)
            laws.append([math.prod(part) for part in itertools.product(*single)])
        delta = sum(max(0.0, p - math.exp(stated) * q) for p, q in zip(*laws, strict=True))
        assert delta <= 1e-2


def test_the_vote_on_the_norm_is_one_more_coordinate() -> None:
    inner = hb.CPA(200, 0.2, 1.0, clip=1.0)
    for answers in (1, 3):
        guarantee = NormVote(hb.Rotated(inner), 1.0, 0.2, answers).guarantee
        truth = 1 / (1 + math.exp(-0.2))
        majority = sum(
            math.comb(answers, k) * truth**k * (1 - truth) ** (answers - k)
            for k in range(answers // 2 + 1, answers + 1)
        )
        assert guarantee.sums.extra == pytest.approx((math.log(majority / (1 - majority)),))
        more = guarantee.of_tally(100, rounds=10, delta=1e-5).epsilon
        assert more > inner.guarantee.of_tally(100, rounds=10, delta=1e-5).epsilon


def test_rounds_with_different_parameters_add_up() -> None:
    one, two = VoteSums(0.5, 100, 1.0, True), VoteSums(0.2, 100, 2.0, True)
    both = bound_of_tallies([TallyRelease(one, 50, 3), TallyRelease(two, 80, 4)], 1e-5)
    split = [TallyRelease(one, 50)] * 3 + [TallyRelease(two, 80)] * 4
    assert bound_of_tallies(split, 1e-5).epsilon == pytest.approx(both.epsilon, rel=1e-12)
    assert both.epsilon > bound_of_tallies([TallyRelease(one, 50, 3)], 1e-5).epsilon


def test_the_local_bound_is_never_exceeded() -> None:
    for dim, per_bit, honest in ((1, 0.5, 1), (3, 8.0, 2), (2, 60.0, 5), (2, 120.0, 5)):
        guarantee = hb.CPA(dim, per_bit, 1.0, clip=1.0).guarantee
        local = guarantee.bound(1, 1e-5).epsilon
        assert guarantee.of_tally(honest, delta=1e-5).epsilon <= local


def test_more_than_a_million_honest_voters_count_as_a_million(monkeypatch) -> None:
    monkeypatch.setattr("hushbit.privacy.central.MAX_HONEST", 50)
    guarantee = hb.CPA(10, 0.5, 1.0, clip=1.0).guarantee
    bounds = [guarantee.of_tally(honest, delta=1e-5) for honest in (49, 50, 10**30)]
    assert bounds[0].epsilon > bounds[1].epsilon == bounds[2].epsilon


def test_without_randomized_response_nothing_is_guaranteed() -> None:
    guarantee = hb.CPA(10, math.inf, 1.0, clip=1.0).guarantee
    assert guarantee.of_tally(10**4, delta=1e-5).epsilon == math.inf


def test_rounding_that_is_not_private_has_no_benefit_from_the_clip() -> None:
    options = {"rounding": "dithered", "preset": "corrected"}
    clipped, free = (hb.CPA(50, 0.5, 1.0, clip=clip, **options).guarantee for clip in (0.1, None))
    bounds = [
        guarantee.of_tally(100, delta=1e-5, relation=relation).epsilon
        for guarantee in (clipped, free)
        for relation in ("replace", "zero-out")
    ]
    assert len(set(bounds)) == 1


@pytest.mark.parametrize(
    "mechanism",
    [
        hb.CPA(8, 0.5, 1.0, points=4),
        hb.CPA(8, 0.5, 1.0, lattice="A2", points=4),
        hb.NestedCPA(8, 0.5, 1.0, stages=(2, 2)),
        hb.Subset(hb.CPA(8, 0.5, 1.0), 3),
        hb.Rotated(hb.Subset(hb.CPA(8, 0.5, 1.0), 3)),
        Laplace(8, 0.5, 1.0),
        SignRR(8, 0.5, 1.0),
    ],
    ids=repr,
)
def test_other_mechanisms_are_refused_with_a_reason(mechanism) -> None:
    with pytest.raises(InvalidInput, match="two points on a line"):
        mechanism.guarantee.of_tally(100, delta=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"honest": 0},
        {"honest": 2.5},
        {"rounds": -1},
        {"rounds": 10**400},
        {"delta": 0.0},
        {"delta": 1.0},
        {"relation": "add-remove"},
        {"participation": 0.0},
        {"participation": 1.5},
        {"participation": 0.1, "relation": "zero-out"},
    ],
)
def test_wrong_arguments_are_refused(wrong) -> None:
    with pytest.raises(InvalidInput):
        hb.CPA(8, 0.5, 1.0).guarantee.of_tally(**({"honest": 10, "delta": 1e-5} | wrong))


def test_exact_values_of_two_voters() -> None:
    """H = 2, epsilon = 1: the largest D_2 over the place of the other voter, by rationals."""
    a = Fraction(1, 4)  # any a: the corner must be the worst of all places
    best = 0.0
    for place in range(21):
        other = a + (1 - 2 * a) * Fraction(place, 20)
        p, q = 1 - a, a
        laws = [
            [(1 - x) * (1 - other), x * (1 - other) + (1 - x) * other, x * other] for x in (p, q)
        ]
        for up, down in (laws, laws[::-1]):
            total = sum(x**2 / y for x, y in zip(up, down, strict=True))
            best = max(best, math.log(total))
    curve = tally_curve(2, math.log(3))
    assert curve.largest[ORDERS.index(2.0)] == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("order", [2.0, 32.0, 96.0])
def test_what_the_windows_leave_out_is_added(order: float) -> None:
    """W is at most 1 / a, and 1 + step W at most e^epsilon, so a lost count adds at most this."""
    epsilon, a = 1.0, 1 / (1 + math.e)
    laws = [vote_sum_law(300, 300, a)]
    excess = _ExcessOfOrder(laws, order, epsilon, a)
    for step, most in (
        (0.0, order**2 / a**2 * math.exp((order + 1) * epsilon)),
        (0.1, math.exp(order * epsilon) / 0.1**2),
    ):
        inside = vote_sum_excess(*laws[0], order, step)
        assert excess(step) == inside + OUTSIDE * most


def test_few_others_are_split_in_every_way() -> None:
    assert splits(128, 64) == [(plus, 128 - plus) for plus in range(129)]
    assert len(splits(129, 64)) == 64
    assert splits(0, 64) == [(0, 0)]


@pytest.mark.parametrize("honest", [1, 2, 5])
@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_the_ratio_is_the_supremum_over_all_steps(honest: int, order: float) -> None:
    """D / step² on a fine grid of steps and over all splits, by the definition of the excess."""
    epsilon = 2.0
    a, beta = 1 / (1 + math.exp(epsilon)), math.tanh(epsilon / 2)
    best = 0.0
    for step in beta * np.linspace(0, 1, 101):
        excess = max(
            reference_excess(plus, honest - 1 - plus, a, order, step) for plus in range(honest)
        )
        value = math.log1p(step**2 * excess) / step**2 if step else excess
        best = max(best, value / (order - 1))
    found = tally_curve(honest, epsilon).per_square[ORDERS.index(order)]
    assert best * (1 - 1e-9) <= found <= best * 1.003


def test_bounds_between_steps_cover_the_chord() -> None:
    """A convex excess between three steps: its chord at every place is bounded."""
    steps, excess = np.array([0.0, 0.2, 0.5]), np.array([3.0, 1.0, 4.0])
    bounds = interval_bounds(3.0, steps, excess)
    for number, bound in enumerate(bounds.tolist()):
        place = np.linspace(steps[number], steps[number + 1], 5000)[1:]
        chord = np.interp(place, steps, excess)
        attained = float((np.log1p(place**2 * chord) / place**2).max()) / 2
        assert attained <= bound <= attained * 1.02


def test_epsilons_and_orders_beyond_the_stated_limits_have_no_bound() -> None:
    assert np.isinf(tally_curve(2, 30.5).per_square).all()
    assert np.isinf(tally_curve(2, 30.5).largest).all()
    for epsilon, finite in ((30.0, 3.0), (25.0, 4.0), (10.0, 10.0)):
        curve = tally_curve(2, epsilon)
        for values in (curve.per_square, curve.largest):
            assert (np.isfinite(values) == (curve.orders <= finite)).all()


@pytest.mark.parametrize(
    ("honest", "counted"), [(999_999, 999_999), (10**6, 10**6), (10**9, 10**6)]
)
def test_a_million_honest_voters_are_counted(honest, counted, monkeypatch) -> None:
    seen = []

    def curve(honest, epsilon, orders):
        seen.append(honest)
        return TallyCurve(np.array(orders), np.ones(len(orders)), np.ones(len(orders)))

    monkeypatch.setattr(central, "tally_curve", curve)
    VoteSums(0.5, 4, None, True, extra=(0.2,)).divergences(honest, "replace", ORDERS)
    assert seen == [counted, counted]


def test_what_a_message_adds_to_the_divergence(monkeypatch) -> None:
    """With c = 2 and g = 0.3 for every order: votes, clip, relation and further votes."""

    def curve(honest, epsilon, orders):
        size = len(orders)
        return TallyCurve(np.array(orders), np.full(size, 2.0), np.full(size, 0.3))

    monkeypatch.setattr(central, "tally_curve", curve)

    def divergence(relation="replace", votes=100, ratio=None, private_zero=True, extra=()):
        sums = VoteSums(1.0, votes, ratio, private_zero, extra)
        found = sums.divergences(10, relation, ORDERS)
        assert found.shape == (len(ORDERS),)
        assert (found == found[0]).all()
        return float(found[0])

    beta = math.tanh(0.5)
    assert divergence() == pytest.approx(30)
    assert divergence(extra=(0.2, 0.3)) == pytest.approx(30.6)
    assert divergence("zero-out", private_zero=False) == pytest.approx(30)
    assert divergence("zero-out") == pytest.approx(100 * 2 * (beta / 2) ** 2, rel=1e-12)
    assert divergence(ratio=3.0) == pytest.approx(2 * (3 * beta) ** 2, rel=1e-5)
    assert divergence("zero-out", ratio=3.0) == pytest.approx(2 * (1.5 * beta) ** 2, rel=1e-5)
    assert divergence("zero-out", ratio=3.0, private_zero=False) == divergence(ratio=3.0)
    assert divergence(ratio=1e3) == pytest.approx(30)
    # The clip is rounded: its square may be exceeded by a few millionths.
    assert 1 + 2e-6 < divergence(ratio=3.0) / (2 * (3 * beta) ** 2) < 1 + 5e-6
    # A probability is a multiple of 2^-32, so p - q of each entry may be off by 2^-31.
    tiny = 2.0**-16 / beta
    assert divergence(votes=2**30, ratio=tiny) == pytest.approx(2 * (2 * 2.0**-16) ** 2, rel=1e-5)


def test_limits_of_rounds_and_voters() -> None:
    sums = VoteSums(0.5, 10, 1.0, True)
    assert TallyRelease(sums, 1, 2**53).rounds == 2**53
    assert TallyRelease(sums, 1, 0).rounds == 0
    for honest, rounds in ((1, 2**53 + 1), (0, 1)):
        with pytest.raises(InvalidInput):
            TallyRelease(sums, honest, rounds)
    assert TallyRelease(sums, 10).rounds == 1


def test_nothing_is_learned_from_no_tally() -> None:
    bound = bound_of_tallies([], 1e-5)
    assert (bound.epsilon, bound.delta) == (0.0, 1e-5)


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_the_bound_for_sampled_users_is_the_sum_of_the_theorem(share: float) -> None:
    """Theorem 9 of Wang, Balle, Kasiviswanathan, term by term, for finite epsilon(infinity)."""
    divergences = 0.02 * np.array(WHOLE_ORDERS)
    found = _sampled_divergences(divergences, share)
    for place in (0, 1, 5, 30):
        order = place + 2
        second = float(divergences[0])
        total = 1 + share**2 * math.comb(order, 2) * min(
            4 * math.expm1(second), 2 * math.exp(second)
        )
        for j in range(3, order + 1):
            part = 2 * math.exp((j - 1) * float(divergences[j - 2]))
            total += share**j * math.comb(order, j) * part
        assert found[place] == pytest.approx(math.log(total) / (order - 1), rel=1e-9)
    for second in (0.8, 1.0, 5.0):  # from ln 2 on, the second rule is the smaller one
        large = _sampled_divergences(np.full(len(WHOLE_ORDERS), second), share)
        assert large[0] == pytest.approx(math.log1p(2 * share**2 * math.exp(second)), rel=1e-9)


def test_sampling_never_raises_a_divergence() -> None:
    sums = VoteSums(0.5, 10, 3.0, True)
    drawn, known = (TallyRelease(sums, 20, 3, sampled=share) for share in (0.99, None))
    assert (drawn.divergences(WHOLE_ORDERS) <= known.divergences(WHOLE_ORDERS)).all()
    assert (drawn.divergences(ORDERS) == known.divergences(ORDERS)).all()
    few = TallyRelease(sums, 20, 3, sampled=0.01).divergences(WHOLE_ORDERS)
    assert (few[:5] < 0.1 * known.divergences(WHOLE_ORDERS)[:5]).all()


def test_orders_without_a_bound_make_only_larger_orders_infinite() -> None:
    divergences = np.full(len(WHOLE_ORDERS), math.inf)
    divergences[:3] = 0.1
    with np.errstate(all="raise"):
        found = _sampled_divergences(divergences, 0.1)
    assert np.isfinite(found[:3]).all()
    assert np.isinf(found[3:]).all()


def test_sampled_users_are_bounded_by_whole_orders_up_to_64() -> None:
    """Beyond the last order the bound would be smaller: 0.1011 with order 65."""
    sums = VoteSums(0.5, 100, None, True)
    found = bound_of_tallies([TallyRelease(sums, 1000, 1, sampled=0.01)], 1e-5)
    assert found.epsilon == pytest.approx(0.1029, rel=1e-3)


@pytest.mark.parametrize(("honest", "cells"), [(10**4, 128), (10**4 + 1, 48)])
def test_up_to_ten_thousand_voters_have_more_cells(honest, cells, monkeypatch) -> None:
    seen = []

    def laws(others, flip, number):
        seen.append((others, number))
        return [vote_sum_law(1, 0, flip)]

    monkeypatch.setattr(central, "_laws", laws)
    tally_curve.__wrapped__(honest, 0.5, (2.0,))
    assert seen[0] == (honest - 1, cells)


def test_the_ratio_covers_all_steps_up_to_the_largest() -> None:
    """A convex excess that rises only near beta, so that the ratio is largest there."""

    class Rising(_ExcessOfOrder):
        def __call__(self, step: float) -> float:
            return 1 + 1e6 * max(0.0, step - 0.35)

    order, beta = 3.0, 0.4
    excess = Rising([], order, 1.0, 0.3)
    at_beta = math.log1p(beta**2 * excess(beta)) / beta**2 / (order - 1)
    assert at_beta * (1 - 1e-12) <= excess.largest_ratio(beta) <= 1.3 * at_beta


@pytest.mark.parametrize("slope", [5.0, 20.0])
def test_steps_are_added_until_the_tolerance_is_reached_and_no_further(slope: float) -> None:
    """A convex excess with its kink between the first steps; the ratio is largest above zero."""

    class Kinked(_ExcessOfOrder):
        def __call__(self, step: float) -> float:
            found = 0.1 * slope + slope * max(0.0, step - 0.37)
            known[step] = found
            return found

    def is_close(number: int) -> bool:
        steps = np.array(sorted(list(known)[:number]))
        excess = np.array([known[step] for step in steps])
        attained = np.log1p(steps[1:] ** 2 * excess[1:]) / steps[1:] ** 2
        best = max(excess[0], attained.max())
        return bool(interval_bounds(3.0, steps, excess).max() * 2 <= (1 + central.TOLERANCE) * best)

    known: dict[float, float] = {}
    Kinked([], 3.0, 1.0, 0.3).largest_ratio(0.9)
    assert central.FIRST_STEPS + 1 < len(known) < central.FIRST_STEPS + 1 + central.ADDED_STEPS
    assert is_close(len(known))
    assert not is_close(len(known) - 1)
