"""The kernel of nested stages casts the very bits that the corners of the rounding give."""

import math

import numpy as np
import pytest

import hushbit as hb
from hushbit.coins import SimulationCoins
from hushbit.stage import spread_users
from hushbit.staged import DITHER_UNIT

STAGES = ((2, 2), (2, 4), (4, 2), (2, 2, 2), (8, 2))


def both_ways(mechanism: hb.CPA, updates: np.ndarray) -> tuple[tuple, tuple]:
    """Payloads and overload counts by the kernel, and from corners user by user."""
    keys = hb.RoundKey(bytes(32), 3).users(np.arange(len(updates)))
    coins = SimulationCoins(5).keys(keys)
    shape = (len(updates), mechanism.stage_bytes * len(mechanism.stages))
    payload, overloaded = np.zeros(shape, np.uint8), np.zeros(len(updates), np.int64)
    spread_users(mechanism._cast_one, updates, keys, coins, payload, overloaded)
    return mechanism.cast(updates, keys, coins), (payload, overloaded)


def same_both_ways(mechanism: hb.CPA) -> np.ndarray:
    """Cast users of whom some lie beyond the points; the payload that both ways give."""
    assert mechanism._line_fast
    updates = np.random.default_rng(1).normal(0, 0.2, (5, mechanism.dim)).astype(np.float32)
    updates[0, 0], updates[-1, -1] = 0.3, -7.0
    (payload, over), (wanted, counted) = both_ways(mechanism, updates)
    assert np.array_equal(payload, wanted)
    assert np.array_equal(over, counted)
    assert over.sum() > 0
    return payload


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("dim", [1, 9, 4096, 9001])
def test_same_bits_as_from_corners(stages: tuple[int, ...], dim: int) -> None:
    same_both_ways(hb.NestedCPA(dim, 0.5, 0.3, stages=stages))


@pytest.mark.parametrize("dim", [1, 9, 4096, 9001])
@pytest.mark.parametrize("stages", [None, (2, 2), (2, 4)])
def test_same_bits_and_sums_of_a_shared_dither(stages: tuple[int, ...] | None, dim: int) -> None:
    """One stage or several; the dithers are also added up as the general path does it."""
    if stages is None:
        mechanism: hb.CPA = hb.CPA(dim, 0.5, 0.3, rounding="subtractive")
    else:
        mechanism = hb.NestedCPA(dim, 0.5, 0.3, stages=stages, rounding="subtractive")
    payload = same_both_ways(mechanism)
    keys = hb.RoundKey(bytes(32), 3).users(np.arange(5))
    counters = mechanism.empty_counters(True)
    mechanism.absorb(counters, payload, keys)
    back = np.linalg.inv(mechanism.quantizer.points.lattice.generator)
    steps = sum(np.rint(mechanism._dither(key) @ back / DITHER_UNIT) for key in keys.keys)
    assert np.array_equal(counters["dither"], steps.astype(np.int64))


def test_same_bits_without_randomized_response_in_float64() -> None:
    mechanism = hb.NestedCPA(300, math.inf, 0.3, stages=(2, 2))
    updates = np.random.default_rng(2).normal(0, 0.1, (4, 300))
    (payload, _), (wanted, _) = both_ways(mechanism, updates)
    assert np.array_equal(payload, wanted)


@pytest.mark.parametrize(
    "options", [{"rounding": "dithered"}, {"words": "uniform"}, {"lattice": "A2"}]
)
def test_other_nested_mechanisms_take_the_general_path(options: dict) -> None:
    assert not hb.NestedCPA(8, 0.5, 0.3, stages=(4, 4), **options)._line_fast
