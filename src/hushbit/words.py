"""Words: balanced ±1 vectors over the points, one for each vote, drawn from a user's key.

`draw_words` is the definition that the kernels equal. A word has as many +1 as -1 (for odd N
one more of either sign), so that E[v_i v_j] = rho for every pair i != j.
"""

import itertools
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import choice
from hushbit.errors import InvalidInput
from hushbit.kernels.chacha import CONSTANTS, reference_blocks
from hushbit.kernels.count import RETRY, TILE_VOTES, WHOLE_BITS
from hushbit.kernels.signs import UNIFORM_TAG, WORD_TAG

FAMILIES = ("hadamard", "uniform")


def word_family(family: str | None, points: int) -> str:
    """The family to use: Hadamard rows where N is a power of two, else all balanced words."""
    power_of_two = points & (points - 1) == 0
    if family is None:
        return "hadamard" if power_of_two else "uniform"
    if choice("words", family, FAMILIES) == "hadamard" and not power_of_two:
        raise InvalidInput(
            f"Hadamard words need a power of two of points; got {points}: use words='uniform'"
        )
    return family


def correlation(points: int) -> Fraction:
    """rho = E[v_i v_j] for i != j: -1/(N-1) for even N, -1/N for odd N."""
    return Fraction(-1, points - 1 if points % 2 == 0 else points)


def all_words(family: str, points: int) -> NDArray[np.int8]:
    """Every word of a family, each equally likely; for exact enumeration with small N."""
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


def draw_words(
    key: NDArray[np.uint32], stage: int, votes: int, points: int, family: str
) -> NDArray[np.int8]:
    """The words of one user for one stage: a (votes, points) matrix of ±1."""
    if family == "uniform":
        return _uniform_words(key, stage, votes, points)
    sign = _bits(key, stage, 0, votes)
    rows = _rows(key, stage, votes, points.bit_length() - 1)
    index = np.arange(points)
    parity = np.array([[int(r & j).bit_count() & 1 for j in index] for r in range(points)])
    return np.asarray(2 * (sign[:, None] ^ parity[rows]) - 1, dtype=np.int8)


def stream(key: NDArray[np.uint32], nonce: tuple[int, int, int], words: int) -> NDArray[np.uint32]:
    """The first 32-bit words of the ChaCha20 keystream of a key and nonce."""
    return np.asarray(_streams(key, nonce[:2], np.array(nonce[2:]), words)[0])


def _streams(
    key: NDArray[np.uint32], nonce: tuple[int, int], last: NDArray[np.int64], words: int
) -> NDArray[np.uint32]:
    """A row of keystream for each value of the nonce's last word."""
    blocks = -(-words // 16)
    states = np.empty((16, last.size, blocks), dtype=np.uint32)
    states[:12] = np.concatenate([CONSTANTS, key])[:, None, None]
    states[12] = np.arange(blocks, dtype=np.uint32)
    states[13:15] = np.array(nonce, dtype=np.uint32)[:, None, None]
    states[15] = last.astype(np.uint32)[:, None]
    return reference_blocks(states.reshape(16, -1)).reshape(last.size, -1)[:, :words]


def _bits(key: NDArray[np.uint32], stage: int, plane: int, votes: int) -> NDArray[np.uint8]:
    words = stream(key, (WORD_TAG, stage, plane), -(-votes // 32)).astype("<u4")
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:votes]


def _rows(key: NDArray[np.uint32], stage: int, votes: int, row_bits: int) -> NDArray[np.int64]:
    if row_bits == 1:
        return np.ones(votes, dtype=np.int64)
    rows = np.zeros(votes, dtype=np.int64)
    for attempt in range(-(-WHOLE_BITS // row_bits)):
        drawn = np.zeros(votes, dtype=np.int64)
        for bit in range(row_bits):
            plane = 1 + attempt * row_bits + bit
            drawn |= _bits(key, stage, plane, votes).astype(np.int64) << bit
        rows = np.where(rows == 0, drawn, rows)
    for tile in range(-(-votes // TILE_VOTES)):
        part = rows[tile * TILE_VOTES : (tile + 1) * TILE_VOTES]
        missing = np.flatnonzero(part == 0)
        length = 64
        digits = np.empty(0, dtype=np.int64)
        while digits.size < missing.size:
            length *= 2
            words = stream(key, (WORD_TAG, stage, RETRY + tile), length).astype("<u4")
            digits = words.view("<u2").astype(np.int64) & ((1 << row_bits) - 1)
            digits = digits[digits != 0]
        part[missing] = digits[: missing.size]
    return rows


def _uniform_words(
    key: NDArray[np.uint32], stage: int, votes: int, points: int
) -> NDArray[np.int8]:
    """Selection sampling, each vote from its own keystream."""
    streams = _streams(key, (UNIFORM_TAG, stage), np.arange(votes), 4 * points + 64)
    words = np.empty((votes, points), dtype=np.int8)
    for word, numbers in zip(words, streams, strict=True):
        drawn = iter(numbers.tolist())
        plus = points // 2 + (next(drawn) & 1 if points % 2 else 0)
        for j in range(points):
            left = points - j
            limit = 2**32 // left * left
            number = next(value for value in drawn if value < limit)
            word[j] = 1 if number % left < plus else -1
            plus -= number % left < plus
    return words
