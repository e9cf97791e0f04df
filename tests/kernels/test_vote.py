"""Casting kernels against their NumPy definition, and the exact law of one bit."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hushbit as hb
from hushbit.kernels import definitions
from hushbit.kernels.vote import cast_corners, cast_two_points, compared_units, pack_tile
from hushbit.response import Response
from hushbit.stage import COIN_TAG

SIZES = (1, 7, 8, 63, 64, 65, 127, 128, 129, 511, 512, 513, 4095, 4096, 4097, 9000)


def some_keys(users: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, (users, 8), dtype=np.uint32)


def cast(
    updates: np.ndarray, radius: float, half: float, keys: np.ndarray, coins: np.ndarray,
    users: tuple[int, int], payload: np.ndarray, overloaded: np.ndarray,
) -> None:  # fmt: skip
    updates, units = compared_units(updates, radius, half)
    cast_two_points(updates, *units, radius, half, keys, 0x64726F77, coins, COIN_TAG, *users,
                    payload, overloaded)  # fmt: skip


@pytest.mark.parametrize("radius", [1e-38, 1e-30, 1e-3, 1.0, 1e30, 1e38])
@pytest.mark.parametrize("epsilon", [1e-8, 0.5, 30.0, np.inf])
def test_float32_thresholds_next_to_their_coins_are_exact(radius: float, epsilon: float) -> None:
    """Entries within a few float32 steps of the coin's own threshold: where rounding would show."""
    half, size = float(Response(epsilon).half), 4096
    (key, coin), overloaded = some_keys(2, 3), np.zeros(1, dtype=np.int64)
    steps = np.random.default_rng(0).integers(-3, 4, size)
    exact = definitions.halved_coins(coin, COIN_TAG, size) * (radius / half)
    update = np.clip(exact, -radius, radius).astype(np.float32)[None]
    update += (steps * np.spacing(np.abs(update))).astype(np.float32)
    payload = np.zeros((1, size // 8), dtype=np.uint8)
    cast(update, radius, half, key[None], coin[None], (0, 1), payload, overloaded)
    bits = definitions.two_point_bits(update[0], radius, half, key, coin, COIN_TAG)
    assert (payload[0] == definitions.packed(bits)).all()
    assert overloaded[0] == (np.abs(update[0].astype(np.float64)) > radius * (1 + 1e-12)).sum()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_two_point_bits_equal_the_definition(size: int, kind: type) -> None:
    updates = np.random.default_rng(size).normal(0, 0.7, (3, size)).astype(kind)
    keys, coins = some_keys(3, size), some_keys(3, size + 1)
    half = float(Response(0.5).half)
    payload = np.full((3, (size + 7) // 8), 255, dtype=np.uint8)
    overloaded = np.zeros(3, dtype=np.int64)
    cast(updates, 1.0, half, keys, coins, (1, 3), payload, overloaded)
    assert (payload[0] == 255).all()
    for user in (1, 2):
        bits = definitions.two_point_bits(
            updates[user], 1.0, half, keys[user], coins[user], COIN_TAG
        )
        assert (payload[user] == definitions.packed(bits)).all()
        assert overloaded[user] == (np.abs(updates[user]) > 1).sum()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("family", "points"), [("hadamard", 2), ("hadamard", 8), ("uniform", 5)])
def test_corner_bits_equal_the_definition(size: int, family: str, points: int) -> None:
    if family == "uniform" and size > 600:
        size = 600 + size % 8
    rng = np.random.default_rng(size)
    index = rng.integers(0, points, (size, 3), dtype=np.int32)
    weight = rng.dirichlet(np.ones(3), size)
    key, coin = some_keys(2, size)
    half = float(Response(1.0).half)
    payload = np.full((size + 7) // 8, 255, dtype=np.uint8)
    cast_corners(index, weight, points, family == "hadamard", half, key, 1, coin, COIN_TAG, payload)
    bits = definitions.corner_bits(index, weight, points, family, half, key, 1, coin, COIN_TAG)
    assert (payload == definitions.packed(bits)).all()


@pytest.mark.parametrize("beyond", [-0.6, -0.4, 0.0, 0.4, 0.6, 1.0])
def test_the_edge_of_a_coin_is_exact(beyond: float) -> None:
    """Thresholds put right at each vote's coin are rounded towards zero, then compared strictly.

    Without flips half is 2^31, so that x = coin + beyond is the threshold before rounding.
    """
    size, half = 300, float(2**31)
    (key, coin), overloaded = some_keys(2, 1), np.zeros(1, dtype=np.int64)
    word = definitions.draw_words(key, 0, size, 2, "hadamard")
    payload = np.zeros((1, (size + 7) // 8), dtype=np.uint8)
    coins = definitions.halved_coins(coin, COIN_TAG, size)
    above = np.where(coins >= 0, beyond >= 1, beyond > 0)
    cast((coins + beyond)[None], half, half, key[None], coin[None], (0, 1), payload, overloaded)
    bits = np.unpackbits(payload[0], bitorder="little")[:size].astype(bool)
    assert ((bits ^ (word[:, 0] > 0)) == above).all()
    coins = definitions.signed_coins(coin, COIN_TAG, 0, size)
    above = np.where(coins >= 0, beyond >= 1, beyond > 0)
    weight = (word[:, 0] * (coins + beyond) / half)[:, None]  # times the word's sign: coins again
    index = np.zeros((size, 1), dtype=np.int32)
    cast_corners(index, weight, 2, True, half, key, 0, coin, COIN_TAG, payload[0])
    bits = np.unpackbits(payload[0], bitorder="little")[:size].astype(bool)
    assert (bits == above).all()


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_packing(bits: list[bool]) -> None:
    flags = np.zeros(-(-len(bits) // 8) * 8, dtype=np.uint8)
    flags[: len(bits)] = bits
    row = np.empty(flags.size // 8, dtype=np.uint8)
    pack_tile(flags, row)
    assert (row == np.packbits(bits, bitorder="little")).all()


@pytest.mark.parametrize("epsilon", [1e-8, 0.1, 0.5, 2.0, 10.0, 40.0, np.inf])
def test_a_certain_sign_is_told_with_exactly_p(epsilon: float) -> None:
    """Of the 2^32 coins exactly 2^32 - lies are below the threshold of a certain +."""
    response = Response(epsilon)
    for lean, share in ((1.0, (1 + response.beta) / 2), (-1.0, (1 - response.beta) / 2)):
        edge = int(definitions.threshold(np.array([lean * response.half]), response.half)[0])
        assert Fraction(edge + 2**31, 2**32) == share


@given(x=st.floats(-3, 3), epsilon=st.floats(1e-6, 30))
def test_the_threshold_never_leaves_the_range_nor_leans_more_than_asked(
    x: float, epsilon: float
) -> None:
    half = Response(epsilon).half
    edge = definitions.threshold(np.array([x * half]), half)[0]
    assert -half <= edge <= half
    assert edge == int(edge)
    asked = np.clip(x, -1, 1) * half
    assert abs(edge) <= abs(asked)
    assert abs(edge - asked) < 1


@pytest.mark.parametrize("points", [2, 4, 5])
def test_every_coin_is_used_once(points: int) -> None:
    """Without noise and at a half-way block every bit shows its coin's first bit."""
    mechanism = hb.CPA(dim=20_000 if points == 2 else 5000, epsilon_per_bit=np.inf, radius=1.0,
                       points=points, words=None if points < 5 else "uniform")  # fmt: skip
    key = hb.RoundKey(secret=bytes(32), round=1).user(4)
    update = np.full(mechanism.dim, 0.0 if points < 5 else 0.25)
    ballot = mechanism.encode(update, key, hb.SeededCoins(5))
    bits = np.unpackbits(np.frombuffer(ballot.payload, dtype=np.uint8), bitorder="little")
    # Repeated coins or words would show as a period; autocorrelation stays below 5 sigma.
    sign = 2.0 * bits[: mechanism.dim] - 1
    for lag in (8, 16, 64, 128, 512, 1024, 4096):
        assert abs((sign[lag:] * sign[:-lag]).mean()) < 5 / np.sqrt(mechanism.dim - lag)
