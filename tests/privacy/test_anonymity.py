"""k-anonymity and expected candidates against a list of all words and published tables."""

import itertools
from collections.abc import Callable
from fractions import Fraction

import pytest

from hushbit.errors import InvalidInput
from hushbit.privacy.guarantee import expected_candidates, k_per_block

Word = tuple[bool, ...]


def balanced_words(points: int) -> list[Word]:
    plus = points - points // 2
    return [
        tuple(l in chosen for l in range(points))  # noqa: E741
        for chosen in itertools.combinations(range(points), plus)
    ]


def candidates_by_listing(words: list[Word], rounds: int) -> Fraction:
    """Mean number of points consistent with all words."""
    points = len(words[0])
    kept = [
        frozenset(l for l in range(points) if word[l] == word[0])  # noqa: E741
        for word in words
    ]
    sizes = [
        len(frozenset(range(points)).intersection(*sets))
        for sets in itertools.product(kept, repeat=rounds)
    ]
    return Fraction(sum(sizes), len(sizes))


@pytest.mark.parametrize("points", range(2, 9))
def test_k_is_the_least_number_of_consistent_points(points: int) -> None:
    fewest = min(min(sum(word), points - sum(word)) for word in balanced_words(points))
    assert k_per_block(points) == fewest


@pytest.mark.parametrize(
    ("points", "rounds"), [(2, 2), (3, 3), (4, 1), (4, 4), (5, 3), (6, 3), (7, 2), (8, 2)]
)
def test_expected_candidates_equal_the_list(points: int, rounds: int) -> None:
    mean = candidates_by_listing(balanced_words(points), rounds)
    assert expected_candidates(points, rounds) == float(mean)


@pytest.mark.parametrize(
    ("points", "printed"),
    [
        (4, ["2", "1.333", "1.111", "1.037", "1.012"]),
        (8, ["4", "2.286", "1.551", "1.236", "1.101"]),
        (16, ["8", "4.267", "2.524", "1.711", "1.332"]),
        (64, ["32", "16.25", "8.506", "4.693", "2.817"]),
    ],
)
def test_table_of_expected_candidates(points: int, printed: list[str]) -> None:
    for rounds, text in enumerate(printed, start=1):
        assert f"{expected_candidates(points, rounds):.{len(text.partition('.')[2])}f}" == text


def test_bad_arguments_are_refused() -> None:
    calls: list[Callable[[], object]] = [
        lambda: k_per_block(1),
        lambda: k_per_block(4.0),  # type: ignore[arg-type]
        lambda: expected_candidates(4, -1),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
