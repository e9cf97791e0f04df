"""Words: balanced ±1 vectors over the N points, one for each vote, drawn from the key of a user.

A word has as many +1 as -1 (for odd N one more of either sign), so that E[v_i v_j] = rho for every
pair i != j. `kernels/words.py` draws them.
"""

import itertools
from fractions import Fraction

import numpy as np

from hushbit.checks import check_choice
from hushbit.errors import InvalidInput
from hushbit.kernels import Signs

FAMILIES = ("hadamard", "uniform")


def word_family(family: str | None, points: int) -> str:
    """The family; by default Hadamard rows if N is a power of two, else all balanced words."""
    power_of_two = points & (points - 1) == 0
    if family is None:
        return "hadamard" if power_of_two else "uniform"
    if check_choice("words", family, FAMILIES) == "hadamard" and not power_of_two:
        raise InvalidInput(
            f"Hadamard words need points to be a power of two; got {points}: use words='uniform'"
        )
    return family


def correlation(points: int) -> Fraction:
    """rho = E[v_i v_j] for i != j: -1/(N-1) for even N, -1/N for odd N."""
    return Fraction(-1, points - 1 if points % 2 == 0 else points)


def all_words(family: str, points: int) -> Signs:
    """All words of a family, which have equal probability; for enumeration with small N."""
    if family == "hadamard":
        j = np.arange(points)
        rows = [
            sign * np.array([(-1) ** (int(r) & int(k)).bit_count() for k in j])
            for r in range(1, points)
            for sign in (1, -1)
        ]
        return np.array(rows, dtype=np.int8)
    sizes = {points // 2, (points + 1) // 2}
    words = []
    for size in sorted(sizes):
        for plus in itertools.combinations(range(points), size):
            word = -np.ones(points, dtype=np.int8)
            word[list(plus)] = 1
            words.append(word)
    return np.array(words)
