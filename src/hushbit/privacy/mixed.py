"""Exact composition when bits differ in epsilon, or differ only with some probability.

Each flip takes 2 epsilon off the pure level. The law of that deficit S is built on a grid; the
guarantee is epsilon = pure - b with the largest b for which sum_{S<b} P(S) (1 - e^(S-b)) <= delta.
The laws are tilted by e^(-t S) towards the answer first, so that the convolution resolves the far
tail: the tilted law of a binomial is a binomial again.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hushbit.checks import positive, whole
from hushbit.errors import InvalidInput
from hushbit.privacy.arguments import MOST_BITS, failure_probability
from hushbit.privacy.binomial import Floats, flips_window, log_flip_odds, log_flips
from hushbit.privacy.bits import epsilon_of

_MOST_CELLS = 2**22
_MOST_PRODUCTS = 3 * 10**8
_SLACK = 2e-4
_FEW_BLOCKS = 1024


@dataclass(frozen=True)
class _Deficits:
    """Tilted law of a deficit: `mass[i]` sits at step (first + i)."""

    first: int
    mass: Floats


def epsilon_of_mixed(groups: Iterable[tuple[float, int]], delta: float) -> float:
    """Epsilon of differing bits with several epsilons, given as (epsilon_per_bit, bits) pairs.

    Exact when the epsilons are multiples of one decimal step of useful size (0.5, 1, 2; 0.3, 0.1).
    Otherwise losses are rounded up: the answer is an upper bound, above the truth by at most 2e-4
    of the largest single group's epsilon.

    >>> round(epsilon_of_mixed([(0.5, 100), (0.5, 900)], 1e-5), 1)
    186.1
    """
    counts = _merge(groups)
    delta = failure_probability(delta)
    pure_exact = sum((_decimal(e) * n for e, n in counts if math.isfinite(e)), Fraction(0))
    pure = math.fsum(e * n for e, n in counts)
    if delta == 0 or math.isinf(pure):
        return pure
    if len(counts) == 1:
        return epsilon_of(*counts[0], delta)
    tilt = _best_tilt(lambda t: sum(_log_weight(e, n, t) for e, n in counts), pure, counts, delta)
    step = _step(counts, tilt, delta)
    tilt = min(tilt, 30 / float(step))  # more would overflow within one cell of the grid
    laws = [_tilted_flips(e, n, tilt, step) for e, n in counts]
    laws.sort(key=lambda law: -np.count_nonzero(law.mass))
    total = laws[0]
    for law in laws[1:]:
        total = _convolve(total, law)
    log_scale = sum(_log_weight(e, n, tilt) for e, n in counts)
    deficit = _largest_deficit(total, float(step), tilt, log_scale, delta)
    return _rounded_up(float(pure_exact), deficit, pure)


def epsilon_of_random_words(epsilon_per_bit: float, bits: int, points: int, delta: float) -> float:
    """Epsilon of `bits` blocks that all hold different points, under public random balanced words.

    Two different points get different signs with probability pi = N / (2 (N-1)) for even N and
    (N+1) / (2N) for odd N; each block then loses +-epsilon, otherwise 0.

    >>> round(epsilon_of_random_words(0.5, 1000, 4, 1e-5), 1)
    134.3
    """
    differ = probability_of_different_signs(points)
    return epsilon_of_chance(epsilon_per_bit, bits, float(differ), delta)


def epsilon_of_chance(epsilon_per_bit: float, bits: int, differ: float, delta: float) -> float:
    """Epsilon of bits that each differ with probability `differ`, publicly and independently.

    Random words give such bits, and so does a dither that the server knows: two updates x and y
    then differ in a bit with probability |x - y| / (2X).
    """
    per_bit = positive("epsilon_per_bit", epsilon_per_bit, infinite=True)
    bits = whole("bits", bits, 1, MOST_BITS)
    differ = positive("differ", differ)
    delta = failure_probability(delta)
    if differ > 1:
        raise InvalidInput(f"differ is {differ!r}; it is a probability in (0, 1].")
    pure = per_bit * bits
    if differ == 1 or delta == 0 or math.isinf(pure):
        return epsilon_of(per_bit, bits, delta)

    def log_weight(tilt: float) -> float:
        return bits * math.log(sum(_block_weights(per_bit, differ, tilt)))

    tilt = _best_tilt(log_weight, pure, [(per_bit, bits)], delta)
    law = _tilted_blocks(_block_weights(per_bit, differ, tilt), bits)
    deficit = _largest_deficit(law, per_bit, tilt, log_weight(tilt), delta)
    return _rounded_up(pure, deficit, pure)


def probability_of_different_signs(points: int) -> Fraction:
    """pi: two given points get different signs in a uniformly random balanced word.

    >>> probability_of_different_signs(4), probability_of_different_signs(3)
    (Fraction(2, 3), Fraction(2, 3))
    """
    points = whole("points", points, 2)
    plus = points - points // 2
    return Fraction(2 * plus * (points - plus), points * (points - 1))


def _merge(groups: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    counts: dict[float, int] = {}
    for group in groups:
        if not isinstance(group, Sequence) or len(group) != 2:
            raise InvalidInput(f"a group is {group!r}; give pairs (epsilon_per_bit, bits).")
        per_bit = positive("epsilon_per_bit", group[0], infinite=True)
        counts[per_bit] = counts.get(per_bit, 0) + whole("bits", group[1], 1, MOST_BITS)
    if not counts:
        raise InvalidInput("no groups came; give at least one pair (epsilon_per_bit, bits).")
    return sorted(counts.items())


def _decimal(number: float) -> Fraction:
    """The number as written: 0.1 means one tenth, so that 0.1 and 0.3 share the step 0.1."""
    return Fraction(repr(float(number)))


def _log_weight(per_bit: float, bits: int, tilt: float) -> float:
    """ln E[e^(-tilt S)] of the deficit S = 2 epsilon Y of one group."""
    flip = math.exp(log_flip_odds(per_bit)[1])
    return bits * math.log1p(flip * math.expm1(-2 * per_bit * tilt))


def _best_tilt(
    log_weight: Callable[[float], float],
    pure: float,
    counts: list[tuple[float, int]],
    delta: float,
) -> float:
    """The Renyi order minus one that bounds epsilon best; it centres the tilted law there."""
    smallest = min(per_bit for per_bit, _ in counts)
    tilts = np.geomspace(1e-4 / pure, 60 / smallest, 600)
    bounds = [pure + (log_weight(t) - math.log(delta)) / t for t in tilts.tolist()]
    return float(tilts[int(np.argmin(bounds))])


def _step(counts: list[tuple[float, int]], tilt: float, delta: float) -> Fraction:
    """The common step of all deficits if the grid stays small, else one of stated slack."""
    spans = [2 * e * _window_length(e, n, tilt) for e, n in counts]
    exact = _decimal(2 * counts[0][0])
    for per_bit, _ in counts[1:]:
        other = _decimal(2 * per_bit)
        exact = Fraction(
            math.gcd(exact.numerator * other.denominator, other.numerator * exact.denominator),
            exact.denominator * other.denominator,
        )
    if sum(spans) <= exact * _MOST_CELLS:
        return exact
    largest = max(epsilon_of(e, n, delta) for e, n in counts)
    return Fraction(max(_SLACK * largest / len(counts), sum(spans) / _MOST_CELLS))


def _window_length(per_bit: float, bits: int, tilt: float) -> int:
    return len(flips_window(per_bit * (1 + 2 * tilt), bits, bits))


def _tilted_flips(per_bit: float, bits: int, tilt: float, step: Fraction) -> _Deficits:
    """Tilted law of one group's deficit on the grid, rounded down so that losses round up."""
    log_odds = per_bit * (1 + 2 * tilt)
    flips = flips_window(log_odds, bits, bits)
    ratio = _decimal(2 * per_bit) / step
    if ratio.denominator == 1:
        cells = flips * ratio.numerator
    else:
        cells = np.floor(flips * float(ratio) * (1 - 1e-15)).astype(np.int64)
    mass = np.exp(log_flips(log_odds, bits, flips))
    if ratio.denominator != 1:
        # Rounded deficits keep their true weight in the untilted law.
        mass *= np.exp(tilt * (2 * per_bit * flips - cells * float(step)))
    first = int(cells[0])
    return _Deficits(first, np.asarray(np.bincount(cells - first, weights=mass), np.float64))


def _convolve(a: _Deficits, b: _Deficits) -> _Deficits:
    """Law of the sum: term by term while one law has few atoms, else by the fast transform.

    Few atoms come with a strong tilt, which would magnify the noise of the fast transform.
    """
    first = a.first + b.first
    length = a.mass.size + b.mass.size - 1
    atoms = np.flatnonzero(b.mass)
    if atoms.size * a.mass.size <= _MOST_PRODUCTS:
        total = np.zeros(length)
        for atom in atoms.tolist():
            total[atom : atom + a.mass.size] += b.mass[atom] * a.mass
        return _Deficits(first, total)
    size = 1 << (length - 1).bit_length()
    product = np.fft.rfft(a.mass, size) * np.fft.rfft(b.mass, size)
    return _Deficits(first, _without_noise(np.fft.irfft(product, size)[:length]))


def _without_noise(mass: Floats) -> Floats:
    return np.maximum(mass, 0.0) + 1e-11 * float(np.max(mass))


def _block_weights(per_bit: float, differ: float, tilt: float) -> tuple[float, float, float]:
    """Tilted weights of the deficits 0, epsilon and 2 epsilon of one block."""
    log_truth, log_flip = log_flip_odds(per_bit)
    once = math.exp(-tilt * per_bit)
    return differ * math.exp(log_truth), (1 - differ) * once, differ * math.exp(log_flip) * once**2


def _tilted_blocks(weights: tuple[float, float, float], bits: int) -> _Deficits:
    """Law of the deficit of `bits` equal blocks; of many by its characteristic function.

    That has noise of 1e-11 of the largest mass everywhere, which a strong tilt magnifies; few
    blocks are convolved term by term, where every mass is right to rounding.
    """
    differing, same, flipped = (weight / sum(weights) for weight in weights)
    if bits <= _FEW_BLOCKS:
        return _Deficits(0, _power(np.array([differing, same, flipped]), bits))
    mean = same + 2 * flipped
    reach = int(20 * math.sqrt(bits * (same + 4 * flipped - mean**2))) + 200
    first = max(0, int(bits * mean) - reach)
    length = min(2 * bits, int(bits * mean) + reach) - first + 1
    size = 1 << (length - 1).bit_length()
    angle = -2j * np.pi * np.arange(size // 2 + 1) / size
    log_factor = np.log1p(same * np.expm1(angle) + flipped * np.expm1(2 * angle))
    mass = np.fft.irfft(np.exp(bits * log_factor - angle * first), size)[:length]
    return _Deficits(first, _without_noise(mass))


def _power(law: Floats, times: int) -> Floats:
    """The law of a sum of so many independent terms: sums of products that are not negative."""
    total = np.ones(1)
    while times:
        if times & 1:
            total = np.convolve(total, law)
        times >>= 1
        law = np.convolve(law, law) if times else law
    return total


def _largest_deficit(
    law: _Deficits, step: float, tilt: float, log_scale: float, delta: float
) -> float:
    """The largest b with sum_{S<b} P(S) (1 - e^(S-b)) <= delta; as `bits.epsilon_of` does."""
    cells = law.first + np.arange(law.mass.size)
    mass = law.mass * np.exp(np.minimum(log_scale + tilt * step * cells, 700.0)) * (1 + 1e-10)

    def masses_below(cell: int) -> tuple[float, float]:
        upto = mass[: max(0, cell - law.first + 1)]
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
        return step * low  # what lies beyond the grid is unknown, so it is not counted on
    excess, mass_below = masses_below(low)
    return step * low - math.log1p(-(delta - excess) / mass_below)


def _rounded_up(level: float, deficit: float, pure: float) -> float:
    return min(pure, max(0.0, (level - deficit) * (1 + 1e-10)))
