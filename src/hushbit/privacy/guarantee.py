"""What a ballot guarantees its user, in three units: per bit, per message, per run.

A run counts the rounds in which one user takes part. No amplification by sampling is claimed: a
server that picks users sees who sends.
"""

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from hushbit.checks import whole
from hushbit.errors import InvalidInput
from hushbit.privacy.anonymity import k_per_block, survivors
from hushbit.privacy.arguments import MOST_BITS, failure_probability
from hushbit.privacy.bits import epsilon_of
from hushbit.privacy.composition import Bound, smallest
from hushbit.privacy.cost import Cost
from hushbit.privacy.intervals import log_tail
from hushbit.privacy.mixed import epsilon_of_mixed
from hushbit.privacy.renyi import epsilon_of_renyi
from hushbit.privacy.zcdp import epsilon_of_zcdp

DELTA = 1e-5
SHOWN_ROUNDS = 100
QUICK_BITS = 20_000
"""Above so many bits a one-line display bounds them by Renyi orders instead of exactly."""

Groups = tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class Level:
    """One line of a report: which unit, its epsilon and delta, and what proves them."""

    unit: str
    epsilon: float
    delta: float
    proof: str

    def row(self) -> dict[str, Any]:
        """The figures as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Guarantee:
    """Local differential privacy of one ballot against everyone who sees it and the keys.

    `groups` lists (epsilon, how many): bits of randomized response, or whatever `unit` names
    (an entry, a block) with pure local privacy of that level. `rho`, if given, is a zCDP level
    of the whole message. `k_anonymity` is the least number of points that fit a block's noiseless
    bits, `points` the size of each stage if known; k holds for one round without a prior and
    decays over rounds, so it is no substitute.
    """

    groups: Groups
    dim: int
    message_bits: int
    k_anonymity: int
    rho: float | None = None
    unit: str = "bit"
    note: str = ""
    points: tuple[int, ...] = ()

    @property
    def epsilon_per_bit(self) -> float:
        """The largest pure epsilon of one bit (or of one `unit`)."""
        return max(epsilon for epsilon, _ in self.groups)

    @property
    def bits_per_entry(self) -> float:
        """Payload bits for each entry of the update."""
        return self.message_bits / self.dim

    @property
    def cost(self) -> Cost:
        """What a ledger charges for one ballot."""
        finite = self.rho is not None and math.isfinite(self.rho)
        return Cost(self.groups, self.rho if finite else None)

    def epsilon_per_message(self, delta: float = 0.0) -> float:
        """The smallest proven epsilon of a whole ballot at this delta; pure for delta = 0."""
        return self.bound(1, delta).epsilon

    def epsilon_per_run(
        self, rounds: int, delta: float = 0.0, participation: float | None = None
    ) -> float:
        """The smallest proven epsilon of a run; see `run_bound`."""
        return self.run_bound(rounds, delta, participation).epsilon

    def bound(self, rounds: int = 1, delta: float = 0.0) -> Bound:
        """The smallest valid bound for rounds taken part in, and the rule that proves it."""
        return self._bound(rounds, delta, exact=True)

    def run_bound(
        self, rounds: int, delta: float = 0.0, participation: float | None = None
    ) -> Bound:
        """The bound for one user in a run of `rounds` rounds.

        `participation` says in how many rounds the user takes part: a whole number, or None for
        all. A float is the probability of taking part, drawn afresh each round and independent of
        data. An expected number is no guarantee, so half of delta then pays for the event of
        taking part more often than counted; with delta = 0 every round counts.
        """
        times, left, chance = rounds_counted(rounds, delta, participation)
        found = self.bound(times, left)
        if not chance:
            return found
        method = f"{found.method}; more than {times} rounds with probability <= {chance:.2g}"
        return smallest([self.bound(rounds, delta), Bound(found.epsilon, delta, method)], delta)

    def _bound(self, rounds: int, delta: float, exact: bool) -> Bound:
        times = whole("rounds", rounds, 0)
        delta = failure_probability(delta)
        if times == 0:
            return Bound(0.0, 0.0, "nothing was sent")
        pure = math.fsum(epsilon * count for epsilon, count in self.groups) * times
        bounds = [Bound(pure, 0.0, f"sum over {_plural(self.unit)}")]
        if delta > 0 and math.isfinite(pure):
            bounds.append(_composed(self.groups, times, delta, exact))
        if delta > 0 and self.rho is not None:
            bounds.append(Bound(_of_rho(self.rho * times, delta), delta, "l2 clip, zCDP"))
        return smallest(bounds, delta)

    def levels(
        self, rounds: int, *, delta: float, participation: float | None = None
    ) -> list[Level]:
        """Every unit side by side: bit, message and run, purely and at `delta`."""
        failure_probability(delta, zero=False)
        counted = rounds_counted(rounds, delta, participation)[0]
        sent = sum(count for _, count in self.groups)
        message = f"one message of {sent} {self.unit if sent == 1 else _plural(self.unit)}"
        run = f"run of {rounds} round{'s' * (rounds != 1)}, {_taking_part(participation, counted)}"
        proof = "randomized response" if self.unit == "bit" else "its own noise"
        found = [Level(f"one {self.unit}", self.epsilon_per_bit, 0.0, proof)]
        for unit, bounds in (
            (message, [self.bound(1, d) for d in (0.0, delta)]),
            (run, [self.run_bound(rounds, d, participation) for d in (0.0, delta)]),
        ):
            found += [Level(unit, b.epsilon, d, b.method)
                      for b, d in zip(bounds, (0.0, delta), strict=True)]  # fmt: skip
        return found

    def report(self, rounds: int, *, delta: float, participation: float | None = None) -> str:
        """All levels as text, with k, its decay over the rounds, and what is not claimed."""
        levels = self.levels(rounds, delta=delta, participation=participation)
        wide = max(len(level.unit) for level in levels)
        lines = ["Local differential privacy of one user, against all who see ballots and keys:"]
        lines += [
            f"  {level.unit:<{wide}}  epsilon {_number(level.epsilon):<9}"
            f"  delta {level.delta:<7g} {level.proof}"
            for level in levels
        ]
        lines.append(self.anonymity(rounds))
        lines += [f"note: {self.note}"] if self.note else []
        return "\n".join(lines)

    def anonymity(self, rounds: int) -> str:
        """k in words: for each stage, and what noiseless bits leave after the rounds."""
        text = f"k = {self.k_anonymity} per block and round without noise"
        if len(self.points) > 1:
            stages = " x ".join(str(k_per_block(count)) for count in self.points)
            text += f" (stages: {stages})"
        if self.points:
            left = math.prod(survivors(count, rounds) for count in self.points)
            text += f"; decays over rounds: {left:.4g} points left after {rounds}"
        else:
            text += "; decays over rounds"
        return text + " (noiseless); no substitute for epsilon"

    def line(self) -> str:
        """One line with every unit, for reprs and progress."""
        parts = [f"epsilon {_number(self.epsilon_per_bit)} per {self.unit}"]
        units = ((1, "per message"), (SHOWN_ROUNDS, f"per run of {SHOWN_ROUNDS} rounds taken part"))
        for times, unit in units:
            sent = times * sum(count for _, count in self.groups)
            found = self._bound(times, DELTA, exact=sent <= QUICK_BITS)
            parts.append(
                f"{_number(self.bound(times).epsilon)} {unit} "
                f"({_number(found.epsilon)} at delta {DELTA:g} by {found.method})"
            )
        parts.append(f"k = {self.k_anonymity} per block and round")
        parts.append(f"{self.bits_per_entry:.4g} bits per entry")
        return ", ".join(parts)

    def __str__(self) -> str:
        return self.line()

    def __repr__(self) -> str:
        return f"Guarantee({self.line()})"


def rounds_counted(
    rounds: int, delta: float, participation: float | None
) -> tuple[int, float, float]:
    """Rounds to count, the delta left for them, and the chance of more (0 if impossible)."""
    total, delta = whole("rounds", rounds, 0), failure_probability(delta)
    if participation is None:
        return total, delta, 0.0
    if not isinstance(participation, float):
        return whole("participation", participation, 0, total), delta, 0.0
    if not 0 < participation <= 1:
        raise InvalidInput(
            "participation is a whole number of rounds, or a probability as a float above 0 and "
            f"at most 1; got {participation!r}"
        )
    if delta == 0 or participation == 1 or total == 0:
        return total, delta, 0.0
    low, high = -1, total
    while high - low > 1:
        middle = (low + high) // 2
        rare = log_tail(middle + 1, total, participation) <= math.log(delta / 2)
        low, high = (low, middle) if rare else (middle, high)
    return (high, delta / 2, delta / 2) if high < total else (total, delta, 0.0)


@lru_cache(maxsize=512)
def _composed(groups: Groups, times: int, delta: float, exact: bool) -> Bound:
    """The bound of all bits together; beyond what exact composition accepts, by Renyi orders."""
    total = [(epsilon, count * times) for epsilon, count in groups]
    if not exact or sum(count for _, count in total) > MOST_BITS:
        return Bound(epsilon_of_renyi(total, delta), delta, "Renyi orders")
    if len({epsilon for epsilon, _ in groups}) == 1:
        found = epsilon_of(groups[0][0], sum(count for _, count in total), delta)
    else:
        found = epsilon_of_mixed(total, delta)
    return Bound(found, delta, "exact composition")


@lru_cache(maxsize=512)
def _of_rho(rho: float, delta: float) -> float:
    return epsilon_of_zcdp(rho, delta)


def _taking_part(participation: float | None, counted: int) -> str:
    if isinstance(participation, float):
        return f"taking part with probability {participation:g}, {counted} counted"
    return f"{counted} taken part in"


def _plural(unit: str) -> str:
    return {"entry": "entries"}.get(unit, f"{unit}s")


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.4g}" if value < 1e4 else f"{value:.0f}"
