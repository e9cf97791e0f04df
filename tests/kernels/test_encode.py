"""Encoding kernels equal their NumPy definitions, and one bit has the exact probability."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hushbit as hb
from hushbit.cpa import DITHER_UNIT
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.encoding.stage import comparable_updates, for_each_user
from hushbit.kernels import encode
from hushbit.kernels.encode import encode_soft, encode_two_points, pack_tile
from hushbit.wire.coins import SimulationCoins

SIZES = (1, 7, 8, 63, 64, 65, 127, 128, 129, 511, 512, 513, 4095, 4096, 4097, 9000)
STAGES = ((2, 2), (2, 4), (4, 2), (2, 2, 2), (8, 2))


def some_keys(users: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, (users, 8), dtype=np.uint32)


def encode_users(
    updates: np.ndarray,
    radius: float,
    offset: float,
    keys: np.ndarray,
    coins: np.ndarray,
    users: tuple[int, int],
    payload: np.ndarray,
    overloaded: np.ndarray,
) -> None:
    updates = comparable_updates(updates, radius, offset)
    encode_two_points(updates, radius, offset, keys, coins, *users, payload, overloaded)


@pytest.mark.parametrize("radius", [1e-38, 1e-30, 1e-3, 1.0, 1e30, 1e38])
@pytest.mark.parametrize("epsilon", [1e-8, 0.5, 30.0, np.inf])
def test_float32_comparisons_next_to_the_threshold_are_exact(radius: float, epsilon: float) -> None:
    """Entries within a few float32 steps of the threshold, where a rounding error would show."""
    offset, size = float(RandomizedResponse(epsilon).threshold_offset), 4096
    (key, coin), overloaded = some_keys(2, 3), np.zeros(1, dtype=np.int64)
    steps = np.random.default_rng(0).integers(-3, 4, size)
    exact = encode.split_coins(coin, size) * (radius / offset)
    update = np.clip(exact, -radius, radius).astype(np.float32)[None]
    update += (steps * np.spacing(np.abs(update))).astype(np.float32)
    payload = np.zeros((1, size // 8), dtype=np.uint8)
    encode_users(update, radius, offset, key[None], coin[None], (0, 1), payload, overloaded)
    bits = encode.reference_two_points(update[0], radius, offset, key, coin)
    assert (payload[0] == encode.pack_bits(bits)).all()
    assert overloaded[0] == (np.abs(update[0].astype(np.float64)) > radius * (1 + 1e-12)).sum()


def test_updates_stay_in_float32_unless_a_factor_leaves_its_range() -> None:
    update = np.zeros((1, 3), dtype=np.float32)
    for radius, kind in ((0.05, np.float32), (1e-35, np.float64), (1e36, np.float64)):
        assert comparable_updates(update, radius, 2.0**29).dtype == kind


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_two_point_bits_equal_the_definition(size: int, kind: type) -> None:
    updates = np.random.default_rng(size).normal(0, 0.7, (3, size)).astype(kind)
    keys, coins = some_keys(3, size), some_keys(3, size + 1)
    offset = float(RandomizedResponse(0.5).threshold_offset)
    payload = np.full((3, (size + 7) // 8), 255, dtype=np.uint8)
    overloaded = np.zeros(3, dtype=np.int64)
    encode_users(updates, 1.0, offset, keys, coins, (1, 3), payload, overloaded)
    assert (payload[0] == 255).all()
    for user in (1, 2):
        bits = encode.reference_two_points(updates[user], 1.0, offset, keys[user], coins[user])
        assert (payload[user] == encode.pack_bits(bits)).all()
        assert overloaded[user] == (np.abs(updates[user]) > 1).sum()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("family", "points"), [("hadamard", 2), ("hadamard", 8), ("uniform", 5)])
def test_soft_bits_equal_the_definition(size: int, family: str, points: int) -> None:
    if family == "uniform" and size > 600:
        size = 600 + size % 8
    rng = np.random.default_rng(size)
    index = rng.integers(0, points, (size, 3), dtype=np.int32)
    weight = rng.dirichlet(np.ones(3), size)
    key, coin = some_keys(2, size)
    offset = float(RandomizedResponse(1.0).threshold_offset)
    payload = np.full((size + 7) // 8, 255, dtype=np.uint8)
    encode_soft(index, weight, points, family == "hadamard", offset, key, 1, coin, payload)
    bits = encode.reference_soft(index, weight, points, family, offset, key, 1, coin)
    assert (payload == encode.pack_bits(bits)).all()


@pytest.mark.parametrize("beyond", [-0.6, -0.4, 0.0, 0.4, 0.6, 1.0])
def test_thresholds_are_rounded_towards_zero_and_compared_strictly(beyond: float) -> None:
    """Every threshold is at its coin. Without flips offset is 2^31 and x = coin + beyond."""
    size, offset = 300, float(2**31)
    (key, coin), overloaded = some_keys(2, 1), np.zeros(1, dtype=np.int64)
    word = encode.draw_words(key, 0, size, 2, "hadamard")
    payload = np.zeros((1, (size + 7) // 8), dtype=np.uint8)
    coins = encode.split_coins(coin, size)
    above = np.where(coins >= 0, beyond >= 1, beyond > 0)
    encode_users(
        (coins + beyond)[None], offset, offset, key[None], coin[None], (0, 1), payload, overloaded
    )
    bits = np.unpackbits(payload[0], bitorder="little")[:size].astype(bool)
    assert ((bits ^ (word[:, 0] > 0)) == above).all()
    coins = encode.signed_coins(coin, 0, size)
    above = np.where(coins >= 0, beyond >= 1, beyond > 0)
    weight = (word[:, 0] * (coins + beyond) / offset)[:, None]  # times the word's sign: coins again
    index = np.zeros((size, 1), dtype=np.int32)
    encode_soft(index, weight, 2, True, offset, key, 0, coin, payload[0])
    bits = np.unpackbits(payload[0], bitorder="little")[:size].astype(bool)
    assert (bits == above).all()


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_packed_bits_are_those_of_numpy(bits: list[bool]) -> None:
    flags = np.zeros(-(-len(bits) // 8) * 8, dtype=np.uint8)
    flags[: len(bits)] = bits
    row = np.empty(flags.size // 8, dtype=np.uint8)
    pack_tile(flags, row)
    assert (row == np.packbits(bits, bitorder="little")).all()


@pytest.mark.parametrize("epsilon", [1e-8, 0.1, 0.5, 2.0, 10.0, 40.0, np.inf])
def test_a_certain_sign_is_sent_with_probability_exactly_p(epsilon: float) -> None:
    """Exactly 2^32 - flip_count of the 2^32 coins are below the threshold of a certain +."""
    response = RandomizedResponse(epsilon)
    offset = response.threshold_offset
    for sign, share in ((1.0, (1 + response.beta) / 2), (-1.0, (1 - response.beta) / 2)):
        below = int(encode.threshold(np.array([sign * offset]), offset)[0])
        assert Fraction(below + 2**31, 2**32) == share


@given(x=st.floats(-3, 3), epsilon=st.floats(1e-6, 30))
def test_rounding_a_threshold_never_increases_the_bias(x: float, epsilon: float) -> None:
    offset = RandomizedResponse(epsilon).threshold_offset
    rounded = encode.threshold(np.array([x * offset]), offset)[0]
    assert -offset <= rounded <= offset
    assert rounded == int(rounded)
    exact = np.clip(x, -1, 1) * offset
    assert abs(rounded) <= abs(exact)
    assert abs(rounded - exact) < 1


@pytest.mark.parametrize("points", [2, 4, 5])
def test_every_coin_is_used_once(points: int) -> None:
    """Without flips, at a block halfway between two points, a bit is the first bit of its coin."""
    mechanism = hb.CPA(
        dim=20_000 if points == 2 else 5000,
        epsilon_per_bit=np.inf,
        radius=1.0,
        points=points,
        words=None if points < 5 else "uniform",
    )
    key = hb.RoundKey(secret=bytes(32), round=1).user(4)
    update = np.full(mechanism.dim, 0.0 if points < 5 else 0.25)
    ballot = mechanism.encode(update, key, hb.SeededCoins(5))
    bits = np.unpackbits(np.frombuffer(ballot.payload, dtype=np.uint8), bitorder="little")
    # Repeated coins or words would show as autocorrelation above 5 sigma.
    sign = 2.0 * bits[: mechanism.dim] - 1
    for lag in (8, 16, 64, 128, 512, 1024, 4096):
        assert abs((sign[lag:] * sign[:-lag]).mean()) < 5 / np.sqrt(mechanism.dim - lag)


def kernel_and_general(mechanism: hb.CPA, updates: np.ndarray) -> tuple[tuple, tuple]:
    """Payloads and overload counts of the scalar kernel, and of the general path."""
    keys = hb.RoundKey(bytes(32), 3).users(np.arange(len(updates)))
    coins = SimulationCoins(5).keys(keys)
    shape = (len(updates), mechanism.stage_bytes * len(mechanism.stage_encoders))
    payload, overloaded = np.zeros(shape, np.uint8), np.zeros(len(updates), np.int64)
    for_each_user(mechanism._encode_user, updates, keys, coins, payload, overloaded)
    return mechanism.encode_payload(updates, keys, coins), (payload, overloaded)


def checked_payload(mechanism: hb.CPA) -> np.ndarray:
    """The payload that both paths give for updates that are partly beyond the points."""
    assert mechanism._uses_scalar_kernel
    updates = np.random.default_rng(1).normal(0, 0.2, (5, mechanism.dim)).astype(np.float32)
    updates[0, 0], updates[-1, -1] = 0.3, -7.0
    (payload, overloaded), (general, counted) = kernel_and_general(mechanism, updates)
    assert np.array_equal(payload, general)
    assert np.array_equal(overloaded, counted)
    assert overloaded.sum() > 0
    return payload


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("dim", [1, 9, 4096, 9001])
def test_scalar_stages_equal_the_general_path(stages: tuple[int, ...], dim: int) -> None:
    checked_payload(hb.NestedCPA(dim, 0.5, 0.3, stages=stages))


@pytest.mark.parametrize("dim", [1, 9, 4096, 9001])
@pytest.mark.parametrize("stages", [None, (2, 2), (2, 4)])
def test_dithered_scalar_stages_equal_the_general_path(
    stages: tuple[int, ...] | None, dim: int
) -> None:
    """The bits are equal, and so are the sums of the dithers."""
    if stages is None:
        mechanism: hb.CPA = hb.CPA(dim, 0.5, 0.3, rounding="subtractive")
    else:
        mechanism = hb.NestedCPA(dim, 0.5, 0.3, stages=stages, rounding="subtractive")
    payload = checked_payload(mechanism)
    keys = hb.RoundKey(bytes(32), 3).users(np.arange(5))
    counters = mechanism.empty_counters(True)
    mechanism.add_payload(counters, payload, keys)
    back = np.linalg.inv(mechanism.quantizer.points.lattice.generator)
    steps = sum(np.rint(mechanism._dither(key) @ back / DITHER_UNIT) for key in keys.keys)
    assert np.array_equal(counters["dither"], steps.astype(np.int64))


def test_scalar_stages_without_flips_in_float64_equal_the_general_path() -> None:
    mechanism = hb.NestedCPA(300, math.inf, 0.3, stages=(2, 2))
    updates = np.random.default_rng(2).normal(0, 0.1, (4, 300))
    (payload, _), (general, _) = kernel_and_general(mechanism, updates)
    assert np.array_equal(payload, general)


@pytest.mark.parametrize(
    "options", [{"rounding": "dithered"}, {"words": "uniform"}, {"lattice": "A2"}]
)
def test_other_nested_mechanisms_take_the_general_path(options: dict) -> None:
    assert not hb.NestedCPA(8, 0.5, 0.3, stages=(4, 4), **options)._uses_scalar_kernel
