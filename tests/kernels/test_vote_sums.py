"""Rényi divergences of sums of votes: the kernels against their definition and exact rationals."""

import math
from fractions import Fraction

import numpy as np
import pytest

from hushbit.kernels.vote_sums import (
    binomial_window,
    convolve,
    power_excess,
    reference_excess,
    vote_sum_excess,
    vote_sum_law,
)

ORDERS = (1.05, 1.5, 2.0, 3.0, 8.0, 32.0)


def exact_excess(plus: int, minus: int, a: Fraction, order: int, step: Fraction) -> Fraction:
    """J by rational arithmetic, for whole orders."""
    law = [Fraction(1)]
    for chance in [1 - a] * plus + [a] * minus:
        padded = [Fraction(0), *law, Fraction(0)]
        law = [(1 - chance) * padded[t + 1] + chance * padded[t] for t in range(len(law) + 1)]
    here, before = [*law, Fraction(0)], [Fraction(0), *law]
    q = [(1 - a) * x + a * y for x, y in zip(here, before, strict=True)]
    p = [(1 - a - step) * x + (a + step) * y for x, y in zip(here, before, strict=True)]
    up = sum(x**order / y ** (order - 1) for x, y in zip(p, q, strict=True)) - 1
    down = sum(y**order / x ** (order - 1) for x, y in zip(p, q, strict=True)) - 1
    return max(up, down) / step**2


@pytest.mark.parametrize(
    ("plus", "minus"), [(0, 0), (1, 0), (0, 2), (3, 2), (7, 0), (0, 7), (4, 9)]
)
@pytest.mark.parametrize("order", [2, 3, 5])
def test_the_kernel_equals_exact_rationals(plus: int, minus: int, order: int) -> None:
    for a, step in ((Fraction(1, 4), Fraction(1, 2)), (Fraction(3, 10), Fraction(1, 100))):
        law = vote_sum_law(plus, minus, float(a))
        found = vote_sum_excess(*law, float(order), float(step))
        assert found == pytest.approx(float(exact_excess(plus, minus, a, order, step)), rel=1e-10)


@pytest.mark.parametrize(
    ("plus", "minus", "a"), [(0, 0, 0.4), (30, 0, 0.3), (17, 23, 0.1), (0, 400, 0.45)]
)
def test_the_kernel_equals_its_definition(plus: int, minus: int, a: float) -> None:
    law = vote_sum_law(plus, minus, a)
    for order in ORDERS:
        for step in (0.0, 0.01, 0.1, 1 - 2 * a):
            expected = reference_excess(plus, minus, a, order, step)
            assert vote_sum_excess(*law, order, step) == pytest.approx(expected, rel=1e-9)


def test_published_values() -> None:
    """D_2 of three voters and D_3 of five, all others at b, a = 1/4, the target from a to b."""
    for honest, order, expected in ((3, 2.0, 0.52034951), (5, 3.0, 0.51887572)):
        excess = vote_sum_excess(*vote_sum_law(honest - 1, 0, 0.25), order, 0.5)
        assert math.log1p(0.25 * excess) / (order - 1) == pytest.approx(expected, abs=1e-8)


def test_the_series_equals_the_power() -> None:
    for r in (-31.0, -0.5, 1.05, 2.0, 3.0, 32.0):
        for u in (-0.019 / max(1, abs(r)), 0.019 / max(1, abs(r))):
            exact = math.fsum(
                math.prod((r - i) / (i + 1) for i in range(k)) * u**k for k in range(2, 30)
            )
            assert power_excess(r, u) == pytest.approx(exact, rel=1e-12)


def test_windows_hold_the_law_to_its_last_digits() -> None:
    law = binomial_window(60, 0.3)
    expected = [math.comb(60, k) * 0.3**k * 0.7 ** (60 - k) for k in range(61)]
    assert law == pytest.approx(np.array(expected), rel=1e-12)
    wide = binomial_window(10**6, 0.4)
    assert wide.size < 33 * math.sqrt(10**6 * 0.24) + 2 * 171
    assert max(wide[0], wide[-1]) < 1e-56
    assert convolve(law, np.array([0.25, 0.75])) == pytest.approx(
        np.convolve(law, [0.25, 0.75]), rel=1e-12
    )
