"""Subset: blocks chosen by key, and an unbiased mean."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

import hushbit as hb
from enumeration import decoded, rounding, stage_outcomes
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.encoding.stage import StageEncoder
from hushbit.kernels.count import SUBSET_TAG, choose_blocks
from hushbit.kernels.words import draw_words, stream
from hushbit.lattice.points import PointSet

KEY = hb.RoundKey(bytes(32), 3)


def defined_positions(key: np.ndarray, blocks: int, report: int) -> list[int]:
    """Successive draws below `blocks` from the keystream, repeats skipped."""
    chosen: dict[int, None] = {}
    for word in stream(key, (SUBSET_TAG, 0, 0), 4096 + 2 * report).tolist():
        if word < 2**32 // blocks * blocks:
            chosen[word % blocks] = None
        if len(chosen) == report:
            return list(chosen)
    raise AssertionError("too few draws")


@given(st.integers(0, 2**32), st.integers(1, 150), st.data())
def test_positions_equal_their_definition(seed: int, blocks: int, data: st.DataObject) -> None:
    report = data.draw(st.integers(1, blocks))
    mechanism = hb.Subset(hb.CPA(dim=blocks, epsilon_per_bit=1.0, radius=1.0), report)
    key = np.random.default_rng(seed).integers(0, 2**32, 8, dtype=np.uint32)
    positions = mechanism.positions(key).tolist()
    assert positions == defined_positions(key, blocks, report)
    assert len(set(positions)) == report


def test_words_beyond_the_last_multiple_are_skipped() -> None:
    """With 3 · 2^20 blocks one word in 4096 is skipped; using it would favour the first blocks."""
    blocks, report = 3 << 20, 20_000
    key = np.arange(8, dtype=np.uint32)
    chosen = np.empty(report, dtype=np.int64)
    choose_blocks(key, blocks, chosen)
    assert chosen.tolist() == defined_positions(key, blocks, report)
    drawn = stream(key, (SUBSET_TAG, 0, 0), report)
    assert (drawn >= 2**32 // blocks * blocks).any()


def test_all_pairs_of_positions_are_equally_likely() -> None:
    """Chi-square at confidence 1 - 1e-6 on 6000 fixed keys, ordered pairs of 5 blocks."""
    mechanism = hb.Subset(hb.CPA(dim=5, epsilon_per_bit=1.0, radius=1.0), 2)
    seen = Counter(tuple(mechanism.positions(key)) for key in KEY.users(range(6000)).keys)
    pairs = list(itertools.permutations(range(5), 2))
    statistic = sum((seen[pair] - 300) ** 2 / 300 for pair in pairs)
    assert statistic < chi2.ppf(1 - 1e-6, len(pairs) - 1)
    assert set(seen) == set(pairs)


@pytest.mark.parametrize(("points", "family"), [(2, "hadamard"), (3, "uniform"), (4, "uniform")])
def test_unbiased_by_enumeration(points: int, family: str) -> None:
    """Every choice of 2 of 3 blocks, every rounding, word and flip; the variance as well."""
    inner = hb.CPA(dim=3, epsilon_per_bit=0.5, radius=1.0, points=points, words=family)
    stage, blocks, report = inner.stage_encoders[0], 3, 2
    x = Fraction(int(stage.points.coords[-1, 0]), 3)
    mean = square = Fraction(0)
    choices = list(itertools.combinations(range(blocks), report))
    for choice in choices:
        weight = Fraction(1, len(choices))
        if 0 not in choice:
            square += weight * x**2
            continue
        for level, chance in rounding(inner, x):
            for outcome in stage_outcomes(stage, level):
                value = Fraction(blocks, report) * decoded(stage, outcome)[0]
                mean += weight * chance * outcome.chance * value
                square += weight * chance * outcome.chance * (value - x) ** 2
    assert mean == x
    power = sum(Fraction(int(c)) ** 2 for c in stage.points.coords[:, 0])
    share = Fraction(points - 1, points) if points % 2 == 0 else Fraction(points, points + 1)
    expected = Fraction(blocks, report) * share * power / stage.response.beta**2 - x**2
    assert square == expected


@pytest.mark.parametrize(
    "inner",
    [
        hb.CPA(dim=23, epsilon_per_bit=1.0, radius=1.0),
        hb.CPA(dim=23, epsilon_per_bit=1.0, radius=1.0, points=5),
        hb.CPA(dim=23, epsilon_per_bit=1.0, radius=1.0, points=8, lattice="D4"),
    ],
    ids=["two", "five", "D4"],
)
def test_counters_are_the_sums_over_the_chosen_blocks(inner: hb.CPA) -> None:
    mechanism = hb.Subset(inner, report=inner.blocks // 2)
    keys = KEY.users(range(9))
    ballots = mechanism.encode_many(np.zeros((9, 23)), keys, hb.SeededCoins(1))
    tally = mechanism.tally(KEY)
    tally.add_many(ballots)
    total = np.zeros((inner.block_size, inner.blocks), dtype=np.int64)
    stage = inner.stage_encoders[0]
    for ballot, key in zip(ballots, keys.keys, strict=True):
        bits = np.unpackbits(np.frombuffer(ballot.payload, np.uint8), bitorder="little")
        words = draw_words(key, 0, mechanism.report, stage.points.size, stage.family)
        sums = words.astype(np.int64) @ stage.points.coords
        for i, block in enumerate(mechanism.positions(key)):
            total[:, block] += (2 * int(bits[i]) - 1) * sums[i]
    assert (tally.counters["sum"] == total).all()


def test_estimates_and_their_variance() -> None:
    """Scores of 400 entries over 800 users: mean and spread within 6 sigma."""
    mechanism = hb.Subset(hb.CPA(dim=400, epsilon_per_bit=2.0, radius=1.0, points=4), report=100)
    truth = np.random.default_rng(3).uniform(-0.5, 0.5, 400)
    tally = mechanism.tally(KEY)
    keys = KEY.users(range(800))
    tally.add_many(mechanism.encode_many(np.tile(truth, (800, 1)), keys, hb.SeededCoins(4)))
    estimate = mechanism.estimate(tally)
    scores = (estimate.mean - truth) / np.sqrt(estimate.variance)
    assert abs(scores.mean()) < 6 / 20
    assert 0.7 < (scores**2).mean() < 1.4
    assert estimate.unbiased


def test_points_that_do_not_sum_to_zero_shift_the_mean_as_without_subset() -> None:
    inner = hb.CPA(dim=8, epsilon_per_bit=1.0, radius=1.0, points=3)
    points = PointSet(np.array([[-1], [0], [2]]), np.eye(1))
    stage = StageEncoder(0, points, RandomizedResponse(1.0), "uniform")
    inner._set(stage_encoders=(stage,))
    mechanism = hb.Subset(inner, report=2)
    shifted = inner.decode(inner.empty_counters(True), 1, KEY).mean
    assert shifted.any()
    assert np.allclose(mechanism.decode(mechanism.empty_counters(True), 1, KEY).mean, shifted)


def test_users_who_agree_at_a_point_leave_no_variance() -> None:
    """Without flips, with all blocks reported: all noise is the power of the common signal."""
    mechanism = hb.Subset(hb.CPA(dim=16, epsilon_per_bit=np.inf, radius=1.0), report=16)
    tally = mechanism.tally(KEY)
    tally.add_many(mechanism.encode_many(np.ones((5, 16)), KEY.users(range(5))))
    estimate = mechanism.estimate(tally)
    assert np.allclose(estimate.mean, 1.0)
    assert np.allclose(estimate.variance, 0.0)
    assert estimate.noise == pytest.approx(1 / 5)


def test_guarantee_and_size() -> None:
    mechanism = hb.Subset(hb.CPA(dim=1000, epsilon_per_bit=0.5, radius=1.0, points=4), report=7)
    assert mechanism.guarantee.epsilon_per_message() == 3.5
    assert mechanism.guarantee.k_anonymity == 2
    assert mechanism.payload_bits == 7
    assert mechanism.unbiased_radius == 1.0
    assert len(mechanism.encode(np.zeros(1000), KEY.user(1)).payload) == 1


def test_updates_are_clipped_before_the_last_block_is_padded() -> None:
    inner = hb.CPA(dim=10, epsilon_per_bit=np.inf, radius=1.0, points=8, lattice="D4", clip=0.25)
    mechanism = hb.Subset(inner, report=3)
    ballot = mechanism.encode(np.full(10, 100.0), KEY.user(1), hb.SeededCoins(1))
    assert ballot.overloaded == 0
    assert (
        ballot.to_bytes()
        == mechanism.encode(
            np.full(10, 0.25 / np.sqrt(10)) * (1 - 1e-6), KEY.user(1), hb.SeededCoins(1)
        ).to_bytes()
    )


def test_mechanisms_that_subset_cannot_wrap_are_refused() -> None:
    inner = hb.CPA(dim=10, epsilon_per_bit=1.0, radius=1.0)
    nested = hb.NestedCPA(dim=10, epsilon_per_bit=1.0, radius=1.0, stages=(2, 2))
    dithered = hb.CPA(dim=10, epsilon_per_bit=1.0, radius=1.0, rounding="subtractive")
    for wrong in (None, nested, dithered, hb.Rotated(inner)):
        with pytest.raises(hb.InvalidInput):
            hb.Subset(wrong, 2)  # type: ignore[arg-type]
    for report in (0, 11, -1, 2.0, True, "2", None):
        with pytest.raises(hb.InvalidInput, match="report"):
            hb.Subset(inner, report)  # type: ignore[arg-type]
    mechanism = hb.Subset(inner, 3)
    with pytest.raises(hb.InvalidInput, match="no ballots"):
        mechanism.estimate(mechanism.tally(KEY))


def test_the_last_block_is_padded_with_zeros() -> None:
    """The last entry is alone in a block of two: with anything but a zero it would be clipped."""
    inner = hb.CPA(9, 1.0, 1.0, lattice="A2", points=7)
    mechanism = hb.Subset(inner, inner.blocks)
    reach = inner.unbiased_radius * 0.99
    ballot = mechanism.encode([0.0] * 8 + [reach], KEY.user(1))
    assert ballot.overloaded == 0
    assert mechanism.encode([0.0] * 8 + [2.0], KEY.user(1)).overloaded == 1


def test_the_predicted_noise_grows_with_the_weight() -> None:
    inner = hb.CPA(8, 1.0, 0.3, points=4)
    whole, half = hb.Subset(inner, 8), hb.Subset(inner, 4)
    assert whole.noise_per_user(0.2) == pytest.approx(inner.noise_per_user(0.2))
    assert half.noise_per_user(0.2) + 0.04 == pytest.approx(2 * (whole.noise_per_user(0.2) + 0.04))
    with pytest.raises(hb.InvalidInput, match="stochastic"):
        hb.Subset(hb.CPA(8, 1.0, 0.3, rounding="nearest"), 4).noise_per_user(0.2)


def test_at_least_one_and_at_most_all_blocks_are_reported() -> None:
    inner = hb.CPA(8, 1.0, 0.3)
    assert [hb.Subset(inner, report).payload_bits for report in (1, 8)] == [1, 8]
    for report in (0, 9, 2.0, True):
        with pytest.raises(hb.InvalidInput, match="report"):
            hb.Subset(inner, report)


def test_one_ballot_adds_at_most_the_largest_sum() -> None:
    mechanism = hb.Subset(hb.CPA(6, 1.0, 0.3, points=4), 6)
    counters = mechanism.empty_counters(True)
    largest = mechanism.largest_votes(counters)["sum"]
    seen = set()
    for user in range(30):
        found = mechanism.empty_counters(True)
        ballot = mechanism.encode([0.3] * 6, KEY.user(user))
        payload = np.frombuffer(ballot.payload, np.uint8)[None]
        mechanism.add_payload(found, payload, KEY.users([user]))
        seen |= set(np.abs(found["sum"]).ravel().tolist())
    assert max(seen) == largest
