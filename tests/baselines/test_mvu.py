"""MVU: variance table of the specification, exact epsilon, unbiasedness, symbols."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize

from hushbit.baselines import mvu
from hushbit.baselines.mvu import COUNT_RANGE, MVU, channel_symbols, design_mechanism, keeps_privacy
from hushbit.errors import MissingExtra
from hushbit.wire.coins import SeededCoins
from hushbit.wire.keys import RoundKey

KEY = RoundKey(secret=bytes(32), round=1)
# (inputs, bits, epsilon) -> mean variance over the inputs in [0, 1] units, from the specification
TABLE = {
    (8, 2, 0.5): 4.0138,
    (8, 2, 1): 1.0169,
    (8, 2, 2): 0.2094,
    (8, 2, 4): 0.0352,
    (8, 2, 8): 0.0157,
    (8, 3, 1): 1.0040,
    (8, 3, 2): 0.2018,
    (8, 3, 4): 0.0276,
    (16, 2, 0.5): 4.0186,
    (16, 2, 1): 1.0216,
    (16, 2, 2): 0.2084,
    (16, 2, 4): 0.0361,
    (16, 2, 8): 0.0170,
    (16, 3, 0.5): 4.0046,
    (16, 3, 1): 1.0071,
    (16, 3, 2): 0.2002,
    (16, 3, 4): 0.0289,
    (16, 3, 8): 0.0038,
}
BETTER = {(8, 3, 1), (16, 3, 1)}  # the specification has a local optimum, 2 to 3 % above


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_variance_table(case):
    inputs, bits, epsilon = case
    made = design_mechanism(bits, inputs, float(epsilon))
    reached = float(made.variance.mean())
    assert reached <= TABLE[case] * 1.015
    assert reached >= TABLE[case] * (0.95 if case in BETTER else 0.98)
    assert (made.counts.sum(axis=1) == COUNT_RANGE).all()
    assert np.abs(made.bias).max() < 2e-9
    assert np.abs(made.counts - made.counts[::-1, ::-1]).max() <= 8
    for column in made.counts.T:
        assert Fraction(int(column.max()), int(column.min())) <= Fraction(math.exp(epsilon))
    assert epsilon * 0.999 < made.realised_epsilon <= epsilon


@pytest.mark.parametrize(("epsilon", "free"), [(1.0, 0.9826), (2.0, 0.1997), (4.0, 0.0266)])
def test_no_design_has_less_variance_than_the_lower_bound(epsilon, free):
    """The linear program of the specification, with 161 to 241 outputs, is a lower bound."""
    for bits in (2, 3):
        assert design_mechanism(bits, 8, epsilon).variance.mean() > free * 0.998


def test_the_closed_form_of_one_bit_is_optimal():
    for epsilon, wanted in ((0.5, 4.06055), (1.0, 1.06353), (2.0, 0.32387), (4.0, 0.16186)):
        a, x = 1 / math.expm1(epsilon), np.linspace(0, 1, 8)
        closed = (x + a) * (1 + a - x)
        assert closed.mean() == pytest.approx(wanted, abs=6e-6)
        # The same number from a linear program over the channel for this alphabet.
        problem = mvu.MvuProblem(8, 2, epsilon)
        channel = mvu.best_channel(problem, np.array([-0.5 * (1 + 1e-9)]))
        assert channel[:, 1] == pytest.approx((x + a) / (1 + 2 * a), abs=1e-6)
        one = MVU(1, epsilon, 1.0)
        beta = math.tanh(epsilon / 2)
        assert one.alphabet == pytest.approx([-1 / beta, 1 / beta], rel=1e-8)
        assert one.worst_variance == pytest.approx(4 * (0.5 + a) ** 2, rel=1e-8)


def test_mean_over_uniform_inputs_matches_the_reference_column():
    """1/beta² - 1/3 for one bit, on z uniform in [-1, 1]."""
    size, epsilon = 300_000, 1.0
    z = np.linspace(-1, 1, size)
    mechanism = MVU(size, epsilon, 1.0)
    tally = mechanism.tally(KEY)
    tally.add(mechanism.encode(z, KEY.user(0), SeededCoins(1)))
    error = mechanism.estimate(tally).mean - z
    assert (error**2).mean() == pytest.approx(4.349, rel=0.01)
    assert abs(error.mean()) < 5 * math.sqrt(4.349 / size)


@pytest.mark.parametrize(("bits", "epsilon"), [(2, 1.0), (3, 2.0), (3, 8.0)])
def test_end_to_end_unbiased_with_the_designed_variance(bits, epsilon):
    size = 300_000
    z = np.linspace(-1, 1, size)
    mechanism = MVU(size, epsilon, 0.5, bits=bits)
    tally = mechanism.tally(KEY)
    tally.add(mechanism.encode(z * 0.5, KEY.user(0), SeededCoins(1)))
    estimate = mechanism.estimate(tally)
    error = estimate.mean / 0.5 - z
    rounding = 4 / (6 * 15**2)
    x = (z + 1) / 2
    wanted = 4 * np.interp(x, mechanism.design.inputs, mechanism.design.variance).mean() + rounding
    assert (error**2).mean() == pytest.approx(wanted, rel=0.015)
    for part in np.split(error, 10):  # everywhere, not only on average
        assert abs(part.mean()) < 5 * part.std() / math.sqrt(part.size)
    assert (error**2).mean() * 0.25 <= estimate.variance[0]


def test_symbols_follow_the_counts_exactly():
    made = design_mechanism(2, 4, 1.0)
    limits = np.cumsum(made.counts, axis=1)[:, :-1].copy()
    for row, z in enumerate(np.linspace(-1, 1, 4)):
        for symbol in range(4):
            edge = int(made.counts[row, :symbol].sum())
            top = edge + int(made.counts[row, symbol]) - 1
            coins = np.array([2**31, edge, 2**31, top], dtype=np.uint32)
            got = np.empty(2, dtype=np.uint32)
            assert channel_symbols(np.full(2, z), 1.0, limits, coins, got) == 0
            assert got.tolist() == [symbol, symbol]


def test_keeps_privacy_is_exact():
    e = math.exp(1.0)
    assert keeps_privacy(np.array([[1000, 5], [int(1000 * e), 5]]), 1.0)
    assert not keeps_privacy(np.array([[1000, 5], [int(1000 * e) + 1, 5]]), 1.0)
    assert not keeps_privacy(np.array([[0, 5], [1, 5]]), 1.0)
    assert keeps_privacy(np.array([[0, 5], [0, 5]]), 1.0)


def test_gradients_of_the_descent():
    problem = mvu.MvuProblem(5, 4, 1.0)
    descent = mvu.Descent(problem)
    rng = np.random.default_rng(0)
    v = rng.uniform(0.1, 0.9, problem.cells + 2 * problem.half)
    numeric = optimize.approx_fprime(v, lambda w: descent.value(w)[0], 1e-7)
    assert descent.value(v)[1] == pytest.approx(numeric, abs=1e-5)
    hessian = optimize.approx_fprime(v, lambda w: descent.value(w)[1], 1e-7)
    assert np.abs(descent.hessian(v) - hessian).max() < 1e-5
    jacobian = optimize.approx_fprime(v, descent.bias, 1e-7)
    assert np.abs(descent.bias_jacobian(v).toarray() - jacobian).max() < 1e-5


def test_without_scipy_an_error_states_what_to_install(monkeypatch):
    import builtins

    real = builtins.__import__

    def absent(name, *rest, **named):
        if name == "scipy":
            raise ImportError(name)
        return real(name, *rest, **named)

    design_mechanism.cache_clear()
    monkeypatch.setattr(builtins, "__import__", absent)
    assert MVU(5, 0.5, 1.0).payload_bits == 5
    with pytest.raises(MissingExtra, match="SciPy"):
        MVU(5, 0.7, 1.0, bits=2, inputs=4)


def test_designs_for_large_epsilons_use_at_most_14():
    assert design_mechanism(2, 4, 30.0).realised_epsilon <= 14.0
    assert MVU(5, math.inf, 1.0, bits=2, inputs=4).guarantee.epsilon_per_bit == math.inf
