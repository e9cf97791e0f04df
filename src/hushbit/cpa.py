"""Compressed Private Aggregation: quantize, look up a sign, flip it at random, count, decode.

A user quantizes each block of its update to one of N public points, looks the point up in a random
balanced ±1 word that it shares with the server, and flips the sign by randomized response. The
server adds the bits; `tally/estimate.py` has the decoder.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hushbit.checks import (
    Floats,
    Ints,
    check_choice,
    check_finite,
    check_int,
    check_positive,
    check_scale,
)
from hushbit.encoding.clip_and_rotate import clip_l2
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.encoding.stage import (
    StageEncoder,
    dither_uniforms,
    encode_scalar_stages,
    for_each_user,
    split_stages,
    sum_dithers,
)
from hushbit.encoding.words import word_family
from hushbit.errors import InvalidInput
from hushbit.kernels import Flags
from hushbit.lattice.points import (
    MAX_POINTS,
    PointSet,
    lattice_ball,
    nested_point_sets,
    stage_indices,
    sum_of_stages,
)
from hushbit.lattice.quantizer import ROUNDINGS, Quantizer
from hushbit.mechanism import (
    BallotScale,
    Bytes,
    Groups,
    HonestMean,
    Mechanism,
    Payloads,
    Updates,
    Votes,
    Words,
    check_width,
)
from hushbit.privacy.central import VoteSums
from hushbit.privacy.guarantee import NO_TALLY_BOUND, Guarantee, k_per_block
from hushbit.privacy.renyi import zcdp_of_two_points
from hushbit.tally.decoded_ballots import DecodedBallots, PackedBallots, SingleBallots
from hushbit.tally.estimate import DECODERS, Estimate, StageHistogram, signal_power
from hushbit.tally.tally import Counters, LargestVotes
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import RoundKey, UserKeys

DITHER_UNIT = 2.0**-32
DEFAULT_ROUNDING = {"corrected": "stochastic", "paper": "dithered", "authors": "nearest"}
QUANTILES = 2001  # of a Gaussian entry, to predict the noise of nested stages


class StagedCPA(Mechanism):
    """Base of CPA and nested CPA: each stage sends one bit for every block."""

    radius: float
    lattice: Any
    rounding: str | None
    words: str | None
    preset: str
    clip: float | None
    stage_encoders: tuple[StageEncoder, ...]
    quantizer: Quantizer
    rounding_power: float

    def _build(self, epsilons: tuple[float, ...], points: tuple[int, ...]) -> None:
        """Check the parameters, then build stages and quantizer."""
        check_choice("preset", self.preset, DECODERS)
        lattice = self.lattice
        if lattice is None:
            raise InvalidInput("lattice must be Z, A2, D4, E8 or a generator matrix; got None")
        if not isinstance(lattice, str):
            lattice = check_finite("lattice", lattice).tolist()
        rounding = DEFAULT_ROUNDING[self.preset] if self.rounding is None else self.rounding
        self._set(
            dim=check_int("dim", self.dim, 1),
            radius=check_scale("radius", self.radius),
            lattice=lattice,
            rounding=check_choice("rounding", rounding, ROUNDINGS),
            words="uniform" if self.preset == "authors" and self.words is None else self.words,
            clip=None if self.clip is None else check_scale("clip", self.clip),
        )
        sets = self._point_sets(tuple(check_int("points", n, 2, MAX_POINTS) for n in points))
        encoders = tuple(
            StageEncoder(
                number,
                point_set,
                RandomizedResponse(epsilon),
                word_family(self.words, point_set.size),
            )
            for number, (point_set, epsilon) in enumerate(zip(sets, epsilons, strict=True))
        )
        fine = sets[0] if len(sets) == 1 else sum_of_stages(sets)
        self._set(stage_encoders=encoders, quantizer=Quantizer(fine, rounding))
        self._set(rounding_power=self._rounding_power())
        if self.blocks > 2**31:
            raise InvalidInput(
                f"a ballot has at most 2^31 blocks; got {self.blocks}: split the update"
            )

    def _mark_defaults(self, **defaults: Any) -> None:
        """Record which parameters have the default of their preset; `repr` leaves them out."""
        words = "uniform" if self.preset == "authors" else None
        defaults |= {"rounding": DEFAULT_ROUNDING[self.preset], "words": words}
        at_default = (name for name, value in defaults.items() if getattr(self, name) == value)
        self._set(_at_default=tuple(at_default))

    def _point_sets(self, points: tuple[int, ...]) -> tuple[PointSet, ...]:
        if self.lattice == "Z":
            outermost = "point" if self.preset == "corrected" else "cell"
            return nested_point_sets(None, points, self.radius, outermost)
        if len(points) == 1:
            return (lattice_ball(self.lattice, points[0], self.radius),)
        return nested_point_sets(self.lattice, points, self.radius)

    def _rounding_power(self) -> float:
        """An upper bound of E|q - x|² for a block x that is rounded to the point q."""
        lattice = self.quantizer.points.lattice
        if self.rounding == "stochastic":
            reach = lattice.covering_radius if self.block_size == 1 else self.radius
            return float(reach**2)
        times = {"dithered": 4.0, "subtractive": 1.0, "nearest": 0.0}[str(self.rounding)]
        return times * lattice.second_moment

    # Sizes

    @cached_property
    def points_per_stage(self) -> tuple[int, ...]:
        """N of each stage."""
        return tuple(stage.size for stage in self.stage_encoders)

    @cached_property
    def block_size(self) -> int:
        """Entries that share a bit."""
        return self.quantizer.points.dim

    @cached_property
    def blocks(self) -> int:
        """Blocks of an update; the last one is padded with zeros."""
        return -(-self.dim // self.block_size)

    @cached_property
    def stage_bytes(self) -> int:
        """Payload bytes of one stage."""
        return (self.blocks + 7) // 8

    @cached_property
    def payload_bits(self) -> int:
        """Bits in the payload of one ballot; every stage starts at a byte."""
        return 8 * self.stage_bytes * (len(self.stage_encoders) - 1) + self.blocks

    @property
    def unbiased_radius(self) -> float:
        """Blocks up to this norm are decoded without bias."""
        return self.quantizer.unbiased_radius

    # Privacy

    @property
    def description(self) -> dict[str, Any]:
        """Name and parameters; epsilon, points and words list one value for each stage."""
        return super().description | {
            "epsilon_per_bit": [_json_epsilon(s.response.epsilon) for s in self.stage_encoders],
            "points": list(self.points_per_stage),
            "words": [stage.family for stage in self.stage_encoders],
        }

    @cached_property
    def guarantee(self) -> Guarantee:
        """Epsilon for each bit of each stage, and k-anonymity of each block."""
        return Guarantee(
            groups=tuple((stage.response.epsilon, self.blocks) for stage in self.stage_encoders),
            dim=self.dim,
            message_bits=self.payload_bits,
            k_anonymity=math.prod(k_per_block(points) for points in self.points_per_stage),
            rho=self._rho(),
            points=self.points_per_stage,
            sums=self._vote_sums() if self._has_two_scalar_points else NO_TALLY_BOUND,
        )

    def _rho(self) -> float | None:
        """zCDP of the whole message; needs an l2 clip and private stochastic rounding.

        The distance of the points from zero counts, not `radius`: presets other than "corrected"
        place the points inside the radius.
        """
        if self.clip is None or not self._has_two_scalar_points or self.rounding != "stochastic":
            return None
        stage = self.stage_encoders[0]
        return zcdp_of_two_points(stage.response.epsilon, self.clip, stage.points.radius)

    def _vote_sums(self) -> VoteSums:
        """The votes that a tally of two scalar points adds up."""
        stage, private = self.stage_encoders[0], self.rounding == "stochastic"
        clipped = private and self.clip is not None
        ratio = float(self.clip / stage.points.radius) if clipped else None  # type: ignore[operator]
        return VoteSums(stage.response.epsilon, self.blocks, ratio, private)

    @property
    def _has_two_scalar_points(self) -> bool:
        return self.points_per_stage == (2,) and self.block_size == 1

    # User

    def encode_payload(self, updates: Updates, keys: UserKeys, coins: Words) -> Payloads:
        """Payloads, and the number of overloaded blocks of each user."""
        updates = clip_l2(updates, self.clip)
        stages = self.stage_encoders
        payload = np.zeros((len(updates), self.stage_bytes * len(stages)), dtype=np.uint8)
        overloaded = np.zeros(len(updates), dtype=np.int64)
        arguments = (updates, keys, coins, payload, overloaded)
        if self._uses_two_point_kernel:
            stages[0].encode_two_points(*arguments)
        elif self._uses_scalar_kernel:
            encode_scalar_stages(stages, self.radius, self.rounding == "subtractive", *arguments)
        else:
            for_each_user(self._encode_user, *arguments)
        return payload, overloaded

    @cached_property
    def _uses_two_point_kernel(self) -> bool:
        """Whether the fused kernel applies: points ±radius, private rounding, Hadamard words."""
        hadamard = self.stage_encoders[0].hadamard
        return self._has_two_scalar_points and hadamard and self.rounding == "stochastic"

    @cached_property
    def _uses_scalar_kernel(self) -> bool:
        """Whether the kernel of scalar stages applies: outermost points ±radius, Hadamard words."""
        scalar = self.lattice == "Z" and self.preset == "corrected"
        hadamard = all(stage.hadamard for stage in self.stage_encoders)
        drawn_first = self.rounding == "stochastic" and len(self.stage_encoders) > 1
        return scalar and hadamard and (drawn_first or self.rounding == "subtractive")

    def _encode_user(self, update: Updates, key: Words, coin: Words, row: Bytes) -> int:
        blocks = np.zeros((self.blocks, self.block_size))
        blocks.reshape(-1)[: self.dim] = update
        dither = self._dither(key) if self.quantizer.uses_dither else None
        assignment = self.quantizer.soft_assign(blocks, dither)
        parts = split_stages(assignment, self.points_per_stage, coin)
        for stage, (index, weight) in zip(self.stage_encoders, parts, strict=True):
            stage.encode_soft(index, weight, key, coin, self._part(row[None], stage)[0])
        return assignment.overloaded

    def _dither(self, key: Words) -> Floats:
        uniform = dither_uniforms(key, self.blocks, self.block_size)
        return self.quantizer.dither(uniform)

    # Server

    def check_payload(self, payload: Bytes) -> None:
        """The unused bits at the end of every stage must be zero."""
        for stage in self.stage_encoders:
            stage.check_padding(self._part(payload, stage), self.blocks)

    def _part(self, payload: Bytes, stage: StageEncoder) -> Bytes:
        """The bytes of one stage in the payloads (users, bytes)."""
        first = stage.number * self.stage_bytes
        return payload[:, first : first + self.stage_bytes]

    def empty_counters(self, histogram: bool) -> Counters:
        """Zeroed votes for each point of each stage, or sums of coordinates if not `histogram`."""
        counters = {s.name: s.empty_counter(self.blocks, histogram) for s in self.stage_encoders}
        if self.rounding == "subtractive":
            counters["dither"] = np.zeros((self.blocks, self.block_size), dtype=np.int64)
        return counters

    def add_payload(self, counters: Counters, payload: Bytes, keys: UserKeys) -> None:
        """Count the bits; with subtractive rounding also add the dithers."""
        for stage in self.stage_encoders:
            part = np.ascontiguousarray(self._part(payload, stage))
            stage.add_payload(counters[stage.name], part, keys.keys)
        if "dither" in counters and self.lattice == "Z":
            sum_dithers(keys, counters["dither"].reshape(-1))
        elif "dither" in counters:
            inverse = np.linalg.inv(self.quantizer.points.lattice.generator)
            for key in keys.keys:
                steps = np.rint(self._dither(key) @ inverse / DITHER_UNIT)
                counters["dither"] += steps.astype(np.int64)

    def largest_votes(self, counters: Counters) -> LargestVotes:
        """One vote for a point, the largest sum of coordinates, and the largest dither."""
        found = {
            s.name: 1 if s.is_histogram(counters[s.name]) else s.largest_sum
            for s in self.stage_encoders
        }
        if "dither" in counters:
            lattice = self.quantizer.points.lattice
            lengths = np.linalg.norm(np.linalg.inv(lattice.generator), axis=0)
            coordinate = lattice.covering_radius * float(lengths.max())
            found["dither"] = math.ceil(coordinate / DITHER_UNIT * (1 + 1e-9))
        return found

    def decode(
        self, counters: Counters, count: int, round_key: RoundKey, decoder: str | None = None
    ) -> Estimate:
        """The mean, exactly unbiased unless `decoder` or the preset names a published decoder.

        The variance is the smaller of two upper estimates. The first is the noise minus the power
        of the signal that users share. The second is the noise minus the power of the points of
        users, from the histogram, plus the power of rounding.
        """
        decoder = check_choice("decoder", self.preset if decoder is None else decoder, DECODERS)
        size = self.block_size
        mean = np.zeros((size, self.blocks))
        by_signal = largest = np.zeros(size)
        by_points = np.array([self.rounding_power / size] * size)
        histograms: list[StageHistogram] = []
        for stage in self.stage_encoders:
            counter, constants = counters[stage.name], stage.decoders[decoder]
            votes = stage.is_histogram(counter)
            decoded = constants.decode_counter(counter, count, votes)
            noise = constants.noise
            by_signal = by_signal + noise - signal_power(decoded, noise, count)
            by_points = by_points + noise
            largest = largest + noise
            mean += decoded
            if constants.shift:
                mean += constants.centre[:, None]
            if votes:
                # The estimate has a copy, because the tally may count more ballots later.
                histograms.append(StageHistogram(constants, counter.copy(), count))
                if decoder == "corrected":
                    by_points = by_points - histograms[-1].mean_point_power()
        if self.rounding == "subtractive":
            lattice = self.quantizer.points.lattice
            mean -= (counters["dither"] * (DITHER_UNIT / count) @ lattice.generator).T
            by_signal = by_signal + lattice.second_moment / size
            largest = largest + lattice.second_moment / size
        variance = np.empty((self.blocks, size))
        variance[:] = np.minimum(np.maximum(by_points, 0.0), by_signal) / count
        return Estimate(
            mean=mean.T.reshape(-1)[: self.dim],
            variance=variance.reshape(-1)[: self.dim],
            count=count,
            unbiased=decoder == "corrected" and self.rounding != "nearest",
            histograms=tuple(histograms) if len(histograms) == len(self.stage_encoders) else (),
            noise=float(largest.mean()) / count,
        )

    @property
    def keeps_histogram(self) -> bool:
        """True: the votes for each point give a histogram of the points of users."""
        return True

    @cached_property
    def votes(self) -> "CPAVotes":
        """Every payload bit is a vote."""
        return CPAVotes(self)

    # Other mechanisms made from this one

    def scaled(self, factor: float) -> Self:
        """The same mechanism with scaled points (the shrinking lattice of Theorem 2)."""
        made: Self = dataclasses.replace(
            self,  # type: ignore[type-var]
            radius=self.radius * check_positive("factor", factor),
        )
        return made

    def with_clip(self, clip: float | None) -> Self:
        """The same encoder with another l2 clip, or none."""
        made: Self = dataclasses.replace(self, clip=clip)  # type: ignore[type-var]
        return made

    def noise_per_user(self, user_rms: float) -> float:
        """Predicted variance that one user adds to an entry.

        This is the sum of the noise of all stages, plus a cross term for nested CPA, minus the
        power of the entry. The cross term assumes Gaussian entries.
        """
        if self.rounding != "stochastic":
            return super().noise_per_user(user_rms)
        return self.stage_noise + self._cross_term(user_rms) - user_rms**2

    @cached_property
    def stage_noise(self) -> float:
        """Variance that the bits of one user add to an entry: the sum over all stages."""
        noise = 0.0
        for stage in self.stage_encoders:
            noise += float(stage.decoders["corrected"].noise.mean())
        return noise

    def _cross_term(self, user_rms: float) -> float:
        """2 E[q_s q_t], summed over pairs of stages: all stages encode the same drawn point."""
        if len(self.stage_encoders) == 1:
            return 0.0
        if self.block_size != 1:
            raise InvalidInput(
                f"the noise of nested stages is predicted for lattice 'Z' only; got {self!r}"
            )
        levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
        entries = user_rms * np.array([NormalDist().inv_cdf(level) for level in levels])
        assignment = self.quantizer.soft_assign(entries[:, None])
        indices = stage_indices(assignment.index, self.points_per_stage)
        parts = [
            stage.points.positions[index, 0]
            for stage, index in zip(self.stage_encoders, indices, strict=True)
        ]
        cross = sum(parts) ** 2 - sum(part**2 for part in parts)
        return float((assignment.weight * cross).sum(axis=1).mean())


@dataclass(frozen=True, eq=False, repr=False)
class CPA(StagedCPA):
    """One private bit for each block of the update (the paper's Algorithm 1, made unbiased).

    dim              entries of an update
    epsilon_per_bit  epsilon of the randomized response; math.inf for none
    radius           norm of the outermost points; blocks beyond `unbiased_radius` are clipped
    points           N; two points have the smallest variance, N points give k = N/2
    lattice          "Z" (one bit for each entry), "A2", "D4", "E8" or a generator matrix
    rounding         "stochastic" (private, unbiased), "dithered", "subtractive" or "nearest"
    words            "hadamard" (default where N is a power of two) or "uniform"
    preset           "corrected", "paper" (as in the paper) or "authors" (as in their code)
    clip             l2 norm to which updates are scaled down; needed for zCDP of a message

    >>> CPA(dim=7850, epsilon_per_bit=0.5, radius=0.05).guarantee.epsilon_per_message()
    3925.0
    """

    name: ClassVar[str] = "cpa"

    dim: int
    epsilon_per_bit: float
    radius: float
    _: KW_ONLY
    points: int | None = None
    lattice: Any = "Z"
    rounding: str | None = None
    words: str | None = None
    preset: str = "corrected"
    clip: float | None = None

    def __post_init__(self) -> None:
        points = 3 if self.preset == "authors" else 2
        if self.points is None:
            self._set(points=points)
        self._build((self.epsilon_per_bit,), (self.points,))  # type: ignore[arg-type]
        self._mark_defaults(points=points)

    @classmethod
    def from_description(cls, fields: Mapping[str, Any]) -> Self:
        """Takes the values of the one stage out of their lists."""
        single = dict(fields)
        for name in ("epsilon_per_bit", "points", "words"):
            if not isinstance(fields[name], list) or len(fields[name]) != 1:
                raise InvalidInput(
                    f"{name} of a CPA must be a list of one value; got {fields[name]!r}"
                )
            single[name] = fields[name][0]
        return super().from_description(single)


@dataclass(frozen=True, eq=False, repr=False)
class NestedCPA(StagedCPA):
    """Several private bits for each block: coarse points first, then the remainder (Sec. III-B).

    stages           points of each stage, coarse first; their product is the size of the fine set
    epsilon_per_bit  one number for all stages, or one for each

    The other parameters are those of CPA.
    """

    name: ClassVar[str] = "nested"

    dim: int
    epsilon_per_bit: float | tuple[float, ...]
    radius: float
    _: KW_ONLY
    stages: tuple[int, ...] | None = None
    lattice: Any = "Z"
    rounding: str | None = None
    words: str | None = None
    preset: str = "corrected"
    clip: float | None = None

    def __post_init__(self) -> None:
        stages, epsilon = self.stages, self.epsilon_per_bit
        if stages is None and self.preset == "authors":
            stages = (3, 3)
        if not isinstance(stages, tuple | list) or len(stages) < 2:
            raise InvalidInput(
                f"stages must list the number of points of two or more stages; got {stages!r}"
            )
        shared = not isinstance(epsilon, tuple | list)
        epsilons = (epsilon,) * len(stages) if shared else tuple(epsilon)  # type: ignore[arg-type]
        if len(epsilons) != len(stages):
            raise InvalidInput(
                f"{len(stages)} stages need {len(stages)} epsilons; got {len(epsilons)}"
            )
        self._set(stages=tuple(stages), epsilon_per_bit=epsilon if shared else epsilons)
        self._build(epsilons, tuple(stages))  # type: ignore[arg-type]
        self._mark_defaults()

    @property
    def description(self) -> dict[str, Any]:
        """Name and parameters; `points` stands for `stages`."""
        return {key: value for key, value in super().description.items() if key != "stages"}

    @classmethod
    def from_description(cls, fields: Mapping[str, Any]) -> Self:
        """One family of words is passed on; mixed families are the defaults of the stages."""
        families = set(fields["words"])
        kept = {name: value for name, value in fields.items() if name != "points"}
        words = families.pop() if len(families) == 1 else None
        return super().from_description(kept | {"stages": fields["points"], "words": words})


def _json_epsilon(epsilon: float) -> float | str:
    return "inf" if math.isinf(epsilon) else epsilon


class CPAVotes(Votes):
    """The votes of CPA and nested CPA: one for each block of each stage."""

    def __init__(self, cpa: StagedCPA) -> None:
        self.cpa = cpa
        self.fair_bits = cpa.blocks * len(cpa.stage_encoders)

    @cached_property
    def scale(self) -> BallotScale:  # type: ignore[override]
        """The noise of one decoded ballot, and bounds of an honest update."""
        return ballot_scale(self.cpa)

    def mask(self) -> Bytes:
        """Every block of every stage."""
        ones = np.packbits(np.ones(self.cpa.blocks, dtype=np.uint8), bitorder="little")
        return np.tile(ones, len(self.cpa.stage_encoders))

    def decode_each(
        self, ballots: Ballots, round_key: RoundKey, groups: Groups | None = None
    ) -> SingleBallots:
        """Decoded ballots; those of two scalar points stay packed."""
        cpa, scale, keys = self.cpa, self.scale, round_key.users(ballots.users)
        check_width(ballots, cpa.payload_bits)
        hadamard = cpa.stage_encoders[0].hadamard
        if cpa._has_two_scalar_points and hadamard and cpa.rounding != "subtractive":
            payload = np.ascontiguousarray(ballots.payload)
            arguments = keys.keys, payload, cpa.dim, scale.max_score, groups
            return PackedBallots.of_two_points(*arguments)

        def decode(user: int) -> Floats:
            counters, one = cpa.empty_counters(False), slice(user, user + 1)
            cpa.add_payload(counters, ballots.payload[one], keys[one])
            return cpa.decode(counters, 1, round_key, "corrected").mean / scale.noise

        return DecodedBallots(decode, len(ballots), cpa.dim, scale.max_score)

    def count_decoded(
        self, decoded: SingleBallots, ballots: Ballots, chosen: Flags, counters: Counters
    ) -> bool:
        """Counts packed ballots of two points, whose words are already removed."""
        if not isinstance(decoded, PackedBallots):
            return False
        counters["stage 0"][0] += decoded.count(chosen)
        return True

    def payload_towards(self, target: Floats, ballots: Ballots, keys: UserKeys) -> Bytes:
        """Every bit is the sign of <target, sum of its word times the points>."""
        cpa, payload = self.cpa, np.zeros_like(ballots.payload)
        blocks = np.zeros((cpa.blocks, cpa.block_size))
        blocks.reshape(-1)[: cpa.dim] = target
        for row, number in zip(payload, range(len(keys)), strict=True):
            counters = cpa.empty_counters(False)
            # Clear bits add the negative of what set bits would add.
            cpa.add_payload(counters, np.zeros_like(payload[:1]), keys[number : number + 1])
            parts = [
                _packed((self._positions(stage, counters[stage.name]) * blocks).sum(axis=1) < 0)
                for stage in cpa.stage_encoders
            ]
            row[:] = np.concatenate(parts)
        return payload

    @staticmethod
    def _positions(stage: StageEncoder, counter: Ints) -> Floats:
        """The sums of positions in a counter, (blocks, coordinates)."""
        if stage.is_histogram(counter):
            # Votes take less space than sums only where the votes for the last point are implied.
            coords = stage.points.coords
            counter = (coords[:-1] - coords[-1]).T @ counter
        return np.asarray(counter.T @ stage.points.basis)

    def expected_mean(self, updates: Updates, round_key: RoundKey) -> HonestMean | None:
        """The mean of the updates after the l2 clip and the clip to the outermost points."""
        return self.mean_of_clipped(clip_l2(updates, self.cpa.clip))

    def mean_of_clipped(self, updates: Updates) -> HonestMean | None:
        """`expected_mean` of updates after the l2 clip, in the coordinates of the votes."""
        if self.cpa.block_size > 1:
            return None
        clipped = np.clip(updates, -self.cpa.radius, self.cpa.radius)
        mean = clipped.mean(axis=0, dtype=np.float64)
        spread = float((clipped @ mean).std() / (float(np.linalg.norm(mean)) or 1.0))
        return HonestMean(mean, spread)


def ballot_scale(cpa: StagedCPA, weight: float = 1.0) -> BallotScale:
    """The scale of single ballots whose bits have a weight.

    noise          root mean square of the noise in an entry of one decoded ballot
    largest_norm   l2 norm of an honest update: at most the clip and that of the outermost points
    largest_entry  largest expected entry of a decoded ballot, in units of its noise
    """
    power = sum(float(stage.decoders["corrected"].noise.mean()) for stage in cpa.stage_encoders)
    noise = math.sqrt(power * weight)
    reach = cpa.radius * math.sqrt(cpa.blocks)
    norm = reach if cpa.clip is None else min(cpa.clip, reach)
    return BallotScale(noise, norm, cpa.radius / noise)


def _packed(bits: NDArray[np.bool_]) -> Bytes:
    return np.packbits(bits, bitorder="little")
