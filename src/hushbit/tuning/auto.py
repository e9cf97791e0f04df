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
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from hushbit.checks import (
    Floats,
    check_delta,
    check_float,
    check_int,
    check_positive,
    check_scale,
)
from hushbit.encoding.randomized_response import RandomizedResponse
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism, State, Votes
from hushbit.tally.estimate import Estimate
from hushbit.tally.tally import Counters, Tally
from hushbit.tuning.calibrate import calibrate_message
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
"""Share of a message's epsilon that is spent on the norm vote."""

MIN_VOTE_BETA = 0.8
"""Smallest beta of the norm vote, if enough answers fit into the message.

If a share f of the users lies, the level converges to a value between the quantiles
1/2 ± f / (2 (1-f) beta) of the honest norms: for f = 0.3 between 0.23 and 0.77.
"""


@dataclass(frozen=True)
class AutoRequirements:
    """What the mechanism must satisfy: epsilon per bit or message, optionally k and bits."""

    dim: int
    users: int
    epsilon_per_bit: float | None = None
    epsilon_per_message: float | None = None
    delta: float | None = None
    k: int | None = None
    bits_per_weight: float | None = None

    def __post_init__(self) -> None:
        check_int("dim", self.dim, 1)
        check_int("users", self.users, 1)
        if (self.epsilon_per_bit is None) == (self.epsilon_per_message is None):
            raise InvalidInput("give either epsilon_per_bit or epsilon_per_message")
        if (self.epsilon_per_message is None) != (self.delta is None):
            raise InvalidInput(
                "epsilon_per_message needs delta (0 for pure epsilon; --message-delta on the "
                "command line), and epsilon_per_bit takes none; got epsilon_per_message = "
                f"{self.epsilon_per_message!r}, delta = {self.delta!r}"
            )
        if self.epsilon_per_bit is not None:
            check_positive("epsilon_per_bit", self.epsilon_per_bit, infinite=True)
            return
        check_positive("epsilon_per_message", self.epsilon_per_message)
        check_delta(self.delta)
        if self.k not in (None, 1) or self.bits_per_weight is not None:
            raise InvalidInput(
                "epsilon_per_message determines the number of bits, with k = 1: leave out k and "
                "bits_per_weight"
            )

    @property
    def clip_kind(self) -> str:
        """What is clipped: "entries", or "norm" for a budget with a positive delta."""
        return "norm" if self.delta else "entries"

    @property
    def vote_epsilon(self) -> float:
        """Epsilon of each answer of the norm vote."""
        if self.epsilon_per_bit is not None:
            return self.epsilon_per_bit
        assert self.epsilon_per_message is not None
        return VOTE_SHARE * self.epsilon_per_message

    @cached_property
    def answers(self) -> int:
        """Number of bits of the norm vote: the smallest whose majority has MIN_VOTE_BETA.

        It is at most a fiftieth of the message, and 1 if the budget is per message.
        """
        if self.epsilon_per_bit is None:
            return 1
        odd = range(1, max(1, min(MAX_ANSWERS, self.base.payload_bits // 50)) + 1, 2)
        beta = float(RandomizedResponse(self.vote_epsilon).beta)
        return next((n for n in odd if majority_beta(beta, n) >= MIN_VOTE_BETA), odd[-1])

    @cached_property
    def base(self) -> Mechanism:
        """The mechanism for points at ±1 (or norms up to 1), without the rotation."""
        if self.epsilon_per_bit is not None:
            return plan(
                self.dim,
                self.users,
                epsilon_per_bit=self.epsilon_per_bit,
                radius=1.0,
                k=1 if self.k is None else self.k,
                bits_per_entry=self.bits_per_weight,
            ).best.mechanism
        assert self.epsilon_per_message is not None
        if self.delta == 0:
            remaining = self.epsilon_per_message - self.vote_epsilon
            return calibrate_message(self.dim, remaining, 0.0, radius=1.0)
        return self._clipped_base()

    def _clipped_base(self) -> Mechanism:
        """The l2-clipped mechanism that spends the budget left by the norm vote; by bisection."""
        assert self.epsilon_per_message is not None
        assert self.delta is not None
        low, high = 0.0, self.epsilon_per_message
        best: Mechanism | None = None
        for _ in range(18):
            middle = (low + high) / 2
            rotated: Any = calibrate_message(self.dim, middle, self.delta, clip=1.0, rotate=True)
            guarantee = NormVote(rotated, 1.0, self.vote_epsilon).guarantee
            if guarantee.epsilon_per_message(self.delta) <= self.epsilon_per_message * (1 - 1e-9):
                low, best = middle, rotated.inner
            else:
                high = middle
        if best is None:
            raise InvalidInput(f"epsilon_per_message = {self.epsilon_per_message} is too small")
        return best

    @cached_property
    def noise(self) -> float:
        """Variance that the bits of one user add to an entry at ratio 1, in units of its rms²."""
        per_entry = self.base.noise_per_user(0.0)
        return per_entry * self.dim if self.clip_kind == "norm" else per_entry

    def mechanism(self, norm: float, ratio: float) -> Mechanism:
        """The mechanism for updates of this norm: points at ±ratio rms, or clip = ratio * norm."""
        if self.clip_kind == "entries":
            return Rotated(self.base.scaled(ratio * norm / math.sqrt(self.dim)))
        base: Any = self.base  # a CPA whose clip and radius are scaled together
        size = norm * ratio
        return Rotated(replace(base, radius=base.radius * size, clip=base.clip * size))


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
STATE_SCALARS = ("signal", "ceiling", "level", "norm")


@dataclass(frozen=True, eq=False, repr=False)
class AutoCPA(Wrapper):
    """CPA whose points adapt to the updates; only the requirements have to be given.

    dim                  entries of an update
    users                number of users who vote in a round
    epsilon_per_bit      epsilon of each bit, or
    epsilon_per_message  epsilon of the whole ballot, with `delta` (0 for a pure guarantee)
    k                    k-anonymity of each block
    bits_per_weight      number of bits for each weight
    first_norm           a public guess of the norm of an update
    first_octaves        the norm is within a factor 2^first_octaves with probability 1/2

    An object is the mechanism of one round; `next_round(tally)` returns that of the next round.
    Private norm votes correct `first_norm`. The estimate is corrected for clipping on average, not
    for every user, so its `unbiased` is False.

    >>> AutoCPA(dim=7850, users=1000, epsilon_per_bit=0.5).payload_bits
    7877
    """

    dim: int
    users: int
    _: KW_ONLY
    epsilon_per_bit: float | None = None
    epsilon_per_message: float | None = None
    delta: float | None = None
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

    def __post_init__(self) -> None:
        given = (self.dim, self.users, self.epsilon_per_bit, self.epsilon_per_message, self.delta)
        self._set(requirements=AutoRequirements(*given, self.k, self.bits_per_weight))
        if not 1e-20 <= check_scale("first_norm", self.first_norm) <= 1e10:
            raise InvalidInput(f"first_norm must be from 1e-20 to 1e10; got {self.first_norm!r}")
        belief = NormBelief.from_guess(self.first_norm, self.first_octaves)
        level, norm = belief.quantile(0.5), belief.quantile(NORM_QUANTILE)
        self._set_state(belief, INITIAL_SIGNAL, math.inf, level, norm)

    def _set_state(
        self, belief: NormBelief, signal: float, norm_ceiling: float, level: float, norm: float
    ) -> None:
        """Set the state, and the mechanism that it determines."""
        required = self.requirements
        scale = best_ratio(required.users, required.noise, signal, required.clip_kind)
        bits = required.mechanism(norm, scale.ratio)
        self._set(belief=belief, signal=signal, norm_ceiling=norm_ceiling, norm=norm)
        self._set(point_scale=scale)
        self._set(inner=NormVote(bits, level, required.vote_epsilon, required.answers))

    def _copy_with_state(self, belief: NormBelief, *numbers: float) -> "AutoCPA":
        made = object.__new__(AutoCPA)
        made._set(**{name: getattr(self, name) for name in self.parameters()})
        made._set(requirements=self.requirements)
        made._set_state(belief, *numbers)
        return made

    @property
    def description(self) -> dict[str, Any]:
        """The description of the norm vote of this round, which is all that a client needs."""
        return self.inner.description

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
        return self._copy_with_state(belief, signal, ceiling, level, min(norm, ceiling))

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
        """Belief, signal, ceiling, level and norm as arrays for a checkpoint."""
        numbers = (self.signal, self.norm_ceiling, self.inner.level, self.norm)
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
        signal, ceiling, level, norm = (float(value[0]) for value in numbers)
        if not (0 <= signal <= 1 and ceiling > 0):
            raise InvalidInput(
                f"a tuning state must have a signal from 0 to 1 and a ceiling above 0; "
                f"got {signal!r} and {ceiling!r}"
            )
        lengths = check_scale("level", level), check_scale("norm", norm)
        return self._copy_with_state(NormBelief(state["belief"]), signal, ceiling, *lengths)
