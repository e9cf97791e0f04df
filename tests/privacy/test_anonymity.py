"""Counts of possible points against listing of all words, and the audit's tables."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from hushbit.errors import InvalidInput
from hushbit.privacy.anonymity import (
    k_per_block,
    log2_k_message,
    posterior,
    probability_unique,
    probability_unique_hadamard,
    survivors,
)

Word = tuple[bool, ...]


def balanced_words(points: int) -> list[Word]:
    plus = points - points // 2
    return [
        tuple(l in chosen for l in range(points))  # noqa: E741
        for chosen in itertools.combinations(range(points), plus)
    ]


def hadamard_words(points: int) -> list[Word]:
    """Every non-constant row of Sylvester's matrix with both signs."""
    rows = [[(r & l).bit_count() % 2 == 0 for l in range(points)] for r in range(1, points)]  # noqa: E741
    return [tuple(value ^ sign for value in row) for row in rows for sign in (False, True)]


def candidates_by_listing(words: list[Word], rounds: int) -> tuple[Fraction, Fraction]:
    """Mean number of points that fit, and the probability that only the true one does."""
    points = len(words[0])
    kept = [
        frozenset(l for l in range(points) if word[l] == word[0])  # noqa: E741
        for word in words
    ]
    sizes = [
        len(frozenset(range(points)).intersection(*sets))
        for sets in itertools.product(kept, repeat=rounds)
    ]
    return Fraction(sum(sizes), len(sizes)), Fraction(sizes.count(1), len(sizes))


@pytest.mark.parametrize("points", range(2, 9))
def test_k_is_the_fewest_points_that_fit(points: int) -> None:
    fewest = min(min(sum(word), points - sum(word)) for word in balanced_words(points))
    assert k_per_block(points) == fewest
    assert log2_k_message(points, 10) == pytest.approx(10 * math.log2(fewest))


@pytest.mark.parametrize(
    ("points", "rounds"), [(2, 2), (3, 3), (4, 1), (4, 4), (5, 3), (6, 3), (7, 2), (8, 2)]
)
def test_survivors_and_uniqueness_equal_listing(points: int, rounds: int) -> None:
    mean, unique = candidates_by_listing(balanced_words(points), rounds)
    assert survivors(points, rounds) == float(mean)
    assert probability_unique(points, rounds) == float(unique)


@pytest.mark.parametrize(("points", "rounds"), [(2, 2), (4, 3), (4, 5), (8, 3), (8, 4), (16, 3)])
def test_hadamard_uniqueness_equals_listing(points: int, rounds: int) -> None:
    mean, unique = candidates_by_listing(hadamard_words(points), rounds)
    assert survivors(points, rounds) == float(mean)
    assert probability_unique_hadamard(points, rounds) == float(unique)


@pytest.mark.parametrize(
    ("points", "printed"),
    [
        (4, ["2", "1.333", "1.111", "1.037", "1.012"]),
        (8, ["4", "2.286", "1.551", "1.236", "1.101"]),
        (16, ["8", "4.267", "2.524", "1.711", "1.332"]),
        (64, ["32", "16.25", "8.506", "4.693", "2.817"]),
    ],
)
def test_table_of_survivors(points: int, printed: list[str]) -> None:
    for rounds, text in enumerate(printed, start=1):
        assert f"{survivors(points, rounds):.{len(text.partition('.')[2])}f}" == text


@pytest.mark.parametrize(
    ("points", "five", "ten", "printed_five", "printed_ten"),
    [
        (4, "0.988", "1.000", 0.989, "1.000"),
        (8, "0.900", "0.999", 0.900, "0.999"),
        (16, "0.700", "0.993", 0.702, "0.993"),
        (64, "0.135", "0.949", 0.137, "0.949"),
    ],
)
def test_table_of_uniqueness(
    points: int, five: str, ten: str, printed_five: float, printed_ten: str
) -> None:
    """The law of uniform balanced words, not of independent survivors (0.715 and 0.158 below).

    The printed column at five rounds was drawn at random: exactly, N = 4 gives 80/81 = 0.988, and
    N = 16 and 64 give 0.700 and 0.135.
    """
    exact = probability_unique(points, 5)
    assert f"{exact:.3f}" == five
    assert abs(exact - printed_five) < 0.0025
    assert f"{probability_unique(points, 10):.3f}" == ten == printed_ten


def test_words_and_independence_give_different_laws() -> None:
    assert probability_unique(4, 5) == float(Fraction(80, 81)) == probability_unique_hadamard(4, 5)
    independent = [(1 - ((n - 2) / (2 * (n - 1))) ** 5) ** (n - 1) for n in (16, 64)]
    assert [round(value, 3) for value in independent] == [0.715, 0.158]
    assert round(probability_unique_hadamard(16, 5), 3) == 0.690
    assert probability_unique_hadamard(64, 5) == 0.0  # five rows cannot span six dimensions


@pytest.mark.parametrize("law", [probability_unique, probability_unique_hadamard])
def test_uniqueness_grows_to_one(law: Callable[[int, int], float]) -> None:
    for points in (2, 4, 64, 1024):
        values = [law(points, rounds) for rounds in (0, 1, 2, 5, 10, 20, 60, 10**6)]
        assert values == sorted(values)
        assert (values[0], values[-1]) == (0.0, 1.0)


def exact_posterior(points: int, per_bit: float, rounds: int) -> tuple[float, float, float]:
    """Every word and every flip of every round."""
    truth = 1 / (1 + math.exp(-per_bit))
    belief = right = clear = 0.0
    words = balanced_words(points)
    for drawn in itertools.product(words, repeat=rounds):
        for flips in itertools.product((False, True), repeat=rounds):
            chance = math.prod(1 - truth if flip else truth for flip in flips)
            bits = [word[0] ^ flip for word, flip in zip(drawn, flips, strict=True)]
            agree = [
                sum(word[l] == bit for word, bit in zip(drawn, bits, strict=True))
                for l in range(points)  # noqa: E741
            ]
            weights = [math.exp(per_bit * count) for count in agree]
            tied = agree.count(max(agree))
            belief += chance * weights[0] / sum(weights)
            right += chance * (agree[0] == max(agree)) / tied
            clear += chance * (agree[0] == max(agree) and tied == 1)
    scale = len(words) ** rounds
    return belief / scale, right / scale, clear / scale


@pytest.mark.parametrize(("points", "per_bit", "rounds"), [(2, 1.0, 4), (3, 2.0, 3), (4, 1.0, 3)])
def test_posterior_equals_listing(points: int, per_bit: float, rounds: int) -> None:
    """Fixed seed; five standard errors hold with probability 0.999999."""
    found = posterior(points, per_bit, rounds, trials=40_000, generator=np.random.default_rng(11))
    belief, right, clear = exact_posterior(points, per_bit, rounds)
    assert found.of_true_point == pytest.approx(belief, abs=5 * found.standard_error)
    assert found.guess_is_right == pytest.approx(right, abs=5 * found.standard_error)
    assert found.clear_guess_is_right == pytest.approx(clear, abs=5 * found.standard_error)


@pytest.mark.parametrize(
    ("points", "per_bit", "row"),
    [
        (8, 0.5, {10: (0.21, 0.25), 30: (0.39, 0.47), 50: (0.55, 0.63), 100: (0.80, 0.85)}),
        (8, 1.0, {10: (0.45, 0.49), 30: (0.85, 0.87), 50: (0.96, 0.97)}),
        (8, 2.0, {10: (0.87, 0.87), 30: (1.0, 1.0)}),
        (16, 0.5, {10: (0.11, 0.15), 30: (0.24, 0.34), 50: (0.39, 0.50), 100: (0.68, 0.75)}),
    ],
)
def test_table_of_posteriors(
    points: int, per_bit: float, row: dict[int, tuple[float, float]]
) -> None:
    """The printed figures were drawn at random and count a tie as a failure.

    Tolerance: half a printed digit, and three standard errors of a thousand draws each.
    """
    for rounds, (belief, clear) in row.items():
        found = posterior(
            points, per_bit, rounds, trials=10_000, generator=np.random.default_rng(rounds)
        )
        assert found.of_true_point == pytest.approx(belief, abs=0.015)
        noise = 0.005 + 3 * math.sqrt(clear * (1 - clear) / 1000)
        assert found.clear_guess_is_right == pytest.approx(clear, abs=noise + 0.002)
        assert found.guess_is_right >= max(found.clear_guess_is_right, 1 / points)


def test_bad_arguments_are_refused() -> None:
    generator = np.random.default_rng(0)
    calls: list[Callable[[], object]] = [
        lambda: k_per_block(1),
        lambda: k_per_block(4.0),  # type: ignore[arg-type]
        lambda: log2_k_message(4, 0),
        lambda: survivors(4, -1),
        lambda: probability_unique(2048, 3),
        lambda: probability_unique_hadamard(6, 3),
        lambda: posterior(4, 0.0, 3, trials=10, generator=generator),
        lambda: posterior(4, math.inf, 3, trials=10, generator=generator),
        lambda: posterior(4, 1.0, 3, trials=0, generator=generator),
        lambda: posterior(4, 1.0, 3, trials=5, generator=np.random),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
