"""Mechanisms around mechanisms: a rotation, a subset of blocks, a vote on the norm, tiers.

Rotated   rotates the update first, which makes its entries nearly Gaussian
Subset    sends the bits of s of the M blocks of each user, chosen by the key of the user
NormVote  adds a private vote on whether the norm of the update is at most a public level
Tiers     counts users with different budgets in one round, with one mechanism for each tier
"""

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hushbit.checks import Floats, Ints, check_choice, check_int, check_scale
from hushbit.cpa import CPA, ballot_scale
from hushbit.encoding.clip_and_rotate import cached_rotation, clip_l2
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.encoding.stage import for_each_user
from hushbit.errors import DamagedFile, InvalidInput, RefusedBallot
from hushbit.kernels import Flags
from hushbit.kernels.chacha import keystream
from hushbit.kernels.count import choose_blocks, count_chosen
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
from hushbit.privacy.guarantee import Guarantee
from hushbit.privacy.renyi import zcdp_of_two_points
from hushbit.tally.decoded_ballots import DecodedBallots, SingleBallots
from hushbit.tally.estimate import Estimate, decoder_constants, noise_power, signal_power
from hushbit.tally.tally import (
    Counters,
    LargestVotes,
    Tally,
    VoterSet,
    read_tallies,
    save_tallies,
)
from hushbit.wire.ballot import Ballot, Ballots
from hushbit.wire.keys import RoundKey, UserKey, UserKeys

NORM_TAG = int.from_bytes(b"norm", "little")
NORM_COUNTER = "norm votes"
MAX_ANSWERS = 255


class Wrapper(Mechanism):
    """A mechanism around `inner`, to which it delegates what a subclass does not override."""

    inner: Mechanism

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the inner mechanism."""
        return self.inner.guarantee

    @property
    def payload_bits(self) -> int:
        """Bits in the payload of the inner mechanism."""
        return self.inner.payload_bits

    @property
    def clip(self) -> float | None:
        """The l2 clip of the inner mechanism."""
        return self.inner.clip

    @property
    def unbiased_radius(self) -> float:
        """The radius of the inner mechanism, in the coordinates of its blocks."""
        return self.inner.unbiased_radius

    def encode_payload(self, updates: Updates, keys: UserKeys, coins: Words) -> Payloads:
        """Encode by the inner mechanism."""
        return self.inner.encode_payload(updates, keys, coins)

    def check_payload(self, payload: Bytes) -> None:
        """Check by the inner mechanism."""
        self.inner.check_payload(payload)

    def empty_counters(self, histogram: bool) -> Counters:
        """Zeroed counters of the inner mechanism."""
        return self.inner.empty_counters(histogram)

    def add_payload(self, counters: Counters, payload: Bytes, keys: UserKeys) -> None:
        """Add by the inner mechanism."""
        self.inner.add_payload(counters, payload, keys)

    def largest_votes(self, counters: Counters) -> LargestVotes:
        """The largest votes of the inner mechanism."""
        return self.inner.largest_votes(counters)

    def decode(self, counters: Counters, count: int, round_key: RoundKey) -> Estimate:
        """Decode by the inner mechanism."""
        return self.inner.decode(counters, count, round_key)

    def scaled(self, factor: float) -> Mechanism:
        """The same wrapper around the scaled mechanism."""
        return self._around(self.inner.scaled(factor))

    def with_clip(self, clip: float | None) -> Mechanism:
        """The same wrapper around the mechanism with another l2 clip."""
        return self._around(self.inner.with_clip(clip))

    def _around(self, inner: Mechanism) -> Mechanism:
        made: Any = self
        return dataclasses.replace(made, inner=inner)  # type: ignore[no-any-return]

    def _check_inner(self) -> None:
        if not isinstance(self.inner, Mechanism):
            raise InvalidInput(
                f"{type(self).__name__} wraps a mechanism, built with its parameters; "
                f"got {getattr(self.inner, '__name__', type(self.inner).__name__)}"
            )
        if self.inner.server_noise:
            raise InvalidInput(
                f"{type(self).__name__} wraps mechanisms whose users add the noise; use "
                f"{type(self.inner).__name__} by itself"
            )
        self._set(dim=self.inner.dim)


@dataclass(frozen=True, eq=False, repr=False)
class Rotated(Wrapper):
    """A mechanism applied to rotated updates; all users of a round share the rotation.

    The rotation does not depend on data, so the guarantee is that of the inner mechanism.
    """

    inner: Mechanism

    def __post_init__(self) -> None:
        self._check_inner()

    def encode_payload(self, updates: Updates, keys: UserKeys, coins: Words) -> Payloads:
        """Rotate, then encode."""
        # The inner guarantee needs the clipped norm, so the clip precedes the rotation.
        updates = clip_l2(updates, self.inner.clip)
        rotated = cached_rotation(self.dim, keys.rotation).apply(updates)
        if not np.isfinite(rotated).all():
            raise InvalidInput("updates are too large to be rotated: clip them or scale them down")
        return self.inner.encode_payload(rotated, keys, coins)

    def decode(self, counters: Counters, count: int, round_key: RoundKey) -> Estimate:
        """Decode, then invert the rotation; a histogram of rotated entries is left out."""
        estimate = self.inner.decode(counters, count, round_key)
        mean = cached_rotation(self.dim, round_key.rotation).invert(estimate.mean)
        # Every entry of the mean is a weighted sum over a block, so its variance is an average.
        variance = np.full_like(mean, estimate.variance.mean())
        return Estimate(mean, variance, estimate.count, estimate.unbiased, noise=estimate.noise)

    @cached_property
    def votes(self) -> "Votes | None":
        """The votes of the inner mechanism, in rotated coordinates."""
        return None if self.inner.votes is None else RotatedVotes(self, self.inner.votes)

    def noise_per_user(self, user_rms: float) -> float:
        """The noise of the inner mechanism: a rotation preserves the power of an entry."""
        return self.inner.noise_per_user(user_rms)


class WrappedVotes(Votes):
    """The votes of a wrapper, which delegates to `inner` what a subclass does not override."""

    def __init__(self, wrapper: Wrapper, inner: Votes) -> None:
        self.wrapper, self.inner = wrapper, inner
        self.scale, self.fair_bits = inner.scale, inner.fair_bits

    @property
    def readable(self) -> bool:
        """Whether `decode_each` of the inner votes works."""
        return self.inner.readable

    def mask(self) -> Bytes:
        """The mask of the inner votes."""
        return self.inner.mask()

    def inner_ballots(self, ballots: Ballots) -> Ballots:
        """The ballots with the fingerprint of the inner mechanism, to which no MAC belongs."""
        return dataclasses.replace(ballots, fingerprint=self.wrapper.inner.fingerprint, macs=None)

    def decode_each(
        self, ballots: Ballots, round_key: RoundKey, groups: Groups | None = None
    ) -> SingleBallots:
        """Decode by the inner votes."""
        return self.inner.decode_each(self.inner_ballots(ballots), round_key, groups)

    def count_decoded(
        self, decoded: SingleBallots, ballots: Ballots, chosen: Flags, counters: Counters
    ) -> bool:
        """Count by the inner votes."""
        return self.inner.count_decoded(decoded, ballots, chosen, counters)

    def payload_towards(self, target: Floats, ballots: Ballots, keys: UserKeys) -> Bytes:
        """The payloads of the inner votes."""
        return self.inner.payload_towards(target, self.inner_ballots(ballots), keys)

    def to_vote_space(self, vector: Floats, round_key: RoundKey) -> Floats:
        """The coordinates of the inner votes."""
        return self.inner.to_vote_space(vector, round_key)

    def expected_mean(self, updates: Updates, round_key: RoundKey) -> HonestMean | None:
        """The expected mean of the inner votes."""
        return self.inner.expected_mean(updates, round_key)


class RotatedVotes(WrappedVotes):
    """Votes on rotated updates."""

    def payload_towards(self, target: Floats, ballots: Ballots, keys: UserKeys) -> Bytes:
        """Payloads whose votes move the estimate in the direction of the rotated target."""
        rotated = cached_rotation(self.wrapper.dim, keys.rotation).apply(target[None, :])[0]
        return super().payload_towards(rotated, ballots, keys)

    def to_vote_space(self, vector: Floats, round_key: RoundKey) -> Floats:
        """The rotated vector."""
        rotation = cached_rotation(self.wrapper.dim, round_key.rotation)
        return super().to_vote_space(np.asarray(rotation.apply(vector[None, :])[0]), round_key)

    def expected_mean(self, updates: Updates, round_key: RoundKey) -> HonestMean | None:
        """Updates are clipped to the l2 clip, rotated, then clipped to the outermost points."""
        rotation = cached_rotation(self.wrapper.dim, round_key.rotation)
        found = self.inner.mean_of_clipped(rotation.apply(clip_l2(updates, self.wrapper.clip)))
        if found is None:
            return None
        return HonestMean(rotation.invert(found.mean), found.honest_spread)


@dataclass(frozen=True, eq=False, repr=False)
class Subset(Wrapper):
    """A CPA in which each user sends the bits of only `report` of its M blocks.

    The key of a user, not its data, determines the blocks. The pure epsilon of a message is
    therefore report · epsilon_per_bit. The sums are weighted by M / report, which makes the mean
    unbiased.
    """

    inner: CPA
    report: int

    def __post_init__(self) -> None:
        if not isinstance(self.inner, CPA):
            hint = ": write Rotated(Subset(...))" if isinstance(self.inner, Rotated) else ""
            raise InvalidInput(
                f"Subset wraps a CPA of one stage; got {type(self.inner).__name__}{hint}"
            )
        if self.inner.quantizer.uses_dither:
            raise InvalidInput(
                "Subset needs rounding without dither, stochastic or nearest; "
                f"got {self.inner.rounding!r}"
            )
        self._check_inner()
        self._set(report=check_int("report", self.report, 1, self.inner.blocks))

    @cached_property
    def guarantee(self) -> Guarantee:
        """The guarantee of the inner mechanism for the bits that are sent."""
        inner = self.inner.guarantee
        return Guarantee(
            groups=((inner.epsilon_per_bit, self.report),),
            dim=self.dim,
            message_bits=self.report,
            k_anonymity=inner.k_anonymity,
            rho=inner.rho,
            points=inner.points,
        )

    @property
    def payload_bits(self) -> int:
        """One bit for each reported block."""
        return self.report

    @property
    def weight(self) -> float:
        """The weight M / report of a reported block."""
        return self.inner.blocks / self.report

    def positions(self, key: Words) -> Ints:
        """The blocks that a user reports, in the order of its bits."""
        chosen = np.empty(self.report, dtype=np.int64)
        choose_blocks(key, self.inner.blocks, chosen)
        return chosen

    def encode_payload(self, updates: Updates, keys: UserKeys, coins: Words) -> Payloads:
        """Payloads, and the number of overloaded blocks of each user."""
        updates = clip_l2(updates, self.inner.clip)
        payload = np.zeros((len(updates), (self.report + 7) // 8), dtype=np.uint8)
        overloaded = np.zeros(len(updates), dtype=np.int64)
        for_each_user(self._encode_user, updates, keys, coins, payload, overloaded)
        return payload, overloaded

    def _encode_user(self, update: Updates, key: Words, coin: Words, row: Bytes) -> int:
        size = self.inner.block_size
        entries = self.positions(key)[:, None] * size + np.arange(size)
        inside = entries < self.dim
        blocks = np.where(inside, update[np.minimum(entries, self.dim - 1)], 0.0)
        assignment = self.inner.quantizer.soft_assign(blocks)
        stage = self.inner.stage_encoders[0]
        stage.encode_soft(assignment.index, assignment.weight, key, coin, row)
        return assignment.overloaded

    def check_payload(self, payload: Bytes) -> None:
        """Unused bits of the last byte must be zero."""
        Mechanism.check_payload(self, payload)

    def empty_counters(self, histogram: bool) -> Counters:
        """Sums of integer coordinates of the reported blocks."""
        return {"sum": np.zeros((self.inner.block_size, self.inner.blocks), dtype=np.int64)}

    def add_payload(self, counters: Counters, payload: Bytes, keys: UserKeys) -> None:
        """Add the coordinates of each bit to the sum of its block."""
        stage = self.inner.stage_encoders[0]
        count_chosen(
            keys.keys, self.report, stage.hadamard, payload, stage.points.coords, counters["sum"]
        )

    def largest_votes(self, counters: Counters) -> LargestVotes:
        """The largest sum of coordinates."""
        return {"sum": self.inner.stage_encoders[0].largest_sum}

    def decode(self, counters: Counters, count: int, round_key: RoundKey) -> Estimate:
        """The unbiased mean: every reported block has the weight M / report."""
        stage = self.inner.stage_encoders[0]
        gain, shift = decoder_constants(self.inner.preset, stage.response.beta, stage.rho)
        factor = float(gain) * self.weight / count
        decoded = factor * (counters["sum"].T @ stage.points.basis)
        noise = self.weight * noise_power(stage.points, gain, stage.rho)
        mean = decoded + float(shift) * stage.points.positions.sum(axis=0)
        variance = (noise - signal_power(decoded.T, noise, count)) / count
        return Estimate(
            mean=mean.reshape(-1)[: self.dim],
            variance=np.tile(variance, self.inner.blocks)[: self.dim],
            count=count,
            unbiased=self.inner.preset == "corrected" and self.inner.rounding == "stochastic",
            noise=float(noise.mean()) / count,
        )

    @cached_property
    def votes(self) -> "SubsetVotes":
        """One vote for each reported block."""
        return SubsetVotes(self)

    def noise_per_user(self, user_rms: float) -> float:
        """Predicted variance that one user adds to an entry."""
        self.inner.noise_per_user(user_rms)  # raises an error where no prediction exists
        return self.weight * self.inner.stage_noise - user_rms**2


class SubsetVotes(Votes):
    """The votes of a subset of blocks."""

    def __init__(self, subset: Subset) -> None:
        self.subset = subset
        self.fair_bits = subset.report

    @property
    def readable(self) -> bool:
        """Only the corrected decoder decodes single ballots without bias."""
        return self.subset.inner.preset == "corrected"

    @cached_property
    def scale(self) -> BallotScale:  # type: ignore[override]
        """The scale of CPA whose bits have the weight M / report."""
        return ballot_scale(self.subset.inner, self.subset.weight)

    def mask(self) -> Bytes:
        """Every reported block."""
        return np.packbits(np.ones(self.subset.report, dtype=np.uint8), bitorder="little")

    def decode_each(
        self, ballots: Ballots, round_key: RoundKey, groups: Groups | None = None
    ) -> SingleBallots:
        """Each ballot decoded by itself."""
        subset, scale, keys = self.subset, self.scale, round_key.users(ballots.users)
        check_width(ballots, subset.payload_bits)

        def decode(user: int) -> Floats:
            counters, one = subset.empty_counters(False), slice(user, user + 1)
            subset.add_payload(counters, ballots.payload[one], keys[one])
            return subset.decode(counters, 1, round_key).mean / scale.noise

        return DecodedBallots(decode, len(ballots), subset.dim, scale.max_score)

    def payload_towards(self, target: Floats, ballots: Ballots, keys: UserKeys) -> Bytes:
        """Every bit is the sign of <target, sum of its word times the points>."""
        subset, payload = self.subset, np.zeros_like(ballots.payload)
        cpa = subset.inner
        blocks = np.zeros((cpa.blocks, cpa.block_size))
        blocks.reshape(-1)[: cpa.dim] = target
        for row, number in zip(payload, range(len(keys)), strict=True):
            counters, one = subset.empty_counters(False), keys[number : number + 1]
            # Clear bits add the negative of what set bits would add.
            subset.add_payload(counters, np.zeros_like(payload[:1]), one)
            reported = subset.positions(one.keys[0])
            negative = counters["sum"].T @ cpa.stage_encoders[0].points.basis
            bits = (negative[reported] * blocks[reported]).sum(axis=1) < 0
            row[:] = np.packbits(bits, bitorder="little")
        return payload


@dataclass(frozen=True, eq=False, repr=False)
class NormVote(Wrapper):
    """A mechanism with a private vote on whether the norm of the update is at most `level`.

    The vote follows the inner payload. It repeats one answer in `answers` bits, an odd number, with
    separate randomized response for each bit. The guarantee includes these bits. The server counts
    the majority of each user's bits, which is correct with probability (1 + beta) / 2. If S is the
    sum of the ±1 majorities of K users,

        share of users at or below the level = 1/2 + S / (2 beta K)      unbiased.

    A user who lies changes S by at most 2, which is the expected effect of 1 / beta honest users.
    With one answer at epsilon 0.5, beta is 0.24, so a fifth of the users can decide every vote.
    With 31 answers beta is 0.84.
    """

    inner: Mechanism
    level: float
    epsilon: float
    answers: int = 1
    response: RandomizedResponse = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._check_inner()
        response = RandomizedResponse(self.epsilon)
        self._set(level=check_scale("level", self.level), epsilon=response.epsilon)
        self._set(response=response, answers=check_int("answers", self.answers, 1, MAX_ANSWERS))
        if self.answers % 2 == 0:
            raise InvalidInput(
                f"answers must be odd, so that a majority exists; got {self.answers}"
            )

    @cached_property
    def depth(self) -> int:
        """Number of NormVotes inside this one; the coins of each depth are separate."""
        inner, depth = self.inner, 0
        while isinstance(inner, Wrapper):
            inner, depth = inner.inner, depth + isinstance(inner, NormVote)
        return depth

    @property
    def guarantee(self) -> Guarantee:
        """The inner guarantee with the bits of the vote; the values of rho (zCDP) are added."""
        inner = self.inner.guarantee
        rho = inner.rho
        if rho is not None:
            rho += self.answers * zcdp_of_two_points(self.epsilon, 1, 1)
        return dataclasses.replace(
            inner,
            groups=(*inner.groups, (self.epsilon, self.answers)),
            message_bits=inner.message_bits + self.answers,
            rho=rho,
            sums=self._with_vote(inner.sums) if isinstance(inner.sums, VoteSums) else inner.sums,
        )

    def _with_vote(self, sums: VoteSums) -> VoteSums:
        """The sums with one more coordinate: the majority is a randomized response of its own."""
        beta = majority_beta(math.tanh(self.epsilon / 2), self.answers)
        epsilon = math.inf if beta >= 1 else 2 * math.atanh(beta) * (1 + 1e-12)
        return dataclasses.replace(sums, extra=(*sums.extra, epsilon))

    @cached_property
    def beta(self) -> float:
        """2p - 1, where the majority of a user's bits equals its answer with probability p."""
        return majority_beta(float(self.response.beta), self.answers)

    @property
    def payload_bits(self) -> int:
        """The number of inner bits and answers."""
        return self.inner.payload_bits + self.answers

    def encode_payload(self, updates: Updates, keys: UserKeys, coins: Words) -> Payloads:
        """The inner payload, and the bits of the vote after it."""
        payload, overloaded = self.inner.encode_payload(updates, keys, coins)
        with np.errstate(over="ignore"):
            norms = np.sqrt(np.einsum("ud,ud->u", updates, updates, dtype=np.float64))
        answers = (norms <= self.level)[:, None] ^ self._flips(coins)
        return self.append_answers(payload, answers), overloaded

    def append_answers(self, payload: Bytes, answers: Flags) -> Bytes:
        """The inner payload followed by the answers (users, answers)."""
        first, used = divmod(self.inner.payload_bits, 8)
        tail = np.packbits(np.pad(answers, ((0, 0), (used, 0))), axis=1, bitorder="little")
        if used:
            tail[:, 0] |= payload[:, first]
        return np.concatenate([payload[:, :first], tail], axis=1)

    def _flips(self, coins: Words) -> Flags:
        """Whether the coins of each user flip each of its answers."""
        drawn = np.empty((len(coins), self.answers), dtype=np.uint32)
        for coin, words in zip(coins, drawn, strict=True):
            keystream(coin, NORM_TAG, self.depth, 0, 0, words)
        return drawn.astype(np.int64) < self.response.flip_count

    def check_payload(self, payload: Bytes) -> None:
        """Check the inner bits with the inner mechanism; no bit may follow the vote."""
        Mechanism.check_payload(self, payload)
        self.inner.check_payload(self.split_payload(payload)[0])

    def split_payload(self, payload: Bytes) -> tuple[Bytes, Ints]:
        """The inner payload, and the majority of each user's answers as ±1."""
        first, used = divmod(self.inner.payload_bits, 8)
        inner = payload[:, : first + (used > 0)].copy()
        if used:
            inner[:, -1] &= (1 << used) - 1
        yes = self.answers_in(payload).sum(axis=1)
        return inner, np.where(2 * yes > self.answers, 1, -1)

    def answers_in(self, payload: Bytes) -> Flags:
        """The answers in payloads, shape (users, answers)."""
        first, used = divmod(self.inner.payload_bits, 8)
        tail = np.unpackbits(payload[:, first:], axis=1, bitorder="little")
        return tail[:, used : used + self.answers].astype(np.bool_)

    def empty_counters(self, histogram: bool) -> Counters:
        """The inner counters, and the sum of the votes."""
        return {**self.inner.empty_counters(histogram), NORM_COUNTER: np.zeros(1, dtype=np.int64)}

    def add_payload(self, counters: Counters, payload: Bytes, keys: UserKeys) -> None:
        """Count the inner bits and the votes."""
        inner, votes = self.split_payload(payload)
        self.inner.add_payload(counters, inner, keys)
        counters[NORM_COUNTER] += votes.sum()

    def largest_votes(self, counters: Counters) -> LargestVotes:
        """The largest votes of the inner mechanism; the vote on the norm is ±1."""
        return {**self.inner.largest_votes(counters), NORM_COUNTER: 1}

    def noise_per_user(self, user_rms: float) -> float:
        """The noise of the inner mechanism."""
        return self.inner.noise_per_user(user_rms)

    @cached_property
    def votes(self) -> "Votes | None":
        """The votes of the inner mechanism, and the vote on the norm."""
        return None if self.inner.votes is None else NormVoteVotes(self, self.inner.votes)


def majority_beta(beta: float, answers: int) -> float:
    """The beta of the majority of an odd number of independent answers, each with `beta`.

    >>> round(majority_beta(0.245, 31), 2)
    0.84
    """
    correct = (1 + beta) / 2
    majorities = range(answers // 2 + 1, answers + 1)
    probability = sum(
        math.comb(answers, k) * correct**k * (1 - correct) ** (answers - k) for k in majorities
    )
    return 2 * probability - 1


class NormVoteVotes(WrappedVotes):
    """The inner votes, followed by the vote on the norm."""

    wrapper: NormVote

    def mask(self) -> Bytes:
        """The inner votes, and the bits of the vote on the norm."""
        answers = np.ones((1, self.wrapper.answers), dtype=np.bool_)
        return np.asarray(self.wrapper.append_answers(self.inner.mask()[None, :], answers)[0])

    def inner_ballots(self, ballots: Ballots) -> Ballots:
        """The ballots without the vote on the norm."""
        check_width(ballots, self.wrapper.payload_bits)
        payload, _ = self.wrapper.split_payload(ballots.payload)
        bits = self.wrapper.inner.payload_bits
        return dataclasses.replace(super().inner_ballots(ballots), bits=bits, payload=payload)

    def count_decoded(
        self, decoded: SingleBallots, ballots: Ballots, chosen: Flags, counters: Counters
    ) -> bool:
        """Count the inner votes, and add the votes on the norm from the payload."""
        inner = {name: part for name, part in counters.items() if name != NORM_COUNTER}
        if not self.inner.count_decoded(decoded, ballots, chosen, inner):
            return False
        counters[NORM_COUNTER] += self.wrapper.split_payload(ballots.payload)[1][chosen].sum()
        return True

    def payload_towards(self, target: Floats, ballots: Ballots, keys: UserKeys) -> Bytes:
        """The payloads of the inner votes; the votes on the norm do not change."""
        made = super().payload_towards(target, ballots, keys)
        return self.wrapper.append_answers(made, self.wrapper.answers_in(ballots.payload))


class Tiers:
    """Several mechanisms of one dim, one for each tier of users, counted in one round.

    It has the methods of a mechanism; `encode` also takes the tier of the user.
    """

    def __init__(self, *mechanisms: Mechanism) -> None:
        if not mechanisms or not all(isinstance(m, Mechanism) for m in mechanisms):
            raise InvalidInput("Tiers takes one or more mechanisms, one for each tier")
        if len({m.dim for m in mechanisms}) > 1:
            raise InvalidInput(f"tiers must share one dim; got {[m.dim for m in mechanisms]}")
        if len({m.fingerprint for m in mechanisms}) < len(mechanisms):
            raise InvalidInput("two tiers have the same mechanism: leave one out")
        self.mechanisms = mechanisms
        self.dim = mechanisms[0].dim

    def __len__(self) -> int:
        return len(self.mechanisms)

    def __getitem__(self, tier: int) -> Mechanism:
        return self.mechanisms[check_int("tier", tier, 0, len(self) - 1)]

    def __repr__(self) -> str:
        return f"Tiers({', '.join(map(repr, self.mechanisms))})"

    @property
    def description(self) -> dict[str, Any]:
        """The descriptions of all tiers."""
        return {"mechanism": "Tiers", "tiers": [m.description for m in self.mechanisms]}

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What one ballot costs a user of each tier."""
        return tuple(m.guarantee for m in self.mechanisms)

    def encode(self, update: Any, key: UserKey, coins: Any = None, *, tier: int) -> Ballot:
        """The ballot of one user of a tier."""
        return self[tier].encode(update, key, coins)

    def encode_many(
        self, updates: Any, keys: UserKeys | Sequence[UserKey], coins: Any = None, *, tier: int
    ) -> Ballots:
        """The ballots of many users of a tier."""
        return self[tier].encode_many(updates, keys, coins)

    def tally(
        self, round_key: RoundKey, histogram: bool = True, require_mac: bool = False
    ) -> "TierTally":
        """An empty tally for all tiers of a round."""
        return TierTally([m.tally(round_key, histogram, require_mac) for m in self.mechanisms])

    def estimate(self, tally: "TierTally", weighting: str = "users") -> Estimate:
        """The mean over all users, from the tiers that have ballots.

        weighting="users"      all users have the same weight: unbiased for the mean of these users
        weighting="precision"  tiers have the weight 1 / (noise of their mean), which does not
                               depend on ballots: unbiased, with the smallest noise, for the mean
                               of a population from which all tiers are drawn
        """
        check_choice("weighting", weighting, ("users", "precision"))
        if not isinstance(tally, TierTally) or [p.mechanism for p in tally.parts] != list(
            self.mechanisms
        ):
            raise InvalidInput("estimate needs a tally made by these tiers")
        pairs = zip(self.mechanisms, tally.parts, strict=True)
        estimates = [mechanism.estimate(part) for mechanism, part in pairs if part.count]
        if not estimates:
            raise InvalidInput("the tally has no ballots yet: add some before estimating")
        if weighting == "users":
            weights = np.array([float(e.count) for e in estimates])
        else:
            weights = np.array([1 / max(_noise(e), 1e-300) for e in estimates])
        weights /= weights.sum()
        return Estimate(
            mean=_weighted(weights, [e.mean for e in estimates]),
            variance=_weighted(weights**2, [e.variance for e in estimates]),
            count=tally.count,
            unbiased=all(
                e.unbiased and (weighting == "users" or e.noise is not None) for e in estimates
            ),
        )


class TierTally:
    """One tally for each tier, and one set of voters: a user votes once, in one tier."""

    def __init__(self, parts: list[Tally]) -> None:
        self.parts = parts
        self.voters = VoterSet()
        for part in parts:
            part.voters = VoterSet()

    @property
    def count(self) -> int:
        """Ballots accepted so far, over all tiers."""
        return len(self.voters)

    def add(self, ballot: Ballot) -> None:
        """Count one ballot in the tier of its mechanism, or refuse it."""
        if not isinstance(ballot, Ballot):
            raise InvalidInput(
                f"add takes a Ballot (see Ballot.from_bytes); got {type(ballot).__name__}"
            )
        self.add_many(Ballots.stack([ballot]))

    def add_many(self, ballots: Ballots | Sequence[Ballot]) -> None:
        """Count many ballots of one tier: all of them, or none if one is refused."""
        if not isinstance(ballots, Ballots):
            if not isinstance(ballots, Sequence) or not all(isinstance(b, Ballot) for b in ballots):
                raise InvalidInput(f"add_many takes ballots; got {type(ballots).__name__}")
            if not ballots:
                return
            ballots = Ballots.stack(ballots)
        part = self._part(ballots.fingerprint)
        self.voters.refuse_known(ballots.users)
        part.add_many(ballots)
        self.voters.add(ballots.users)

    def merge(self, other: "TierTally") -> None:
        """Add a tally of the same tiers and round, of other users."""
        if not isinstance(other, TierTally) or len(self.parts) != len(other.parts):
            raise InvalidInput("only tallies of the same tiers can be merged")
        self.voters.refuse_known(other.voters.users())
        pairs = list(zip(self.parts, other.parts, strict=True))
        # All parts are checked before the first one changes, so that a refusal changes nothing.
        for mine, theirs in pairs:
            mine.check_mergeable(theirs)
        for mine, theirs in pairs:
            mine.merge(theirs)
        self.voters.add(other.voters.users())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all tiers to one file, atomically."""
        save_tallies(path, self.parts)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Fill this empty tally from a file that `save` wrote for the same tiers and key."""
        contents = read_tallies(path, self.parts)
        users = np.concatenate([content.voters for content in contents])
        if np.unique(users).size != users.size:
            raise DamagedFile(f"{path} names a user in two tiers")
        for part, content in zip(self.parts, contents, strict=True):
            part.set_content(content)
        self.voters.add(users)

    def _part(self, fingerprint: bytes) -> Tally:
        for part in self.parts:
            if part.mechanism.fingerprint == fingerprint:
                return part
        raise RefusedBallot("mechanism", f"no tier has the mechanism {fingerprint.hex()}")


def _weighted(weights: Floats, parts: list[Any]) -> Floats:
    return np.asarray(sum(w * part for w, part in zip(weights, parts, strict=True)))


def _noise(estimate: Estimate) -> float:
    """The noise that the mechanism implies; noise estimated from ballots would bias the weights."""
    return float(estimate.variance.mean()) if estimate.noise is None else estimate.noise
