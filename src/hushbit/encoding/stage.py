"""One stage of CPA: its points, words and randomized response, one bit for each block."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.encoding.words import correlation
from hushbit.errors import InvalidInput, RefusedBallot
from hushbit.kernels import Bytes, Floats, Indices, Ints, Reals, Words
from hushbit.kernels.chacha import keystream
from hushbit.kernels.count import (
    GROUP,
    NO_OUTPUT,
    count_signs,
    count_tiles,
    count_two_points,
    sum_tiles,
)
from hushbit.kernels.encode import (
    COIN_TAG,
    DITHER_TAG,
    ROUND_TAG,
    add_dither,
    encode_scalar_tiles,
    encode_soft,
    encode_two_points,
)
from hushbit.kernels.threads import parallel_for
from hushbit.kernels.words import TILE_VOTES
from hushbit.lattice.points import PointSet, stage_indices
from hushbit.lattice.quantizer import SoftAssignment
from hushbit.tally.estimate import DECODERS, StageDecoder
from hushbit.wire.keys import UserKeys

BIT_SLICED_POINTS = 32


@dataclass(frozen=True, eq=False)
class StageEncoder:
    """How one bit of every block is encoded, counted and decoded.

    Its constants are computed once, when it is built: number of points `size`, of points whose
    votes are counted (the last is implied where words are balanced), `radius` of the outermost
    point, `offset` of the randomized-response threshold, correlation `rho` of two entries of a
    word, and the `decoders`.
    """

    number: int
    points: PointSet
    response: RandomizedResponse
    family: str
    size: int = field(init=False)
    kept_points: int = field(init=False)
    radius: float = field(init=False)
    offset: float = field(init=False)
    hadamard: bool = field(init=False)
    rho: Fraction = field(init=False)
    decoders: dict[str, StageDecoder] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size = self.points.size
        rho, beta = correlation(size), self.response.beta
        for name, value in {
            "size": size,
            "kept_points": size - (size % 2 == 0),
            "radius": self.points.radius,
            "offset": float(self.response.threshold_offset),
            "hadamard": self.family == "hadamard",
            "rho": rho,
            "decoders": {d: StageDecoder.of(self.points, d, beta, rho) for d in DECODERS},
        }.items():
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """Name of its counter."""
        return f"stage {self.number}"

    def empty_counter(self, blocks: int, histogram: bool) -> Ints:
        """Zeroed votes for each point, or zeroed sums of integer coordinates."""
        keep_votes = histogram or self.kept_points <= self.points.dim
        rows = self.kept_points if keep_votes else self.points.dim
        return np.zeros((rows, blocks), dtype=np.int64)

    def is_histogram(self, counter: Ints) -> bool:
        """Whether a counter holds votes for the points rather than sums of coordinates."""
        return bool(counter.shape[0] == self.kept_points)

    @property
    def largest_sum(self) -> int:
        """The largest sum of coordinates that one bit adds to a block, in any direction."""
        return int(np.abs(self.points.coords).sum(axis=0).max())

    def check_padding(self, part: Bytes, blocks: int) -> None:
        """Refuse set bits after the last block."""
        if blocks % 8 and (part[:, -1] >> blocks % 8).any():
            raise RefusedBallot("padding", "unused bits at the end of a stage must be zero")

    def encode_two_points(
        self, updates: Reals, keys: UserKeys, coins: Words, payload: Bytes, overloaded: Ints
    ) -> None:
        """The fused kernel for the points ±radius with stochastic rounding."""
        updates = comparable_updates(updates, self.radius, self.offset)
        radius, offset = self.radius, self.offset

        def run(first: int, last: int) -> None:
            encode_two_points(
                updates, radius, offset, keys.keys, coins, first, last, payload, overloaded
            )

        parallel_for(run, len(updates))

    def encode_soft(
        self, index: Indices, weight: Floats, key: Words, coin: Words, part: Bytes
    ) -> None:
        """Bits of one user from the candidate points of its blocks and their weights."""
        encode_soft(
            index, weight, self.size, self.hadamard, self.offset, key, self.number, coin, part
        )

    def add_payload(self, counter: Ints, part: Bytes, keys: Words) -> None:
        """Add the bits of many users to a counter, tile by tile."""
        size, number = self.size, self.number
        votes = self.is_histogram(counter)
        table = np.eye(size, self.kept_points, dtype=np.int64) if votes else self.points.coords
        row_bits = size.bit_length() - 1
        everyone = single_group(len(part))
        if part.shape != (len(keys), -(-counter.shape[1] // 8)):
            raise InvalidInput(
                f"{len(keys)} keys and {counter.shape[1]} votes need a payload of shape "
                f"{(len(keys), -(-counter.shape[1] // 8))}; got {part.shape}"
            )

        def run(first: int, last: int) -> None:
            if self.hadamard and votes and size == 2:
                count_two_points(keys, number, part, *everyone, first, last, counter, NO_OUTPUT)
            elif self.hadamard and votes and size <= BIT_SLICED_POINTS:
                count_tiles(keys, number, row_bits, part, first, last, counter)
            elif self.hadamard and size <= BIT_SLICED_POINTS:
                sum_tiles(keys, number, row_bits, part, table, first, last, counter)
            else:
                count_signs(keys, number, self.hadamard, size, part, table, first, last, counter)

        parallel_for(run, -(-counter.shape[1] // TILE_VOTES))


def single_group(users: int) -> tuple[Ints, Bytes]:
    """The order of users that `count_two_points` takes where all are counted together."""
    groups = -(-users // GROUP)
    order = np.arange(groups * GROUP)
    order[users:] = -1
    return order, np.zeros(groups, dtype=np.uint8)


def comparable_updates(updates: Reals, radius: float, offset: float) -> Reals:
    """Updates in a precision in which a threshold is exact to a hundredth of a unit of 2^16.

    That is float32, unless a factor would leave its range of normal numbers.
    """
    return updates if 1e-30 < offset / radius * 2.0**-16 < 1e30 else updates.astype(np.float64)


def for_each_user(
    encode_user: Callable[..., int],
    updates: Reals,
    keys: UserKeys,
    coins: Words,
    payload: Bytes,
    overloaded: Ints,
) -> None:
    """Call `encode_user` for each user, with users distributed over threads."""

    def run(first: int, last: int) -> None:
        for user in range(first, last):
            overloaded[user] = encode_user(
                updates[user], keys.keys[user], coins[user], payload[user]
            )

    parallel_for(run, len(updates))


def encode_scalar_stages(
    stages: tuple[StageEncoder, ...],
    radius: float,
    shared: bool,
    updates: Reals,
    keys: UserKeys,
    coins: Words,
    payload: Bytes,
    overloaded: Ints,
) -> None:
    """The kernel for scalar points in stages with Hadamard words.

    Rounding is stochastic, or (`shared`) to the nearest point after a dither from the key.
    """
    bits = [stage.size.bit_length() - 1 for stage in stages]
    shifts = np.array([sum(bits[done:]) for done in range(len(bits) + 1)])
    offsets = np.array([stage.offset for stage in stages])

    def run(first: int, last: int) -> None:
        encode_scalar_tiles(
            updates,
            radius,
            shifts,
            offsets,
            keys.keys,
            coins,
            shared,
            first,
            last,
            payload,
            overloaded,
        )

    parallel_for(run, len(updates))


def sum_dithers(keys: UserKeys, sums: Ints, signed: bool = True) -> None:
    """Add the scalar dithers of many users, in units of 2^-32 of the distance of two points.

    A dither is a number from -2^31, or (not `signed`) from 0.
    """
    tiles = -(-sums.size // TILE_VOTES)
    parallel_for(lambda first, last: add_dither(keys.keys, signed, first, last, sums), tiles)


def dither_uniforms(key: Words, blocks: int, size: int) -> Floats:
    """Uniforms in [0, 1) that user and server share, a multiple of 2^-32 for each entry."""
    drawn = np.empty(blocks * size, dtype=np.uint32)
    keystream(key, DITHER_TAG, 0, 0, 0, drawn)
    return drawn.reshape(blocks, size).astype(np.float64) * 2.0**-32


def response_coins(coin: Words, votes: int) -> Words:
    """The 32-bit coins that `encode_two_points` compares with, for other one-bit mechanisms."""
    halves = np.empty(-(-votes // 2), dtype=np.uint32)
    lower = np.empty(votes, dtype=np.uint32)
    keystream(coin, COIN_TAG, 0, 0, 0, halves)
    keystream(coin, COIN_TAG, 0, 1, 0, lower)
    upper = halves.view(np.uint16)[:votes] ^ np.uint16(0x8000)  # signed there, unsigned here
    return np.asarray(upper.astype(np.uint32) << np.uint32(16) | lower & np.uint32(0xFFFF))


def split_stages(
    assignment: SoftAssignment, points_per_stage: tuple[int, ...], coin: Words
) -> list[tuple[Indices, Floats]]:
    """Candidate points and weights of each block, in each stage.

    All bits of a block refer to the same point. Where there are several, the point is drawn once,
    before the bits are.
    """
    if len(points_per_stage) == 1:
        return [(assignment.index, assignment.weight)]
    drawn = stage_indices(_draw(assignment, coin), points_per_stage)
    return [(part.astype(np.int32)[:, None], np.ones((part.size, 1))) for part in drawn]


def _draw(assignment: SoftAssignment, coin: Words) -> Indices:
    """One point of each block, drawn by its weight with private coins."""
    drawn = np.empty(len(assignment.index), dtype=np.uint32)
    keystream(coin, ROUND_TAG, 0, 0, 0, drawn)
    top = np.cumsum(assignment.weight, axis=1)[:, :-1]
    place = (drawn[:, None] * 2.0**-32 >= top).sum(axis=1)
    return np.asarray(np.take_along_axis(assignment.index, place[:, None], axis=1)[:, 0])
