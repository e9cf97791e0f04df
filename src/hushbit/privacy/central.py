"""The guarantee of the tally, against those who see only sums of votes.

Two points ±X, private stochastic rounding and randomized response make the vote of an entry x a +
with probability (1 + beta x/X) / 2. In the sum of the votes of H honest users, the coins of all of
them hide the vote of one. With S = Σ (p_i - q_i)² over the entries of one user's message, one tally
satisfies Rényi differential privacy of every order α with

    D_α <= c_α S,   c_α = sup D_α(P‖Q) / (p - q)²

over all places p, q of the target's vote and all votes of the others. Three facts make c_α a finite
computation (the proofs are in docs/privacy.md):

- D_α is largest if every other user votes + with probability a or b = 1 - a, a = 1/(1 + e^epsilon),
  and the target moves away from a. So H splits of the others decide.
- An additional voter never helps the observer. A cell of splits is therefore bounded by the split
  that has the fewest voters of each kind.
- (e^((α-1)D) - 1) / step² is convex in the step p - q for orders outside (2, 3). Between two steps
  the larger of its two values bounds it.

Orders add up over rounds, also if every round is chosen with knowledge of earlier tallies.

The conversion of Rényi orders to (epsilon, delta) loses 6 to 10 % of an epsilon near 1, and more of
a smaller one. A second bound, by Gaussian differential privacy, has no such loss: no test on a
coordinate gains power faster than a test on a Gaussian that moves by kappa standard deviations per
unit of p (`tally_slope`), and Gaussians compose exactly. It is smaller for many voters and a small
epsilon per bit. The smaller of both bounds is used with accountant="tightest".

Where a trusted server adds Gaussian noise to the sum instead (`GaussianSum`), the conversion is
exact (`hushbit.privacy.gaussian`).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hushbit.checks import Floats, check_choice, check_delta, check_float, check_int
from hushbit.errors import InvalidInput
from hushbit.kernels.threads import parallel_for
from hushbit.kernels.vote_sum_slopes import vote_sum_slope
from hushbit.kernels.vote_sums import vote_sum_excess, vote_sum_law
from hushbit.privacy.accountant import ACCOUNTANTS, Bound
from hushbit.privacy.gaussian import epsilon_of_gaussian

ORDERS: tuple[float, ...] = (
    *(1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0),
    *(10.0, 11.0, 12.0, 13.0, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0, 28.0, 32.0, 40.0, 48.0, 64.0),
    *(80.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0, 2048.0, 4096.0),
)
"""Rényi orders; none lies inside (2, 3), where the bound between two steps is not proved."""

WHOLE_ORDERS = tuple(float(order) for order in range(2, 65))
"""The orders of the bound for sampled users, which needs all whole numbers from 2 on."""

MAX_EXPONENT = 100.0
"""Largest order · epsilon: beyond it, what the windows of the kernel leave out may count."""

MAX_HONEST, MAX_ROUNDS = 10**6, 2**53
"""More honest voters count as this many: a further voter never helps the observer."""

MAX_EPSILON = 30.0
"""Beyond it, beta is too close to one for float64, and the local bound is as good."""

CELLS, FEW_CELLS = 128, 48
"""Cells of splits for up to MANY_VOTERS voters, and for more of them."""

MANY_VOTERS = 10**4

FINER_GRIDS = (2 * CELLS + 1, MANY_VOTERS)
"""The last numbers of voters before the cells become coarser."""

FIRST_STEPS, ADDED_STEPS, TOLERANCE = 8, 24, 1e-3
"""Steps at which the divergence of every order is computed first, the most that are added, and the
relative uncertainty of c_α at which no more are added."""

SUBSTEPS = 64
"""Parts of the interval between two steps, in which a chord bounds the excess."""

MAX_SLOPE_EPSILON = 12.0
"""Beyond it, the recurrence of the slopes loses digits, and Rényi orders give smaller bounds."""

SLOPE_SLACK = 1e-6
"""Relative margin for the rounding of slopes."""

TAIL_SHARE = 0.01
"""Share of delta that pays for counts that a slope leaves out."""

OUTSIDE = 1e-55
"""Upper bound of the probability outside the windows of the kernel."""


@dataclass(frozen=True, eq=False)
class TallyCurve:
    """Rényi divergences of one coordinate of a tally, for each order.

    per_square  c_α: the divergence is at most c_α (p - q)²
    largest     g_α: the largest divergence, for |p - q| = beta
    """

    orders: Floats
    per_square: Floats
    largest: Floats


@lru_cache(maxsize=4096)
def tally_curve(
    honest: int, epsilon: float, orders: tuple[float, ...] = ORDERS, cells: int | None = None
) -> TallyCurve:
    """The curve of a tally with `honest` voters, the target included, whose coins stay secret.

    Orders at which the bound is not proved for this epsilon have an infinite divergence.
    """
    values = np.array(orders, dtype=np.float64)
    per_square, largest = np.full((2, values.size), math.inf)
    if epsilon > MAX_EPSILON:
        return TallyCurve(values, per_square, largest)
    flip, beta = 1 / (1 + math.exp(epsilon)), math.tanh(epsilon / 2)
    usual = CELLS if honest <= MANY_VOTERS else FEW_CELLS
    laws = _laws(honest - 1, flip, usual if cells is None else cells)

    def run(first: int, last: int) -> None:
        for number in range(first, last):
            order = float(values[number])
            if order * epsilon <= MAX_EXPONENT:
                excess = _ExcessOfOrder(laws, order, epsilon, flip)
                per_square[number] = excess.largest_ratio(beta)
                largest[number] = math.log1p(beta**2 * excess(beta)) / (order - 1)

    parallel_for(run, values.size)
    for fewer in FINER_GRIDS:
        # An additional voter never helps, so the finer bound for a few voters less holds as well.
        if cells is None and fewer < honest < 1.05 * fewer:
            finer = tally_curve(fewer, epsilon, orders)
            per_square = np.minimum(per_square, finer.per_square)
            largest = np.minimum(largest, finer.largest)
    return TallyCurve(values, per_square, largest)


def splits(others: int, cells: int) -> list[tuple[int, int]]:
    """Numbers of others that vote + with probability b and a; each bounds a cell of splits."""
    if others <= 2 * cells:
        return [(plus, others - plus) for plus in range(others + 1)]
    return [
        (cell * others // cells, others - (cell + 1) * others // cells) for cell in range(cells)
    ]


def symmetric_splits(others: int, cells: int) -> list[tuple[int, int]]:
    """As `splits`, with cells that remain the same if + and - votes are exchanged."""
    if others <= 2 * cells:
        return splits(others, cells)
    return [(cell * others // cells, (cells - 1 - cell) * others // cells) for cell in range(cells)]


def _laws(others: int, flip: float, cells: int) -> list[tuple[Floats, Floats]]:
    """The laws of the sum for all splits of the other voters."""
    tried = splits(others, cells)
    laws: list[Any] = [None] * len(tried)

    def run(first: int, last: int) -> None:
        for number in range(first, last):
            laws[number] = vote_sum_law(*tried[number], flip)

    parallel_for(run, len(tried))
    return laws


class _ExcessOfOrder:
    """J of one order: an upper bound over all splits, with what the windows leave out."""

    def __init__(
        self, laws: list[tuple[Floats, Floats]], order: float, epsilon: float, flip: float
    ) -> None:
        self.laws, self.order, self.epsilon, self.flip = laws, order, epsilon, flip

    def __call__(self, step: float) -> float:
        """J at one step."""
        found = max(vote_sum_excess(*law, self.order, step) for law in self.laws)
        if step == 0:
            outside = self.order**2 / self.flip**2 * math.exp((self.order + 1) * self.epsilon)
        else:
            outside = math.exp(self.order * self.epsilon) / step**2
        return float(found + OUTSIDE * outside)

    def largest_ratio(self, beta: float) -> float:
        """c of this order: an upper bound of D / step² for all steps up to beta."""
        steps = [beta * place / FIRST_STEPS for place in range(FIRST_STEPS + 1)]
        excess = [self(step) for step in steps]
        for _ in range(ADDED_STEPS):
            bounds = interval_bounds(self.order, np.array(steps), np.array(excess))
            attained = max(
                math.log1p(s**2 * j) / s**2 if s else j for s, j in zip(steps, excess, strict=True)
            )
            worst = int(bounds.argmax())
            if bounds[worst] * (self.order - 1) <= (1 + TOLERANCE) * attained:
                break
            middle = (steps[worst] + steps[worst + 1]) / 2
            steps.insert(worst + 1, middle)
            excess.insert(worst + 1, self(middle))
        return float(interval_bounds(self.order, np.array(steps), np.array(excess)).max())


def interval_bounds(order: float, steps: Floats, excess: Floats) -> Floats:
    """Upper bounds of D / step² between neighbouring steps.

    J is convex, so its chord bounds it. On each part of an interval, ln(1 + s² J) / s² is at most
    its value at the lower end with the larger J of both ends, because it falls with s.
    """
    parts = np.linspace(0.0, 1.0, SUBSTEPS + 1)
    at = steps[:-1, None] + parts * np.diff(steps)[:, None]
    chord = excess[:-1, None] + parts * np.diff(excess)[:, None]
    low, most = at[:, :-1], np.maximum(chord[:, :-1], chord[:, 1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.where(low > 0, np.log1p(low**2 * most) / low**2, most)
    return np.asarray(bounds.max(axis=1) / (order - 1))


@lru_cache(maxsize=4096)
def tally_slope(honest: int, epsilon: float, digits: int) -> float:
    """kappa: one coordinate is no easier to test than a Gaussian that moves by kappa |p - q|.

    Thresholds that the count reaches, or misses, with a probability of at most 10^-digits are left
    out. Whoever uses kappa adds 2 · 10^-digits for each coordinate to delta. The proof is in
    docs/privacy.md.
    """
    if epsilon > MAX_SLOPE_EPSILON:
        return math.inf
    flip, rare = 1 / (1 + math.exp(epsilon)), -digits * math.log(10)
    tried = symmetric_splits(honest - 1, CELLS if honest <= MANY_VOTERS else FEW_CELLS)
    found = np.zeros(len(tried))

    def run(first: int, last: int) -> None:
        for number in range(first, last):
            found[number] = vote_sum_slope(*tried[number], flip, rare)

    parallel_for(run, len(tried))
    slope = float(found.max()) * (1 + SLOPE_SLACK)
    for fewer in FINER_GRIDS:
        if fewer < honest < 1.05 * fewer:
            slope = min(slope, tally_slope(fewer, epsilon, digits))
    return slope


RELATIONS = ("replace", "zero-out")
COIN_STEP = 2.0**-31
CLIP_SLACK = 3e-6
"""Twice the resolution of a coin, and the relative excess of S by rounding of the clip."""


@dataclass(frozen=True)
class VoteSums:
    """The votes of one message as far as the tally counts them: one coordinate for each entry.

    epsilon        of the randomized response of a vote
    votes          number of coordinates
    clip_ratio     l2 clip divided by X, for points ±X and private stochastic rounding, else None
    private_zero   whether the votes of the zero update are fair coins
    extra          epsilon of further votes, one coordinate each, that no clip bounds
    """

    epsilon: float
    votes: int
    clip_ratio: float | None
    private_zero: bool
    extra: tuple[float, ...] = ()

    def square(self, relation: str) -> float:
        """The largest Σ (p - q)² over the coordinates that the clip bounds."""
        half = relation == "zero-out" and self.private_zero
        # |p - q| is at most beta in every coordinate, and at most beta / 2 from a fair coin.
        beta = math.tanh(self.epsilon / 2) * (0.5 if half else 1.0)
        most = self.votes * beta**2
        if self.clip_ratio is None:
            return most
        length = beta * self.clip_ratio + math.sqrt(self.votes) * COIN_STEP
        return min(most, length**2 * (1 + CLIP_SLACK))

    def divergences(self, honest: int, relation: str, orders: tuple[float, ...]) -> Floats:
        """Rényi divergences of one tally with so many honest voters, for each order."""
        honest = min(honest, MAX_HONEST)
        curve = tally_curve(honest, self.epsilon, orders)
        found = np.minimum(curve.per_square * self.square(relation), self.votes * curve.largest)
        for epsilon in self.extra:
            found = found + tally_curve(honest, epsilon, orders).largest
        return found

    def gaussian_square(self, honest: int, relation: str, digits: int) -> float:
        """mu² of the Gaussian that is at least as easy to test as one tally (`tally_slope`)."""
        honest = min(honest, MAX_HONEST)
        found = tally_slope(honest, self.epsilon, digits) ** 2 * self.square(relation)
        for epsilon in self.extra:
            found += (tally_slope(honest, epsilon, digits) * math.tanh(epsilon / 2)) ** 2
        return found


@dataclass(frozen=True)
class GaussianSum:
    """A sum of clipped updates that a trusted server releases with Gaussian noise.

    multiplier  standard deviation of the noise, divided by the l2 clip
    log_error   the computed probability of every output differs from the exact one by a factor of
                at most e^log_error

    The noise does not depend on the users, so the number of honest ones does not matter.
    """

    multiplier: float
    log_error: float = 0.0

    def distance(self, relation: str) -> float:
        """Largest distance of two sums in standard deviations: twice the clip, or the clip."""
        return (2.0 if relation == "replace" else 1.0) / self.multiplier

    def divergences(self, honest: int, relation: str, orders: tuple[float, ...]) -> Floats:
        """Rényi divergences of one release, for each order."""
        order = np.array(orders)
        error = self.log_error * (2 * order - 1) / (order - 1)
        return np.asarray(order * self.distance(relation) ** 2 / 2 + error)


@dataclass(frozen=True)
class TallyRelease:
    """The tallies of `rounds` rounds that somebody sees.

    honest    voters in each tally, the target included, whose coins stay secret
    relation  "replace": one user's update changes arbitrarily; "zero-out": it becomes zero
    sampled   share of the candidates that a trusted server draws for each tally, in secret and
              without replacement; None if the observer knows who takes part
    """

    sums: VoteSums | GaussianSum
    honest: int
    rounds: int = 1
    relation: str = "replace"
    sampled: float | None = None

    def __post_init__(self) -> None:
        check_int("honest", self.honest, 1)
        check_int("rounds", self.rounds, 0, MAX_ROUNDS)
        check_choice("relation", self.relation, RELATIONS)
        if self.sampled is None:
            return
        if not 0 < check_float("participation", self.sampled) <= 1:
            raise InvalidInput(
                f"participation must be a share above 0 and at most 1; got {self.sampled!r}"
            )
        if self.relation != "replace":
            raise InvalidInput("the bound for sampled users is proved for relation 'replace' only")

    def divergences(self, orders: tuple[float, ...]) -> Floats:
        """Rényi divergences of all rounds together, for each order."""
        one = self.sums.divergences(self.honest, self.relation, orders)
        if self.sampled is not None and orders == WHOLE_ORDERS:
            one = np.minimum(one, _sampled_divergences(one, self.sampled))
        return self.rounds * one


def _sampled_divergences(divergences: Floats, share: float) -> Floats:
    """The bound of Wang, Balle, Kasiviswanathan 2019, theorem 9, for the orders 2, 3, 4, …"""
    orders = np.array(WHOLE_ORDERS)
    second = float(divergences[0])
    first = math.log(2) + second  # the smaller one of two rules if second >= ln 2
    if second < math.log(2):
        first = math.log(4) + math.log(math.expm1(second))
    powers = math.log(2) + orders * math.log(share) + (orders - 1) * divergences
    powers[0] = 2 * math.log(share) + first
    logs = np.array([[_log_choose(a, j) for j in orders] for a in orders])
    terms = logs + np.where(orders <= orders[:, None], powers, -math.inf)
    return np.asarray(np.logaddexp(0.0, np.logaddexp.reduce(terms, axis=1)) / (orders - 1))


def _log_choose(total: float, part: float) -> float:
    return -math.inf if part > total else math.log(math.comb(int(total), int(part)))


def bound_of_tallies(
    releases: Iterable[TallyRelease], delta: float, accountant: str = "renyi"
) -> Bound:
    """(epsilon, delta) of one user against somebody who sees these tallies and nothing else.

    Rounds may be chosen with knowledge of earlier tallies. Inputs of users may depend on the past
    only through tallies: error feedback and other state from a user's own ballots void the bound.
    `accountant` is "renyi", the bound by Rényi orders, or "tightest", the smaller one of that bound
    and of the bound by Gaussian differential privacy.
    """
    delta = check_delta(delta, zero=False)
    check_choice("accountant", accountant, ACCOUNTANTS)
    listed = [release for release in releases if release.rounds]
    if not listed:
        return Bound(0.0, delta, "nothing was released")
    if all(isinstance(one.sums, GaussianSum) and one.sampled is None for one in listed):
        return Bound(_epsilon_of_gaussians(listed, delta), delta, "Gaussian noise, exact")
    grids = [ORDERS]
    if any(release.sampled is not None for release in listed):
        grids.append(WHOLE_ORDERS)
    found = math.inf
    for orders in grids:
        total = sum((one.divergences(orders) for one in listed), np.zeros(len(orders)))
        found = min(found, epsilon_of_orders(np.array(orders), total, delta))
    gaussian = _epsilon_by_slopes(listed, delta) if accountant == "tightest" else math.inf
    if gaussian < found:
        return Bound(gaussian, delta, "sums of votes, Gaussian DP")
    return Bound(found, delta, "sums of votes, Renyi orders")


def _epsilon_by_slopes(releases: list[TallyRelease], delta: float) -> float:
    """Epsilon by Gaussian differential privacy; infinite for releases without that bound."""
    coordinates = 0
    for one in releases:
        if isinstance(one.sums, GaussianSum) or one.sampled is not None:
            return math.inf
        coordinates += one.rounds * (one.sums.votes + len(one.sums.extra))
    digits = math.ceil(math.log10(2 * max(coordinates, 1) / TAIL_SHARE) - math.log10(delta))
    square = sum(
        one.rounds * one.sums.gaussian_square(one.honest, one.relation, digits)
        for one in releases
        if isinstance(one.sums, VoteSums)
    )
    return epsilon_of_gaussian(math.sqrt(square), delta - 2 * coordinates * 10.0**-digits)


def _epsilon_of_gaussians(releases: list[TallyRelease], delta: float) -> float:
    """The exact epsilon of the noise, with the error of computed probabilities on both sides."""
    square, error = 0.0, 0.0
    for one in releases:
        assert isinstance(one.sums, GaussianSum)
        square += one.rounds * one.sums.distance(one.relation) ** 2
        error += one.rounds * one.sums.log_error
    return epsilon_of_gaussian(math.sqrt(square), delta * math.exp(-error)) + 2 * error


def epsilon_of_orders(orders: Floats, divergences: Floats, delta: float) -> float:
    """The smallest epsilon at delta of all orders (Canonne, Kamath, Steinke 2020), at least 0."""
    bounds = divergences + np.log1p(-1 / orders) - np.log(orders * delta) / (orders - 1)
    return max(0.0, float(bounds.min()))
