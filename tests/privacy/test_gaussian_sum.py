"""The exact Gaussian mechanism against dp-accounting, published values and direct integration."""

import math

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.privacy.central import GaussianSum, TallyRelease, VoteSums, bound_of_tallies
from hushbit.privacy.gaussian import delta_of_gaussian, epsilon_of_gaussian
from hushbit.privacy.guarantee import Guarantee

GRID = [(20.0, 60, 1e-5), (1.0, 1, 1e-5), (3.0, 1, 1e-9), (200.0, 60, 1e-3), (7.5, 600, 1e-6)]


def of_sum(multiplier: float, rounds: int, delta: float, relation: str = "replace") -> float:
    release = TallyRelease(GaussianSum(multiplier), 1, rounds, relation)
    return bound_of_tallies([release], delta).epsilon


@pytest.mark.parametrize(("multiplier", "rounds", "delta"), GRID)
@pytest.mark.parametrize("relation", ["replace", "zero-out"])
def test_dp_accounting_agrees(multiplier: float, rounds: int, delta: float, relation: str) -> None:
    gaussian = pytest.importorskip("dp_accounting").gaussian_mechanism
    sensitivity = 2.0 if relation == "replace" else 1.0
    sigma = multiplier / sensitivity / math.sqrt(rounds)
    other = gaussian.get_epsilon_gaussian(sigma, delta, tol=1e-9)
    assert of_sum(multiplier, rounds, delta, relation) == pytest.approx(other, rel=1e-6, abs=1e-6)


def test_composed_loss_distributions_agree() -> None:
    """One Gaussian of many rounds equals rounds that are composed one by one, to 4 digits."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    one = pld.from_gaussian_mechanism(20.0, sensitivity=2.0, value_discretization_interval=1e-5)
    other = one.self_compose(60).get_epsilon_for_delta(1e-5)
    assert of_sum(20.0, 60, 1e-5) == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize(
    ("honest", "per_bit", "ratio", "published"),
    [
        (1000, 0.5, 3, 1.432),
        (100, 0.1, 1, 0.2581),
        (10**4, 0.5, 10, 1.518),
        (100, 0.5, 0.3, 0.4057),
    ],
)
def test_published_values_of_the_same_variance(
    honest: int, per_bit: float, ratio: float, published: float
) -> None:
    """60 rounds of noise with the worst variance of a sum of votes."""
    beta = math.tanh(per_bit / 2)
    multiplier = math.sqrt(honest * (1 - beta**2)) / (beta * ratio)
    assert of_sum(multiplier, 60, 1e-5) == pytest.approx(published, rel=3e-4)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_delta_is_the_integral_of_the_excess(mu: float, epsilon: float) -> None:
    x, width = np.linspace(-40, 40, 800_001, retstep=True)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    shifted = np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    excess = float(np.maximum(shifted - math.exp(epsilon) * density, 0).sum() * width)
    assert delta_of_gaussian(mu, epsilon) == pytest.approx(excess, rel=1e-6, abs=1e-15)


def test_small_deltas_keep_their_digits() -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        for mu, epsilon in ((1.0, 12.0), (0.01, 0.2), (30.0, 1200.0), (1e-4, 1e-3), (1.0, 36.0)):
            mu_exact, eps = mpmath.mpf(mu), mpmath.mpf(epsilon)
            exact = mpmath.ncdf(mu_exact / 2 - eps / mu_exact) - mpmath.exp(eps) * mpmath.ncdf(
                -mu_exact / 2 - eps / mu_exact
            )
            assert delta_of_gaussian(mu, epsilon) == pytest.approx(float(exact), rel=1e-9, abs=0)


@pytest.mark.parametrize("mu", [1e-6, 1e-2, 1.0, 50.0, 1e4])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-50, 1e-250])
def test_epsilon_is_rounded_up_and_tight(mu: float, delta: float) -> None:
    epsilon = epsilon_of_gaussian(mu, delta)
    assert delta_of_gaussian(mu, epsilon) <= delta
    if epsilon > 0:
        assert delta_of_gaussian(mu, epsilon * (1 - 1e-6)) > delta


def test_limits() -> None:
    assert epsilon_of_gaussian(0.0, 1e-5) == 0
    assert epsilon_of_gaussian(math.inf, 1e-5) == math.inf
    assert epsilon_of_gaussian(1e300, 1e-5) == math.inf
    assert epsilon_of_gaussian(1e-9, 1e-5) == 0
    for mu in np.geomspace(1e-3, 10, 20).tolist():
        assert epsilon_of_gaussian(mu, delta_of_gaussian(mu, 0.0)) == 0
    for wrong in ({"mu": -1.0, "delta": 1e-5}, {"mu": 1.0, "delta": 0.0}):
        with pytest.raises(InvalidInput):
            epsilon_of_gaussian(**wrong)


def test_rounds_of_different_noise_add_their_squares() -> None:
    releases = [TallyRelease(GaussianSum(m), 1, r) for m, r in ((10.0, 3), (20.0, 4))]
    found = bound_of_tallies(releases, 1e-5)
    assert found.epsilon == epsilon_of_gaussian(2 * math.sqrt(3 / 100 + 4 / 400), 1e-5)
    assert found.method == "Gaussian noise, exact"


def test_orders_are_used_together_with_votes_and_for_sampled_users() -> None:
    """The divergence of order a is a mu² / 2, so the exact conversion is at most that by orders."""
    noise, votes = GaussianSum(20.0), VoteSums(0.1, 100, 1.0, True)
    assert noise.divergences(1, "replace", (2.0, 8.0)) == pytest.approx([0.01, 0.04])
    mixed = bound_of_tallies([TallyRelease(noise, 1, 9), TallyRelease(votes, 100, 0)], 1e-5)
    assert mixed.method == "Gaussian noise, exact"
    mixed = bound_of_tallies([TallyRelease(noise, 1, 9), TallyRelease(votes, 100, 1)], 1e-5)
    assert mixed.method == "sums of votes, Renyi orders"
    assert mixed.epsilon > of_sum(20.0, 9, 1e-5)
    sampled = TallyRelease(noise, 1, 60, sampled=0.01)
    assert bound_of_tallies([sampled], 1e-5).epsilon < of_sum(20.0, 60, 1e-5) / 2
    loud = TallyRelease(GaussianSum(0.01), 1, 1, sampled=0.5)
    assert math.isfinite(bound_of_tallies([loud], 1e-5).epsilon)


def test_the_error_of_computed_noise_is_counted_on_both_sides() -> None:
    """P' <= e^s P <= e^s (e^eps Q + delta) <= e^(eps + 2s) Q' + e^s delta."""
    one, error = GaussianSum(20.0, 1e-3), 60e-3
    found = bound_of_tallies([TallyRelease(one, 1, 60)], 1e-5).epsilon
    exact = epsilon_of_gaussian(math.sqrt(60) / 10, 1e-5 * math.exp(-error))
    assert found == exact + 2 * error
    found = one.divergences(1, "replace", (2.0, 5.0))  # the error of order a: (2a - 1) / (a - 1)
    assert found == pytest.approx([0.01 + 3e-3, 0.025 + 9e-3 / 4])


def test_honest_voters_do_not_matter_and_the_local_bound_is_infinite() -> None:
    guarantee = Guarantee(((math.inf, 9),), 9, 288, 1, unit="entry", sums=GaussianSum(20.0))
    bounds = {guarantee.of_tally(honest, 60, delta=1e-5) for honest in (1, 10, 10**9)}
    assert len(bounds) == 1
    assert guarantee.bound(60, 1e-5).epsilon == math.inf
