"""Codecs of the baselines: packing is tight and reversible, sums are exact."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbit.baselines.entry_mechanism import (
    FloatCodec,
    IntegerCodec,
    SymbolCodec,
    group_bits,
    group_size,
    read_bits,
    write_bits,
)
from hushbit.errors import RefusedBallot


@settings(max_examples=150, deadline=None)
@given(
    alphabet=st.integers(2, 70000),
    entries=st.integers(1, 200),
    users=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_packed_symbols_are_added_exactly(alphabet, entries, users, seed):
    codec = SymbolCodec(entries, alphabet)
    rng = np.random.default_rng(seed)
    symbols = rng.choice([0, alphabet - 1, alphabet // 2], (users, entries)).astype(np.uint32)
    symbols[0] = rng.integers(0, alphabet, entries)
    payload = np.zeros((users, (codec.bits + 7) // 8), dtype=np.uint8)
    for row, own in zip(payload, symbols, strict=True):
        codec.write(own, row)
    codec.check(payload)
    counters = np.zeros((2, entries), dtype=np.int64)
    table = np.stack([np.arange(alphabet), np.arange(alphabet) ** 2], axis=1).astype(np.int64)
    codec.add(counters, payload, table)
    assert np.array_equal(counters[0], symbols.sum(axis=0, dtype=np.int64))
    assert np.array_equal(counters[1], (symbols.astype(np.int64) ** 2).sum(axis=0))


def test_bits_of_more_than_255_users_are_counted():
    payload = np.random.default_rng(1).integers(0, 256, (700, 3)).astype(np.uint8)
    payload[:, 0] = 255
    counters = np.zeros((1, 21), dtype=np.int64)
    SymbolCodec(21, 2).add(counters, payload, np.array([[-1], [1]], dtype=np.int64))
    bits = np.unpackbits(payload, axis=1, count=21, bitorder="little").astype(np.int64)
    assert np.array_equal(counters[0], (2 * bits - 1).sum(axis=0))


@pytest.mark.parametrize("alphabet", [2, 3, 4, 5, 7, 8, 16, 17, 1000])
def test_symbols_need_at_most_3_percent_more_bits_than_their_entropy(alphabet):
    bits = SymbolCodec(7850, alphabet).bits
    assert 7850 * math.log2(alphabet) <= bits <= 7850 * math.log2(alphabet) * 1.03 + 63
    size = group_size(alphabet)
    assert alphabet**size <= 2**63 < alphabet ** (size + 1)
    assert 2 ** (group_bits(alphabet, size) - 1) < alphabet**size


def test_powers_of_two_are_plain_bits():
    codec = SymbolCodec(13, 2)
    row = np.zeros(2, dtype=np.uint8)
    symbols = np.array([1, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1], dtype=np.uint32)
    codec.write(symbols, row)
    assert np.array_equal(row, np.packbits(symbols.astype(np.uint8), bitorder="little"))


def test_symbols_beyond_the_alphabet_are_refused():
    codec = SymbolCodec(60, 3)  # two groups of 39 and 21 symbols
    for group, (at, width, top) in enumerate([(0, 62, 3**39), (62, 34, 3**21)]):
        for number, fine in ((top - 1, True), (top, False)):
            payload = np.zeros((2, (codec.bits + 7) // 8), dtype=np.uint8)
            write_bits(payload[1], at, width, np.uint64(number))
            if fine:
                codec.check(payload)
            else:
                with pytest.raises(RefusedBallot, match="ballot 1"):
                    codec.check(payload)
        assert group < 2


@given(at=st.integers(0, 40), width=st.integers(0, 63), number=st.integers(0, 2**63 - 1))
def test_written_bits_are_read_back_and_change_no_others(at, width, number):
    number &= (1 << width) - 1
    row = np.zeros(16, dtype=np.uint8)
    write_bits(row, at, width, np.uint64(number))
    assert int(read_bits(row, at, width)) == number
    assert int.from_bytes(row.tobytes(), "little") == number << at


@settings(deadline=None)
@given(st.lists(st.floats(-32767, 32767, width=32), min_size=1, max_size=30))
def test_float_sums_are_exact_to_2_to_minus_48(values):
    codec, sums = FloatCodec(1), FloatCodec(1).empty()
    payload = np.array(values, dtype="<f4")[:, None].view(np.uint8)
    codec.check(payload)
    codec.add(sums, payload)
    exact = sum(Fraction(float(np.float32(value))) for value in values)
    held = Fraction(int(sums[0, 0]), 2**16) + Fraction(int(sums[1, 0]), 2**48)
    assert abs(held - exact) <= Fraction(len(values), 2**49)
    assert codec.total(sums)[0] == pytest.approx(float(exact), rel=1e-14, abs=1e-13)


def test_float_sums_cannot_overflow_below_two_to_the_31_users():
    sums = FloatCodec(1).empty()
    top = np.array([[-np.nextafter(np.float32(2**15), np.float32(0))]], dtype="<f4")
    FloatCodec(1).add(sums, top.view(np.uint8))
    assert np.abs(sums).max() * 2**31 < 2**63


def test_integers_are_clipped_and_added_exactly():
    codec, row = IntegerCodec(3), np.zeros(12, dtype=np.uint8)
    codec.write(np.array([2**40, -(2**40), -7]), row)
    sums = codec.empty()
    codec.add(sums, np.stack([row, row]))
    assert sums.tolist() == [2 * (2**31 - 1), -2 * (2**31 - 1), -14]
