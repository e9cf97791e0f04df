"""One stage of CPA: its points, words and randomized response, on bits of one plane."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hushbit.decode import DECODERS, Reading
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.kernels.chacha import keystream
from hushbit.kernels.count import TILE_VOTES, count_tiles, sum_tiles
from hushbit.kernels.nested import add_dither, cast_line_stages
from hushbit.kernels.signs import WORD_TAG, count_signs
from hushbit.kernels.threads import spread
from hushbit.kernels.two_points import NOT_KEPT, count_two_points, one_side
from hushbit.kernels.vote import cast_corners, cast_two_points, compared_units
from hushbit.keys import UserKeys
from hushbit.points import Points, digits
from hushbit.quantizer import Corners
from hushbit.response import Response
from hushbit.words import correlation

COIN_TAG = int.from_bytes(b"coin", "little")
ROUND_TAG = int.from_bytes(b"rnd ", "little")
DITHER_TAG = int.from_bytes(b"dith", "little")
BIT_SLICED_POINTS = 32


@dataclass(frozen=True, eq=False)
class Stage:
    """How one bit of every block is made, counted and read."""

    number: int
    points: Points
    response: Response
    family: str

    @property
    def name(self) -> str:
        """Name of its counter."""
        return f"stage {self.number}"

    @cached_property
    def rho(self) -> Fraction:
        """Correlation of two entries of a word."""
        return correlation(self.points.size)

    @cached_property
    def readings(self) -> dict[str, Reading]:
        """What each decoder makes of the counter."""
        return {
            name: Reading.of(self.points, name, self.response.beta, self.rho) for name in DECODERS
        }

    @property
    def columns(self) -> int:
        """Points whose votes are kept: the last is implied where words are balanced."""
        return self.points.size - (self.points.size % 2 == 0)

    def empty_counter(self, blocks: int, histogram: bool) -> NDArray[np.int64]:
        """Zeroed votes, or zeroed sums of integer coordinates."""
        keep_votes = histogram or self.columns <= self.points.dim
        rows = self.columns if keep_votes else self.points.dim
        return np.zeros((rows, blocks), dtype=np.int64)

    def keeps_votes(self, counter: NDArray[np.int64]) -> bool:
        """Whether a counter holds votes for the points rather than sums of coordinates."""
        return bool(counter.shape[0] == self.columns)

    def check_padding(self, part: NDArray[np.uint8], blocks: int) -> None:
        """Refuse set bits beyond the last block."""
        if blocks % 8 and (part[:, -1] >> blocks % 8).any():
            raise RefusedBallot("padding", "unused bits at the end of a stage must be zero")

    def cast_two_points(
        self, updates: NDArray[np.floating], keys: UserKeys, coins: NDArray[np.uint32],
        payload: NDArray[np.uint8], overloaded: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """The fast path for ±radius with stochastic rounding."""
        radius, half = self.points.radius, float(self.response.half)
        updates, units = compared_units(updates, radius, half)

        def run(first: int, last: int) -> None:
            cast_two_points(updates, *units, radius, half, keys.keys, WORD_TAG, coins, COIN_TAG,
                            first, last, payload, overloaded)  # fmt: skip

        spread(run, len(updates))

    def cast_corners(
        self, corners: Corners, counts: tuple[int, ...], key: NDArray[np.uint32],
        coin: NDArray[np.uint32], part: NDArray[np.uint8],
    ) -> None:  # fmt: skip
        """Bits of one user from the corners of its blocks."""
        index, weight = corners.index, corners.weight
        if len(counts) > 1:
            # All stages must speak of the same point, so it is drawn first.
            chosen = digits(_draw(corners, coin), counts)[self.number]
            index, weight = chosen.astype(np.int32)[:, None], np.ones((chosen.size, 1))
        cast_corners(index, weight, self.points.size, self.family == "hadamard",
                     float(self.response.half), key, self.number, coin, COIN_TAG,
                     part)  # fmt: skip

    def absorb(
        self, counter: NDArray[np.int64], part: NDArray[np.uint8], keys: NDArray[np.uint32]
    ) -> None:
        """Add the bits of many users to a counter, tile by tile."""
        size = self.points.size
        hadamard = self.family == "hadamard"
        votes = self.keeps_votes(counter)
        table = np.eye(size, self.columns, dtype=np.int64) if votes else self.points.coords
        row_bits = size.bit_length() - 1 if size > 2 else 0
        everyone = one_side(len(part))
        if part.shape != (len(keys), -(-counter.shape[1] // 8)):
            raise InvalidInput(
                f"{len(keys)} keys and {counter.shape[1]} votes need a payload of shape "
                f"{(len(keys), -(-counter.shape[1] // 8))}; got {part.shape}"
            )

        def run(first: int, last: int) -> None:
            if hadamard and votes and size == 2:
                count_two_points(keys, WORD_TAG, self.number, part, *everyone, first, last,
                                 counter, NOT_KEPT)  # fmt: skip
            elif hadamard and votes and size <= BIT_SLICED_POINTS:
                count_tiles(keys, WORD_TAG, self.number, row_bits, part, first, last, counter)
            elif hadamard and size <= BIT_SLICED_POINTS:
                sum_tiles(keys, WORD_TAG, self.number, row_bits, part, table, first, last,
                          counter)  # fmt: skip
            else:
                count_signs(keys, self.number, hadamard, size, part, table, first, last, counter)

        spread(run, -(-counter.shape[1] // TILE_VOTES))


def spread_users(
    cast_one: Callable[..., int], updates: NDArray[np.floating], keys: UserKeys,
    coins: NDArray[np.uint32], payload: NDArray[np.uint8], overloaded: NDArray[np.int64],
) -> None:  # fmt: skip
    """Cast user by user, users shared out over threads."""

    def run(first: int, last: int) -> None:
        for user in range(first, last):
            overloaded[user] = cast_one(updates[user], keys.keys[user], coins[user], payload[user])

    spread(run, len(updates))


def cast_line(
    radius: float, stages: tuple[Stage, ...], shared: bool, updates: NDArray[np.floating],
    keys: UserKeys, coins: NDArray[np.uint32], payload: NDArray[np.uint8],
    overloaded: NDArray[np.int64],
) -> None:  # fmt: skip
    """The fast path for scalar points in stages with Hadamard words.

    Rounding is stochastic, or (`shared`) to the nearest point after a dither from the key.
    """
    bits = [stage.points.size.bit_length() - 1 for stage in stages]
    shifts = np.array([sum(bits[done:]) for done in range(len(bits) + 1)])
    halves = np.array([float(stage.response.half) for stage in stages])
    tag = DITHER_TAG if shared else ROUND_TAG

    def run(first: int, last: int) -> None:
        cast_line_stages(updates, radius, shifts, halves, keys.keys, coins, tag, shared, COIN_TAG,
                         first, last, payload, overloaded)  # fmt: skip

    spread(run, len(updates))


def sum_dithers(keys: UserKeys, sums: NDArray[np.int64]) -> None:
    """Add the scalar dithers of many users, in units of 2^-32 of the distance of two points."""
    tiles = -(-sums.size // TILE_VOTES)
    spread(lambda first, last: add_dither(keys.keys, DITHER_TAG, first, last, sums), tiles)


def dither_uniforms(key: NDArray[np.uint32], blocks: int, size: int) -> NDArray[np.float64]:
    """Uniforms in [0, 1) that user and server share, a multiple of 2^-32 for each entry."""
    drawn = np.empty(blocks * size, dtype=np.uint32)
    keystream(key, DITHER_TAG, 0, 0, 0, drawn)
    return drawn.reshape(blocks, size).astype(np.float64) * 2.0**-32


def vote_coins(coin: NDArray[np.uint32], votes: int) -> NDArray[np.uint32]:
    """The 32-bit coins that `cast_two_points` compares with, for others who send one bit."""
    halves = np.empty(-(-votes // 2), dtype=np.uint32)
    lower = np.empty(votes, dtype=np.uint32)
    keystream(coin, COIN_TAG, 0, 0, 0, halves)
    keystream(coin, COIN_TAG, 0, 1, 0, lower)
    upper = halves.view(np.uint16)[:votes] ^ np.uint16(0x8000)  # signed there, unsigned here
    return np.asarray(upper.astype(np.uint32) << np.uint32(16) | lower & np.uint32(0xFFFF))


def _draw(corners: Corners, coin: NDArray[np.uint32]) -> NDArray[np.int32]:
    """One corner of each block, drawn by its weight with private coins."""
    drawn = np.empty(len(corners.index), dtype=np.uint32)
    keystream(coin, ROUND_TAG, 0, 0, 0, drawn)
    top = np.cumsum(corners.weight, axis=1)[:, :-1]
    place = (drawn[:, None] * 2.0**-32 >= top).sum(axis=1)
    return np.asarray(np.take_along_axis(corners.index, place[:, None], axis=1)[:, 0])
