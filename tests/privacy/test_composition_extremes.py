"""Exact composition at its numerical limits: tiny deltas, fine grids and the Fourier transform."""

import itertools
import math

import numpy as np
import pytest

from hushbit.privacy import composition
from hushbit.privacy.composition import epsilon_of_bits, epsilon_of_groups
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
