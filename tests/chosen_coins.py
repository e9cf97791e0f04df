"""Exact laws of ballots, by enumeration of what the encoder does with its private coins.

Inside `chosen_coins` a mechanism encodes with its NumPy definitions, and every private 32-bit draw
is a number that the test chooses. The encoder compares a draw with an integer, so the bit as a
function of the draw has one jump, and the law of a bit is the number of the 2^32 draws that set it.
`counts_by_bisection` finds the jump from the bits alone. `counts_by_comparison` is quicker: it
reads the integer that the encoder compares a draw with.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hushbit.baselines.signsgd
import hushbit.encoding.stage
import hushbit.wrappers
from hushbit.baselines import SignRR
from hushbit.baselines.entry_mechanism import EntryMechanism
from hushbit.cpa import StagedCPA
from hushbit.kernels import encode
from hushbit.kernels.chacha import keystream
from hushbit.kernels.encode import COIN_TAG, ROUND_TAG, pack_bits
from hushbit.kernels.words import draw_words
from hushbit.mechanism import Mechanism
from hushbit.wire.keys import UserKeys
from hushbit.wrappers import NORM_TAG, NormVote, Subset, Wrapper

COINS = 2**32
WIDTH = 16  # draws of one kind in one message; more than any small mechanism needs

Draws = dict[tuple[int, int], Any]
"""(tag, stage or depth) -> chosen draws, a row for each message; or a `Comparison`."""


class Comparison:
    """Stands for the draws of one stage: keeps what they are compared with, and the answer."""

    def __init__(self, rows: int, answer: bool) -> None:
        self.limits = np.zeros((rows, WIDTH))
        self.answer = answer

    def row(self, number: int) -> "ComparedRow":
        return ComparedRow(self.limits[number], self.answer)


class ComparedRow:
    """The draws of one message."""

    def __init__(self, limits: NDArray[np.float64], answer: bool) -> None:
        self.limits, self.answer = limits, answer

    def __lt__(self, limits: NDArray[np.float64]) -> NDArray[np.bool_]:
        self.limits[: limits.size] = limits
        return np.full(limits.size, self.answer)


@lru_cache(maxsize=4096)
def _words(key: bytes, stage: int, votes: int, points: int, family: str) -> NDArray[np.int8]:
    return draw_words(np.frombuffer(key, np.uint32), stage, votes, points, family)


@contextmanager
def chosen_coins(draws: Draws) -> Iterator[None]:
    """Private draws are those given; the first word of a coin key is the row of its message."""

    def chosen(coin: Any, tag: int, stage: int, size: int) -> NDArray[np.uint32]:
        return draws[tag, stage][int(coin[0]), :size]

    def signed(coin: Any, stage: int, votes: int) -> Any:
        source = draws[COIN_TAG, stage]
        if isinstance(source, Comparison):
            return source.row(int(coin[0]))
        return chosen(coin, COIN_TAG, stage, votes).astype(np.float64) - 2**31

    def drawn(key: Any, tag: int, n1: int, n2: int, counter: int, out: Any) -> None:
        if tag in (COIN_TAG, ROUND_TAG, NORM_TAG):
            out[:] = chosen(key, tag, n1, out.size)
        else:
            keystream(key, tag, n1, n2, counter, out)

    with pytest.MonkeyPatch.context() as patch:
        use_definitions(patch)
        patch.setattr(encode, "signed_coins", signed)
        patch.setattr(encode, "split_coins", lambda coin, votes: signed(coin, 0, votes))
        signs = hushbit.baselines.signsgd  # MVU uses its encoder of stochastic signs
        patch.setattr(signs, "response_coins", lambda coin, n: chosen(coin, COIN_TAG, 0, n))
        for module in (hushbit.encoding.stage, hushbit.wrappers):
            patch.setattr(module, "keystream", drawn)
        yield


def use_definitions(patch: pytest.MonkeyPatch) -> None:
    """Encode with the NumPy definitions instead of the compiled kernels."""
    stage = hushbit.encoding.stage

    def two_points(updates, radius, offset, keys, coins, first, last, payload, overloaded):
        for user in range(first, last):
            bits = encode.reference_two_points(
                updates[user], radius, offset, keys[user], coins[user]
            )
            payload[user] = pack_bits(bits)

    def soft(index, weight, points, hadamard, offset, key, number, coin, payload):
        family = "hadamard" if hadamard else "uniform"
        bits = encode.reference_soft(index, weight, points, family, offset, key, number, coin)
        payload[:] = pack_bits(bits)

    patch.setattr(encode, "draw_words", lambda key, *rest: _words(key.tobytes(), *rest))
    patch.setattr(stage, "encode_two_points", two_points)
    patch.setattr(stage, "encode_soft", soft)
    # A property, because the value may be cached in the instance.
    patch.setattr(StagedCPA, "_uses_scalar_kernel", property(lambda self: False))
    patch.setattr(SignRR, "encode_payload", EntryMechanism.encode_payload)


def layers(mechanism: Mechanism) -> Iterator[Any]:
    """The mechanism and all that it wraps, from the outside in."""
    while isinstance(mechanism, Wrapper):
        yield mechanism
        mechanism = mechanism.inner
    yield mechanism


def leaf(mechanism: Mechanism) -> Any:
    """The mechanism inside all wrappers."""
    return list(layers(mechanism))[-1]


def bit_draws(mechanism: Mechanism) -> list[tuple[int, int, int]]:
    """The draw (tag, stage, number) that decides each bit of a payload; none for padding."""
    if isinstance(mechanism, NormVote):
        vote = [(NORM_TAG, mechanism.depth, i) for i in range(mechanism.answers)]
        return bit_draws(mechanism.inner) + vote
    if isinstance(mechanism, Subset):
        return [(COIN_TAG, 0, i) for i in range(mechanism.report)]
    if isinstance(mechanism, Wrapper):
        return bit_draws(mechanism.inner)
    stages = len(mechanism.stage_encoders) if isinstance(mechanism, StagedCPA) else 1
    blocks = mechanism.blocks if isinstance(mechanism, StagedCPA) else mechanism.dim
    return [(COIN_TAG, s, b) for s in range(stages) for b in range(blocks)]


def bit_places(mechanism: Mechanism) -> NDArray[np.int64]:
    """The position in the payload of each bit that `bit_draws` lists."""
    if isinstance(mechanism, NormVote):
        vote = mechanism.inner.payload_bits + np.arange(mechanism.answers)
        return np.append(bit_places(mechanism.inner), vote)
    inner = leaf(mechanism)
    if isinstance(mechanism, Wrapper) and not isinstance(mechanism, Subset):
        return bit_places(mechanism.inner)
    if isinstance(inner, StagedCPA) and not isinstance(mechanism, Subset):
        first = 8 * inner.stage_bytes * np.arange(len(inner.stage_encoders))
        return (first[:, None] + np.arange(inner.blocks)).reshape(-1)
    return np.arange(mechanism.payload_bits)


def empty_draws(mechanism: Mechanism, rows: int, rounding: int) -> Draws:
    """Draws for all streams of a mechanism; those of the rounding have a given value."""
    draws = {
        (tag, stage): np.zeros((rows, WIDTH), np.uint32) for tag, stage, _ in bit_draws(mechanism)
    }
    draws[ROUND_TAG, 0] = np.full((rows, WIDTH), rounding, np.uint32)
    return draws


def encode_bits(
    mechanism: Mechanism, updates: NDArray[np.float64], keys: UserKeys, draws: Draws
) -> NDArray[np.bool_]:
    """The bits of messages with chosen draws: a column for each entry of `bit_draws`."""
    coins = np.zeros((len(updates), 8), np.uint32)
    coins[:, 0] = np.arange(len(updates))
    with chosen_coins(draws):
        payload, _ = mechanism.encode_payload(updates, keys, coins)
    bits = np.unpackbits(payload, axis=1, bitorder="little").astype(bool)
    return bits[:, bit_places(mechanism)]


def counts_by_bisection(
    mechanism: Mechanism, updates: NDArray[np.float64], keys: UserKeys, rounding: int = 0
) -> NDArray[np.int64]:
    """For each message and bit, how many of the 2^32 draws of the bit set it."""
    deciding = bit_draws(mechanism)
    draws = empty_draws(mechanism, len(updates), rounding)

    def bits_at(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        for column, (tag, stage, number) in enumerate(deciding):
            draws[tag, stage][:, number] = numbers[:, column]
        return encode_bits(mechanism, updates, keys, draws)

    shape = (len(updates), len(deciding))
    low, high = np.zeros(shape, np.int64), np.full(shape, COINS - 1)
    at_zero, at_end = bits_at(low), bits_at(high)
    while (high - low > 1).any():
        middle = (low + high) // 2
        same = bits_at(middle) == at_zero
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    jump = np.where(at_zero == at_end, COINS, high)
    return np.where(at_zero, jump, COINS - jump)


def counts_by_comparison(
    mechanism: Mechanism, updates: NDArray[np.float64], keys: UserKeys, rounding: int = 0
) -> NDArray[np.int64]:
    """The same counts, for CPA: the integers that draws of its bits are compared with."""
    deciding, rows = bit_draws(mechanism), len(updates)
    bits = {}
    for answer in (True, False):
        draws = empty_draws(mechanism, rows, rounding)
        for tag, stage in draws:
            if tag == COIN_TAG:
                draws[tag, stage] = Comparison(rows, answer)
            elif tag == NORM_TAG:
                draws[tag, stage][:] = 0 if answer else COINS - 1
        bits[answer] = encode_bits(mechanism, updates, keys, draws)
    flips = {m.depth: count_of_flips(m) for m in layers(mechanism) if isinstance(m, NormVote)}
    jump = np.empty(bits[True].shape, np.int64)
    for column, (tag, stage, number) in enumerate(deciding):
        if tag == COIN_TAG:
            jump[:, column] = draws[tag, stage].limits[:, number].astype(np.int64) + COINS // 2
        else:
            jump[:, column] = flips[stage]
    assert (bits[True] != bits[False]).all(), "a bit does not depend on its draw"
    return np.where(bits[True], jump, COINS - jump)


def count_of_flips(vote: NormVote) -> int:
    """How many of the 2^32 draws flip the vote on the norm."""
    low, high = -1, COINS  # draws up to `low` flip, draws from `high` on do not
    while high - low > 1:
        middle = (low + high) // 2
        with chosen_coins({(NORM_TAG, vote.depth): np.full((1, WIDTH), middle, np.uint32)}):
            [flips] = vote._flips(np.zeros((1, 8), np.uint32))
        flipped = bool(flips[0])
        assert (flips == flipped).all()  # all answers have the same threshold
        low, high = (middle, high) if flipped else (low, middle)
    return high
