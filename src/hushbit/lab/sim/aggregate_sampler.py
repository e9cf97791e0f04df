"""Aggregators that draw the estimate of a round from its distribution, without any ballots.

The sum over many users has a known distribution given their updates, so a simulation can draw it
at the cost of one entry instead of one user. `sampled` aggregates a round this way;
`aggregate_sampler` chooses the sampler for the settings:

    CPA, nested CPA    counts users at each point; the tally is drawn from its exact distribution
    signSGD            counts positive signs; the number of received ones is exactly binomial
    Laplace            sums updates; the noise of K users is the difference of two Gamma(K)
                       variables, or one Gaussian of the same variance where each user has its own
                       scale (at least 100 users: the excess kurtosis is 3 / K)
    JoPEQ              sums means and variances of the decoded levels; the sum over at least 100
                       users is drawn as a Gaussian
    FedAvg             sums updates
    Gaussian           sums clipped updates; the noisy sum is not rounded to a grid

CPA, signSGD and Laplace with preset "authors" follow the published code. The grid of the mechanisms
(2^-12 of the clipping range) is left out.

A user at point l adds t = Z v_l · sum_j v_j q_j to a tally, with v a random balanced word and Z the
flip of randomized response. Users are independent, so the tally of n_l users at each l is a sum of
multinomial draws.

`GaussianAggregator` adds noise of a given variance to the mean of a few users.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hushbit.baselines.entry_mechanism import FLOAT_LIMIT
from hushbit.baselines.jopeq import JoPEQ, ScalarCode
from hushbit.checks import check_int
from hushbit.encoding.clip_and_rotate import cached_rotation, clip_l2
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.encoding.words import all_words
from hushbit.engine import Engine
from hushbit.errors import InvalidInput, NotFinite
from hushbit.kernels import njit
from hushbit.lab.sim.learning_task import layer_slices
from hushbit.lab.sim.metrics import add_rows
from hushbit.lab.sim.rounds import Aggregate, RunState, add_losses, train_users, without_updates
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import RADIUS, Setup
from hushbit.lab.sim.training import LocalChunk
from hushbit.tally.estimate import Estimate
from hushbit.wire.keys import RoundKey

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]
Updates = NDArray[np.float32]


class VoteLaw(NamedTuple):
    """Distribution of what a user at one point adds to the tally: integers and probabilities."""

    values: tuple[int, ...]
    probabilities: tuple[Fraction, ...]


@lru_cache(maxsize=64)
def vote_laws(points: int, epsilon_per_bit: float) -> tuple[VoteLaw, ...]:
    """The distribution for each of N equidistant points -(N-1)/2 ... (N-1)/2 (doubled for even N).

    The last one is that of an attacker whose bit ignores its word: constant ones or random flips.
    """
    check_int("points", points, 2, 9)
    words = all_words("uniform", points)
    unit = 1 if points % 2 else 2
    positions = np.array([unit * j - unit * (points - 1) // 2 for j in range(points)])
    sums = words.astype(np.int64) @ positions
    truthful = (1 + RandomizedResponse(epsilon_per_bit).beta) / 2
    laws = [_vote_law(words[:, level] * sums, truthful) for level in range(points)]
    return (*laws, _vote_law(sums, Fraction(1, 2)))


def _vote_law(contributions: NDArray[np.int64], truthful: Fraction) -> VoteLaw:
    """The distribution if each contribution is equally likely and kept with that probability."""
    found: dict[int, Fraction] = {}
    for contribution in contributions.tolist():
        for value, p in ((contribution, truthful), (-contribution, 1 - truthful)):
            found[value] = found.get(value, Fraction(0)) + p / len(contributions)
    values = tuple(sorted(found))
    return VoteLaw(values, tuple(found[value] for value in values))


def draw_tally(counts: Counts, laws: tuple[VoteLaw, ...], rng: np.random.Generator) -> Counts:
    """Sums of t over users, for counts (points, entries) of users at each point."""
    total = np.zeros(counts.shape[1], np.int64)
    for row, law in zip(counts, laws, strict=True):
        drawn = rng.multinomial(row, [float(p) for p in law.probabilities])
        total += drawn @ np.array(law.values)
    return total


STAGES = {"cpa": (3,), "cpa-no-rr": (3,), "nested": (3, 3)}
MIN_USERS_FOR_GAUSS = 100
CELLS = 2048  # of the table over [-1, 1]; the moments are smooth, so the nearest entry is used
DITHERS = 256


class AggregateSampler(Protocol):
    """Users of one round are added chunk by chunk; then the decoded mean is drawn."""

    @property
    def noise(self) -> float | None:
        """Variance of an entry of the mean as far as the server can state it; else None."""

    def add(self, updates: Updates, is_attacker: Flags) -> None:
        """Add users; the bits of attackers ignore their words."""

    def decode(self, rng: np.random.Generator) -> Floats:
        """Draw the decoded mean update."""


def aggregate_sampler(
    settings: Settings, layers: tuple[slice, ...], dim: int
) -> AggregateSampler | None:
    """A sampler for one round of these settings; None where ballots have to be cast."""
    if settings.participation != 1 or settings.defence != "none" or settings.average_weights:
        return None
    name, honest = settings.mechanism, settings.attack == "none"
    authors, many = settings.preset == "authors", settings.users >= MIN_USERS_FOR_GAUSS
    if name == "fedavg" and honest:
        return MeanSampler(settings, dim)
    if settings.epsilon is not None:
        return None  # the mechanism is calibrated, its parameters are not in the settings
    if name == "gaussian" and honest:
        return GaussianSampler(settings, dim)
    if name == "jopeq" and honest and many and settings.lattice is None and settings.mode is None:
        return JopeqSampler(settings, dim)
    if name == "laplace" and honest and not authors:
        finite = math.isfinite(settings.epsilon_per_bit or math.inf)
        return ClippedLaplaceSampler(settings, dim) if finite else None
    if not authors or settings.rotate:
        return None
    fixed = ("lattice", "rounding", "words", "stages", "clip")
    if name in STAGES and all(getattr(settings, option) is None for option in fixed):
        known = settings.attack in ("none", "ones", "flip")
        return PointSampler(settings, dim) if known else None
    if name == "signsgd" and honest:
        return SignSampler(settings, dim)
    if name == "laplace" and honest and many:
        return LaplaceSampler(settings, layers, dim)
    return None


class MeanSampler:
    """FedAvg: the mean of the updates."""

    noise: float | None = None

    def __init__(self, settings: Settings, dim: int) -> None:
        self.users, self.total = settings.users, np.zeros(dim)

    def add(self, updates: Updates, is_attacker: Flags) -> None:
        """Add updates."""
        add_rows(self.total, updates, ~is_attacker)

    def decode(self, rng: np.random.Generator) -> Floats:
        """The mean; as a ballot would be, it is refused if it is too large for float32."""
        mean = self.total / self.users
        if not np.abs(mean).max() < FLOAT_LIMIT:
            raise NotFinite(f"entries must stay below {FLOAT_LIMIT:g} in size: lower the rate")
        return mean


class GaussianSampler(MeanSampler):
    """The mean of updates clipped to an l2 norm, plus the Gaussian noise of the server."""

    def __init__(self, settings: Settings, dim: int) -> None:
        super().__init__(settings, dim)
        self.clip = float(settings.clip or math.nan)
        self.deviation = float(settings.noise_multiplier or math.nan) * self.clip / self.users
        self.noise = self.deviation**2

    def add(self, updates: Updates, is_attacker: Flags) -> None:
        """Add clipped updates."""
        super().add(np.asarray(clip_l2(updates, self.clip), np.float32), is_attacker)

    def decode(self, rng: np.random.Generator) -> Floats:
        """The noisy mean."""
        return super().decode(rng) + self.deviation * rng.standard_normal(self.total.size)


class ClippedLaplaceSampler(MeanSampler):
    """Updates clipped to [-scale, scale], plus Laplace noise of scale 2 scale / epsilon."""

    def __init__(self, settings: Settings, dim: int) -> None:
        super().__init__(settings, dim)
        self.scale = np.float32(settings.radius or RADIUS)
        self.laplace = 2 * float(self.scale) / float(settings.epsilon_per_bit or math.inf)
        self.noise = 2 * self.laplace**2 / self.users

    def add(self, updates: Updates, is_attacker: Flags) -> None:
        """Add clipped updates."""
        super().add(np.clip(updates, -self.scale, self.scale), is_attacker)

    def decode(self, rng: np.random.Generator) -> Floats:
        """The noisy mean."""
        plus, minus = rng.standard_gamma(self.users, (2, self.total.size))
        return np.asarray((self.total + self.laplace * (plus - minus)) / self.users)


class JopeqSampler:
    """JoPEQ: sums of the mean and variance of each decoded level, dither subtracted."""

    def __init__(self, settings: Settings, dim: int) -> None:
        self.users = settings.users
        self.scale = settings.radius or RADIUS
        preset = settings.preset or "honest"
        epsilon = float(settings.epsilon_per_bit or 0)
        code = JoPEQ(1, epsilon, self.scale, levels=settings.levels, preset=preset).code
        self.table = _table(epsilon, settings.levels, preset)
        self.total, self.variance = np.zeros(dim), np.zeros(dim)
        self.noise = None if preset == "authors" else code.variance / self.users

    def add(self, updates: Updates, is_attacker: Flags) -> None:
        """Add the mean and variance of each decoded entry."""
        add_moments(updates, 1 / self.scale, self.table, self.total, self.variance)

    def decode(self, rng: np.random.Generator) -> Floats:
        """Draw the mean from a Gaussian."""
        drawn = rng.standard_normal(self.total.size) * np.sqrt(self.variance)
        return np.asarray(self.scale * (self.total + drawn) / self.users)


@lru_cache(maxsize=16)
def _table(epsilon: float, levels: int | None, preset: str) -> NDArray[np.float32]:
    """Mean and variance of the decoded value for entries in [-1, 1], in units of the scale."""
    code = JoPEQ(1, epsilon, 1.0, levels=levels, preset=preset).code
    moments = decoded_moments(code, np.linspace(-1, 1, CELLS + 1))
    return np.stack(moments, axis=1).astype(np.float32)


def decoded_moments(code: ScalarCode, entries: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of (k - (N-1)/2) Delta - d, over noise and dither, for clipped entries z.

    Level k is the cell of z + n + d; the outermost cells are unbounded. The average over d uses the
    midpoint rule.
    """
    cell, middle = code.cell, (code.levels - 1) / 2
    mean, square = np.zeros_like(entries), np.zeros_like(entries)
    for dither in ((np.arange(DITHERS) + 0.5) / DITHERS - 0.5) * cell:
        below = np.zeros_like(entries)
        for level in range(code.levels):
            edge = (level + 1 - code.levels / 2) * cell - dither - entries
            last = level == code.levels - 1
            below_edge = np.ones_like(entries) if last else _laplace_cdf(edge, code.noise_scale)
            value = (level - middle) * cell - dither
            mean += (below_edge - below) * value
            square += (below_edge - below) * value**2
            below = below_edge
    mean, square = mean / DITHERS, square / DITHERS
    return mean, square - mean**2


def _laplace_cdf(x: Floats, scale: float) -> Floats:
    tail = 0.5 * np.exp(-np.abs(x) / scale)
    return np.where(x < 0, tail, 1 - tail)


def reference_moments(
    updates: Updates, factor: float, table: Updates, total: Floats, variance: Floats
) -> None:
    """Add the table's rows nearest to clip(updates · factor, -1, 1), user after user."""
    half = (len(table) - 1) / 2
    nearest = ((np.clip(updates * np.float32(factor), -1, 1) + 1) * half + 0.5).astype(np.int64)
    total += table[nearest, 0].sum(axis=0, dtype=np.float64)
    variance += table[nearest, 1].sum(axis=0, dtype=np.float64)


@njit
def add_moments(
    updates: Updates, factor: float, table: Updates, total: Floats, variance: Floats
) -> None:
    """As `reference_moments`, in one pass."""
    half, scale = np.float32((table.shape[0] - 1) / 2), np.float32(factor)
    one, up = np.float32(1), np.float32(0.5)
    for user in range(updates.shape[0]):
        row = updates[user]
        for i in range(row.size):
            entry = min(max(row[i] * scale, -one), one)
            nearest = int((entry + one) * half + up)
            total[i] += table[nearest, 0]
            variance[i] += table[nearest, 1]


class PointSampler:
    """CPA as published: nearest of 3 (or 3 x 3) points, without division by 2p - 1."""

    noise = None

    def __init__(self, settings: Settings, dim: int) -> None:
        self.users = settings.users
        counts = (settings.points,) if settings.points else STAGES[settings.mechanism]
        self.stages: tuple[int, ...] = counts
        self.points = math.prod(counts)
        self.step = 2 * (settings.radius or RADIUS) / self.points
        exact = settings.mechanism == "cpa-no-rr" or settings.epsilon_per_bit is None
        self.epsilon = math.inf if exact else float(settings.epsilon_per_bit or 0)
        self.counts = np.zeros((self.points + 1, dim), np.int64)

    def add(self, updates: Updates, is_attacker: Flags) -> None:
        """Count users at their nearest fine points; attackers in the last row."""
        count_nearest(updates, is_attacker, self.step, self.counts)

    def decode(self, rng: np.random.Generator) -> Floats:
        """Draw the tally of each stage from the counts of its own points, and add the stages."""
        decoded, unit = np.zeros(self.counts.shape[1]), self.points
        for size in self.stages:
            unit //= size
            own = np.zeros((size + 1, self.counts.shape[1]), np.int64)
            np.add.at(own, np.arange(self.points) // unit % size, self.counts[:-1])
            own[size] = self.counts[-1]
            decoded += self.step * unit * draw_tally(own, vote_laws(size, self.epsilon), rng)
        return decoded / self.users


class SignSampler:
    """signSGD as published: mean of signs after randomized response; zero counts as +."""

    noise = None

    def __init__(self, settings: Settings, dim: int) -> None:
        self.users = settings.users
        self.truthful = float(1 + RandomizedResponse(settings.epsilon_per_bit or math.inf).beta) / 2
        self.plus = np.zeros(dim, np.int64)

    def add(self, updates: Updates, is_attacker: Flags) -> None:
        """Count the users whose entry is not negative."""
        self.plus += (updates >= 0).sum(axis=0)

    def decode(self, rng: np.random.Generator) -> Floats:
        """(received + less received -) / users."""
        received = rng.binomial(self.plus, self.truthful)
        received = received + rng.binomial(self.users - self.plus, 1 - self.truthful)
        return np.asarray(2 * received / self.users - 1, dtype=np.float64)


class LaplaceSampler(MeanSampler):
    """Laplace as published: scale 2/epsilon times three standard deviations of a user's layer."""

    def __init__(self, settings: Settings, layers: tuple[slice, ...], dim: int) -> None:
        super().__init__(settings, dim)
        self.layers, self.squares = layers, np.zeros(len(layers))
        self.scale = 2 / float(settings.epsilon_per_bit or math.inf)

    def add(self, updates: Updates, is_attacker: Flags) -> None:
        """Add updates, and the squares of their users' noise scales."""
        super().add(updates, is_attacker)
        for number, layer in enumerate(self.layers):
            spread = 3 * np.std(updates[:, layer], axis=1, dtype=np.float64)
            self.squares[number] += float(np.sum(spread**2))

    def decode(self, rng: np.random.Generator) -> Floats:
        """The noisy mean; Var = 2 b^2 for a Laplace variable of scale b."""
        noise = rng.standard_normal(self.total.size)
        for layer, square in zip(self.layers, self.squares, strict=True):
            noise[layer] *= self.scale * math.sqrt(2 * square)
        return np.asarray((self.total + noise) / self.users, dtype=np.float64)


def reference_nearest(updates: Updates, is_attacker: Flags, step: float, counts: Counts) -> None:
    """counts[nearest point, entry] += 1 for every user; attackers are counted in the last row."""
    points = counts.shape[0] - 1
    middle = (points - 1) // 2
    levels = (
        np.clip(np.rint(updates[~is_attacker] / step), -middle, middle).astype(np.int64) + middle
    )
    for point in range(points):
        counts[point] += (levels == point).sum(axis=0)
    counts[points] += is_attacker.sum()


@njit
def count_nearest(updates: Updates, is_attacker: Flags, step: float, counts: Counts) -> None:
    """As `reference_nearest`: counts users above each border between points, then differences."""
    points, dim = counts.shape[0] - 1, counts.shape[1]
    middle = (points - 1) // 2
    above = np.zeros((points - 1, dim), np.int32)
    honest = 0
    for user in range(updates.shape[0]):
        if is_attacker[user]:
            continue
        honest += 1
        row = updates[user]
        for border in range(points - 1):
            # A tie is rounded to the even point, as np.rint does.
            left = border - middle
            edge, ties, own = np.float32((left + 0.5) * step), left % 2 != 0, above[border]
            if ties:
                for entry in range(dim):
                    own[entry] += np.int32(row[entry] >= edge)
            else:
                for entry in range(dim):
                    own[entry] += np.int32(row[entry] > edge)
    for entry in range(dim):
        higher = honest
        for border in range(points - 1):
            counts[border, entry] += higher - above[border, entry]
            higher = above[border, entry]
        counts[points - 1, entry] += higher
        counts[points, entry] += updates.shape[0] - honest


def can_sample_aggregate(settings: Settings) -> bool:
    """Whether `sampled` can aggregate the rounds of these settings."""
    return aggregate_sampler(settings, (), 1) is not None


def published_attackers(settings: Settings) -> NDArray[np.bool_]:
    """Attackers drawn with replacement, as the published code does: 18.1 % for a nominal 20 %."""
    marked = np.zeros(settings.users, dtype=np.bool_)
    rng = np.random.default_rng([settings.seed, 0xA77AC])
    marked[rng.integers(0, settings.users, round(settings.attackers * settings.users))] = True
    return marked


def sampled(setup: Setup, state: RunState, engine: Engine | None = None) -> Aggregate:
    """Aggregate all users by a sampler, in this process; the engine is ignored.

    The published signal-to-noise ratio counts what attackers should have sent, so the true mean
    includes them. With `copies`, each trained user is counted that many times: the noise is that of
    all users, exactly, for the updates of a part of them.
    """
    settings, dim, number = setup.settings, setup.task.dim, state.round
    counted = replace(settings, users=settings.users * settings.copies, copies=1)
    sampler = aggregate_sampler(counted, layer_slices(setup.task), dim)
    if sampler is None:
        raise InvalidInput(
            "the aggregate of these settings has no known distribution: cast ballots instead"
        )
    rotation = None
    if settings.rotate:
        rotation = cached_rotation(dim, RoundKey(setup.secret, number, setup.run).rotation)
    is_attacker = published_attackers(settings)
    users = np.arange(settings.users)
    total, loss, chunks = np.zeros(dim), 0.0, []
    for chunk in train_users(setup, number, users, state.params, state.local):
        add_rows(total, chunk.updates, np.ones(len(chunk.users), dtype=np.bool_))
        rotated = chunk.updates if rotation is None else rotation.apply(chunk.updates)
        for _ in range(settings.copies):
            sampler.add(rotated, is_attacker[chunk.users])
        loss = add_losses(loss, chunk.losses)
        chunks.append(without_updates(chunk))
    mean = sampler.decode(np.random.default_rng([settings.seed, number, 0x1A3]))
    mean = mean if rotation is None else rotation.invert(mean)
    return _aggregate(users, mean, sampler.noise, total / users.size, loss, chunks)


@dataclass(frozen=True)
class GaussianAggregator:
    """Aggregates the mean of a few users, plus Gaussian noise of a given variance per entry.

    The noise of an estimate is a sum over users, so a Gaussian of the predicted variance shows at
    the cost of a few users how a run of many behaves. Round r takes `users` users from r · users
    on, modulo all; `preprocess` maps updates to what the mechanism encodes.
    """

    preprocess: Callable[[NDArray[np.float32]], NDArray[np.floating]]
    variance: float
    users: int
    rng: np.random.Generator

    def __call__(self, setup: Setup, state: RunState, engine: Engine | None = None) -> Aggregate:
        """Aggregate one round in this process; the engine is ignored."""
        first, everyone = state.round * self.users, setup.settings.users
        users = np.sort((first + np.arange(self.users)) % everyone)
        total, loss, chunks = np.zeros(setup.task.dim), 0.0, []
        for chunk in train_users(setup, state.round, users, state.params, state.local):
            total = total + self.preprocess(chunk.updates).sum(axis=0, dtype=np.float64)
            loss = add_losses(loss, chunk.losses)
            chunks.append(without_updates(chunk))
        mean = total / self.users
        noise = math.sqrt(self.variance) * self.rng.standard_normal(setup.task.dim)
        return _aggregate(users, mean + noise, self.variance, mean, loss, chunks)


def _aggregate(
    users: NDArray[np.int64],
    mean: Floats,
    noise: float | None,
    true_mean: Floats,
    loss: float,
    chunks: list[LocalChunk],
) -> Aggregate:
    variance = np.full(mean.size, math.nan if noise is None else noise)
    estimate = Estimate(mean, variance, users.size, unbiased=False, noise=noise)
    return Aggregate(users, estimate, noise, true_mean, loss, chunks)
