"""Decoders: constants, presets, histograms and robust means."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import hushbit as hb
from hushbit.encoding.stage import dither_uniforms
from hushbit.tally.estimate import StageHistogram, decoder_constants, signal_power

KEY = hb.RoundKey(bytes(32), 3)


def counted(
    mechanism: hb.Mechanism, updates: np.ndarray, seed: int = 1, histogram: bool = True
) -> hb.Tally:
    tally = mechanism.tally(KEY, histogram)
    keys = KEY.users(range(len(updates)))
    tally.add_many(mechanism.encode_many(updates, keys, hb.SeededCoins(seed)))
    return tally


def test_constants() -> None:
    beta, rho = Fraction(1, 4), Fraction(-1, 3)
    assert decoder_constants("corrected", beta, rho) == (3, Fraction(1, 4))
    assert decoder_constants("paper", beta, rho) == (4, 0)
    assert decoder_constants("authors", beta, rho) == (1, 0)
    with pytest.raises(hb.InvalidInput, match="decoder"):
        decoder_constants("best", beta, rho)


@pytest.mark.parametrize("preset", ["corrected", "paper", "authors"])
@pytest.mark.parametrize("points", [2, 3, 4, 5, 8])
def test_presets_decode_to_multiples_of_each_other(points: int, preset: str) -> None:
    mechanism = hb.CPA(dim=30, epsilon_per_bit=0.5, radius=1.0, points=points, preset=preset)
    tally = counted(mechanism, np.random.default_rng(1).uniform(-0.5, 0.5, (9, 30)))
    stage = mechanism.stage_encoders[0]
    corrected = mechanism.estimate(tally, decoder="corrected").mean
    factor = float(1 - stage.rho)
    paper, authors = (mechanism.estimate(tally, decoder=d) for d in ("paper", "authors"))
    assert np.allclose(paper.mean, factor * corrected, rtol=1e-12, atol=1e-12)
    beta = float(stage.response.beta)
    assert np.allclose(authors.mean, beta * factor * corrected, rtol=1e-12, atol=1e-12)
    assert not paper.unbiased
    assert not authors.unbiased
    assert mechanism.estimate(tally).mean.tobytes() == (
        mechanism.estimate(tally, decoder=preset).mean.tobytes()
    )


@pytest.mark.parametrize(("epsilon", "factor"), [(0.5, 0.3266), (1.0, 0.616), (2.0, 1.0155)])
def test_factors_of_the_published_code(epsilon: float, factor: float) -> None:
    mechanism = hb.CPA(dim=5, epsilon_per_bit=epsilon, radius=1.0, preset="authors")
    assert mechanism.points_per_stage == (3,)
    assert mechanism.rounding == "nearest"
    tally = counted(mechanism, np.full((4, 5), 0.6))
    plain, corrected = (mechanism.estimate(tally, decoder=d).mean for d in (None, "corrected"))
    assert corrected.any()
    assert np.allclose(plain, factor * corrected, rtol=3e-4)


def test_histogram_estimates_the_shares() -> None:
    """No flips, users at the points: 4000 users, so 0.05 is more than five sigma."""
    mechanism = hb.CPA(dim=3, epsilon_per_bit=np.inf, radius=1.0, points=4)
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    places = np.repeat(np.linspace(-1, 1, 4), (4000 * shares).astype(int))
    estimate = mechanism.estimate(counted(mechanism, np.tile(places[:, None], (1, 3))))
    assert estimate.histogram().shape == (3, 4)
    assert np.allclose(estimate.histogram(), shares, atol=0.09)
    assert np.allclose(estimate.histogram().sum(axis=1), 1.0, rtol=1e-12)
    assert np.allclose(estimate.median(), 1 / 3)
    assert np.allclose(
        estimate.trimmed_mean(0.0), estimate.biased_histogram() @ np.linspace(-1, 1, 4)
    )


def test_biased_histogram_is_a_distribution() -> None:
    mechanism = hb.CPA(dim=50, epsilon_per_bit=0.2, radius=1.0, points=8)
    estimate = mechanism.estimate(counted(mechanism, np.zeros((3, 50))))
    assert (estimate.histogram() < 0).any()
    cut = estimate.biased_histogram()
    assert (cut >= 0).all()
    assert np.allclose(cut.sum(axis=1), 1.0)


def by_hand(shares: list[float], points: int = 5) -> hb.Estimate:
    """An estimate with a given histogram over points on [-1, 1]."""
    mechanism = hb.CPA(dim=1, epsilon_per_bit=1.0, radius=1.0, points=points)
    decoder = replace(mechanism.stage_encoders[0].decoders["corrected"], gain=1.0, shift=0.0)
    return hb.Estimate(
        np.zeros(1), np.ones(1), 10, True, (StageHistogram(decoder, np.array([shares]).T, 1),)
    )


def test_medians_and_trimmed_means_by_hand() -> None:
    assert by_hand([0.2, 0.2, 0.2, 0.2, 0.2]).median()[0] == 0
    assert by_hand([0.6, 0.4, 0, 0, 0]).median()[0] == -1
    assert by_hand([0, 0, 0.1, 0.1, 0.8]).median()[0] == 1
    trimmed = by_hand([0.5, 0, 0, 0, 0.5])
    assert trimmed.trimmed_mean(0.0)[0] == pytest.approx(0)
    # 0.1 off either end of (0.3 at -1, 0.7 at 1): 0.2 at -1 and 0.6 at 1, over 0.8.
    assert by_hand([0.3, 0, 0, 0, 0.7]).trimmed_mean(0.1)[0] == pytest.approx(0.5)
    assert by_hand([0.25, 0.5, 0.25, 0, 0]).trimmed_mean(0.25)[0] == pytest.approx(-0.5)
    # All shares are negative, so every point gets the same share.
    assert by_hand([-1, -1, -1, -1, -1]).biased_histogram().tolist() == [[0.2] * 5]
    for cut in (-0.1, 0.5, np.nan, "0.1", True):
        with pytest.raises(hb.InvalidInput, match="cut"):
            trimmed.trimmed_mean(cut)  # type: ignore[arg-type]
    for stage in (-1, 1, 0.0, True):
        with pytest.raises(hb.InvalidInput, match="stage"):
            trimmed.histogram(stage)  # type: ignore[arg-type]


def test_nested_histograms_and_robust_means() -> None:
    mechanism = hb.NestedCPA(dim=4, epsilon_per_bit=np.inf, radius=1.0, stages=(2, 2))
    places = np.linspace(-1, 1, 4)
    estimate = mechanism.estimate(counted(mechanism, np.tile(places, (3000, 1))))
    for stage, expected in ((0, [0, 0, 1, 1]), (1, [0, 1, 0, 1])):
        assert np.allclose(estimate.histogram(stage)[:, 1], expected, atol=0.1)
    assert np.allclose(estimate.median(), places)


def test_shrunken_mean_shrinks_by_signal_over_signal_and_noise() -> None:
    mean = np.array([3.0, -1.0, 2.0, 2.0])
    estimate = hb.Estimate(mean, np.full(4, 1.5), 10, True)
    assert np.allclose(estimate.shrunken_mean(), mean * (3.0 / 4.5))
    noise_only = hb.Estimate(mean, np.full(4, 100.0), 10, True)
    assert (noise_only.shrunken_mean() == 0).all()
    neither = hb.Estimate(np.zeros(4), np.zeros(4), 10, True)
    assert (neither.shrunken_mean() == 0).all()


def test_shrinkage_reduces_the_error_when_noise_dominates() -> None:
    mechanism = hb.CPA(dim=5000, epsilon_per_bit=0.5, radius=1.0)
    truth = np.random.default_rng(1).normal(0, 0.1, 5000)
    estimate = mechanism.estimate(counted(mechanism, np.tile(truth, (50, 1))))
    plain = ((estimate.mean - truth) ** 2).mean()
    assert ((estimate.shrunken_mean() - truth) ** 2).mean() < 0.2 * plain


def test_signal_power_is_between_zero_and_the_noise() -> None:
    noise = np.array([2.0])
    for size, count in ((0.0, 5), (100.0, 5), (1.0, 5), (1.0, 1)):
        power = signal_power(np.full((1, 10), size), noise, count)
        assert 0 <= power[0] <= 2.0
    assert signal_power(np.ones((1, 10)), noise, 1)[0] == 0
    # A mean square of 1 has noise of 2 / 5 in it; of the rest, 1 / 5 is the user with itself.
    assert signal_power(np.ones((1, 10)), noise, 5)[0] == pytest.approx((1 - 2 / 5) / (1 - 1 / 5))


@pytest.mark.parametrize(
    "mechanism",
    [
        hb.CPA(dim=4000, epsilon_per_bit=2.0, radius=1.0),
        hb.CPA(dim=4000, epsilon_per_bit=2.0, radius=1.0, points=5),
        hb.CPA(dim=4000, epsilon_per_bit=np.inf, radius=1.0, points=8),
        hb.CPA(dim=4000, epsilon_per_bit=2.0, radius=1.0, points=8, rounding="subtractive"),
        hb.CPA(dim=4000, epsilon_per_bit=2.0, radius=1.0, points=8, rounding="dithered"),
        hb.CPA(dim=4000, epsilon_per_bit=2.0, radius=1.0, points=16, lattice="E8"),
        hb.NestedCPA(dim=4000, epsilon_per_bit=2.0, radius=1.0, stages=(2, 4)),
    ],
    ids=["two", "five", "no flips", "subtractive", "dithered", "E8", "nested"],
)
def test_mean_and_variance_of_real_ballots(mechanism: hb.CPA) -> None:
    """Users agree, so the variance is tight: mean error within 5 sigma, variance within 20 %."""
    update = np.tile(np.linspace(-0.1, 0.12, 40), 100)
    estimate = mechanism.estimate(counted(mechanism, np.tile(update, (60, 1))))
    error = estimate.mean - update
    assert estimate.unbiased
    assert abs(error.mean()) < 5 * np.sqrt(estimate.variance.mean() / 4000)
    ratio = (error**2).mean() / estimate.variance.mean()
    assert 0.8 < ratio < 1.15
    assert estimate.variance.max() <= estimate.noise * 1.0001


@pytest.mark.parametrize("lattice", ["Z", "A2", "D4"])
def test_the_dithers_of_all_users_are_subtracted(lattice: str) -> None:
    """Two tallies of equal bits differ by the dithers, which are drawn from the keys."""
    mechanism = hb.CPA(9, 1.0, 1.0, lattice=lattice, points=8, rounding="subtractive")
    keys, size = KEY.users(range(5)), mechanism.block_size
    tally = counted(mechanism, np.zeros((5, 9)))
    with_dither = mechanism.estimate(tally).mean
    tally.counters["dither"][:] = 0
    uniforms = [dither_uniforms(key, mechanism.blocks, size) for key in keys.keys]
    dithers = np.array([mechanism.quantizer.dither(uniform) for uniform in uniforms])
    subtracted = mechanism.estimate(tally).mean - with_dither
    assert np.allclose(subtracted, dithers.mean(axis=0).reshape(-1)[:9], atol=1e-8)


def test_foreign_and_empty_tallies_are_refused() -> None:
    mechanism = hb.CPA(dim=3, epsilon_per_bit=1.0, radius=1.0)
    other = hb.CPA(dim=3, epsilon_per_bit=2.0, radius=1.0)
    for wrong in (None, 5, other.tally(KEY), {"stage 0": 1}):
        with pytest.raises(hb.InvalidInput, match="tally made by"):
            mechanism.estimate(wrong)  # type: ignore[arg-type]
    with pytest.raises(hb.InvalidInput, match="no ballots"):
        mechanism.estimate(mechanism.tally(KEY))
    tally = counted(mechanism, np.zeros((2, 3)))
    with pytest.raises(hb.InvalidInput, match="decoder"):
        mechanism.estimate(tally, decoder="other")


def test_without_histogram() -> None:
    mechanism = hb.CPA(dim=3, epsilon_per_bit=1.0, radius=1.0, points=4)
    tally = mechanism.tally(KEY, histogram=False)
    tally.add(mechanism.encode(np.zeros(3), KEY.user(1)))
    estimate = mechanism.estimate(tally)
    for method in (estimate.histogram, estimate.median, estimate.biased_histogram):
        with pytest.raises(hb.InvalidInput, match="histogram=True"):
            method()


def test_an_estimate_does_not_change_when_the_tally_does(round_key: hb.RoundKey) -> None:
    mechanism = hb.CPA(dim=40, epsilon_per_bit=1.0, radius=1.0, points=4)
    updates = np.random.default_rng(3).uniform(-1, 1, (8, 40))
    ballots = mechanism.encode_many(updates, round_key.users(range(8)), hb.SeededCoins(1))
    tally = mechanism.tally(round_key)
    tally.add_many(ballots[:4])
    estimate = mechanism.estimate(tally)
    before = estimate.histogram()
    tally.add_many(ballots[4:])
    assert np.array_equal(estimate.histogram(), before)
    assert not np.array_equal(mechanism.estimate(tally).histogram(), before)


def test_the_power_of_the_shared_signal() -> None:
    """One entry: (decoded² - noise / K) / (1 - 1 / K), between zero and the noise."""
    decoded, noise = np.array([[2.0, -2.0]]), np.array([6.0])
    assert signal_power(decoded, noise, 1)[0] == 0.0
    assert signal_power(decoded, noise, 2)[0] == 2.0
    assert signal_power(decoded, noise, 3)[0] == pytest.approx(3.0)
    assert signal_power(decoded, np.array([9.0]), 2)[0] == 0.0
    assert signal_power(decoded, np.array([1.0]), 2)[0] == 1.0


@pytest.mark.parametrize("size", [0.01, 1.0, 30.0])
def test_shrinkage_by_hand(size: float) -> None:
    """Power 4 and noise 1: the signal is 3 of 4. Below the noise nothing is left."""
    mean = size * np.array([2.0, -2.0])
    strong = hb.Estimate(mean, np.full(2, size**2), 5, True)
    weak = hb.Estimate(mean, np.full(2, 5 * size**2), 5, True)
    assert strong.shrunken_mean() == pytest.approx(0.75 * mean)
    assert weak.shrunken_mean().tolist() == [0.0, 0.0]


def test_the_median_of_two_halves_is_the_lower_one() -> None:
    assert by_hand([0.5, 0, 0, 0, 0.5]).median()[0] == -1
    assert by_hand([0, 0.5, 0, 0.5, 0]).median()[0] == -0.5


@pytest.mark.parametrize("users", [1, 7])
def test_the_noise_of_many_users_is_that_of_one_divided(users: int) -> None:
    for mechanism in (
        hb.CPA(dim=4, epsilon_per_bit=0.5, radius=0.3),
        hb.NestedCPA(dim=4, epsilon_per_bit=0.5, radius=0.3, stages=(2, 4)),
    ):
        estimate = mechanism.estimate(counted(mechanism, np.zeros((users, 4))))
        assert estimate.noise == pytest.approx(mechanism.stage_noise / users)
        assert (estimate.variance <= estimate.noise * (1 + 1e-12)).all()
    subset = hb.Subset(hb.CPA(dim=4, epsilon_per_bit=0.5, radius=0.3), 2)
    estimate = subset.estimate(counted(subset, np.zeros((users, 4))))
    assert estimate.noise == pytest.approx(2 * subset.inner.stage_noise / users)


def test_a_shown_estimate_has_no_histogram_or_noise() -> None:
    mechanism = hb.CPA(dim=4, epsilon_per_bit=0.5, radius=0.3, points=4)
    shown = repr(mechanism.estimate(counted(mechanism, np.zeros((3, 4)))))
    assert "unbiased=True" in shown
    assert "histograms" not in shown
    assert "noise" not in shown


@pytest.mark.parametrize("lattice", ["Z", "A2"])
def test_a_subtracted_dither_adds_its_power_to_the_noise(lattice: str) -> None:
    mechanism = hb.CPA(4, 0.5, 1.0, points=7, lattice=lattice, rounding="subtractive")
    estimate = mechanism.estimate(counted(mechanism, np.zeros((5, 4))))
    per_entry = mechanism.quantizer.points.lattice.second_moment / mechanism.block_size
    assert estimate.noise == pytest.approx((mechanism.stage_noise + per_entry) / 5)


@pytest.mark.parametrize("lattice", ["Z", "A2"])
def test_a_subtracted_dither_adds_its_power_to_the_variance(lattice: str) -> None:
    """Without a histogram the variance is the noise minus the power that users share."""
    mechanism = hb.CPA(4, 4.0, 1.0, points=7, lattice=lattice, rounding="subtractive")
    tally = counted(mechanism, np.full((50, 4), 0.5), histogram=False)
    stage, size = mechanism.stage_encoders[0], mechanism.block_size
    decoder, counter = stage.decoders["corrected"], tally.counters["stage 0"]
    decoded = decoder.decode_counter(counter, 50, stage.is_histogram(counter))
    shared = signal_power(decoded, decoder.noise, 50)
    assert shared.min() > 0
    dither = mechanism.quantizer.points.lattice.second_moment / size
    wanted = np.tile((decoder.noise - shared + dither) / 50, mechanism.blocks)
    assert np.allclose(mechanism.estimate(tally).variance, wanted, rtol=1e-12)
