"""How many points a bit leaves possible, and how soon repeated rounds single one out.

A k counts inputs that fit one noiseless bit. It needs no prior and knows no noise, it decays over
rounds, and it is no substitute for differential privacy.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hushbit.checks import positive, whole
from hushbit.errors import InvalidInput
from hushbit.privacy.binomial import Floats
from hushbit.privacy.mixed import probability_of_different_signs

_MOST_POINTS = 1024
_CHUNK_CELLS = 2**22


@dataclass(frozen=True)
class Posterior:
    """What an attacker with a uniform prior knows; the figures are means over `trials`.

    `guess_is_right` shares a tie among the tied points and is the true probability that the best
    guess is right; `clear_guess_is_right` counts a tie as a failure. `standard_error` is the
    largest of the three.
    """

    of_true_point: float
    guess_is_right: float
    clear_guess_is_right: float
    standard_error: float
    trials: int


def k_per_block(points: int) -> int:
    """Fewest points that fit a noiseless bit: N/2 for even N, (N-1)/2 for odd N.

    >>> k_per_block(2), k_per_block(3), k_per_block(16)
    (1, 1, 8)
    """
    return whole("points", points, 2) // 2


def log2_k_message(points: int, blocks: int) -> float:
    """log2 of the vectors of points that fit a whole noiseless message: blocks * log2(k)."""
    return whole("blocks", blocks, 1) * math.log2(k_per_block(points))


def survivors(points: int, rounds: int) -> float:
    """Expected points that fit T noiseless rounds: 1 + (N-1) (1 - pi)^T, 1 - pi = (N-2)/(2(N-1)).

    The formula of 1 - pi is for even N. Holds for uniform balanced words and for signed Hadamard
    words alike, because it needs the law of two points only.

    >>> round(survivors(8, 3), 3)
    1.551
    """
    same = 1 - probability_of_different_signs(points)
    return float(1 + (points - 1) * same ** whole("rounds", rounds, 0))


def probability_unique(points: int, rounds: int) -> float:
    """P[only the true point fits T noiseless rounds], uniform balanced words, exactly.

    By inclusion and exclusion over the sets J of wrong points that survive together:
    sum_j (-1)^j C(N-1, j) s_j^T, with s_j = P[j given points all share the sign of the true one] =
    (C(N-1-j, a-1-j) + C(N-1-j, b-1-j)) / C(N, a) for words of a plus and b minus signs.

    >>> round(probability_unique(8, 5), 3)
    0.9
    """
    points = whole("points", points, 2, _MOST_POINTS)
    rounds = whole("rounds", rounds, 0)
    if rounds == 0 or _surely_unique(points, rounds):
        return float(rounds > 0)
    plus = points - points // 2
    words = math.comb(points, plus)
    total = 0
    for wrong in range(plus):
        sharing = sum(
            math.comb(points - 1 - wrong, size - 1 - wrong)
            for size in (plus, points - plus)
            if size > wrong
        )
        total += (-1) ** wrong * math.comb(points - 1, wrong) * sharing**rounds
    return float(Fraction(total, words**rounds))


def probability_unique_hadamard(points: int, rounds: int) -> float:
    """P[only the true point fits T noiseless rounds], signed Hadamard words, N = 2^n.

    A row r of the matrix keeps the points l with <r, l xor l0> = 0, so the survivors form the
    space orthogonal to the rows drawn: only one point fits iff T non-zero rows span n dimensions,
    P = sum_k (-1)^(n-k) 2^C(n-k, 2) [n choose k]_2 (2^k - 1)^T / (2^n - 1)^T.
    """
    points = whole("points", points, 2, _MOST_POINTS)
    rounds = whole("rounds", rounds, 0)
    dimension = points.bit_length() - 1
    if points != 1 << dimension:
        raise InvalidInput(f"points is {points}; Hadamard words need a power of two.")
    if _surely_unique(points, rounds):
        return 1.0
    total = 0
    for kept in range(dimension + 1):
        missing = dimension - kept
        ways = (-1) ** missing * 2 ** math.comb(missing, 2) * _subspaces(dimension, kept)
        total += ways * (2**kept - 1) ** rounds
    return float(Fraction(total, (points - 1) ** rounds))


def posterior(
    points: int,
    epsilon_per_bit: float,
    rounds: int,
    *,
    trials: int,
    generator: np.random.Generator,
) -> Posterior:
    """Simulates an attacker who collects T noisy bits of one unchanged point and knows the words.

    With S_l = number of rounds whose bit agrees with the word at l, the posterior of l is
    e^(eps S_l) / sum_j e^(eps S_j). Words are uniform balanced; `generator` is the only
    randomness.
    """
    points = whole("points", points, 2)
    per_bit = positive("epsilon_per_bit", epsilon_per_bit)
    rounds = whole("rounds", rounds, 0)
    trials = whole("trials", trials, 1)
    if not isinstance(generator, np.random.Generator):
        raise InvalidInput(f"generator is {generator!r}; give numpy.random.default_rng(seed).")
    chunk = max(1, _CHUNK_CELLS // points)
    results = [
        _attack(points, per_bit, rounds, min(chunk, trials - start), generator)
        for start in range(0, trials, chunk)
    ]
    figures = np.concatenate(results, axis=1)
    belief, right, clear = figures.mean(axis=1).tolist()
    error = float(figures.std(axis=1).max()) / math.sqrt(trials)
    return Posterior(belief, right, clear, error, trials)


def _surely_unique(points: int, rounds: int) -> bool:
    """Whether P[not unique] <= (N-1) (1 - pi)^T is below half the spacing of floats at 1."""
    same = 1 - probability_of_different_signs(points)
    if same == 0:
        return rounds > 0
    return math.log2(points) + rounds * math.log2(same) < -54


def _subspaces(dimension: int, kept: int) -> int:
    """Gaussian binomial: subspaces of `kept` dimensions in GF(2)^dimension."""
    above = math.prod((1 << (dimension - i)) - 1 for i in range(kept))
    return above // math.prod((2 << i) - 1 for i in range(kept))


def _attack(
    points: int, per_bit: float, rounds: int, trials: int, generator: np.random.Generator
) -> Floats:
    """Per trial: posterior of the true point (number 0), share of a right guess, clear guess."""
    word = np.arange(points) < points - points // 2
    words = np.tile(word, (trials, 1))
    truth_kept = 1 / (1 + math.exp(-per_bit))
    agreements = np.zeros((trials, points), dtype=np.int32)
    for _ in range(rounds):
        words = generator.permuted(words, axis=1)
        flipped = generator.random(trials) >= truth_kept
        bit = words[:, 0] ^ flipped
        agreements += words == bit[:, None]
    best = agreements.max(axis=1, keepdims=True)
    weights = np.exp(per_bit * (agreements - best))
    tied = agreements == best
    belief, right = weights[:, 0] / weights.sum(axis=1), tied[:, 0] / tied.sum(axis=1)
    return np.stack([belief, right, right == 1])
