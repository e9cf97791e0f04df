"""No ballot adds more to a counter than its mechanism states, and the bounds are attained."""

from typing import Any

import numpy as np
import pytest

import golden_cases
import hushbit as hb

ALL = golden_cases.MECHANISMS | golden_cases.OTHERS
USERS = 300
SKEWED = [[1.0, 0.0, 0.0], [2.0, 1.0, 0.0], [2.0, 0.0, 1.0]]  # one coordinate of three is large
SUBTRACTIVE = {
    f"subtractive on {lattice}": hb.CPA(
        dim=24, epsilon_per_bit=1.0, radius=1.0, lattice=lattice, points=16, rounding="subtractive"
    )
    for lattice in ("A2", "D4", "E8", [[1.0, 0.0], [0.5, 1.0]], SKEWED)
}


def largest_seen(mechanism: Any, histogram: bool) -> dict[str, np.ndarray]:
    """The largest magnitude in each row of each counter, over tallies of one ballot each."""
    key = hb.RoundKey(bytes(32), 1)
    updates = np.random.default_rng(3).normal(0, 2, (USERS, mechanism.dim))
    updates[0], updates[1] = 30.0, -30.0
    ballots = mechanism.encode_many(updates, key.users(range(USERS)), hb.SeededCoins(1))
    empty = mechanism.empty_counters(histogram)
    seen = {name: np.zeros_like(counter) for name, counter in empty.items()}
    for user in range(USERS):
        tally = mechanism.tally(key, histogram)
        tally.add_many(ballots[user : user + 1])
        for name, counter in tally.counters.items():
            np.maximum(seen[name], np.abs(counter), out=seen[name])
    return seen


@pytest.mark.parametrize("histogram", [True, False])
@pytest.mark.parametrize("name", [*ALL, *SUBTRACTIVE])
def test_no_ballot_exceeds_the_largest_vote(name: str, histogram: bool) -> None:
    mechanism = (ALL | SUBTRACTIVE)[name]
    seen = largest_seen(mechanism, histogram)
    largest = mechanism.largest_votes(mechanism.empty_counters(histogram))
    assert set(seen) == set(largest)
    for counter, values in seen.items():
        assert (values <= largest[counter]).all(), counter


@pytest.mark.parametrize(
    ("name", "counter"),
    [
        ("two points", "stage 0"),
        ("four points", "stage 0"),
        ("eight points", "stage 0"),
        ("odd", "stage 0"),
        ("nested", "stage 1"),
        ("subset", "sum"),
        ("norm vote", "norm votes"),
        ("SignRR", "sum"),
        ("MVU", "symbols"),
        ("JoPEQ, three levels", "levels"),
    ],
)
@pytest.mark.parametrize("histogram", [True, False])
def test_the_bound_is_attained(name: str, counter: str, histogram: bool) -> None:
    mechanism = ALL[name]
    largest = mechanism.largest_votes(mechanism.empty_counters(histogram))
    assert largest_seen(mechanism, histogram)[counter].max() == largest[counter]


@pytest.mark.parametrize("name", ["subtractive", "JoPEQ"])
def test_dithers_come_close_to_their_bound(name: str) -> None:
    mechanism = ALL[name]
    largest = mechanism.largest_votes(mechanism.empty_counters(True))["dither"]
    assert 0.98 * largest < largest_seen(mechanism, True)["dither"].max() <= largest


def test_the_largest_scalar_dither_is_half_a_step() -> None:
    mechanism = hb.CPA(dim=3, epsilon_per_bit=0.5, radius=1.0, points=4, rounding="subtractive")
    largest = mechanism.largest_votes(mechanism.empty_counters(True))["dither"]
    assert 2**31 <= largest <= 2**31 + 3
