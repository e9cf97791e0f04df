"""Three ways in which entries travel: floats, whole numbers, symbols. All sums are exact."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.packing import (
    add_symbols,
    first_invalid,
    group_bits,
    group_size,
    pack_symbols,
)
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.kernels.jit import njit
from hushbit.kernels.threads import spread

FLOAT_LIMIT = 2.0**15
HIGH_UNIT = 2.0**16
LOW_UNIT = 2.0**32
LARGEST_INTEGER = 2**31 - 1
BYTE_ROWS = 255  # users whose bits a byte can count


@njit
def add_floats(rows: NDArray[np.float32], first: int, last: int, sums: NDArray[np.int64]) -> None:
    """sums[0] += floor(x 2^16), sums[1] += the rest in units of 2^-48, entries first … last-1."""
    for user in range(rows.shape[0]):
        for i in range(first, last):
            scaled = np.float64(rows[user, i]) * HIGH_UNIT
            high = np.floor(scaled)
            sums[0, i] += np.int64(high)
            sums[1, i] += np.int64(np.rint((scaled - high) * LOW_UNIT))


@dataclass(frozen=True)
class FloatWire:
    """32-bit floats below 2^15, added up in units of 2^-48.

    A value is split into two whole numbers below 2^32, so 2^31 users cannot overflow a sum.
    """

    dim: int

    @property
    def bits(self) -> int:
        """Bits of one payload."""
        return 32 * self.dim

    def write(self, values: NDArray[np.floating], row: NDArray[np.uint8]) -> None:
        """Values of one user into its payload; refuses what the server would refuse."""
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        if np.abs(narrow).max() >= FLOAT_LIMIT:
            raise InvalidInput(
                f"entries must stay below {FLOAT_LIMIT:g} in size; got {np.abs(values).max():g}: "
                "clip or rescale the update"
            )
        row.view("<f4")[:] = narrow

    def check(self, payload: NDArray[np.uint8]) -> None:
        """Refuse values that are not finite or too large to be added up."""
        if not (np.abs(payload.view("<f4")) < FLOAT_LIMIT).all():
            raise RefusedBallot("value", f"entries must be finite and below {FLOAT_LIMIT:g}")

    def empty(self) -> NDArray[np.int64]:
        """Zeroed sums."""
        return np.zeros((2, self.dim), dtype=np.int64)

    def add(self, sums: NDArray[np.int64], payload: NDArray[np.uint8]) -> None:
        """Add the values of many users."""
        rows = payload.view("<f4").astype(np.float32, copy=False)
        spread(lambda first, last: add_floats(rows, first, last, sums), self.dim)

    def total(self, sums: NDArray[np.int64]) -> NDArray[np.float64]:
        """The sum of all values."""
        return np.asarray(sums[0] / HIGH_UNIT + sums[1] / (HIGH_UNIT * LOW_UNIT))


@dataclass(frozen=True)
class IntegerWire:
    """Signed 32-bit whole numbers, two's complement, little-endian; larger ones are cut off."""

    dim: int

    @property
    def bits(self) -> int:
        """Bits of one payload."""
        return 32 * self.dim

    def write(self, values: NDArray[np.int64], row: NDArray[np.uint8]) -> None:
        """Values of one user into its payload."""
        row.view("<i4")[:] = np.clip(values, -LARGEST_INTEGER, LARGEST_INTEGER)

    def check(self, payload: NDArray[np.uint8]) -> None:
        """Refuse the one number that no encoder writes."""
        if (payload.view("<i4") < -LARGEST_INTEGER).any():
            raise RefusedBallot("value", f"entries must be at least {-LARGEST_INTEGER}")

    def empty(self) -> NDArray[np.int64]:
        """Zeroed sums."""
        return np.zeros(self.dim, dtype=np.int64)

    def add(self, sums: NDArray[np.int64], payload: NDArray[np.uint8]) -> None:
        """Add the values of many users."""
        sums += payload.view("<i4").sum(axis=0, dtype=np.int64)


def count_ones(payload: NDArray[np.uint8], entries: int) -> NDArray[np.int64]:
    """How many users set the bit of each entry."""
    ones = np.zeros(entries, dtype=np.int64)
    for begin in range(0, len(payload), BYTE_ROWS):
        part = payload[begin : begin + BYTE_ROWS]
        bits = np.unpackbits(part, axis=1, count=entries, bitorder="little")
        ones += np.add.reduce(bits, axis=0, dtype=np.uint8)
    return ones


@dataclass(frozen=True)
class SymbolWire:
    """Entries that are symbols 0 … alphabet-1, as tight as whole groups allow.

    >>> SymbolWire(entries=7850, alphabet=2).bits, SymbolWire(entries=7850, alphabet=3).bits
    (7850, 12480)
    """

    entries: int
    alphabet: int

    @cached_property
    def size(self) -> int:
        """Symbols of a group."""
        return group_size(self.alphabet)

    @cached_property
    def groups(self) -> int:
        """Groups of a payload."""
        return -(-self.entries // self.size)

    @cached_property
    def widths(self) -> tuple[int, int]:
        """Bits of a full group and of the last one."""
        rest = self.entries - (self.groups - 1) * self.size
        return group_bits(self.alphabet, self.size), group_bits(self.alphabet, rest)

    @property
    def bits(self) -> int:
        """Bits of one payload."""
        width, last = self.widths
        return (self.groups - 1) * width + last

    def write(self, symbols: NDArray[np.uint32], row: NDArray[np.uint8]) -> None:
        """Symbols of one user into its zeroed payload."""
        pack_symbols(symbols, self.alphabet, self.size, *self.widths, row)

    def check(self, payload: NDArray[np.uint8]) -> None:
        """Refuse groups that spell no symbols; every pattern does when N is a power of two."""
        if self.alphabet & (self.alphabet - 1) == 0:
            return
        rest = self.entries - (self.groups - 1) * self.size
        limits = (np.uint64(self.alphabet**self.size), np.uint64(self.alphabet**rest))
        bad = first_invalid(payload, self.groups, *self.widths, *limits)
        if bad >= 0:
            raise RefusedBallot(
                "value", f"ballot {bad} of the batch holds a symbol beyond {self.alphabet - 1}"
            )

    def add(
        self, counters: NDArray[np.int64], payload: NDArray[np.uint8], table: NDArray[np.int64]
    ) -> None:
        """counters[c, i] += sum over users of table[symbol of entry i, c]."""
        if self.alphabet == 2:
            ones = count_ones(payload, self.entries)
            counters += table[0][:, None] * len(payload) + (table[1] - table[0])[:, None] * ones
            return

        def run(first: int, last: int) -> None:
            add_symbols(payload, self.alphabet, self.size, *self.widths, table, first, last,
                        counters)  # fmt: skip

        spread(run, self.groups)
