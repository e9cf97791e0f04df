"""What the kernels compute, in plain NumPy: slow, short, and equal to them bit for bit.

Nothing at run time imports this module; it is there to be read and to test against. Words are
defined by `hushbit.words.draw_words`, ChaCha20 by `hushbit.kernels.chacha.reference_blocks`.
"""

import numpy as np
from numpy.typing import NDArray

from hushbit.words import draw_words, stream

CENTRE = 2**31


def signed_coins(coin: NDArray[np.uint32], tag: int, stage: int, votes: int) -> NDArray[np.float64]:
    """Private uniform integers in [-2^31, 2^31), one for each vote."""
    return stream(coin, (tag, stage, 0), votes).astype(np.float64) - CENTRE


def halved_coins(coin: NDArray[np.uint32], tag: int, votes: int) -> NDArray[np.float64]:
    """The same, put together from a signed upper half and a lower half of two streams."""
    upper = stream(coin, (tag, 0, 0), -(-votes // 2)).view(np.int16)[:votes]
    lower = stream(coin, (tag, 0, 1), votes) & np.uint32(0xFFFF)
    return upper * 2.0**16 + lower


def threshold(pull: NDArray[np.float64], half: float) -> NDArray[np.float64]:
    """A vote is + when its coin is below this whole number, pull = lean · half in [-half, half].

    So P(+) = 1/2 + lean · (2p - 1) / 2 to within 2^-32. Rounding towards zero never makes a bit
    lean more than the guarantee allows, neither at the edge nor inside.
    """
    return np.clip(np.trunc(pull), -half, half)


def two_point_bits(
    update: NDArray[np.floating], radius: float, half: float, key: NDArray[np.uint32],
    coin: NDArray[np.uint32], coin_tag: int,
) -> NDArray[np.bool_]:  # fmt: skip
    """One user's bits for the points ±radius: the sign of x · half / radius against a coin.

    The word is (v, -v) over (-radius, radius); v = + turns the bit around.
    """
    word = draw_words(key, 0, update.size, 2, "hadamard")
    value = threshold(update.astype(np.float64) * (half / radius), half)
    return (halved_coins(coin, coin_tag, update.size) < value) ^ (word[:, 0] > 0)


def corner_bits(
    index: NDArray[np.int32], weight: NDArray[np.float64], points: int, family: str, half: float,
    key: NDArray[np.uint32], stage: int, coin: NDArray[np.uint32], coin_tag: int,
) -> NDArray[np.bool_]:  # fmt: skip
    """One user's bits of a stage: lean = sum over corners of weight · sign of the word there."""
    votes, corners = index.shape
    word = draw_words(key, stage, votes, points, family)
    lean = np.zeros(votes)
    for c in range(corners):
        lean += weight[:, c] * word[np.arange(votes), index[:, c]]
    return signed_coins(coin, coin_tag, stage, votes) < threshold(lean * half, half)


def packed(bits: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Bit i is bit i mod 8 of byte i div 8."""
    return np.packbits(bits, bitorder="little")


def counts(
    keys: NDArray[np.uint32], stage: int, family: str, points: int,
    payload: NDArray[np.uint8], table: NDArray[np.int64], votes: int,
) -> NDArray[np.int64]:  # fmt: skip
    """sum over users of bit_i · sum_j word_i[j] · table[j, c], as (columns, votes)."""
    total = np.zeros((votes, table.shape[1]), dtype=np.int64)
    for key, row in zip(keys, payload, strict=True):
        bit = 2 * np.unpackbits(row, bitorder="little")[:votes].astype(np.int64) - 1
        word = draw_words(key, stage, votes, points, family).astype(np.int64)
        total += bit[:, None] * (word @ table)
    return np.ascontiguousarray(total.T)
