"""Compressed Private Aggregation: quantize, look up a sign, flip it, count, decode."""

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hushbit.arrays import finite_floats
from hushbit.checks import choice, length, positive, whole
from hushbit.clipping import clipped
from hushbit.decode import DECODERS, Estimate, check_counted
from hushbit.errors import InvalidInput
from hushbit.keys import UserKeys
from hushbit.mechanism import Mechanism
from hushbit.points import MOST_POINTS, Points, ball, fine, stages
from hushbit.privacy.anonymity import k_per_block
from hushbit.privacy.guarantee import Guarantee
from hushbit.privacy.zcdp import zcdp_of_two_points_tight
from hushbit.quantizer import ROUNDINGS, Quantizer
from hushbit.response import Response
from hushbit.stage import Stage, cast_line, dither_uniforms, spread_users, sum_dithers
from hushbit.staged import DITHER_UNIT, decode_stages
from hushbit.tally import Counters, Tally
from hushbit.words import word_family

if TYPE_CHECKING:
    from hushbit.tuning.auto import AutoCPA


class CPA(Mechanism):
    """One private bit for each block of the update (the paper's Algorithm 1, made unbiased).

    dim              entries of an update
    epsilon_per_bit  randomized response of each bit; math.inf switches it off
    radius           norm of the outermost points; entries beyond `unbiased_radius` are clipped
    points           N; two points have the least variance, N points give k = N/2
    lattice          "Z" (a bit for each entry), "A2", "D4", "E8" or a generator matrix
    rounding         "stochastic" (private, unbiased), "dithered", "subtractive" or "nearest"
    words            "hadamard" (default where N is a power of two) or "uniform"
    preset           "corrected", "paper" (as written) or "authors" (as published in code)
    clip             l2 norm to which updates are scaled down; gives a whole-message guarantee

    >>> CPA(dim=7850, epsilon_per_bit=0.5, radius=0.05).guarantee.epsilon_per_message()
    3925.0
    """

    def __init__(
        self, dim: int, epsilon_per_bit: float, radius: float, *, points: int | None = None,
        lattice: Any = "Z", rounding: str | None = None, words: str | None = None,
        preset: str = "corrected", clip: float | None = None,
    ) -> None:  # fmt: skip
        choice("preset", preset, DECODERS)
        count = (3 if preset == "authors" else 2) if points is None else points
        self._set_up(dim, (epsilon_per_bit,), radius, (count,), lattice, rounding, words, preset,
                     clip)  # fmt: skip

    @staticmethod
    def auto(
        dim: int, users: int, *, epsilon_per_bit: float | None = None,
        epsilon_per_message: float | None = None, delta: float | None = None, k: int | None = None,
        bits_per_weight: float | None = None, first_norm: float = 1.0,
        first_octaves: float = 1.5,
    ) -> "AutoCPA":  # fmt: skip
        """CPA without knobs: `mechanism = mechanism.after(tally)` follows the updates.

        Give `epsilon_per_bit`, or `epsilon_per_message` with `delta` (0 for a pure one). `users`
        vote in a round. `first_norm` is a public guess of an update's norm, as likely as not within
        a factor of two to the power `first_octaves`; private votes mend it.
        """
        from hushbit.tuning.auto import auto
        from hushbit.tuning.budget import Budget

        budget = Budget(dim, users, epsilon_per_bit, epsilon_per_message, delta, k, bits_per_weight)
        return auto(budget, first_norm, first_octaves)

    def _set_up(
        self, dim: int, epsilons: tuple[float, ...], radius: float, counts: tuple[int, ...],
        lattice: Any, rounding: str | None, words: str | None, preset: str, clip: float | None,
    ) -> None:  # fmt: skip
        self.dim = whole("dim", dim, 1)
        self.radius = length("radius", radius)
        self.preset = choice("preset", preset, DECODERS)
        self.lattice = (
            lattice if isinstance(lattice, str) else finite_floats("lattice", lattice).tolist()
        )
        self.clip = None if clip is None else length("clip", clip)
        usual = {"corrected": "stochastic", "paper": "dithered", "authors": "nearest"}[preset]
        self.rounding = usual if rounding is None else choice("rounding", rounding, ROUNDINGS)
        counts = tuple(whole("points", count, 2, MOST_POINTS) for count in counts)
        sets = self._point_sets(counts)
        self.words = "uniform" if preset == "authors" and words is None else words
        self.stages = tuple(
            Stage(number, points, Response(epsilon), word_family(self.words, points.size))
            for number, (points, epsilon) in enumerate(zip(sets, epsilons, strict=True))
        )
        self.quantizer = Quantizer(sets[0] if len(sets) == 1 else fine(sets), self.rounding)
        if self.blocks > 2**31:
            raise InvalidInput(f"at most 2^31 blocks fit a ballot; got {self.blocks}: split dim")

    def _point_sets(self, counts: tuple[int, ...]) -> tuple[Points, ...]:
        edge = "hull" if self.preset == "corrected" else "cell"
        if self.lattice == "Z":
            return stages(None, counts, self.radius, edge)
        if len(counts) == 1:
            return (ball(self.lattice, counts[0], self.radius),)
        return stages(self.lattice, counts, self.radius)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Points of each stage."""
        return tuple(stage.points.size for stage in self.stages)

    @cached_property
    def block_size(self) -> int:
        """Entries that share a bit."""
        return self.quantizer.points.dim

    @cached_property
    def blocks(self) -> int:
        """Blocks of an update; the last one is filled up with zeros."""
        return -(-self.dim // self.block_size)

    @property
    def unbiased_radius(self) -> float:
        """Blocks up to this norm are decoded without bias."""
        return self.quantizer.unbiased_radius

    @property
    def description(self) -> dict[str, Any]:
        """Name and parameters."""
        epsilons = [_plain(stage.response.epsilon) for stage in self.stages]
        return {
            "mechanism": "CPA" if len(self.stages) == 1 else "NestedCPA",
            "dim": self.dim, "epsilon_per_bit": epsilons, "radius": self.radius,
            "points": list(self.counts), "lattice": self.lattice, "rounding": self.rounding,
            "words": [stage.family for stage in self.stages], "preset": self.preset,
            "clip": self.clip,
        }  # fmt: skip

    @cached_property
    def guarantee(self) -> Guarantee:
        """Per bit, per message and per run."""
        return Guarantee(
            groups=tuple((stage.response.epsilon, self.blocks) for stage in self.stages),
            dim=self.dim,
            message_bits=self.payload_bits,
            k_anonymity=math.prod(k_per_block(count) for count in self.counts),
            rho=self._rho(),
            points=self.counts,
        )

    def _rho(self) -> float | None:
        """zCDP of the whole message: needs an l2 clip and private stochastic rounding."""
        if (
            self.clip is None
            or self.block_size != 1
            or self.rounding != "stochastic"
            or self.counts != (2,)
        ):
            return None
        return zcdp_of_two_points_tight(self.stages[0].response.epsilon, self.clip, self.radius)

    @cached_property
    def stage_bytes(self) -> int:
        """Payload bytes of one stage."""
        return (self.blocks + 7) // 8

    @cached_property
    def payload_bits(self) -> int:
        """Every stage but the last fills whole bytes."""
        return 8 * self.stage_bytes * (len(self.stages) - 1) + self.blocks

    def at_scale(self, zeta: float) -> "CPA":
        """The same mechanism with its points scaled by zeta (Theorem 2's shrinking lattice)."""
        new = object.__new__(type(self))
        new._set_up(
            self.dim, tuple(s.response.epsilon for s in self.stages),
            self.radius * positive("zeta", zeta), self.counts, self.lattice, self.rounding,
            self.words, self.preset, self.clip,
        )  # fmt: skip
        new.__dict__["_sealed"] = True
        return new

    def check_payload(self, payload: NDArray[np.uint8]) -> None:
        """The unused bits at the end of every stage must be zero."""
        for stage in self.stages:
            stage.check_padding(self._part(payload, stage), self.blocks)

    def _part(self, payload: NDArray[np.uint8], stage: Stage) -> NDArray[np.uint8]:
        first = stage.number * self.stage_bytes
        return payload[:, first : first + self.stage_bytes]

    def cast(
        self, updates: NDArray[np.floating], keys: UserKeys, coins: NDArray[np.uint32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Payloads and overload counts of many users."""
        updates = clipped(updates, self.clip)
        payload = np.zeros((len(updates), self.stage_bytes * len(self.stages)), dtype=np.uint8)
        overloaded = np.zeros(len(updates), dtype=np.int64)
        if self._two_points_fast:
            self.stages[0].cast_two_points(updates, keys, coins, payload, overloaded)
        elif self._line_fast:
            cast_line(self.radius, self.stages, self.rounding == "subtractive", updates, keys,
                      coins, payload, overloaded)  # fmt: skip
        else:
            spread_users(self._cast_one, updates, keys, coins, payload, overloaded)
        return payload, overloaded

    @property
    def _two_points_fast(self) -> bool:
        """Whether the fused kernel applies: ±radius, private rounding, Hadamard words."""
        scalar = self.counts == (2,) and self.block_size == 1
        hadamard = self.stages[0].family == "hadamard"
        return scalar and hadamard and self.rounding == "stochastic"

    @property
    def _line_fast(self) -> bool:
        """Whether the kernel of scalar stages applies: ±radius outermost, Hadamard words."""
        scalar = self.lattice == "Z" and self.preset == "corrected"
        hadamard = all(stage.family == "hadamard" for stage in self.stages)
        drawn_first = self.rounding == "stochastic" and len(self.stages) > 1
        return scalar and hadamard and (drawn_first or self.rounding == "subtractive")

    def _cast_one(
        self, update: NDArray[np.floating], key: NDArray[np.uint32], coin: NDArray[np.uint32],
        row: NDArray[np.uint8],
    ) -> int:  # fmt: skip
        blocks = np.zeros((self.blocks, self.block_size))
        blocks.reshape(-1)[: self.dim] = update
        dither = self._dither(key) if self.quantizer.uses_dither else None
        corners = self.quantizer.corners(blocks, dither)
        for stage in self.stages:
            part = row[stage.number * self.stage_bytes : (stage.number + 1) * self.stage_bytes]
            stage.cast_corners(corners, self.counts, key, coin, part)
        return corners.overloaded

    def _dither(self, key: NDArray[np.uint32]) -> NDArray[np.float64]:
        uniform = dither_uniforms(key, self.blocks, self.block_size)
        return self.quantizer.dither(uniform)

    def empty_counters(self, histogram: bool) -> Counters:
        """Votes for each point of each stage, or (histogram=False) sums of coordinates."""
        counters = {s.name: s.empty_counter(self.blocks, histogram) for s in self.stages}
        if self.rounding == "subtractive":
            counters["dither"] = np.zeros((self.blocks, self.block_size), dtype=np.int64)
        return counters

    def absorb(self, counters: Counters, payload: NDArray[np.uint8], keys: UserKeys) -> None:
        """Count the bits; for subtractive dither also add up what was added."""
        for stage in self.stages:
            part = np.ascontiguousarray(self._part(payload, stage))
            stage.absorb(counters[stage.name], part, keys.keys)
        if "dither" in counters and self.lattice == "Z":
            sum_dithers(keys, counters["dither"].reshape(-1))
        elif "dither" in counters:
            back = np.linalg.inv(self.quantizer.points.lattice.generator)
            for key in keys.keys:
                steps = np.rint(self._dither(key) @ back / DITHER_UNIT)
                counters["dither"] += steps.astype(np.int64)

    def estimate(self, tally: Tally, decoder: str | None = None) -> Estimate:
        """The mean update: exactly unbiased unless a preset's own decoder is asked for."""
        check_counted(tally, self)
        return decode_stages(self, tally, self.preset if decoder is None else decoder)


class NestedCPA(CPA):
    """Several private bits for each block: coarse points first, then what they left (Sec. III-B).

    stages           points of each stage, coarse first; their product is the fine set's size
    epsilon_per_bit  one number for every stage, or one for each
    """

    def __init__(
        self, dim: int, epsilon_per_bit: float | tuple[float, ...], radius: float, *,
        stages: tuple[int, ...] | None = None, lattice: Any = "Z", rounding: str | None = None,
        words: str | None = None, preset: str = "corrected", clip: float | None = None,
    ) -> None:  # fmt: skip
        choice("preset", preset, DECODERS)
        if stages is None and preset == "authors":
            stages = (3, 3)
        if not isinstance(stages, tuple | list) or len(stages) < 2:
            raise InvalidInput(f"stages must list the points of two or more stages; got {stages!r}")
        counts = tuple(stages)
        if isinstance(epsilon_per_bit, tuple | list):
            epsilons = tuple(epsilon_per_bit)
        else:
            epsilons = (epsilon_per_bit,) * len(counts)
        if len(epsilons) != len(counts):
            raise InvalidInput(f"{len(counts)} stages need as many epsilons; got {len(epsilons)}")
        self._set_up(dim, epsilons, radius, counts, lattice, rounding, words, preset, clip)


def _plain(epsilon: float) -> float | str:
    return "inf" if math.isinf(epsilon) else epsilon
