"""Cross-checks against the dp-accounting package, and what its accountant leaves out."""

import builtins
import math
from typing import Any

import numpy as np
import pytest

from hushbit.errors import InvalidInput, MissingExtra
from hushbit.privacy.composition import epsilon_of
from hushbit.privacy.events import run_events
from hushbit.privacy.shuffling import shuffled_epsilon, shuffled_message

dp_accounting = pytest.importorskip("dp_accounting")
from dp_accounting.pld import common, privacy_loss_distribution  # noqa: E402
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant  # noqa: E402
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant  # noqa: E402

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
DELTA = 1e-5


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
    exact = epsilon_of(per_bit, bits, DELTA)
    assert exact <= package <= exact * 1.001


@pytest.mark.parametrize(("bits", "best"), [(100, "32.8"), (1000, "192.6"), (7850, "1163")])
def test_renyi_is_above_and_near(bits: int, best: str) -> None:
    """The audit prints 192.7 for 1000 bits: the best order gives 192.649, a coarse list 192.78."""
    package = by_renyi(run_events(0.5, bits, 1), DELTA)
    assert f"{package:.{len(best.partition('.')[2])}f}" == best
    assert epsilon_of(0.5, bits, DELTA) < package


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

    When this fails, the package counts; then `run_events` may say that either accountant serves.
    """
    accountant = PLDAccountant(neighboring_relation=REPLACE)
    reported = accountant.compose(run_events(0.5, 100, 1)).get_epsilon(DELTA)
    assert reported == pytest.approx(epsilon_of(0.5, 1, DELTA), abs=2e-4)
    assert by_losses(0.5, 100, DELTA) > 60 * reported


@pytest.mark.parametrize(
    ("users", "epsilon0", "printed", "interval"),
    [
        (10**6, 0.1, "0.85", 1e-5),
        (10**6, 0.5, "5.8", 1e-5),
        pytest.param(10**6, 1.0, "16.7", 1e-4, marks=pytest.mark.slow),
        pytest.param(10**5, 0.1, "2.99", 1e-5, marks=pytest.mark.slow),
        pytest.param(10**5, 0.5, "24.2", 1e-4, marks=pytest.mark.slow),
        pytest.param(10**4, 0.1, "12.6", 1e-4, marks=pytest.mark.slow),
        pytest.param(10**4, 0.5, "129", 1e-4, marks=pytest.mark.slow),
        pytest.param(10**3, 0.1, "67.7", 1e-4, marks=pytest.mark.slow),
        pytest.param(10**3, 0.5, "861", 1e-4, marks=pytest.mark.slow),
    ],
)
def test_shuffled_table_is_the_discretised_one(
    users: int, epsilon0: float, printed: str, interval: float
) -> None:
    bits, per_bit_delta = 7850, 5e-7 / 7850
    one = common.DifferentialPrivacyParameters(
        shuffled_epsilon(epsilon0, users, per_bit_delta), per_bit_delta
    )
    losses = privacy_loss_distribution.from_privacy_parameters(
        one, value_discretization_interval=interval
    )
    package = losses.self_compose(bits).get_epsilon_for_delta(1e-6)
    assert f"{package:.{len(printed.partition('.')[2])}f}" == printed
    exact = shuffled_message(epsilon0, users, bits, 1e-6, delta_per_bit=per_bit_delta)
    assert exact <= package <= exact + 0.6 * bits * interval + 0.002 * exact


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return original(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"hushbit\[lab\]"):
        run_events(0.5, 10, 1)


def test_bad_arguments_are_refused() -> None:
    for arguments in [(0.0, 1, 1), (0.5, 0, 1), (0.5, 1, 1.5), (math.nan, 1, 1)]:
        with pytest.raises(InvalidInput):
            run_events(*arguments)  # type: ignore[arg-type]
