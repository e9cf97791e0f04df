"""JoPEQ: the table of the specification, the true epsilon by enumeration, the two modes."""

import math

import numpy as np
import pytest
from scipy import stats

from hushbit.baselines.jopeq import GRID, JoPEQ, dithered_levels
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey

KEY = RoundKey(secret=bytes(32), round=1)


def decoded(mechanism, update, seed=1):
    ballot = mechanism.encode(update, KEY.user(0), SeededCoins(seed))
    tally = mechanism.tally(KEY)
    tally.add(ballot)
    return mechanism.estimate(tally).mean, ballot.overloaded


def continuous_law(code, z: float) -> tuple[float, float, float]:
    """Overload probability, bias and mean square error at z, on a fine grid of noise and dither."""
    dither = (np.arange(400) + 0.5) / 400 - 0.5
    share = (np.arange(20000) + 0.5) / 20000
    noise = stats.laplace.ppf(share, scale=code.noise_scale)
    place = (z + noise[:, None]) / code.cell + dither + code.levels / 2
    level = np.clip(np.floor(place), 0, code.levels - 1)
    error = (level - (code.levels - 1) / 2 - dither) * code.cell - z
    over = ((place < 0) | (place >= code.levels)).mean()
    return float(over), float(error.mean()), float((error**2).mean())


# (levels, epsilon): cell, true epsilon, overload at 0, bias at 1/3 and at 1, error at 0; spec 3.5
TABLE = {
    (3, 0.5): (5.745, 0.523, 0.115, -0.073, -0.218, 15.7),
    (3, 1): (3.000, 1.050, 0.105, -0.064, -0.212, 4.13),
    (3, 2): (1.732, 2.138, 0.071, -0.056, -0.190, 1.21),
    (3, 4): (1.225, 4.619, 0.019, -0.022, -0.126, 0.42),
    (3, 8): (1.061, 16.0, 0.0, 0.0, -0.039, 0.13),
    (5, 0.5): (3.447, 0.508, 0.116, -0.041, -0.161, 17.2),
    (5, 4): (0.735, 4.193, 0.023, -0.016, -0.088, 0.41),
}


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_the_table_of_preset_authors(case):
    levels, epsilon = case
    cell, true, over, third, edge, error = TABLE[case]
    code = JoPEQ(1, epsilon, 1.0, levels=levels, preset="authors").code
    assert code.cell == pytest.approx(cell, abs=6e-4)
    assert code.true_epsilon == pytest.approx(true, rel=1e-3)
    at_zero = continuous_law(code, 0.0)
    assert at_zero[0] == pytest.approx(over, abs=1.1e-3)
    assert at_zero[2] == pytest.approx(error, rel=0.02, abs=6e-3)  # two or three digits given
    # The biases of the table were sampled: their error is about 0.3 % of the deviation.
    scatter = max(1e-3, 0.005 * math.sqrt(error))
    assert continuous_law(code, 1 / 3)[1] == pytest.approx(third, abs=scatter)
    assert continuous_law(code, 1.0)[1] == pytest.approx(edge, abs=scatter)


@pytest.mark.parametrize("case", [(3, 0.5), (3, 4), (5, 0.5)], ids=str)
@pytest.mark.parametrize("z", [0.0, 1.0])
def test_the_mechanism_has_the_moments_of_the_continuous_law(case, z):
    levels, epsilon = case
    size = 400_000
    mechanism = JoPEQ(size, epsilon, 0.2, levels=levels, preset="authors")
    over, bias, power = continuous_law(mechanism.code, z)
    mean, overloaded = decoded(mechanism, np.full(size, 0.2 * z))
    error = mean / 0.2 - z
    assert (error**2).mean() == pytest.approx(power, rel=0.012)
    assert error.mean() == pytest.approx(bias, abs=5 * math.sqrt(power / size))
    assert overloaded / size == pytest.approx(over, abs=5 * math.sqrt(0.25 / size))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_moment_mode_has_the_variance_of_laplace_without_overload(epsilon):
    size, b = 400_000, 2 / epsilon
    wide = JoPEQ(size, epsilon, 1.0, levels=40, mode="moment", gamma=1 + 20 * b)
    mean, overloaded = decoded(wide, np.full(size, 0.3))
    assert overloaded <= 5
    assert mean.var() == pytest.approx(2 * b**2, rel=0.015)
    assert wide.code.variance == pytest.approx(2 * b**2, rel=1e-9)
    assert mean.mean() == pytest.approx(0.3, abs=5 * b * math.sqrt(2 / size))


def test_honest_mode_adds_the_cell_to_the_full_noise():
    size, b = 400_000, 4.0
    honest = JoPEQ(size, 0.5, 1.0, levels=16, overload=1e-5)
    mean, overloaded = decoded(honest, np.full(size, -1.0))
    assert overloaded < 3e-5 * size
    assert honest.true_epsilon == 0.5
    assert honest.code.gamma == pytest.approx(1 + honest.code.cell / 2 + b * math.log(1e5))
    assert mean.var() == pytest.approx(2 * b**2 + honest.code.cell**2 / 12, rel=0.015)


def test_true_epsilon_by_cell_enumeration():
    """sup over cells, dithers and inputs of the ratio of the two cell probabilities."""
    for epsilon, levels in ((0.5, 3), (4.0, 3), (2.0, 4)):
        code = JoPEQ(1, epsilon, 1.0, levels=levels, mode="moment").code
        worst = 0.0
        for dither in np.linspace(-0.5, 0.5, 101):
            edges = (np.arange(1, levels) - levels / 2 - dither) * code.cell
            cut = np.concatenate([[-np.inf], edges, [np.inf]])
            chance = [np.diff(stats.laplace.cdf(cut, z, code.noise_scale)) for z in (-1.0, 1.0)]
            tail = stats.laplace.sf(edges[-1:], [-1.0, 1.0], code.noise_scale)  # no cancellation
            ratios = [
                np.abs(np.log(chance[1][:-1] / chance[0][:-1])).max(),
                abs(math.log(tail[1] / tail[0])),
            ]
            worst = max(worst, *ratios)
        assert worst <= code.true_epsilon * (1 + 1e-9)
        assert worst == pytest.approx(code.true_epsilon, rel=1e-4)
        assert code.true_epsilon > epsilon
        assert code.noise.realised_epsilon <= code.true_epsilon
        formula = epsilon / math.sqrt(1 - code.cell**2 / (24 * code.laplace**2))
        assert code.true_epsilon == pytest.approx(formula)


def test_guarantee_states_the_true_epsilon():
    moment = JoPEQ(100, 0.5, 1.0, preset="authors").guarantee
    assert moment.epsilon_per_bit == pytest.approx(0.523, abs=1e-3)
    assert moment.epsilon_per_message() == pytest.approx(52.3, abs=0.1)


def test_dither_makes_the_error_uniform_whatever_the_entry():
    """Without noise and overload the error is q - d - y, uniform on the cell."""
    size, levels, cell = 100_000, 8, 0.5
    words = np.random.default_rng(1).integers(0, 2**32, size, dtype=np.uint32)
    symbols = np.empty(size, dtype=np.uint32)
    for z in (0.0, 0.37, -0.9):
        steps = np.full(size, round(z * GRID))
        assert dithered_levels(steps, 1 / (GRID * cell), words, levels, symbols) == 0
        dither = (words + 0.5) / 2**32 - 0.5
        error = (symbols - (levels - 1) / 2 - dither) * cell - steps / GRID
        assert stats.kstest(error, "uniform", (-cell / 2, cell)).pvalue > 1e-4


def test_rate_is_close_to_the_entropy_of_the_levels():
    assert JoPEQ(7850, 0.5, 1.0, levels=2).payload_bits == 7850
    assert JoPEQ(7850, 0.5, 1.0, levels=3).payload_bits / 7850 < 1.6
