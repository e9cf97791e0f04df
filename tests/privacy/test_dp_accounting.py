"""Cross-checks against the dp-accounting package, and an error of its accountant."""

import math
from typing import Any

import numpy as np
import pytest

from hushbit.privacy.composition import epsilon_of_bits

dp_accounting = pytest.importorskip("dp_accounting")
from dp_accounting.pld import privacy_loss_distribution  # noqa: E402
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant  # noqa: E402
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant  # noqa: E402

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
DELTA = 1e-5


def run_events(epsilon_per_bit: float, bits: int, rounds: int) -> Any:
    """A run as a `dp_accounting` event of binary randomized response.

    The noise parameter of the package is the probability of replacing a bit by a uniform one,
    2 / (1 + e^epsilon).
    """
    if math.isinf(epsilon_per_bit):
        return dp_accounting.NonPrivateDpEvent()
    noise = 2 * math.exp(-epsilon_per_bit) / (1 + math.exp(-epsilon_per_bit))
    bit = dp_accounting.dp_event.RandomizedResponseDpEvent(noise, 2)
    return dp_accounting.SelfComposedDpEvent(bit, bits * rounds)


def by_losses(per_bit: float, bits: int, delta: float) -> float:
    noise = 2 / (1 + math.exp(per_bit))
    losses = privacy_loss_distribution.from_randomized_response(noise, 2)
    return float(losses.self_compose(bits).get_epsilon_for_delta(delta))


def by_renyi(event: Any, delta: float) -> float:
    orders = (1 + np.geomspace(0.01, 100, 1000)).tolist()
    accountant = RdpAccountant(orders, neighboring_relation=REPLACE)
    return float(accountant.compose(event).get_epsilon(delta))


@pytest.mark.parametrize(
    ("per_bit", "bits", "printed"),
    [(0.5, 10, "5.00"), (0.5, 100, "31.18"), (0.5, 1000, "186.2"), (2.0, 1000, "1688.0")],
)
def test_loss_distributions_agree(per_bit: float, bits: int, printed: str) -> None:
    package = by_losses(per_bit, bits, DELTA)
    assert f"{package:.{len(printed.partition('.')[2])}f}" == printed
    exact = epsilon_of_bits(per_bit, bits, DELTA)
    assert exact <= package <= exact * 1.001


@pytest.mark.parametrize(("bits", "best"), [(100, "32.8"), (1000, "192.6"), (7850, "1163")])
def test_renyi_is_above_and_near(bits: int, best: str) -> None:
    """For 1000 bits the best order gives 192.649; a coarse list of orders gives 192.78."""
    package = by_renyi(run_events(0.5, bits, 1), DELTA)
    assert f"{package:.{len(best.partition('.')[2])}f}" == best
    assert epsilon_of_bits(0.5, bits, DELTA) < package


def test_events_count_bits_of_all_rounds() -> None:
    event = run_events(0.5, 50, 4)
    assert event.count == 200
    assert event.event.num_buckets == 2
    assert event.event.noise_parameter == pytest.approx(2 * (1 - 1 / (1 + math.exp(-0.5))))
    assert by_renyi(event, DELTA) == pytest.approx(by_renyi(run_events(0.5, 200, 1), DELTA))
    assert isinstance(run_events(math.inf, 3, 1), dp_accounting.NonPrivateDpEvent)
    assert run_events(800.0, 3, 1).event.noise_parameter >= 0.0


def test_the_package_accountant_drops_the_count() -> None:
    """Version 0.6.0 composes the event once: 100 bits at 0.5 are reported as one bit.

    If this test fails, a newer version counts the bits; the test can then be removed.
    """
    accountant = PLDAccountant(neighboring_relation=REPLACE)
    reported = accountant.compose(run_events(0.5, 100, 1)).get_epsilon(DELTA)
    assert reported == pytest.approx(epsilon_of_bits(0.5, 1, DELTA), abs=2e-4)
    assert by_losses(0.5, 100, DELTA) > 60 * reported
