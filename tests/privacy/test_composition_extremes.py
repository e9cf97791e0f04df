"""Exact composition at its numerical limits: tiny deltas, fine grids and the Fourier transform."""

import itertools
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from hushbit.privacy import composition
from hushbit.privacy.composition import delta_of_bits, epsilon_of_bits, epsilon_of_groups
from hushbit.privacy.renyi import epsilon_of_renyi, epsilon_of_zcdp


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-30, 1e-200])
def test_more_bits_never_cost_less(delta: float) -> None:
    """The tails of the law decide at tiny deltas; a law that is cut off there loses epsilon."""
    alone = epsilon_of_bits(0.5, 20_000, delta)
    together = epsilon_of_groups([(0.5, 20_000), (0.001, 20_000)], delta)
    assert alone <= together <= alone + 20.0


def test_the_transform_is_used_for_many_products_and_rounds_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    a, b = (composition._LossGap(first, rng.random(50)) for first in (3, -7))
    exact = composition._convolve(a, b)
    assert np.allclose(exact.mass, np.convolve(a.mass, b.mass))
    for most, uses_transform in ((2500, False), (2499, True)):
        monkeypatch.setattr(composition, "_MAX_PRODUCTS", most)
        found = composition._convolve(a, b)
        assert found.first == exact.first == -4
        assert found.mass.size == exact.mass.size == 99
        assert np.allclose(found.mass, exact.mass, rtol=1e-9)
        assert bool((found.mass > exact.mass).all()) == uses_transform


@pytest.mark.parametrize("sizes", [(9, 9), (9, 8), (100, 30), (400, 500)])
def test_the_transform_rounds_up_by_little_at_every_length(
    sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths next to a power of two, where a transform that is too short would wrap around."""
    rng = np.random.default_rng(3)
    a, b = (composition._LossGap(0, rng.dirichlet(np.ones(size))) for size in sizes)
    exact = np.convolve(a.mass, b.mass)
    monkeypatch.setattr(composition, "_MAX_PRODUCTS", 0)
    found = composition._convolve(a, b).mass
    assert found.size == exact.size
    assert (found > exact).all()
    assert (found - exact).max() <= 1.1e-11 * exact.max()


def delta_by_enumeration(groups: list[tuple[float, int]], epsilon: float) -> float:
    """delta(epsilon) of differing bits, summed over all outcomes."""
    per_bit = np.array([e for e, bits in groups for _ in range(bits)])
    truth = 1 / (1 + np.exp(-per_bit))
    total = 0.0
    for outcome in itertools.product((0, 1), repeat=per_bit.size):
        same = np.array(outcome)
        p = float(np.prod(np.where(same, truth, 1 - truth)))
        q = float(np.prod(np.where(same, 1 - truth, truth)))
        total += max(0.0, p - math.exp(epsilon) * q)
    return total


@pytest.mark.parametrize("size", [0.002, 0.1, 3.0])
def test_epsilons_without_a_common_step_keep_the_stated_slack(size: float) -> None:
    groups = [(0.61803398875 * size, 4), (0.41421356237 * size, 4)]
    delta = delta_by_enumeration(groups, 1.5 * size)
    found = epsilon_of_groups(groups, delta)
    largest = max(epsilon_of_bits(*group, delta) for group in groups)
    assert largest > 0.5 * size
    assert 1.5 * size * (1 - 1e-9) <= found <= 1.5 * size + 2e-4 * largest


@pytest.mark.parametrize("per_bit", [1e-9, 1e-6, 1e-3])
def test_renyi_orders_of_many_tiny_epsilons_equal_zcdp(per_bit: float) -> None:
    """The best order is found at any size: the divergence of tiny epsilons is order * rho."""
    bits = round(2 / per_bit**2)
    assert epsilon_of_renyi([(per_bit, bits)], 1e-5) == pytest.approx(
        epsilon_of_zcdp(1.0, 1e-5), rel=1e-4
    )


def decimal_delta(groups: list[tuple[float, int]], epsilon: float) -> Decimal:
    """delta(epsilon) of differing bits with 60 digits; to be used in a context of as many."""
    outcomes = [(Decimal(1), Decimal(0))]
    for per_bit, bits in groups:
        odds, loss = Decimal(per_bit).exp(), Decimal(per_bit)
        law = [
            (math.comb(bits, y) * odds ** (bits - y) / (1 + odds) ** bits, loss * (bits - 2 * y))
            for y in range(bits + 1)
        ]
        outcomes = [(p * q, a + b) for (p, a), (q, b) in itertools.product(outcomes, law)]
    exact = Decimal(epsilon)
    return sum((p * (1 - (exact - loss).exp()) for p, loss in outcomes if loss > exact), Decimal(0))


@pytest.mark.parametrize("share", [1e-4, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("size", [0.01, 0.25, 2.0])
@pytest.mark.parametrize("bits", [1, 2, 7])
def test_rounding_errors_never_lower_a_stated_level(size: float, bits: int, share: float) -> None:
    """Compared with 60 digits; `share` is that of the delta at which epsilon reaches zero."""
    with localcontext() as context:
        context.prec = 60
        alone = [(size, bits)]
        for groups in (alone, [(size, bits), (2 * size, 1)], [(size, bits), (math.e * size, 2)]):
            delta = share * float(decimal_delta(groups, 0.0))
            epsilon = epsilon_of_groups(groups, delta)
            assert decimal_delta(groups, epsilon) <= Decimal(delta)
        for epsilon in (0.0, 0.3 * size, 0.9 * size * bits):
            exact, stated = decimal_delta(alone, epsilon), delta_of_bits(size, bits, epsilon)
            assert exact <= Decimal(stated) <= exact * (1 + Decimal("2e-9"))


def test_epsilon_is_zero_where_delta_covers_all_mass() -> None:
    excess, mass = composition._masses_at(0.5, 1, 0)
    assert excess == 0
    assert epsilon_of_bits(0.5, 1, mass) == 0.0


@pytest.mark.parametrize("bits", [100, 10**5])
def test_the_grid_has_at_most_the_stated_number_of_cells(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = ((0.5, bits), (0.5005, bits))
    monkeypatch.setattr(composition, "_MAX_CELLS", 4096)
    tilt = composition._best_tilt(groups, 1.0005 * bits, 1e-5)
    step = composition._step(groups, tilt, 1e-5)
    laws = [composition._tilted_gap(e, n, tilt, step) for e, n in groups]
    assert sum(law.mass.size for law in laws) <= 4096 + 2


def test_the_exact_step_is_used_up_to_the_largest_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, tilt = ((0.5, 10**6), (1.0, 10**6)), 0.01
    cells = sum(
        2 * per_bit * composition._window_length(per_bit, bits, tilt) for per_bit, bits in groups
    )
    for most, exact in ((cells + 1, True), (cells, True), (cells - 1, False)):
        monkeypatch.setattr(composition, "_MAX_CELLS", int(most))
        assert (composition._step(groups, tilt, 1e-5) == 1) is exact


def test_the_gap_stays_inside_the_grid() -> None:
    """The law beyond the last cell is unknown, so a delta above all mass gives the last cell."""
    for masses in ([1e-7], [1e-7, 1e-7], [1e-7, 0.0, 1e-7]):
        law = composition._LossGap(4, np.array(masses))
        gap = composition._largest_gap(law, 0.5, 0.0, 0.0, 1e-5)
        assert gap == 0.5 * (4 + len(masses) - 1)


@pytest.mark.parametrize("step", [1.0, 20.0, 60.0])
def test_a_delta_that_equals_a_mass_gives_the_whole_gap(step: float) -> None:
    """Large steps: 1 - e^-60 is 1 in float64, so the last part of a gap must not be computed."""
    law = composition._LossGap(0, np.array([0.25, 0.5, 0.25]))
    delta = 0.25 * (1 + 1e-10) * -math.expm1(-step)
    assert composition._largest_gap(law, step, 0.0, 0.0, delta) == step


def test_the_search_for_a_budget_ends_where_its_upper_end_overflows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = itertools.count()

    def limited(per_bit: float, bits: int, epsilon: float) -> float:
        assert next(calls) < 1000
        return delta_of_bits(per_bit, bits, epsilon)

    monkeypatch.setattr(composition, "delta_of_bits", limited)
    assert composition._largest_within(1e308, 1, 1e-5) == 1e308


@pytest.mark.parametrize("total", [1e-312, 5e-324, 1e-300])
def test_the_search_for_a_tiny_epsilon_ends(total: float) -> None:
    found = composition.epsilon_per_bit_for(total, 1, 1e-313)
    assert 0 < found <= total + 3e-313  # delta allows 2e-313 by itself
