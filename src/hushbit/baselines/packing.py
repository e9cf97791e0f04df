"""Symbols of any alphabet as a tight row of bits, and their sums straight from the bits.

With alphabet size N, m = floor(63 / log2 N) symbols make one group, a number in base N (first
symbol least significant) of ceil(m log2 N) bits; groups follow each other without gaps, the last
one is as short as its symbols allow. For N = 2^b that is b bits for each symbol.
"""

import numpy as np
from numpy.typing import NDArray

from hushbit.kernels.jit import njit


def group_size(alphabet: int) -> int:
    """Symbols of one group: the most whose number stays below 2^63."""
    size = 1
    while alphabet ** (size + 1) <= 2**63:
        size += 1
    return size


def group_bits(alphabet: int, size: int) -> int:
    """Bits of a group of `size` symbols."""
    return int((alphabet**size - 1).bit_length())


@njit
def write_bits(row: NDArray[np.uint8], at: int, width: int, number: np.uint64) -> None:
    """Write the low `width` bits of a number from bit `at` of a zeroed row on."""
    done = 0
    while done < width:
        byte, shift = (at + done) >> 3, (at + done) & 7
        part = (number >> np.uint64(done)) << np.uint64(shift)
        row[byte] |= np.uint8(part & np.uint64(255))
        done += 8 - shift


@njit
def read_bits(row: NDArray[np.uint8], at: int, width: int) -> np.uint64:
    """The number that `width` bits from bit `at` on spell, least significant first."""
    number = np.uint64(0)
    done = 0
    while done < width:
        byte, shift = (at + done) >> 3, (at + done) & 7
        number |= (np.uint64(row[byte]) >> np.uint64(shift)) << np.uint64(done)
        done += 8 - shift
    return number & ((np.uint64(1) << np.uint64(width)) - np.uint64(1))


@njit
def pack_symbols(
    symbols: NDArray[np.uint32], alphabet: int, size: int, width: int, last_width: int,
    row: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Write all symbols of one user into a zeroed row."""
    base = np.uint64(alphabet)
    groups = -(-symbols.size // size)
    for group in range(groups):
        number = np.uint64(0)
        top = min(symbols.size, (group + 1) * size)
        for i in range(top - 1, group * size - 1, -1):
            number = number * base + np.uint64(symbols[i])
        write_bits(row, group * width, width if group < groups - 1 else last_width, number)


@njit
def first_invalid(
    payload: NDArray[np.uint8], groups: int, width: int, last_width: int,
    limit: np.uint64, last_limit: np.uint64,
) -> int:  # fmt: skip
    """The first row with a group at or beyond its limit, or -1."""
    for user in range(payload.shape[0]):
        for group in range(groups - 1):
            if read_bits(payload[user], group * width, width) >= limit:
                return user
        if read_bits(payload[user], (groups - 1) * width, last_width) >= last_limit:
            return user
    return -1


@njit
def add_symbols(
    payload: NDArray[np.uint8], alphabet: int, size: int, width: int, last_width: int,
    table: NDArray[np.int64], first: int, last: int, counters: NDArray[np.int64],
) -> None:  # fmt: skip
    """counters[c, i] += sum over users of table[symbol_i, c], for groups first … last-1."""
    base = np.uint64(alphabet)
    columns, entries = counters.shape
    groups = -(-entries // size)
    for user in range(payload.shape[0]):
        for group in range(first, last):
            bits = width if group < groups - 1 else last_width
            number = read_bits(payload[user], group * width, bits)
            for i in range(group * size, min(entries, (group + 1) * size)):
                rest = number // base
                symbol = np.int64(number - rest * base)
                number = rest
                for c in range(columns):
                    counters[c, i] += table[symbol, c]
