"""AutoCPA: rotated CPA whose points are adapted to the updates by private norm votes.

The mechanism of a round is immutable. `next_round(tally)` computes the next one from the tally, so
tuning is post-processing and costs no privacy:

    belief   posterior distribution of the median norm, updated by the votes (`NormBelief`)
    signal   power of the mean: |mean|² minus the known noise
    ratio    distance of the points from zero that has the smallest predicted error (`best_ratio`)
    ceiling  upper limit of the norm in the next round, once the search for the norm has converged

**Belief.** A vote is a randomized response to the question whether the norm of one user is at most
a public level. If log2 norms are logistic about their median m with a spread s, a user answers yes
with probability

    P(yes | m, s) = 1/2 + beta (F((log2 level - m) / s) - 1/2),     F(x) = 1 / (1 + e^-x)

and Bayes' rule updates the weights on a grid of medians, averaged over the spreads. The level is
the median of the belief (probabilistic bisection). The belief is widened slightly between rounds,
because norms change during training.

**Bits.** `AutoRequirements` chooses points, stages, subset or clip once. Every round scales them.

**Budget.** Updates and norm votes share the budget. A norm vote consists of one or more bits, its
answers.

- Per bit: enough answers to limit the effect of forged votes (`MIN_VOTE_BETA`).
- Per message or run, against the server: one answer, with a tenth of a message's epsilon.
- Against the model: the vote is an additional coordinate of the tally, to which the clip does not
  apply. Each answer has the epsilon per bit of the update. Their number is that of the first case,
  unless the vote then costs more than a tenth of the Rényi divergences (in a Gaussian
  approximation; the accountant counts the exact cost).

**Ratio.** Lengths are in units of s, the rms entry of an update with the median norm. The rotated
entries of a user are Gaussian with an rms t (in units of s), so points at ±c keep the fraction

    kept(t) = E[x clip(x, c)] / E[x²] = erf(c / (t sqrt(2)))

of them (if the norm is clipped: min(1, c/t)). The sizes t are log-normal about 1. The mean is
divided by the mean fraction (gain = E[t] / E[t kept(t)]). The error of each entry is then

    error(c) = gain² c² noise / K  +  signal · E[t (gain kept(t) - 1)²] / E[t]

where `noise` is the variance of randomized response for points at ±1, and `signal` is the power of
an entry of the mean. The second term exists because large updates are clipped more than small ones.
"""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from hushbit.budget import Budget, check_budget, honest_voters
from hushbit.checks import Floats, check_float, check_int, check_positive, check_scale
from hushbit.cpa import CPA
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.errors import BudgetSpent, InvalidInput
from hushbit.mechanism import Mechanism, State, Votes
from hushbit.privacy.composition import decimal_fraction
from hushbit.privacy.guarantee import Guarantee
from hushbit.privacy.renyi import epsilon_of_zcdp
from hushbit.tally.estimate import Estimate
from hushbit.tally.tally import Counters, Tally
from hushbit.tuning.calibrate import (
    calibrate_message,
    calibrate_tally,
    equal_share,
    gaussian_epsilon_per_bit,
    rotated_radius,
    zcdp_for,
)
from hushbit.tuning.plan import plan
from hushbit.wire.keys import RoundKey
from hushbit.wrappers import (
    MAX_ANSWERS,
    NORM_COUNTER,
    NormVote,
    Rotated,
    Wrapper,
    majority_beta,
)

LOG2_NORMS = np.arange(-640, 321) / 8.0
"""Candidate medians as log2 of a norm, eight for each octave (factor of two)."""

NORM_SPREADS = (0.03, 0.1, 0.3, 0.6, 1.2)
"""Scales of the logistic distribution of log2 norms: from equal norms to factors of ten."""

MAX_EFFECTIVE_VOTES = 3000
"""More votes than this have the weight of this many, because the logistic model is not exact."""

DRIFT_KERNEL = np.array([0.15, 0.7, 0.15])
"""The convolution that widens the belief between rounds, by about 0.07 octaves."""

UNIFORM_SHARE = 1e-3
"""Share of the belief that is uniform over all norms, so that votes can always correct it."""


@dataclass(frozen=True, eq=False)
class NormBelief:
    """Weights, summing to one, of the candidate medians in LOG2_NORMS. Immutable."""

    weights: Floats

    def __post_init__(self) -> None:
        weights = self.weights
        if (
            not isinstance(weights, np.ndarray)
            or weights.shape != LOG2_NORMS.shape
            or weights.dtype != np.float64
            or not (np.isfinite(weights).all() and (weights >= 0).all())
            or abs(weights.sum() - 1) > 1e-9
        ):
            raise InvalidInput(
                f"a belief must be {LOG2_NORMS.size} float64 weights that sum to one"
            )

    @classmethod
    def from_guess(cls, norm: float, octaves: float) -> "NormBelief":
        """A belief centred at `norm`, with half of its weight within `octaves` octaves."""
        distance = (LOG2_NORMS - math.log2(check_scale("norm", norm))) / check_positive(
            "octaves", octaves
        )
        # The heavy tails of a Cauchy distribution allow a wrong guess to be corrected quickly.
        weights = 1 / (1 + distance**2)
        return cls(weights / weights.sum())

    def quantile(self, share: float) -> float:
        """The norm that the median norm is below with the probability `share`."""
        if not 0 < check_float("share", share) < 1:
            raise InvalidInput(f"share must lie between 0 and 1; got {share!r}")
        cumulative = np.cumsum(self.weights)
        at = int(np.searchsorted(cumulative, share))
        below = cumulative[at] - self.weights[at]
        # Each weight covers an interval about its point, so that the level changes continuously.
        inside = (share - below) / self.weights[at] - 0.5
        return float(2.0 ** (LOG2_NORMS[at] + inside / 8.0))

    def updated(self, level: float, yes: int, users: int, beta: float) -> "NormBelief":
        """The belief after `yes` of `users` answered that their norm is at most `level`."""
        users = check_int("users", users, 1)
        yes = check_int("yes", yes, 0, users)
        distance = math.log2(check_scale("level", level)) - LOG2_NORMS
        below = 1 / (1 + np.exp(-np.clip(distance / np.array(NORM_SPREADS)[:, None], -50, 50)))
        chance = np.clip(0.5 + beta * (below - 0.5), 1e-6, 1 - 1e-6)
        log_likelihood = yes * np.log(chance) + (users - yes) * np.log1p(-chance)
        log_likelihood *= min(1.0, MAX_EFFECTIVE_VOTES / users)
        log_likelihood -= log_likelihood[:, self.weights > 0].max()
        weights = self.weights * np.exp(log_likelihood).mean(axis=0)
        weights = np.convolve(weights / weights.sum(), DRIFT_KERNEL, mode="same")
        weights = (1 - UNIFORM_SHARE) * weights / weights.sum() + UNIFORM_SHARE / LOG2_NORMS.size
        return NormBelief(weights / weights.sum())


VOTE_SHARE = 0.1
"""Share of the budget that is spent on the norm vote.

Against the server it is the share of a message's epsilon, against the model the largest share of
the Rényi divergences.
"""

MIN_VOTE_BETA = 0.8
"""The beta of the norm vote, if enough answers fit into message and budget.

If a share f of the users lies, the level converges to a value between the quantiles
1/2 ± f / (2 (1-f) beta) of the honest norms: for f = 0.3 between 0.23 and 0.77.
"""


@dataclass(frozen=True)
class AutoRequirements:
    """What the mechanism must satisfy: a budget or epsilon per bit, optionally k and bits."""

    dim: int
    users: int
    budget: Budget | None = None
    epsilon_per_bit: float | None = None
    rounds: int | None = None
    honest: float | None = None
    k: int | None = None
    bits_per_weight: float | None = None

    def __post_init__(self) -> None:
        check_int("dim", self.dim, 1)
        check_int("users", self.users, 1)
        if (self.budget is None) == (self.epsilon_per_bit is None):
            raise InvalidInput("give either a budget or epsilon_per_bit")
        if self.budget is None:
            check_positive("epsilon_per_bit", self.epsilon_per_bit, infinite=True)
            if self.rounds is not None or self.honest is not None:
                raise InvalidInput(
                    "epsilon_per_bit does not depend on rounds or honest voters: leave them out"
                )
            return
        check_budget(self.budget).counted_rounds(self.rounds, self.voters)
        if self.per_bit is None and (self.k not in (None, 1) or self.bits_per_weight is not None):
            raise InvalidInput(
                f"a budget per {self.budget.per} determines the number of bits, with k = 1: leave "
                "out k and bits_per_weight"
            )

    @property
    def per_bit(self) -> float | None:
        """Epsilon per bit, if it is prescribed."""
        if self.budget is None:
            return self.epsilon_per_bit
        return self.budget.epsilon if self.budget.per == "bit" else None

    @property
    def voters(self) -> int | None:
        """Voters in each tally whose coins stay secret, if stated."""
        return honest_voters(self.honest, self.users)

    @property
    def clip_kind(self) -> str:
        """What is clipped: "entries", or "norm" for a budget with a positive delta."""
        return "norm" if self.budget is not None and self.budget.delta else "entries"

    @cached_property
    def bits(self) -> NormVote:
        """The mechanism and its norm vote for points at ±1, or for norms up to 1.

        Every round scales it, which changes neither epsilon nor the ratio of clip and radius.
        """
        if self.per_bit is not None:
            return self._prescribed_bits(self.per_bit)
        assert self.budget is not None
        if self.budget.against == "model":
            return self._tally_bits(self.budget)
        return self._clipped_bits(self.budget) if self.budget.delta else self._pure(self.budget)

    def _prescribed_bits(self, per_bit: float) -> NormVote:
        """The mechanism of the planner, and a norm vote with the same epsilon per bit."""
        base = plan(
            self.dim,
            self.users,
            epsilon_per_bit=per_bit,
            radius=1.0,
            k=1 if self.k is None else self.k,
            bits_per_entry=self.bits_per_weight,
        ).best.mechanism
        return NormVote(Rotated(base), 1.0, per_bit, vote_answers(per_bit, base.payload_bits))

    def _pure(self, budget: Budget) -> NormVote:
        """A subset of the bits, with equal shares of a message's epsilon less that of the vote."""
        message = equal_share(budget.epsilon, budget.counted_rounds(self.rounds, None))
        vote = VOTE_SHARE * message
        left = message - vote
        while decimal_fraction(vote) + decimal_fraction(left) > decimal_fraction(message):
            left = math.nextafter(left, 0.0)
        base = calibrate_message(self.dim, left, 0.0, radius=1.0)
        return NormVote(Rotated(base), 1.0, vote)

    def _clipped_bits(self, budget: Budget) -> NormVote:
        """The l2-clipped mechanism that spends the budget with its norm vote; by bisection.

        In a budget per run, each message has an equal share of the run's rho.
        """
        times = budget.counted_rounds(self.rounds, None)
        message = budget.epsilon
        if times > 1:
            message = epsilon_of_zcdp(zcdp_for(message, budget.delta) / times, budget.delta)
        low, high = 0.0, budget.epsilon
        best: NormVote | None = None
        for _ in range(18):
            middle = (low + high) / 2
            rotated = calibrate_message(
                self.dim, middle, budget.delta, messages=times, clip=1.0, rotate=True
            )
            made = NormVote(rotated, 1.0, VOTE_SHARE * message)
            spent = budget.spent(made.guarantee, rounds=self.rounds).epsilon
            if spent <= budget.epsilon * (1 - 1e-9):
                low, best = middle, made
            else:
                high = middle
        if best is None:
            raise InvalidInput(f"{budget} is too small")
        return best

    def _tally_bits(self, budget: Budget) -> NormVote:
        """The l2-clipped mechanism that spends a budget against the model with its norm vote.

        Update and vote have the same epsilon per bit. The number of answers follows from a Gaussian
        approximation, the epsilon per bit from the accountant.
        """
        voters = self.voters
        assert voters is not None
        radius = rotated_radius(self.dim, 1.0)
        square = min(radius**-2, self.dim)
        times = budget.counted_rounds(self.rounds, voters)
        first = gaussian_epsilon_per_bit(budget, times, voters, square / (1 - VOTE_SHARE))
        answers = vote_answers(first, self.dim, square * VOTE_SHARE / (1 - VOTE_SHARE))

        def make(per_bit: float) -> NormVote:
            rotated = Rotated(CPA(self.dim, per_bit, radius, clip=1.0))
            return NormVote(rotated, 1.0, per_bit, answers)

        return calibrate_tally(budget, times, voters, first, make)

    @cached_property
    def guarantee(self) -> Guarantee:
        """The guarantee of every round: scaling the points does not change it."""
        return self.bits.guarantee

    @property
    def base(self) -> Mechanism:
        """The mechanism for points at ±1 (or norms up to 1), without rotation and vote."""
        rotated: Any = self.bits.inner
        return rotated.inner  # type: ignore[no-any-return]

    @cached_property
    def noise(self) -> float:
        """Variance that the bits of one user add to an entry at ratio 1, in units of its rms²."""
        per_entry = self.base.noise_per_user(0.0)
        return per_entry * self.dim if self.clip_kind == "norm" else per_entry

    def mechanism(self, norm: float, ratio: float, level: float) -> NormVote:
        """The mechanism for updates of this norm: points at ±ratio rms, or clip = ratio * norm."""
        base: Any = self.base
        if self.clip_kind == "entries":
            scaled = base.scaled(ratio * norm / math.sqrt(self.dim))
        else:  # a CPA whose clip and radius are scaled together
            size = norm * ratio
            scaled = replace(base, radius=base.radius * size, clip=base.clip * size)
        return NormVote(Rotated(scaled), level, self.bits.epsilon, self.bits.answers)


def vote_answers(per_bit: float, bits: int, square: float = math.inf) -> int:
    """Number of bits of the norm vote: the smallest whose majority has MIN_VOTE_BETA.

    It is at most a fiftieth of the message. The Rényi divergence of a vote with beta is that of
    Gaussian noise, beta² / (1 - beta²); beyond one answer, it is at most `square` times that of a
    single bit.

    >>> vote_answers(0.5, 7850), vote_answers(0.5, 7850, square=9.0)
    (27, 11)
    """
    beta, best = float(RandomizedResponse(per_bit).beta), 1
    for answers in range(1, max(1, min(MAX_ANSWERS, bits // 50)) + 1, 2):
        majority = majority_beta(beta, answers)
        if answers > 1 and majority**2 * (1 - beta**2) > square * beta**2 * (1 - majority**2):
            break
        best = answers
        if majority >= MIN_VOTE_BETA:
            break
    return best


SIZE_SPREAD = 0.6
"""Assumed standard deviation of the log2 norms of users."""

RATIOS = np.geomspace(0.5, 8.0, 81)
"""Candidate ratios; smaller ones, whose bits are nearly signs, gain less than half a decibel."""

_QUADRATURE_NODES, _QUADRATURE_WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
_SIZES = 2.0 ** (SIZE_SPREAD * _QUADRATURE_NODES)
_SIZE_PROBABILITIES = _QUADRATURE_WEIGHTS / _QUADRATURE_WEIGHTS.sum()


@dataclass(frozen=True)
class PointScale:
    """Ratio of the points, gain that corrects for clipping on average, and predicted error."""

    ratio: float
    gain: float
    error: float


def predict_error(
    ratio: float, users: int, noise: float, signal: float, clip_kind: str = "entries"
) -> PointScale:
    """The error of the decoded mean for points at `ratio`, per entry, in units of s²."""
    gain, size_bias = _gain_and_size_bias(check_positive("ratio", ratio), clip_kind)
    if check_float("signal", signal) < 0:
        raise InvalidInput(f"signal must be at least 0; got {signal!r}")
    from_bits = gain**2 * ratio**2 * check_positive("noise", noise) / check_int("users", users, 1)
    return PointScale(float(ratio), gain, from_bits + signal * size_bias)


def best_ratio(users: int, noise: float, signal: float, clip_kind: str = "entries") -> PointScale:
    """The ratio with the smallest predicted error.

    >>> best_ratio(users=10, noise=16.7, signal=0.1).ratio < best_ratio(10**5, 16.7, 0.1).ratio
    True
    """
    gains, size_biases = _gains_and_size_biases(clip_kind)
    each = check_positive("noise", noise) / check_int("users", users, 1)
    errors = (gains * RATIOS) ** 2 * each + check_float("signal", signal) * size_biases
    return predict_error(float(RATIOS[np.argmin(errors)]), users, noise, signal, clip_kind)


@cache
def _gains_and_size_biases(clip_kind: str) -> tuple[Floats, Floats]:
    """The gains and size biases of all RATIOS."""
    gains, size_biases = zip(
        *(_gain_and_size_bias(float(ratio), clip_kind) for ratio in RATIOS), strict=True
    )
    return np.array(gains), np.array(size_biases)


def _gain_and_size_bias(ratio: float, clip_kind: str) -> tuple[float, float]:
    """Gain, and size bias E[t (gain kept(t) - 1)²] / E[t]."""
    kept = _kept_fraction(ratio, clip_kind)
    gain = float(_SIZE_PROBABILITIES @ _SIZES / (_SIZE_PROBABILITIES @ (_SIZES * kept)))
    size_bias = float(
        _SIZE_PROBABILITIES @ (_SIZES * (gain * kept - 1) ** 2) / (_SIZE_PROBABILITIES @ _SIZES)
    )
    return gain, size_bias


def _kept_fraction(ratio: float, clip_kind: str) -> Floats:
    """The fraction kept(t) for all _SIZES."""
    if clip_kind == "norm":
        return np.minimum(1.0, ratio / _SIZES)
    if clip_kind != "entries":
        raise InvalidInput(f"clip_kind must be entries or norm; got {clip_kind!r}")
    return np.array([math.erf(ratio / size / math.sqrt(2)) for size in _SIZES.tolist()])


NORM_QUANTILE = 0.25
"""Quantile of the belief that sets the points: too small costs little, too large adds noise."""

CONVERGED_RATIO = 1.5
"""Ratio of the quartiles of the belief below which the search for the norm has converged."""

MAX_GROWTH, CEILING_DECAY = 2 ** (1 / 8), 0.97
"""After convergence, the norm grows by at most an eighth of an octave a round.

It may always return to the ceiling of earlier rounds, which decays slowly. Without a ceiling, a
sudden increase of the gradients enlarges the points, then the server steps, then the next
gradients, and training diverges.
"""

SEARCH_STEP, FOLLOW_STEP = 2**2.5, 2**0.5
"""Largest factor by which level and norm change in a round: before convergence, and after it."""

INITIAL_SIGNAL = 0.1
SIGNAL_SMOOTHING = 0.7
STATE_SCALARS = ("round", "signal", "ceiling", "level", "norm")


@dataclass(frozen=True, eq=False, repr=False)
class AutoCPA(Wrapper):
    """CPA whose points adapt to the updates; only the requirements have to be given.

    dim              entries of an update
    users            number of users who vote in a round
    budget           what updates and norm votes of a user may reveal together, or
    epsilon_per_bit  epsilon of each bit, as a budget per bit; math.inf is possible
    rounds           rounds of a run; required for a budget per run
    honest           voters in each tally whose coins stay secret, as a number or (a float) as a
                     share of the users; required for a budget against the model
    k                k-anonymity of each block (per bit only)
    bits_per_weight  number of bits for each weight (per bit only)
    first_norm       a public guess of the norm of an update
    first_octaves    the norm is within a factor 2^first_octaves with probability 1/2

    An object is the mechanism of one round; `next_round(tally)` returns that of the next round.
    Private norm votes correct `first_norm`. The estimate is corrected for clipping on average, not
    for every user, so its `unbiased` is False.

    The budget fixes epsilon per bit and the ratio of clip and radius; only the scale follows the
    votes. So every round has the same `guarantee`, and the cost of a run is known beforehand. After
    the `rounds` of a budget per run, `tally` raises BudgetSpent.

    >>> AutoCPA(dim=7850, users=1000, epsilon_per_bit=0.5).payload_bits
    7877
    """

    dim: int
    users: int
    _: KW_ONLY
    budget: Budget | None = None
    epsilon_per_bit: float | None = None
    rounds: int | None = None
    honest: float | None = None
    k: int | None = None
    bits_per_weight: float | None = None
    first_norm: float = 1.0
    first_octaves: float = 1.5
    requirements: AutoRequirements = field(init=False)
    inner: NormVote = field(init=False)
    belief: NormBelief = field(init=False)
    signal: float = field(init=False)
    norm_ceiling: float = field(init=False)
    point_scale: PointScale = field(init=False)
    norm: float = field(init=False)
    round: int = field(init=False)

    def __post_init__(self) -> None:
        names = [one.name for one in fields(AutoRequirements)]
        required = AutoRequirements(**{name: getattr(self, name) for name in names})
        self._set(requirements=required)
        if not 1e-20 <= check_scale("first_norm", self.first_norm) <= 1e10:
            raise InvalidInput(f"first_norm must be from 1e-20 to 1e10; got {self.first_norm!r}")
        belief = NormBelief.from_guess(self.first_norm, self.first_octaves)
        level, norm = belief.quantile(0.5), belief.quantile(NORM_QUANTILE)
        self._set_state(belief, 1, INITIAL_SIGNAL, math.inf, level, norm)

    def _set_state(
        self,
        belief: NormBelief,
        number: int,
        signal: float,
        norm_ceiling: float,
        level: float,
        norm: float,
    ) -> None:
        """Set the state, and the mechanism that it determines."""
        required = self.requirements
        scale = best_ratio(required.users, required.noise, signal, required.clip_kind)
        self._set(belief=belief, round=number, signal=signal, norm_ceiling=norm_ceiling, norm=norm)
        self._set(point_scale=scale, inner=required.mechanism(norm, scale.ratio, level))

    def _copy_with_state(self, belief: NormBelief, number: int, *numbers: float) -> "AutoCPA":
        made = object.__new__(AutoCPA)
        made._set(**{name: getattr(self, name) for name in self.parameters()})
        made._set(requirements=self.requirements)
        made._set_state(belief, number, *numbers)
        return made

    @property
    def description(self) -> dict[str, Any]:
        """The description of the norm vote of this round, which is all that a client needs."""
        return self.inner.description

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of each round, the same in all of them."""
        return self.requirements.guarantee

    def tally(
        self, round_key: RoundKey, histogram: bool = True, require_mac: bool = False
    ) -> Tally:
        """An empty tally of this round; refused after the last round of the budget."""
        if self.rounds is not None and self.round > self.rounds:
            raise BudgetSpent(
                f"the budget ({self.budget}) covers {self.rounds} rounds, and all of them were "
                "used. Start a new run with a budget of its own."
            )
        return super().tally(round_key, histogram, require_mac)

    @property
    def votes(self) -> Votes | None:
        """The votes of the inner mechanism."""
        return self.inner.votes

    def with_clip(self, clip: float | None) -> Mechanism:
        """The mechanism of this round with another l2 clip, or none."""
        return self.inner.with_clip(clip)

    def decode(self, counters: Counters, count: int, round_key: RoundKey) -> Estimate:
        """The mean, multiplied by the gain for the norm that this round's votes indicate."""
        plain = self.inner.decode(counters, count, round_key)
        drift = self._updated_belief(counters, count).quantile(0.5) / self.norm
        # Few votes can be far off, and noise grows with the gain, so the change is limited.
        largest = 4.0 if math.isinf(self.norm_ceiling) else MAX_GROWTH**2
        ratio = self.point_scale.ratio / min(max(drift, 0.25), largest)
        required = self.requirements
        gain = predict_error(
            ratio, required.users, required.noise, self.signal, required.clip_kind
        ).gain
        noise = None if plain.noise is None else plain.noise * gain**2
        return Estimate(
            plain.mean * gain, plain.variance * gain**2, plain.count, unbiased=False, noise=noise
        )

    def next_round(self, tally: Tally) -> "AutoCPA":
        """The mechanism of the next round, given the tally of this round."""
        estimate, belief = self.estimate(tally), self._updated_belief(tally.counters, tally.count)
        noise = float(estimate.variance.mean()) if estimate.noise is None else estimate.noise
        power = max(0.0, float(np.mean(estimate.mean**2)) - noise)
        observed = min(1.0, power * self.dim / belief.quantile(0.5) ** 2)
        signal = SIGNAL_SMOOTHING * self.signal + (1 - SIGNAL_SMOOTHING) * observed
        # The norm of a mean is at most the mean of the norms, so lower values must be wrong.
        certain_power = max(0.0, power - 3 * noise * math.sqrt(2 / self.dim))
        lower_bound = math.sqrt(certain_power * self.dim)
        ceiling = self._next_ceiling()
        level = self._within_step(belief.quantile(0.5), self.inner.level, lower_bound)
        norm = self._within_step(belief.quantile(NORM_QUANTILE), self.norm, lower_bound)
        return self._copy_with_state(
            belief, self.round + 1, signal, ceiling, level, min(norm, ceiling)
        )

    def _within_step(self, target: float, last: float, lower_bound: float) -> float:
        """`target`, limited to one step from `last`, and not lowered below `lower_bound`."""
        step = SEARCH_STEP if math.isinf(self.norm_ceiling) else FOLLOW_STEP
        return min(max(target, last / step, min(last, lower_bound)), last * step)

    def _next_ceiling(self) -> float:
        uncertainty = self.belief.quantile(0.75) / self.belief.quantile(0.25)
        if math.isinf(self.norm_ceiling) and uncertainty > CONVERGED_RATIO:
            return math.inf
        decayed = 0.0 if math.isinf(self.norm_ceiling) else self.norm_ceiling * CEILING_DECAY
        return max(self.norm * MAX_GROWTH, decayed)

    def _updated_belief(self, counters: Counters, count: int) -> NormBelief:
        """The belief after the votes of this round."""
        yes = (count + int(counters[NORM_COUNTER][0])) // 2
        return self.belief.updated(self.inner.level, yes, count, self.inner.beta)

    @property
    def state(self) -> State:
        """Belief, round, signal, ceiling, level and norm as arrays for a checkpoint."""
        numbers = (self.round, self.signal, self.norm_ceiling, self.inner.level, self.norm)
        named = zip(STATE_SCALARS, numbers, strict=True)
        return {"belief": self.belief.weights} | {name: np.array([one]) for name, one in named}

    def with_state(self, state: State) -> "AutoCPA":
        """The mechanism with the same requirements and a state that `state` returned."""
        if not isinstance(state, Mapping) or set(state) != {"belief", *STATE_SCALARS}:
            names = ", ".join(STATE_SCALARS)
            raise InvalidInput(f"a tuning state must hold belief, {names}, as in `state`")
        numbers = [state[name] for name in STATE_SCALARS]
        if not all(
            isinstance(v, np.ndarray) and v.shape == (1,) and v.dtype.kind in "fiu" for v in numbers
        ):
            raise InvalidInput("all but the belief of a tuning state must be arrays of one number")
        number = check_int("round", numbers[0][0], 1)
        signal, ceiling, level, norm = (float(value[0]) for value in numbers[1:])
        if not (0 <= signal <= 1 and ceiling > 0):
            raise InvalidInput(
                f"a tuning state must have a signal from 0 to 1 and a ceiling above 0; "
                f"got {signal!r} and {ceiling!r}"
            )
        lengths = check_scale("level", level), check_scale("norm", norm)
        return self._copy_with_state(NormBelief(state["belief"]), number, signal, ceiling, *lengths)
