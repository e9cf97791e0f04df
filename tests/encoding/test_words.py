"""Words: the families, their correlation, and their uniform distribution over keys."""

from collections import Counter
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from hushbit.encoding.words import all_words, correlation, word_family
from hushbit.errors import InvalidInput
from hushbit.kernels.words import draw_words, stream, tile_signs

FAMILIES = [("hadamard", n) for n in (2, 4, 8)] + [("uniform", n) for n in range(2, 9)]
SIZES = (1, 7, 8, 63, 64, 65, 511, 512, 513)


@pytest.mark.parametrize(("family", "points"), FAMILIES)
def test_families_are_balanced_and_complete(family: str, points: int) -> None:
    words = all_words(family, points)
    assert len({tuple(word) for word in words.tolist()}) == len(words)
    sums = set(words.sum(axis=1, dtype=int).tolist())
    assert sums == ({0} if points % 2 == 0 else {-1, 1})
    if family == "uniform":
        assert len(words) == comb(points, points // 2) * (1 + points % 2)
    else:
        assert len(words) == 2 * (points - 1)


@pytest.mark.parametrize(("family", "points"), FAMILIES)
def test_correlation_of_every_pair_is_rho(family: str, points: int) -> None:
    words = all_words(family, points).astype(int)
    products = words.T @ words
    for i in range(points):
        for j in range(points):
            expected = Fraction(1) if i == j else correlation(points)
            assert Fraction(int(products[i, j]), len(words)) == expected
    assert (words.sum(axis=0) == 0).all()


@pytest.mark.parametrize("votes", [*SIZES, 4095, 4096, 4097, 9000])
@pytest.mark.parametrize("points", [2, 4, 8, 16, 32, 64])
def test_hadamard_kernel_equals_the_definition(votes: int, points: int) -> None:
    check_kernel("hadamard", points, votes)


@pytest.mark.parametrize("votes", [*SIZES, 4097])
@pytest.mark.parametrize("points", [2, 3, 4, 7, 10])
def test_uniform_kernel_equals_the_definition(votes: int, points: int) -> None:
    check_kernel("uniform", points, votes)


def test_long_uniform_words_continue_in_the_stream() -> None:
    check_kernel("uniform", 200, 5)


def check_kernel(family: str, points: int, votes: int) -> None:
    key = np.random.default_rng(votes * 100 + points).integers(0, 2**32, 8, dtype=np.uint32)
    drawn = draw_words(key, 3, votes, points, family)
    assert drawn.shape == (votes, points)
    for tile in range(-(-votes // 4096)):
        inside = min(4096, votes - tile * 4096)
        signs = np.full((inside, points), 9, dtype=np.int8)
        tile_signs(key, 3, family == "hadamard", tile, inside, signs)
        assert (signs == drawn[tile * 4096 : tile * 4096 + inside]).all()


@pytest.mark.parametrize(("family", "points"), [*FAMILIES, ("hadamard", 16)])
def test_words_are_drawn_uniformly(family: str, points: int) -> None:
    """Chi-square at confidence 1 - 1e-6 on fixed keys; 40 keys of 4096 votes each."""
    table = all_words(family, points) if points < 16 else hadamard_rows(points)
    place = {word.tobytes(): n for n, word in enumerate(table)}
    seen: Counter[int] = Counter()
    signs = np.empty((4096, points), dtype=np.int8)
    for number in range(40):
        key = np.full(8, number + 1, dtype=np.uint32)
        tile_signs(key, 0, family == "hadamard", 0, 4096, signs)
        unique, times = np.unique(signs, axis=0, return_counts=True)
        for word, count in zip(unique, times.tolist(), strict=True):
            seen[place[np.ascontiguousarray(word).tobytes()]] += count
    expected = 40 * 4096 / len(table)
    statistic = sum((seen[n] - expected) ** 2 / expected for n in range(len(table)))
    assert statistic < chi2.ppf(1 - 1e-6, len(table) - 1)


def hadamard_rows(points: int) -> np.ndarray:
    rows = np.ones((1, 1), dtype=np.int8)
    while len(rows) < points:
        rows = np.block([[rows, rows], [rows, -rows]])
    return np.concatenate([rows[1:], -rows[1:]]).astype(np.int8)


def test_retried_lanes_are_uniform() -> None:
    """N = 4: lanes empty after three attempts take the retry stream; 1 - 1e-6 chi-square."""
    seen: Counter[int] = Counter()
    for number in range(30):
        key = np.full(8, 1000 + number, dtype=np.uint32)
        drawn = np.zeros(4096, dtype=np.int64)
        for attempt in range(3):
            planes = [plane_bits(key, 1 + 2 * attempt + bit) for bit in range(2)]
            drawn = np.where(drawn == 0, planes[0] + 2 * planes[1], drawn)
        retried = np.flatnonzero(drawn == 0)
        word = draw_words(key, 0, 4096, 4, "hadamard")[retried]
        rows = (word[:, 0] != word[:, 1]) + 2 * (word[:, 0] != word[:, 2])
        seen.update(rows.tolist())
    total = sum(seen.values())
    assert set(seen) == {1, 2, 3}
    assert 1600 < total < 2300  # 30 · 4096 / 64 = 1920
    statistic = sum((seen[row] - total / 3) ** 2 / (total / 3) for row in (1, 2, 3))
    assert statistic < chi2.ppf(1 - 1e-6, 2)


def plane_bits(key: np.ndarray, plane: int) -> np.ndarray:
    words = stream(key, (int.from_bytes(b"word", "little"), 0, plane), 128).astype("<u4")
    return np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.int64)


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.integers(0, 3))
def test_words_do_not_depend_on_the_number_of_votes(seed: int, stage: int) -> None:
    """A word depends on (key, stage, vote) alone, not on how many votes there are."""
    key = np.random.default_rng(seed).integers(0, 2**32, 8, dtype=np.uint32)
    for family, points in (("hadamard", 4), ("uniform", 3)):
        few, many = (draw_words(key, stage, votes, points, family) for votes in (20, 40))
        # Retried Hadamard lanes are filled in ascending order, so a prefix keeps its digits.
        assert (few == many[:20]).all()


def test_words_differ_between_stages_and_keys() -> None:
    key = np.arange(8, dtype=np.uint32)
    words = draw_words(key, 0, 256, 4, "hadamard")
    assert (words != draw_words(key, 1, 256, 4, "hadamard")).any()
    assert (words != draw_words(key + np.uint32(1), 0, 256, 4, "hadamard")).any()


def test_the_family_depends_on_the_number_of_points() -> None:
    assert word_family(None, 8) == "hadamard"
    assert word_family(None, 6) == "uniform"
    assert word_family("uniform", 8) == "uniform"
    for family, points in (("hadamard", 6), ("gold", 4), (3, 4)):
        with pytest.raises(InvalidInput):
            word_family(family, points)  # type: ignore[arg-type]
