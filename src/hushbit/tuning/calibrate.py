"""From a budget to the mechanism that spends it."""

import math
from collections.abc import Callable
from typing import TypeVar

from hushbit.baselines.gaussian import NOISE_LIMITS, Gaussian
from hushbit.budget import Budget, check_budget, honest_voters
from hushbit.checks import check_delta, check_int, check_positive, check_scale
from hushbit.cpa import CPA
from hushbit.encoding.clip_and_rotate import MAX_BLOCK
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism
from hushbit.privacy.composition import decimal_fraction, epsilon_per_bit_for
from hushbit.privacy.renyi import epsilon_of_zcdp, zcdp_of_two_points
from hushbit.wrappers import Rotated, Subset

MAX_EPSILON_PER_BIT = 64.0
"""Coins of 32 bits cannot distinguish a larger epsilon per bit from this one."""

MAX_TALLY_EPSILON = 8.0
"""A larger epsilon per bit hardly lowers the variance, and costs more against the server."""

TALLY_TOLERANCE, TALLY_TRIALS, RATIO_TRIALS = 1e-3, 24, 6
"""Share of a budget against the model that may remain unspent; most trials; trials by ratio."""

Made = TypeVar("Made", bound=Mechanism)

CLIP_PROBABILITY = 1e-4
"""Bound on the probability that the default radius clips an entry of a rotated update.

For entries that are close to Gaussian, as those of long updates, one in 100 000 is clipped, by a
fifth of a standard deviation on average: far below the noise. A radius that clips nothing would be
1.5 times as large and would need a larger epsilon per bit for the same noise, which costs more
against the server and, for the tally, up to 5 % more noise."""


def best_subset(epsilon: float) -> int:
    """Number of blocks to report under a pure budget: the s that minimises 1/(s tanh^2(eps/2s)).

    The function is unimodal in s with its minimum near epsilon / 2.177, so four candidates suffice;
    ties go to the smaller s, which sends fewer bits.

    >>> [best_subset(epsilon) for epsilon in (0.5, 1, 2, 4, 8, 16)]
    [1, 1, 1, 2, 4, 7]
    """
    epsilon = check_positive("epsilon", epsilon)
    near = int(epsilon / 2.177)
    candidates = range(max(1, near - 1), near + 3)
    return min(candidates, key=lambda s: 1 / (s * math.tanh(epsilon / (2 * s)) ** 2))


def calibrate(
    dim: int,
    budget: Budget,
    *,
    users: int | None = None,
    rounds: int | None = None,
    honest: float | None = None,
    clip: float | None = None,
    radius: float | None = None,
    rotate: bool = True,
) -> Mechanism:
    """The mechanism with the least variance whose cost is within the budget.

    users   number of users, if `honest` is a share of them
    rounds  rounds of a run, at least 1; required for a budget per run
    honest  voters in each tally whose coins stay secret, as a number or (a float) as a share of the
            users: 1 is one voter, 1.0 all users; required for a budget against the model
    clip    l2 norm to which updates are scaled down; required where delta is above 0
    radius  distance of the points from zero; entries beyond it are clipped. The default clips no
            entry, or with `rotate` each entry with probability below 1e-4
    rotate  rotate updates first, so that their entries are alike and the radius can be small

    A pure budget for a message or a run is spent on few bits of each user (`Subset`). Epsilon per
    bit is at most 64, and at most 8 against the model: more hardly lowers the variance. A budget
    against the model takes some seconds.

    >>> budget = Budget(4, 0.0, per="message", against="server")
    >>> calibrate(7850, budget, radius=0.05, rotate=False).guarantee.epsilon_per_message()
    4.0
    """
    voters = honest_voters(honest, users)
    times = check_budget(budget).counted_rounds(rounds, voters)
    if budget.against == "server" and budget.per != "bit":
        total, delta = budget.epsilon, budget.delta
        options = {"clip": clip, "radius": radius, "rotate": rotate}
        return calibrate_message(dim, total, delta, messages=times, **options)  # type: ignore[arg-type]
    clip, radius = _lengths(dim, clip, radius, rotate)
    if voters is None:
        made = CPA(dim, budget.epsilon, radius, clip=clip)
    else:
        square = dim if clip is None else min((clip / radius) ** 2, dim)
        first = gaussian_epsilon_per_bit(budget, times, voters, square)
        made = calibrate_tally(
            budget, times, voters, first, lambda per_bit: CPA(dim, per_bit, radius, clip=clip)
        )
    return Rotated(made) if rotate else made


def calibrate_gaussian(
    dim: int, budget: Budget, *, clip: float, rounds: int | None = None
) -> Gaussian:
    """The Gaussian mechanism with the least noise within a budget against the model.

    A trusted server adds the noise to the sum of updates clipped to l2 norm `clip`, so the noise
    depends neither on the number of users nor on that of honest voters. `rounds` is required for a
    budget per run.

    >>> budget = Budget(4, 1e-5, per="run", against="model")
    >>> round(calibrate_gaussian(10, budget, clip=1.0, rounds=60).noise_multiplier, 2)
    16.75
    """
    if check_budget(budget).against == "server":
        raise InvalidInput(
            "the Gaussian mechanism has no guarantee against the server: set against='model'"
        )
    times = budget.counted_rounds(rounds, 1)

    def spent(multiplier: float) -> float:
        guarantee = Gaussian(dim, multiplier, clip).guarantee
        return budget.spent(guarantee, rounds=times, honest=1).epsilon

    low, high = NOISE_LIMITS
    if spent(high) > budget.epsilon:
        raise InvalidInput(f"{budget} is too small for {times} rounds of {dim} entries")
    while high - low > 1e-9 * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= budget.epsilon else (middle, high)
    return Gaussian(dim, high, clip)


def calibrate_message(
    dim: int,
    epsilon: float,
    delta: float,
    *,
    messages: int = 1,
    clip: float | None = None,
    radius: float | None = None,
    rotate: bool = False,
) -> Mechanism:
    """A mechanism of which so many messages are (epsilon, delta)-private; delta = 0 is pure.

    delta = 0   every user reports `best_subset` blocks, chosen by its key, and each bit gets an
                equal share of epsilon.
    delta > 0   every update is scaled down to l2 norm `clip` (required) and every entry is rounded
                to ±radius; rho = epsilon_per_bit² / 2 · (clip / radius)² for each message.
    """
    dim, total = check_int("dim", dim, 1), check_positive("epsilon", epsilon)
    delta, messages = check_delta(delta), check_int("messages", messages, 1)
    clip, radius = _lengths(dim, clip, radius, rotate)
    made: Mechanism
    if delta == 0:
        report = min(best_subset(total / messages), dim)
        share = equal_share(total, report * messages)
        made = Subset(CPA(dim, share, radius, clip=clip), report)
    elif clip is None:
        raise InvalidInput("an (epsilon, delta) budget needs an l2 clip: pass clip=...")
    else:
        per_bit = _clipped_per_bit(dim, total, delta, messages, clip / radius)
        made = CPA(dim, per_bit, radius, clip=clip)
    return Rotated(made) if rotate else made


def _lengths(
    dim: int, clip: float | None, radius: float | None, rotate: bool
) -> tuple[float | None, float]:
    """Clip and radius, checked; the radius has a default where there is a clip."""
    if not isinstance(rotate, bool):
        raise InvalidInput(f"rotate must be True or False; got {rotate!r}")
    clip = None if clip is None else check_scale("clip", clip)
    if radius is not None:
        return clip, check_scale("radius", radius)
    if clip is None:
        raise InvalidInput("calibrate needs a radius for the entries or an l2 clip for the update")
    return clip, rotated_radius(dim, clip) if rotate else clip


def gaussian_epsilon_per_bit(budget: Budget, rounds: int, honest: int, square: float) -> float:
    """Epsilon per bit at which Gaussian noise of the variance of the votes spends the budget.

    `square` is the largest |p - q|² / beta² of a message, (clip / radius)². For many voters the
    result is within a few percent of what `calibrate_tally` finds.
    """
    rho = zcdp_for(budget.epsilon, budget.delta)
    odds = rho * honest / (2 * rounds * square)  # beta² / (1 - beta²)
    return min(MAX_TALLY_EPSILON, 2 * math.atanh(min(math.sqrt(odds / (1 + odds)), 1 - 1e-12)))


def zcdp_for(epsilon: float, delta: float) -> float:
    """The largest rho up to epsilon that `epsilon_of_zcdp` bounds by epsilon."""
    return _largest(lambda rho: epsilon_of_zcdp(rho, delta), epsilon, epsilon)


def calibrate_tally(
    budget: Budget, rounds: int, honest: int, first: float, make: Callable[[float], Made]
) -> Made:
    """make(epsilon per bit) for the largest epsilon whose `rounds` tallies are within the budget.

    The search begins at `first` and scales epsilon by the ratio of the budget to what is spent,
    because each trial takes about a second. With few voters the cost grows faster than epsilon, so
    this step overshoots. After RATIO_TRIALS trials the search bisects between the largest epsilon
    within the budget and the smallest one beyond it.
    """
    times = rounds if budget.per == "run" else None
    tried, low, high = first, 0.0, math.inf
    for trial in range(TALLY_TRIALS):
        spent = budget.spent(make(tried).guarantee, rounds=times, honest=honest).epsilon
        if spent <= budget.epsilon:
            low = tried
            if spent >= (1 - TALLY_TOLERANCE) * budget.epsilon or tried >= MAX_TALLY_EPSILON:
                break
        else:
            high = tried
        aim = (1 - TALLY_TOLERANCE / 2) * budget.epsilon
        aimed = tried * aim / spent if spent else math.inf
        inside = low < aimed < high and trial < RATIO_TRIALS
        tried = min(MAX_TALLY_EPSILON, aimed if inside else (low + min(high, 2 * tried)) / 2)
    if low == 0:
        raise InvalidInput(f"{budget} is too small for {rounds} rounds of {honest} honest voters")
    return make(low)


def rotated_radius(dim: int, clip: float) -> float:
    """A bound that an entry of a rotated update exceeds with probability below 1e-4.

    An entry is a sum of random signs with variance <= clip² / B, B the largest power of two up to
    dim (at most 8192), so P[beyond t clip / sqrt(B)] <= 2 e^(-t²/2). Never above clip.
    """
    rows = min(MAX_BLOCK, 1 << (check_int("dim", dim, 1).bit_length() - 1))
    reach = math.sqrt(2 * math.log(2 / CLIP_PROBABILITY) / rows)
    return check_scale("clip", clip) * min(1.0, reach)


def equal_share(total: float, bits: int) -> float:
    """total / bits, rounded so that the accountant's exact sum over `bits` bits is within total."""
    share = total / bits
    while decimal_fraction(share) * bits > decimal_fraction(total):
        share = math.nextafter(share, 0.0)
    return share


def _clipped_per_bit(dim: int, total: float, delta: float, messages: int, ratio: float) -> float:
    """The largest epsilon per bit for which zCDP or exact composition proves at most `total`.

    Each rule increases with the epsilon per bit, so the largest value that the smaller of the two
    bounds allows is the larger of the values that each allows. Exact composition of all bits is
    never above the pure sum. `ratio` is the clip divided by the radius.
    """

    def cost(per_bit: float) -> float:
        return epsilon_of_zcdp(messages * zcdp_of_two_points(per_bit, ratio, 1.0), delta)

    by_norm = _largest(cost, total, MAX_EPSILON_PER_BIT)
    by_bits = epsilon_per_bit_for(total, dim * messages, delta)
    return min(MAX_EPSILON_PER_BIT, max(by_norm, by_bits))


def _largest(cost: Callable[[float], float], total: float, most: float) -> float:
    """The largest argument up to `most` that costs at most `total`, by bisection."""
    if cost(most) <= total:
        return most
    low, high = 0.0, most
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if cost(middle) <= total else (low, middle)
    return low
