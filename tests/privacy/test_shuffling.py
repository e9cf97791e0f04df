"""Shuffling against the audit's table and its conditions."""

import math
from collections.abc import Callable

import pytest

from hushbit.errors import InvalidInput
from hushbit.privacy.shuffling import shuffled_epsilon, shuffled_message

BITS, DELTA_PER_BIT = 7850, 6.4e-11
TABLE = [
    (1_000, 0.1, "0.088", "67.7", 1e-4),
    (1_000, 0.5, "0.420", "861", 1e-4),
    (10_000, 0.1, "0.024", "12.6", 1e-4),
    (10_000, 0.5, "0.135", "129", 1e-4),
    (100_000, 0.1, "0.0070", "2.99", 1e-5),
    (100_000, 0.5, "0.041", "24.2", 1e-4),
    (1_000_000, 0.1, "0.0021", "0.85", 1e-5),
    (1_000_000, 0.5, "0.0127", "5.8", 1e-5),
    (1_000_000, 1.0, "0.030", "16.7", 1e-4),
]


@pytest.mark.parametrize(("users", "epsilon0", "printed", "_whole", "_interval"), TABLE)
def test_table_of_one_bit(
    users: int, epsilon0: float, printed: str, _whole: str, _interval: float
) -> None:
    epsilon = shuffled_epsilon(epsilon0, users, DELTA_PER_BIT)
    assert f"{epsilon:.{len(printed.partition('.')[2])}f}" == printed


@pytest.mark.parametrize(("users", "epsilon0", "_bit", "printed", "interval"), TABLE)
def test_table_of_whole_messages(
    users: int, epsilon0: float, _bit: str, printed: str, interval: float
) -> None:
    """The printed column is a discretised loss distribution: it overshoots the exact value.

    Each of the 7850 losses is rounded up by at most one interval, on average by half of it, plus
    half a printed digit. `test_events.py` reproduces the printed digits with the package.
    """
    exact = shuffled_message(epsilon0, users, BITS, 1e-6, delta_per_bit=DELTA_PER_BIT)
    digit = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    assert exact < float(printed) + digit
    assert float(printed) - exact < BITS * interval * 0.6 + digit + 0.002 * exact


def test_published_form_is_slightly_smaller() -> None:
    epsilon0, users, delta = 0.5, 10_000, 1e-6
    log_term = math.log(4 / delta)
    blanket = 8 * math.sqrt(math.exp(epsilon0) * log_term / users) + 8 * math.exp(epsilon0) / users
    published = math.log1p(math.tanh(epsilon0 / 2) * blanket)
    assert published < shuffled_epsilon(epsilon0, users, delta) < 1.2 * published


def test_monotone_and_never_above_the_local_level() -> None:
    values = [shuffled_epsilon(0.5, users, 1e-8) for users in (600, 1000, 10**4, 10**6, 10**9)]
    assert values == sorted(values, reverse=True)
    assert all(value <= 0.5 for value in values)
    assert shuffled_epsilon(0.5, 10**4, 1e-12) > shuffled_epsilon(0.5, 10**4, 1e-6)
    one = shuffled_message(0.5, 10**4, 1, 1e-6, delta_per_bit=5e-7)
    assert one <= shuffled_epsilon(0.5, 10**4, 5e-7)


def test_refused_outside_the_theorem() -> None:
    log_term = math.log(4 / 1e-6)
    edge = math.log(1000 / (16 * log_term))
    assert shuffled_epsilon(edge * 0.999, 1000, 1e-6) > 0
    with pytest.raises(InvalidInput, match="needs at least"):
        shuffled_epsilon(edge * 1.001, 1000, 1e-6)
    with pytest.raises(InvalidInput, match="needs at least"):
        shuffled_epsilon(0.5 * BITS, 10**6, 1e-6)
    calls: list[Callable[[], object]] = [
        lambda: shuffled_epsilon(0.1, 10, 1e-6),
        lambda: shuffled_epsilon(math.inf, 10**6, 1e-6),
        lambda: shuffled_epsilon(0.1, 10**6, 0.0),
        lambda: shuffled_message(0.1, 10**6, BITS, 1e-6, delta_per_bit=1e-9),
        lambda: shuffled_message(0.1, 10**6, 0, 1e-6, delta_per_bit=1e-10),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
