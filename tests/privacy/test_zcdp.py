"""The whole-message guarantee of clipped two-point CPA: tables, and a check of its proof."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.privacy.composition import delta_of_bits
from hushbit.privacy.renyi import epsilon_of_zcdp, epsilon_of_zcdp_closed, zcdp_of_two_points

DELTA = 1e-5
TABLE = [
    (0.5, 1, "0.136", "2.64", "32.7"),
    (0.5, 3, "1.22", "8.7", "70.4"),
    (0.5, 10, "13.6", "38.6", "178"),
    (1.0, 1, "0.69", "6.3", "86"),
    (1.0, 3, "6.2", "23.1", "200"),
]


def as_printed(value: float, printed: str) -> str:
    return f"{value:.{len(printed.partition('.')[2])}f}"


@pytest.mark.parametrize(("per_bit", "ratio", "rho", "epsilon", "_shared"), TABLE)
def test_table_of_private_rounding(
    per_bit: float, ratio: float, rho: str, epsilon: str, _shared: str
) -> None:
    level = math.sinh(per_bit) ** 2 / 8 * (2 * ratio) ** 2  # by the slope of the channel
    assert as_printed(level, rho) == rho
    assert as_printed(epsilon_of_zcdp_closed(level, DELTA), epsilon) == epsilon
    assert epsilon_of_zcdp(level, DELTA) < epsilon_of_zcdp_closed(level, DELTA)
    tight = zcdp_of_two_points(per_bit, ratio * 0.02, 0.02)
    assert epsilon_of_zcdp(tight, DELTA) < epsilon_of_zcdp(level, DELTA)


@pytest.mark.parametrize(("per_bit", "ratio", "_rho", "_epsilon", "printed"), TABLE)
def test_table_of_shared_dither(
    per_bit: float, ratio: float, _rho: str, _epsilon: str, printed: str
) -> None:
    """The printed column is a Renyi bound at the best order.

    The pair is +-C spread over all 7850 entries, so a bit differs with chance (C/X) / sqrt(7850).
    """
    bits, differ = 7850, ratio / math.sqrt(7850)
    order = 1 + np.geomspace(0.05, 50, 4000)
    truth = 1 / (1 + math.exp(-per_bit))
    flip = 1 - truth
    both = truth**order * flip ** (1 - order) + flip**order * truth ** (1 - order)
    renyi = bits * np.log1p(differ * (both - 1)) / (order - 1)
    bound = renyi + np.log1p(-1 / order) - (np.log(order) + math.log(DELTA)) / (order - 1)
    assert float(bound.min()) == pytest.approx(float(printed), rel=0.003)


def renyi_of_channel(per_bit: float, order: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Renyi divergence of one coordinate for all pairs x, y on a grid of [-X, X], X = 1."""
    grid = np.linspace(-1, 1, 201)
    x, y = np.meshgrid(grid, grid)
    beta = math.tanh(per_bit / 2)
    log_p, log_q = np.log1p(beta * x), np.log1p(-beta * x)
    log_r, log_s = np.log1p(beta * y), np.log1p(-beta * y)
    plus = order * log_p + (1 - order) * log_r
    minus = order * log_q + (1 - order) * log_s
    return x, y, (np.logaddexp(plus, minus) - math.log(2)) / (order - 1)


@pytest.mark.parametrize("per_bit", [0.1, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 8.0, 128.0])
def test_channel_never_passes_either_bound(per_bit: float, order: float) -> None:
    x, y, divergence = renyi_of_channel(per_bit, order)
    by_slope = order * math.sinh(per_bit) ** 2 / 8 * (x - y) ** 2
    by_chord = order * per_bit**2 / 4 * (x**2 + y**2)
    assert np.all(divergence <= by_slope + 1e-12)
    assert np.all(divergence <= by_chord + 1e-12)


def test_no_smaller_constant_than_the_spread_pair_allows() -> None:
    """+-C over many coordinates costs 2 beta^2 (C/X)^2 per order; the chord bound is near it."""
    for per_bit, gap in [(0.1, 1.002), (0.5, 1.05), (1.0, 1.18)]:
        share = 1e-3
        beta = math.tanh(per_bit / 2) * share
        order = 8.0
        plus = (1 + beta) ** order * (1 - beta) ** (1 - order)
        minus = (1 - beta) ** order * (1 + beta) ** (1 - order)
        spread = math.log((plus + minus) / 2) / (order - 1) / order / share**2
        tight = zcdp_of_two_points(per_bit, 1.0, 1.0)
        assert spread == pytest.approx(2 * math.tanh(per_bit / 2) ** 2, rel=1e-4)
        assert spread < tight < spread * gap


def test_bound_covers_whole_updates_at_the_corners() -> None:
    """C = X sqrt(n) puts n coordinates at +-X: n differing bits, whose delta is known exactly."""
    for per_bit, bits in [(0.5, 1), (0.5, 9), (1.0, 4), (2.0, 25)]:
        rho = zcdp_of_two_points(per_bit, math.sqrt(bits), 1.0)
        assert rho == pytest.approx(bits * per_bit**2 / 2)
        epsilon = epsilon_of_zcdp(rho, DELTA)
        assert delta_of_bits(per_bit, bits, epsilon) <= DELTA


def test_best_order_is_found() -> None:
    for rho in (1e-6, 0.01, 0.136, 13.6, 1e4):
        above_one = np.geomspace(1e-6, 1e6, 400_001)
        order = 1 + above_one
        bounds = (
            rho * order + np.log(above_one / order) - (np.log(order) + math.log(DELTA)) / above_one
        )
        found = epsilon_of_zcdp(rho, DELTA)
        assert found <= max(0.0, float(bounds.min())) * (1 + 1e-9) + 1e-15
        assert found >= max(0.0, float(bounds.min())) * (1 - 1e-6)


@pytest.mark.filterwarnings("error")
def test_limits_and_refusals() -> None:
    assert epsilon_of_zcdp(0.0, DELTA) == 0.0
    assert epsilon_of_zcdp(math.inf, DELTA) == math.inf
    assert epsilon_of_zcdp(1e-308, DELTA) == 0.0
    assert epsilon_of_zcdp(1.0, 5e-324) > 50
    assert zcdp_of_two_points(1e200, 1.0, 1.0) == math.inf
    assert zcdp_of_two_points(math.inf, 1.0, 1.0) == math.inf
    calls: list[Callable[[], object]] = [
        lambda: epsilon_of_zcdp(-1.0, DELTA),
        lambda: epsilon_of_zcdp(1.0, 0.0),
        lambda: epsilon_of_zcdp(math.nan, DELTA),
        lambda: zcdp_of_two_points(0.5, 0.0, 1.0),
        lambda: zcdp_of_two_points(0.5, 1.0, math.inf),
        lambda: zcdp_of_two_points(0.0, 1.0, 1.0),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
