"""Exact composition of randomized-response bits, all of which differ between two inputs.

With n bits at epsilon each, Y ~ Bin(n, q) of them flipped, q = 1 / (1 + e^epsilon), the privacy
loss is epsilon (n - 2Y), and

    delta(E) = sum over y with loss(y) > E of P[Y = y] (1 - e^(E - loss(y))).

Every term is positive, so no digits cancel; results are rounded up.

For groups of bits with different epsilons the module works with the gap S between the pure level
and the privacy loss: each flip adds 2 epsilon to it. The law of S is computed on a grid, and the
guarantee is epsilon = pure - b with the largest b for which sum_{S<b} P(S) (1 - e^(S-b)) <= delta.
The laws are first tilted by e^(-t S), which moves their mass to the answer, so that the convolution
resolves the far tail; the tilted law of a binomial is again a binomial.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hushbit.checks import Floats, check_delta, check_int, check_nonnegative, check_positive
from hushbit.errors import InvalidInput
from hushbit.privacy.binomial import flip_probability, flips_window, log_flips

MAX_BITS = 10**10
"""The most bits that exact composition accepts; its window then holds two million terms."""

Groups = tuple[tuple[float, int], ...]
"""Pairs (epsilon, count): `count` bits with `epsilon` each."""

_ROUND_UP_DELTA = 1 + 1e-9
_ROUND_UP_MASS = 1 + 1e-10
_ROUND_UP_EPSILON = 1 + 1e-12


def delta_of_bits(epsilon_per_bit: float, bits: int, epsilon: float) -> float:
    """The smallest delta for which `bits` differing bits are (epsilon, delta)-private.

    >>> round(delta_of_bits(0.5, 1000, 186.1), 7)
    1e-05
    """
    per_bit = check_positive("epsilon_per_bit", epsilon_per_bit, infinite=True)
    bits = check_int("bits", bits, 1, MAX_BITS)
    epsilon = check_nonnegative("epsilon", epsilon, infinite=True)
    if epsilon >= per_bit * bits:
        return 0.0
    if math.isinf(per_bit):
        return 1.0
    flips = flips_window(per_bit, bits, math.ceil((bits - epsilon / per_bit) / 2))
    excess = np.maximum(per_bit * (bits - 2 * flips) - epsilon, 0.0)
    total = float(np.sum(np.exp(log_flips(per_bit, bits, flips)) * -np.expm1(-excess)))
    # Below the pure level delta is above 0; if the sum underflows, the least float bounds it.
    return min(1.0, max(total * _ROUND_UP_DELTA, math.ulp(0.0)))


def _masses_at(per_bit: float, bits: int, flips: int) -> tuple[float, float]:
    """Delta at epsilon = loss(flips), and the mass that e^epsilon multiplies just below it.

    D = sum_{y<k} P(y) (1 - e^(-2 eps (k-y))),  C = sum_{y<=k} P(y) e^(-2 eps (k-y)).
    """
    window = flips_window(per_bit, bits, flips)
    mass = np.exp(log_flips(per_bit, bits, window)) * _ROUND_UP_MASS
    gap = 2 * per_bit * (flips - window)
    return float(np.sum(mass * -np.expm1(-gap))), float(np.sum(mass * np.exp(-gap)))


def epsilon_of_bits(epsilon_per_bit: float, bits: int, delta: float) -> float:
    """The smallest epsilon for which `bits` differing bits are (epsilon, delta)-private.

    Between two break points, loss(k+1) <= E < loss(k), delta(E) = D + C (1 - e^(E - loss(k))) with
    D and C of `_masses_at`. Bisection finds k; then E = loss(k) + ln(1 - (delta - D) / C).

    >>> round(epsilon_of_bits(0.5, 100, 1e-5), 2)
    31.17
    """
    per_bit = check_positive("epsilon_per_bit", epsilon_per_bit, infinite=True)
    bits = check_int("bits", bits, 1, MAX_BITS)
    delta = check_delta(delta)
    pure = per_bit * bits
    if delta == 0 or math.isinf(pure):
        return pure
    low, high = 0, bits // 2 + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _masses_at(per_bit, bits, middle)[0] <= delta:
            low = middle
        else:
            high = middle
    excess, mass = _masses_at(per_bit, bits, low)
    spare = delta - excess
    if spare >= mass:
        return 0.0
    epsilon = per_bit * (bits - 2 * low) + math.log1p(-spare / mass)
    return min(pure, max(0.0, epsilon * _ROUND_UP_EPSILON))


def epsilon_per_bit_for(total: float, bits: int, delta: float) -> float:
    """The largest epsilon per bit whose `bits` differing bits stay (total, delta)-private.

    >>> round(epsilon_per_bit_for(1.0, 7850, 1e-5), 5)
    0.00303
    """
    total = check_positive("total", total)
    bits = check_int("bits", bits, 1, MAX_BITS)
    delta = check_delta(delta)
    low = total / bits
    if delta > 0:
        low = _largest_within(total, bits, delta)
    while epsilon_of_bits(low, bits, delta) > total:
        low = min(low * (1 - 1e-13), math.nextafter(low, 0.0))
    return low


def _largest_within(total: float, bits: int, delta: float) -> float:
    """The largest epsilon per bit with delta(total) <= delta, by bisection from below."""
    low = total / bits
    high = 2 * low
    while delta_of_bits(high, bits, total) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):  # neighbouring floats, subnormal ones for instance
            break
        if delta_of_bits(middle, bits, total) <= delta:
            low = middle
        else:
            high = middle
    return low


_MAX_CELLS = 2**22
_MAX_PRODUCTS = 3 * 10**8
_SLACK = 2e-4


@dataclass(frozen=True)
class _LossGap:
    """Tilted law of the gap on a grid: `mass[i]` is the mass of cell (first + i)."""

    first: int
    mass: Floats


def epsilon_of_groups(groups: Iterable[tuple[float, int]], delta: float) -> float:
    """Epsilon of differing bits in groups of pairs (epsilon_per_bit, bits).

    Exact if the epsilons are multiples of one decimal step that is not too small (0.5, 1 and 2, or
    0.3 and 0.1). Otherwise losses are rounded up: the result is an upper bound, above the true
    epsilon by at most 2e-4 of the largest epsilon that a single group has.

    >>> round(epsilon_of_groups([(0.5, 100), (0.5, 900)], 1e-5), 1)
    186.1
    """
    counts = merge_groups(groups)
    for _, bits in counts:
        check_int("bits", bits, 1, MAX_BITS)
    delta = check_delta(delta)
    pure = math.fsum(e * n for e, n in counts)
    if delta == 0 or math.isinf(pure):
        return pure
    if len(counts) == 1:
        return epsilon_of_bits(*counts[0], delta)
    tilt = _best_tilt(counts, pure, delta)
    step = _step(counts, tilt, delta)
    tilt = min(tilt, 30 / float(step))  # a larger tilt would overflow within one cell of the grid
    laws = [_tilted_gap(e, n, tilt, step) for e, n in counts]
    laws.sort(key=lambda law: -np.count_nonzero(law.mass))
    total = laws[0]
    for law in laws[1:]:
        total = _convolve(total, law)
    gap = _largest_gap(total, float(step), tilt, _log_weight(counts, tilt), delta)
    pure_exact = sum((decimal_fraction(e) * n for e, n in counts), Fraction(0))
    return min(pure, max(0.0, (float(pure_exact) - gap) * (1 + 1e-10)))


def merge_groups(groups: Iterable[tuple[float, int]]) -> Groups:
    """Checked pairs (epsilon_per_bit, bits), one for each epsilon, in ascending order.

    >>> merge_groups([(1.0, 5), (0.5, 2), (1.0, 1)])
    ((0.5, 2), (1.0, 6))
    """
    counts: dict[float, int] = {}
    for group in groups if isinstance(groups, Iterable) else [groups]:
        if not isinstance(group, Sequence) or len(group) != 2:
            raise InvalidInput(f"a group is {group!r}; give pairs (epsilon_per_bit, bits).")
        per_bit = check_positive("epsilon_per_bit", group[0], infinite=True)
        counts[per_bit] = counts.get(per_bit, 0) + check_int("bits", group[1], 1)
    if not counts:
        raise InvalidInput("groups is empty; give at least one pair (epsilon_per_bit, bits).")
    return tuple(sorted(counts.items()))


def decimal_fraction(number: float) -> Fraction:
    """The finite number as it is written: 0.1 is one tenth, so 0.1 and 0.3 share the step 0.1."""
    return Fraction(repr(float(number)))


def probability_of_different_signs(points: int) -> Fraction:
    """pi: two given points get different signs in a uniformly random balanced word.

    >>> probability_of_different_signs(4), probability_of_different_signs(3)
    (Fraction(2, 3), Fraction(2, 3))
    """
    points = check_int("points", points, 2)
    plus = points - points // 2
    return Fraction(2 * plus * (points - plus), points * (points - 1))


def _log_weight(counts: Groups, tilt: float) -> float:
    """ln E[e^(-tilt S)] of the gap S = sum of 2 epsilon Y over all groups."""
    return sum(
        bits * math.log1p(flip_probability(per_bit) * math.expm1(-2 * per_bit * tilt))
        for per_bit, bits in counts
    )


def _best_tilt(counts: Groups, pure: float, delta: float) -> float:
    """The Renyi order minus one that bounds epsilon best; the tilted law has its mean there."""
    least = min(per_bit for per_bit, _ in counts)
    tilts = np.geomspace(1e-4 / pure, 60 / least, 600)
    bounds = [pure + (_log_weight(counts, t) - math.log(delta)) / t for t in tilts.tolist()]
    return float(tilts[int(np.argmin(bounds))])


def _step(counts: Groups, tilt: float, delta: float) -> Fraction:
    """The common step of all gaps if the grid stays small, else the step of the stated slack."""
    spans = [2 * e * _window_length(e, n, tilt) for e, n in counts]
    exact = decimal_fraction(2 * counts[0][0])
    for per_bit, _ in counts[1:]:
        other = decimal_fraction(2 * per_bit)
        exact = Fraction(
            math.gcd(exact.numerator * other.denominator, other.numerator * exact.denominator),
            exact.denominator * other.denominator,
        )
    if sum(spans) <= exact * _MAX_CELLS:
        return exact
    largest = max(epsilon_of_bits(e, n, delta) for e, n in counts)
    return Fraction(max(_SLACK * largest / len(counts), sum(spans) / _MAX_CELLS))


def _window_length(per_bit: float, bits: int, tilt: float) -> int:
    return len(flips_window(per_bit * (1 + 2 * tilt), bits, bits))


def _tilted_gap(per_bit: float, bits: int, tilt: float, step: Fraction) -> _LossGap:
    """Tilted law of one group's gap on the grid; gaps are rounded down, so losses round up."""
    log_odds = per_bit * (1 + 2 * tilt)
    flips = flips_window(log_odds, bits, bits)
    ratio = decimal_fraction(2 * per_bit) / step
    if ratio.denominator == 1:
        cells = flips * ratio.numerator
    else:
        cells = np.floor(flips * float(ratio) * (1 - 1e-15)).astype(np.int64)
    mass = np.exp(log_flips(log_odds, bits, flips))
    if ratio.denominator != 1:
        # A rounded gap keeps the weight that it has in the untilted law.
        mass *= np.exp(tilt * (2 * per_bit * flips - cells * float(step)))
    first = int(cells[0])
    return _LossGap(first, np.asarray(np.bincount(cells - first, weights=mass), np.float64))


def _convolve(a: _LossGap, b: _LossGap) -> _LossGap:
    """Law of the sum: term by term if one law has few atoms, else by the fast Fourier transform.

    Laws with few atoms have a strong tilt, which would amplify rounding errors of the transform.
    """
    first = a.first + b.first
    length = a.mass.size + b.mass.size - 1
    atoms = np.flatnonzero(b.mass)
    if atoms.size * a.mass.size <= _MAX_PRODUCTS:
        total = np.zeros(length)
        for atom in atoms.tolist():
            total[atom : atom + a.mass.size] += b.mass[atom] * a.mass
        return _LossGap(first, total)
    size = 1 << (length - 1).bit_length()
    product = np.fft.rfft(a.mass, size) * np.fft.rfft(b.mass, size)
    mass = np.fft.irfft(product, size)[:length]
    # Rounding errors of the transform are far below 1e-11 of the largest mass.
    return _LossGap(first, np.maximum(mass, 0.0) + 1e-11 * float(np.max(mass)))


def _largest_gap(law: _LossGap, step: float, tilt: float, log_scale: float, delta: float) -> float:
    """The largest b with sum_{S<b} P(S) (1 - e^(S-b)) <= delta, found as in `epsilon_of_bits`."""
    cells = law.first + np.arange(law.mass.size)
    mass = law.mass * np.exp(np.minimum(log_scale + tilt * step * cells, 700.0)) * (1 + 1e-10)

    def masses_below(cell: int) -> tuple[float, float]:
        upto = mass[: cell - law.first + 1]
        gap = step * (cell - cells[: upto.size])
        return float(np.sum(upto * -np.expm1(-gap))), float(np.sum(upto * np.exp(-gap)))

    low, high = law.first, law.first + law.mass.size
    while high - low > 1:
        middle = (low + high) // 2
        if masses_below(middle)[0] <= delta:
            low = middle
        else:
            high = middle
    if low == cells[-1]:
        return step * low  # the law beyond the grid is unknown, so b stays inside
    excess, mass_below = masses_below(low)
    return step * low - math.log1p(-(delta - excess) / mass_below)
