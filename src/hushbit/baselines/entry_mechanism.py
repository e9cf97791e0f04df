"""What the baselines share: codecs that write the entries of an update, and base classes.

    FloatCodec    32-bit floats
    IntegerCodec  32-bit integers
    SymbolCodec   symbols 0 … N-1 of an alphabet of size N

Every codec adds payloads up exactly, in integers. SymbolCodec joins m = floor(63 / log2 N) symbols
to one group: a number in base N, first symbol least significant, of ceil(m log2 N) bits. Groups
follow each other without gaps; the last one is as short as its symbols allow. For N = 2^b this is b
bits for each symbol.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hushbit.checks import Floats, Ints
from hushbit.encoding.stage import for_each_user
from hushbit.errors import NotFinite, RefusedBallot
from hushbit.kernels import njit
from hushbit.kernels.threads import parallel_for
from hushbit.mechanism import Bytes, Groups, Mechanism, Payloads, Updates, Votes, Words, check_width
from hushbit.privacy.guarantee import Guarantee
from hushbit.tally.decoded_ballots import PackedBallots, SingleBallots
from hushbit.tally.tally import Counters, LargestVotes
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import RoundKey, UserKeys

PRESETS = ("honest", "authors")
FLOAT_LIMIT = 2.0**15
HIGH_UNIT = 2.0**16
LOW_UNIT = 2.0**32
MAX_INTEGER = 2**31 - 1
MAX_BYTE_COUNT = 255  # users whose bits a byte can count


def group_size(alphabet: int) -> int:
    """Symbols of one group: as many as fit a number below 2^63."""
    size = 1
    while alphabet ** (size + 1) <= 2**63:
        size += 1
    return size


def group_bits(alphabet: int, size: int) -> int:
    """Bits of a group of `size` symbols."""
    return int((alphabet**size - 1).bit_length())


@njit
def write_bits(row: Bytes, at: int, width: int, number: np.uint64) -> None:
    """Write the low `width` bits of a number into a zeroed row, starting at bit `at`."""
    done = 0
    while done < width:
        byte, shift = (at + done) >> 3, (at + done) & 7
        part = (number >> np.uint64(done)) << np.uint64(shift)
        row[byte] |= np.uint8(part & np.uint64(255))
        done += 8 - shift


@njit
def read_bits(row: Bytes, at: int, width: int) -> np.uint64:
    """The number in the `width` bits from bit `at` on, least significant bit first."""
    number = np.uint64(0)
    done = 0
    while done < width:
        byte, shift = (at + done) >> 3, (at + done) & 7
        number |= (np.uint64(row[byte]) >> np.uint64(shift)) << np.uint64(done)
        done += 8 - shift
    return number & ((np.uint64(1) << np.uint64(width)) - np.uint64(1))


@njit
def pack_symbols(
    symbols: Words, alphabet: int, size: int, width: int, last_width: int, row: Bytes
) -> None:
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
    payload: Bytes,
    groups: int,
    width: int,
    last_width: int,
    limit: np.uint64,
    last_limit: np.uint64,
) -> int:
    """The index of the first row with a group at or above its limit, or -1."""
    for user in range(payload.shape[0]):
        for group in range(groups - 1):
            if read_bits(payload[user], group * width, width) >= limit:
                return user
        if read_bits(payload[user], (groups - 1) * width, last_width) >= last_limit:
            return user
    return -1


@njit
def add_symbols(
    payload: Bytes,
    alphabet: int,
    size: int,
    width: int,
    last_width: int,
    table: Ints,
    first: int,
    last: int,
    counters: Ints,
) -> None:
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


@njit
def add_floats(rows: Updates, first: int, last: int, sums: Ints) -> None:
    """sums[0] += floor(x 2^16), sums[1] += remainder in units of 2^-48, entries first … last-1."""
    for user in range(rows.shape[0]):
        for i in range(first, last):
            scaled = np.float64(rows[user, i]) * HIGH_UNIT
            high = np.floor(scaled)
            sums[0, i] += np.int64(high)
            sums[1, i] += np.int64(np.rint((scaled - high) * LOW_UNIT))


@dataclass(frozen=True)
class FloatCodec:
    """32-bit floats of magnitude below 2^15, added in units of 2^-48.

    A value is split into two integers below 2^32, so that the sum of 2^31 users cannot overflow.
    """

    dim: int

    @property
    def bits(self) -> int:
        """Bits of one payload."""
        return 32 * self.dim

    @property
    def largest(self) -> Ints:
        """The largest magnitudes of the two integers of a value."""
        return np.array([[int(FLOAT_LIMIT * HIGH_UNIT)], [int(LOW_UNIT)]])

    def write(self, values: Updates, row: Bytes) -> None:
        """Write the values of one user; refuses values that the server would refuse."""
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        if np.abs(narrow).max() >= FLOAT_LIMIT:
            raise NotFinite(
                f"entries must be below {FLOAT_LIMIT:g} in magnitude; got "
                f"{np.abs(values).max():g}: clip or rescale the update"
            )
        row.view("<f4")[:] = narrow

    def check(self, payload: Bytes) -> None:
        """Refuse values that are not finite, or too large for exact sums."""
        if not (np.abs(payload.view("<f4")) < FLOAT_LIMIT).all():
            raise RefusedBallot(
                "value", f"entries must be finite, with a magnitude below {FLOAT_LIMIT:g}"
            )

    def empty(self) -> Ints:
        """Zeroed sums."""
        return np.zeros((2, self.dim), dtype=np.int64)

    def add(self, sums: Ints, payload: Bytes) -> None:
        """Add the values of many users."""
        rows = payload.view("<f4").astype(np.float32, copy=False)
        parallel_for(lambda first, last: add_floats(rows, first, last, sums), self.dim)

    def total(self, sums: Ints) -> Floats:
        """The sum of all values."""
        return np.asarray(sums[0] / HIGH_UNIT + sums[1] / (HIGH_UNIT * LOW_UNIT))


@dataclass(frozen=True)
class IntegerCodec:
    """Little-endian 32-bit integers in two's complement; larger values are clipped."""

    dim: int

    @property
    def bits(self) -> int:
        """Bits of one payload."""
        return 32 * self.dim

    @property
    def largest(self) -> int:
        """The largest magnitude of a value."""
        return MAX_INTEGER

    def write(self, values: Ints, row: Bytes) -> None:
        """Write the values of one user."""
        row.view("<i4")[:] = np.clip(values, -MAX_INTEGER, MAX_INTEGER)

    def check(self, payload: Bytes) -> None:
        """Refuse -2^31, the one number that no encoder writes."""
        if (payload.view("<i4") < -MAX_INTEGER).any():
            raise RefusedBallot("value", f"entries must be at least {-MAX_INTEGER}")

    def empty(self) -> Ints:
        """Zeroed sums."""
        return np.zeros(self.dim, dtype=np.int64)

    def add(self, sums: Ints, payload: Bytes) -> None:
        """Add the values of many users."""
        sums += payload.view("<i4").sum(axis=0, dtype=np.int64)


def count_ones(payload: Bytes, entries: int) -> Ints:
    """The number of users whose bit is set, for each entry."""
    ones = np.zeros(entries, dtype=np.int64)
    for begin in range(0, len(payload), MAX_BYTE_COUNT):
        part = payload[begin : begin + MAX_BYTE_COUNT]
        bits = np.unpackbits(part, axis=1, count=entries, bitorder="little")
        ones += np.add.reduce(bits, axis=0, dtype=np.uint8)
    return ones


@dataclass(frozen=True)
class SymbolCodec:
    """Symbols 0 … alphabet-1, packed in groups.

    >>> SymbolCodec(entries=7850, alphabet=2).bits, SymbolCodec(entries=7850, alphabet=3).bits
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

    def write(self, symbols: Words, row: Bytes) -> None:
        """Write the symbols of one user into a zeroed payload."""
        pack_symbols(symbols, self.alphabet, self.size, *self.widths, row)

    def check(self, payload: Bytes) -> None:
        """Refuse groups that encode no symbols; none exist where N is a power of two."""
        if self.alphabet & (self.alphabet - 1) == 0:
            return
        rest = self.entries - (self.groups - 1) * self.size
        limits = (np.uint64(self.alphabet**self.size), np.uint64(self.alphabet**rest))
        bad = first_invalid(payload, self.groups, *self.widths, *limits)
        if bad >= 0:
            raise RefusedBallot(
                "value", f"ballot {bad} of the batch has a symbol above {self.alphabet - 1}"
            )

    def add(self, counters: Ints, payload: Bytes, table: Ints) -> None:
        """counters[c, i] += sum over users of table[symbol of entry i, c]."""
        if self.alphabet == 2:
            ones = count_ones(payload, self.entries)
            counters += table[0][:, None] * len(payload) + (table[1] - table[0])[:, None] * ones
            return

        def run(first: int, last: int) -> None:
            add_symbols(
                payload, self.alphabet, self.size, *self.widths, table, first, last, counters
            )

        parallel_for(run, self.groups)


class EntryMechanism(Mechanism):
    """A mechanism that encodes all entries of an update in the same way, user by user."""

    @property
    @abstractmethod
    def codec(self) -> FloatCodec | IntegerCodec | SymbolCodec:
        """How entries are written into a payload."""

    @abstractmethod
    def encode_user(self, update: Updates, key: Words, coin: Words, row: Bytes) -> int:
        """Write the payload of one user into `row`; returns the number of clipped entries."""

    @property
    def payload_bits(self) -> int:
        """Bits of one payload."""
        return self.codec.bits

    def check_payload(self, payload: Bytes) -> None:
        """Refuse payloads that no encoder writes."""
        super().check_payload(payload)
        self.codec.check(payload)

    def encode_payload(self, updates: Updates, keys: UserKeys, coins: Words) -> Payloads:
        """Payloads, and the number of clipped entries of each user."""
        payload = np.zeros((len(updates), (self.payload_bits + 7) // 8), dtype=np.uint8)
        overloaded = np.zeros(len(updates), dtype=np.int64)
        for_each_user(self.encode_user, updates, keys, coins, payload, overloaded)
        return payload, overloaded

    def pure_guarantee(
        self, epsilon: float, count: int, unit: str = "entry", note: str = ""
    ) -> Guarantee:
        """The guarantee of pure epsilon-local DP for each of `count` units."""
        return Guarantee(
            groups=((epsilon, count),),
            dim=self.dim,
            message_bits=self.payload_bits,
            k_anonymity=1,
            unit=unit,
            note=note,
        )


class SumMechanism(EntryMechanism):
    """A mechanism whose payload is a number for each entry; the server adds these numbers."""

    @property
    @abstractmethod
    def codec(self) -> FloatCodec | IntegerCodec:
        """How entries are written into a payload."""

    def empty_counters(self, histogram: bool) -> Counters:
        """Zeroed sums."""
        return {"sum": self.codec.empty()}

    def add_payload(self, counters: Counters, payload: Bytes, keys: UserKeys) -> None:
        """Add the entries of many users."""
        self.codec.add(counters["sum"], payload)

    def largest_votes(self, counters: Counters) -> LargestVotes:
        """The largest number that the codec writes."""
        return {"sum": self.codec.largest}


class SignVotes(Votes):
    """The votes of a mechanism without words: each bit is the sign of its entry."""

    def __init__(self, dim: int, beta: float) -> None:
        self.dim, self.beta = dim, beta

    def mask(self) -> Bytes:
        """Every entry."""
        return np.packbits(np.ones(self.dim, dtype=np.uint8), bitorder="little")

    def decode_each(
        self, ballots: Ballots, round_key: RoundKey, groups: Groups | None = None
    ) -> SingleBallots:
        """The payloads, with the score of an update whose entries all reach the step."""
        check_width(ballots, self.dim)
        max_score = self.beta * math.sqrt(self.dim)
        return PackedBallots.of_payload(ballots.payload, self.dim, max_score)

    def payload_towards(self, target: Floats, ballots: Ballots, keys: UserKeys) -> Bytes:
        """The signs of the target."""
        payload = np.zeros_like(ballots.payload)
        payload[:] = np.packbits(target > 0, bitorder="little")
        return payload
