"""Sums behind secure aggregation: no bias, the variance law, and accounting by exact laws."""

import math

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.estimators.private_vectors import KashinFrame
from hushbit.lab.estimators.secure_sums import (
    DiscreteGaussianSum,
    PoissonBinomial,
    SkellamSum,
    count_bits,
    rounded_norm,
    sum_law,
)
from hushbit.privacy.central import epsilon_of_orders
from hushbit.privacy.gaussian import epsilon_of_gaussian
from hushbit.privacy.renyi import epsilon_of_zcdp

USERS, DIM = 20, 64
KINDS = [DiscreteGaussianSum, SkellamSum]


def vectors(users: int = USERS) -> np.ndarray:
    rows = np.random.default_rng(3).normal(0.5, 1.0, (users, DIM))
    return rows / np.linalg.norm(rows, axis=1).max()


def runs(scheme, given: np.ndarray, count: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    return np.array([scheme.mean_estimate(given, rng).mean for _ in range(count)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [10, 16])
def test_lattice_sums_are_unbiased_and_have_their_variance(kind, bits) -> None:
    scheme, given = kind(USERS, DIM, bits, 4.0, 1e-5), vectors()
    found = runs(scheme, given, 150)
    noise = scheme.variance * scheme.step**2 / USERS**2
    rounding = scheme.step**2 / 4 / USERS
    spread = found.var(axis=0).mean()
    assert noise * 0.95 < spread < (noise + rounding) * 1.05
    bias = ((found.mean(axis=0) - given.mean(axis=0)) ** 2).mean()
    assert bias < 1.8 * spread / len(found)


def test_more_bits_need_less_noise() -> None:
    errors = [
        kind(USERS, DIM, bits, 4.0, 1e-5).variance * kind(USERS, DIM, bits, 4.0, 1e-5).step ** 2
        for kind in KINDS
        for bits in (8, 10, 16)
    ]
    assert errors[0] > 1.1 * errors[1] > 1.1 * errors[2]
    assert errors[3] > 1.1 * errors[4] > 1.1 * errors[5]


def test_the_modulus_covers_four_deviations_of_users_who_agree() -> None:
    scheme = SkellamSum(USERS, DIM, 12, 4.0, 1e-5)
    spread = USERS**2 / DIM / scheme.step**2 + USERS / 4 + scheme.variance
    assert 2 * 4 * math.sqrt(spread) == pytest.approx(2**12, rel=1e-3)
    same = np.tile(vectors()[:1] / np.linalg.norm(vectors()[0]), (USERS, 1))
    error = ((runs(scheme, same, 20) - same[0]) ** 2).mean()
    assert error < 1.3 * (scheme.variance + USERS / 4) * scheme.step**2 / USERS**2


def test_a_sum_beyond_the_modulus_wraps() -> None:
    scheme = SkellamSum(USERS, DIM, 8, 8.0, 1e-5)
    vars(scheme).update(step=1e-4, variance=1.0)
    mean = scheme.mean_estimate(vectors(), np.random.default_rng(1)).mean
    assert np.linalg.norm(vectors().mean(axis=0)) > 0.1
    assert np.linalg.norm(mean) <= math.sqrt(DIM) * 2**7 * 1e-4 / USERS


def test_rounding_keeps_its_norm_and_has_no_bias() -> None:
    scheme = SkellamSum(USERS, DIM, 8, 8.0, 1e-5)
    row = vectors()[:1] / np.linalg.norm(vectors()[0]) / scheme.step
    drawn = scheme.round(np.repeat(row, 3000, axis=0), np.random.default_rng(1))
    assert np.linalg.norm(drawn, axis=1).max() <= rounded_norm(1 / scheme.step, DIM)
    assert np.abs(drawn - row).max() < 1
    assert np.abs(drawn.mean(axis=0) - row).max() < 5 * 0.5 / math.sqrt(3000)
    assert rounded_norm(100.0, 64) == pytest.approx(math.sqrt(100**2 + 16 + 100 + 4))
    assert rounded_norm(0.1, 10**6) == pytest.approx(math.sqrt(0.01 + 250_000 + 0.1 + 500))


def divergence(law: np.ndarray, shift: int, order: float) -> float:
    """Rényi divergence of a law on integers and the same law moved by `shift`."""
    log = np.log(law[law > 1e-100])
    p, q = log[shift:], log[: log.size - shift]
    return float(np.log(np.exp(order * p + (1 - order) * q).sum()) / (order - 1))


@pytest.mark.parametrize("local", [0.4, 3.0])
@pytest.mark.parametrize("shift", [1, 3])
def test_the_discrete_gaussian_bound_holds_for_the_exact_law(local: float, shift: int) -> None:
    """The sum of five users, convolved directly."""
    users, values = 5, np.arange(-40, 41)
    one = np.exp(-(values**2) / (2 * local))
    law = one / one.sum()
    for _ in range(users - 1):
        law = np.convolve(law, one / one.sum())
    scheme = DiscreteGaussianSum(users, 1, 10, 1.0, 1e-5)
    bounds = scheme.divergences(local * users, float(shift))
    for order, bound in zip(scheme.orders, bounds, strict=True):
        if 1.5 <= order <= 8:
            exact = divergence(law, shift, order)
            assert exact <= bound * (1 + 1e-6)
            assert local < 1 or exact >= 0.999 * bound


@pytest.mark.parametrize(("variance", "shift"), [(4.0, 1), (30.0, 2), (200.0, 8)])
def test_the_skellam_bound_holds_for_the_exact_law(variance: float, shift: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    reach = int(14 * math.sqrt(variance)) + 30
    law = stats.skellam.pmf(np.arange(-reach, reach + 1), variance / 2, variance / 2)
    scheme = SkellamSum(3, 1, 10, 1.0, 1e-5)
    bounds = scheme.divergences(variance, float(shift))
    for order in (2, 3, 5, 8):
        exact = divergence(law, shift, order)
        assert exact <= bounds[order - 2] * (1 + 1e-9)
        assert variance < 10 or exact >= 0.95 * order * shift**2 / (2 * variance)


@pytest.mark.parametrize("kind", KINDS)
def test_the_budget_is_spent_as_other_accountants_count_it(kind) -> None:
    """At 16 bits both are nearly Gaussian: compared with zCDP and with dp-accounting."""
    scheme = kind(USERS, DIM, 16, 4.0, 1e-5)
    distance = 2 * rounded_norm(1 / scheme.step, DIM)
    rho = distance**2 / (2 * scheme.variance)
    assert epsilon_of_zcdp(rho, 1e-5) == pytest.approx(4.0, rel=0.01)
    assert epsilon_of_zcdp(rho, 1e-5) <= 4.0
    accounting = pytest.importorskip("dp_accounting")
    accountant = accounting.rdp.RdpAccountant()
    accountant.compose(accounting.GaussianDpEvent(math.sqrt(scheme.variance) / distance))
    assert accountant.get_epsilon(1e-5) == pytest.approx(4.0, rel=0.01)


def test_the_law_of_a_sum() -> None:
    values = np.arange(-60, 61)
    found = sum_law(-(values**2) / 8.0, 6)
    one = np.exp(-(values**2) / 8.0)
    direct = one / one.sum()
    for _ in range(5):
        direct = np.convolve(direct, one / one.sum(), mode="same")
    assert found == pytest.approx(direct, abs=1e-12)
    assert (found * values**2).sum() == pytest.approx(24.0, rel=1e-6)


def test_poisson_binomial_is_unbiased_and_has_its_variance() -> None:
    scheme, given = PoissonBinomial(USERS, DIM, 2.0, 1e-5), vectors()
    found = runs(scheme, given, 150)
    frame = KashinFrame.draw(DIM, np.random.default_rng(0))
    variance = (frame.limit / (2 * scheme.theta)) ** 2 / USERS
    spread = found.var(axis=0).mean()
    assert spread == pytest.approx(variance, rel=0.05)
    assert ((found.mean(axis=0) - given.mean(axis=0)) ** 2).mean() < 1.8 * spread / len(found)
    bits = scheme.mean_estimate(given, np.random.default_rng(0)).bits_per_entry
    assert bits == 5 * frame.size / DIM


def test_poisson_binomial_spends_its_budget_by_an_independent_computation() -> None:
    """Every coefficient moves from one end to the other; all other users are at one end."""
    stats = pytest.importorskip("scipy.stats")
    scheme = PoissonBinomial(USERS, DIM, 2.0, 1e-5)
    low, high = 0.5 - scheme.theta, 0.5 + scheme.theta
    others = stats.binom.pmf(np.arange(USERS), USERS - 1, high)
    one, two = (np.log(np.convolve(others, [1 - p, p])) for p in (high, low))
    orders = np.arange(2.0, 65.0)
    size = KashinFrame.draw(DIM, np.random.default_rng(0)).size
    found = [size * math.log(np.exp(a * one + (1 - a) * two).sum()) / (a - 1) for a in orders]
    by_orders = epsilon_of_orders(orders, np.array(found), 1e-5)
    distance = 2 * scheme.theta * math.sqrt(size / (USERS * low * high))
    # The accountant is tighter than Rényi orders, and not below a Gaussian of the same variance.
    assert 1.85 < epsilon_of_gaussian(distance, 1e-5) <= 2.0 < by_orders < 2.1


def test_bits_of_a_count() -> None:
    assert [count_bits(users) for users in (1, 3, 4, 1000, 1023, 1024)] == [1, 2, 3, 10, 10, 11]


def test_what_the_papers_do_not_cover_is_refused() -> None:
    with pytest.raises(InvalidInput, match="too few"):
        _ = SkellamSum(1000, 7850, 8, 1.0, 1e-5).step
    with pytest.raises(InvalidInput, match="several coins"):
        _ = PoissonBinomial(USERS, 2, 30.0, 1e-5).theta
