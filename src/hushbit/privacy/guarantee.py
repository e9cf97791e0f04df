"""The guarantee of one mechanism, in three units: per bit, per message, per run.

A run counts the rounds in which one user takes part. No amplification by sampling is claimed,
because the server that selects users sees who sends.

The guarantee also states k-anonymity: the least number of points that are consistent with one
noiseless bit. It makes no assumption on prior knowledge, ignores noise and decays over rounds, so
it does not replace differential privacy.
"""

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from hushbit.checks import check_delta, check_int
from hushbit.errors import InvalidInput
from hushbit.privacy.accountant import Bound, Cost, composed_bound, delta_text, smallest
from hushbit.privacy.binomial import log_tail
from hushbit.privacy.central import GaussianSum, TallyRelease, VoteSums, bound_of_tallies
from hushbit.privacy.composition import MAX_BITS, Groups, probability_of_different_signs

DELTA = 1e-5
"""The delta of one-line displays."""

NO_TALLY_BOUND = "it covers CPA with two points on a line, alone or inside Rotated and NormVote"

SHOWN_ROUNDS = 100
"""The rounds of one-line displays."""

QUICK_BITS = 20_000
"""One-line displays bound more bits than this by Renyi orders instead of exactly."""


def k_per_block(points: int) -> int:
    """Least number of points consistent with a noiseless bit: N/2 for even N, (N-1)/2 for odd N.

    >>> k_per_block(2), k_per_block(3), k_per_block(16)
    (1, 1, 8)
    """
    return check_int("points", points, 2) // 2


def expected_candidates(points: int, rounds: int) -> float:
    """Expected number of points consistent with T noiseless rounds: 1 + (N-1) (1 - pi)^T.

    pi is the probability that a word gives two points different signs; for even N,
    1 - pi = (N-2) / (2(N-1)). The formula depends on words through pi only, so it holds for uniform
    balanced words and for signed Hadamard words.

    >>> round(expected_candidates(8, 3), 3)
    1.551
    """
    same = 1 - probability_of_different_signs(points)
    return float(1 + (points - 1) * same ** check_int("rounds", rounds, 0))


@dataclass(frozen=True)
class GuaranteeRow:
    """One line of a report: the unit, its epsilon and delta, and the rule that proves them."""

    unit: str
    epsilon: float
    delta: float
    proof: str

    def row(self) -> dict[str, Any]:
        """The fields as a dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class Guarantee:
    """Local differential privacy of one ballot, against everyone who sees it and the keys.

    groups        pairs (epsilon, count): randomized-response bits, or other units (an entry, a
                  block) with pure local privacy of that level
    dim           entries of the update
    message_bits  payload bits of one ballot
    k_anonymity   least number of points consistent with the noiseless bits of one block; a vote on
                  the norm belongs to no block and does not count
    rho           zCDP parameter of the whole message, if one is proven
    unit          what `groups` counts: bit, entry, block
    note          a remark for the report
    points        number of points of each stage, if known
    sums          the law of the sum over users: votes, or updates with the server's Gaussian noise;
                  or the reason why no guarantee of the sum is proved
    """

    groups: Groups
    dim: int
    message_bits: int
    k_anonymity: int
    rho: float | None = None
    unit: str = "bit"
    note: str = ""
    points: tuple[int, ...] = ()
    sums: VoteSums | GaussianSum | str = NO_TALLY_BOUND

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
        """The cost of one ballot, as the accountant and the ledger count it."""
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

    def bound(
        self, rounds: int = 1, delta: float = 0.0, *, max_exact_bits: int = MAX_BITS
    ) -> Bound:
        """The smallest proven bound for a user who takes part in `rounds` rounds, and its rule.

        The mechanism is fixed before the run (`adaptive=False` of `composed_bound`).
        """
        times = check_int("rounds", rounds, 0)
        sent = [self.cost.times(times)] if times else []
        found = composed_bound(sent, delta, adaptive=False, max_exact_bits=max_exact_bits)
        names = {"pure": f"sum over {_plural(self.unit)}", "zCDP": "l2 clip, zCDP"}
        return replace(found, method=names.get(found.method, found.method))

    def run_bound(
        self, rounds: int, delta: float = 0.0, participation: float | None = None
    ) -> Bound:
        """The bound for one user in a run of `rounds` rounds.

        `participation` is the number of rounds in which the user takes part: an integer, or None
        for all. A float is the probability of taking part, drawn anew in each round and independent
        of data. An expected number of rounds is no guarantee: the bound counts so many rounds that
        the user takes part in more with probability at most delta / 2, and has the other half of
        delta for the rounds counted. With delta = 0 every round counts.
        """
        times, left, chance = participation_bound(rounds, delta, participation)
        found = self.bound(times, left)
        if not chance:
            return found
        method = f"{found.method}; more than {times} rounds with probability <= {chance:.2g}"
        return smallest([self.bound(rounds, delta), Bound(found.epsilon, delta, method)], delta)

    def of_tally(
        self,
        honest: int,
        rounds: int = 1,
        *,
        delta: float,
        relation: str = "replace",
        participation: float | None = None,
        accountant: str = "renyi",
    ) -> Bound:
        """The bound for one user against somebody who sees only tallies, estimates or models.

        It needs a server that shows nothing else, or secure aggregation, and `honest` voters in
        every tally, the user included, whose coins stay secret. Taking part must not depend on
        data. Against the server itself, which sees ballots, `bound` holds. Without rounds epsilon
        is 0.

        If the server adds the noise (`Gaussian`), the guarantee covers estimates and models, one
        estimate for each tally, but not the tally. It does not depend on the honest voters.

        relation       "replace": the update of the user changes arbitrarily; "zero-out": it
                       becomes the zero update
        participation  share of the honest candidates that a trusted server draws for every round,
                       without replacement, if the observer does not learn who was drawn; `honest`
                       then counts those who were drawn
        accountant     "renyi": adds up Rényi orders, as most libraries do; "tightest": the smaller
                       one of that bound and of a second one, by Gaussian differential privacy,
                       which is smaller for many voters and a small epsilon per bit

        >>> guarantee = Guarantee(((0.1, 9),), 9, 9, 1, sums=VoteSums(0.1, 9, 3.0, True))
        >>> round(guarantee.of_tally(1000, rounds=60, delta=1e-5).epsilon, 3)
        0.272
        >>> round(guarantee.of_tally(1000, 60, delta=1e-5, accountant="tightest").epsilon, 3)
        0.249
        """
        if isinstance(self.sums, str):
            raise InvalidInput(f"no guarantee of the tally is proved: {self.sums}")
        release = TallyRelease(self.sums, honest, rounds, relation, participation)
        return _bound_of_release(self, release, check_delta(delta, zero=False), accountant)

    def levels(
        self, rounds: int, *, delta: float, participation: float | None = None
    ) -> list[GuaranteeRow]:
        """One row for each unit: bit, message and run, at delta 0 and at `delta`."""
        check_delta(delta, zero=False)
        counted = participation_bound(rounds, delta, participation)[0]
        sent = sum(count for _, count in self.groups)
        message = f"one message of {sent} {self.unit if sent == 1 else _plural(self.unit)}"
        taking_part = _participation_text(participation, counted)
        run = f"run of {rounds} round{'s' * (rounds != 1)}, {taking_part}"
        proof = "randomized response" if self.unit == "bit" else "its own noise"
        found = [GuaranteeRow(f"one {self.unit}", self.epsilon_per_bit, 0.0, proof)]
        for unit, bounds in (
            (message, [self.bound(1, d) for d in (0.0, delta)]),
            (run, [self.run_bound(rounds, d, participation) for d in (0.0, delta)]),
        ):
            found += [
                GuaranteeRow(unit, b.epsilon, d, b.method)
                for b, d in zip(bounds, (0.0, delta), strict=True)
            ]
        return found

    def report(self, rounds: int, *, delta: float, participation: float | None = None) -> str:
        """All levels as text, with k-anonymity and the note."""
        levels = self.levels(rounds, delta=delta, participation=participation)
        wide = max(len(level.unit) for level in levels)
        lines = ["Local differential privacy of one user, against all who see ballots and keys:"]
        lines += [
            f"  {level.unit:<{wide}}  epsilon {_number(level.epsilon):<9}"
            f"  delta {delta_text(level.delta):<7} {level.proof}"
            for level in levels
        ]
        lines.append(self.anonymity(rounds))
        lines += [f"note: {self.note}"] if self.note else []
        return "\n".join(lines)

    def anonymity(self, rounds: int) -> str:
        """k-anonymity in words: for each stage, and what remains of it after `rounds` rounds."""
        text = self._k_text()
        if self.k_anonymity == 1:
            return f"{text}."
        if len(self.points) > 1:
            stages = " x ".join(str(k_per_block(count)) for count in self.points)
            text += f" (stages: {stages})"
        text += " without noise; decays over rounds"
        if self.points:
            left = math.prod(expected_candidates(count, rounds) for count in self.points)
            text += f": {left:.4g} of {math.prod(self.points)} points expected after {rounds}"
        return f"{text}. Does not replace epsilon."

    def _k_text(self) -> str:
        k = self.k_anonymity
        return (
            "k-anonymity: none (k = 1)" if k == 1 else f"k-anonymity: k = {k} per block and round"
        )

    def summary(self) -> str:
        """One line with every unit and k."""
        parts = [f"epsilon {_number(self.epsilon_per_bit)} per {self.unit}"]
        units = ((1, "per message"), (SHOWN_ROUNDS, f"per run of {SHOWN_ROUNDS} rounds"))
        for times, unit in units:
            found = self.bound(times, DELTA, max_exact_bits=QUICK_BITS)
            parts.append(
                f"{_number(self.bound(times).epsilon)} {unit} "
                f"({_number(found.epsilon)} at delta {delta_text(DELTA)} by {found.method})"
            )
        parts.append(self._k_text())
        parts.append(f"bits per entry: {self.bits_per_entry:.4g}")
        return ", ".join(parts)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"Guarantee({self.summary()})"


@lru_cache(maxsize=4096)
def _bound_of_release(
    guarantee: Guarantee, release: TallyRelease, delta: float, accountant: str
) -> Bound:
    """The smaller one of the bound of the tallies and the local bound of the same run."""
    local = replace(guarantee.bound(release.rounds, delta), delta=delta)
    return smallest([bound_of_tallies([release], delta, accountant), local], delta)


def participation_bound(
    rounds: int, delta: float, participation: float | None
) -> tuple[int, float, float]:
    """Rounds to count, the delta that remains for them, and the probability of more rounds.

    The probability is 0 if more rounds are impossible.
    """
    total, delta = check_int("rounds", rounds, 0), check_delta(delta)
    if participation is None:
        return total, delta, 0.0
    if not isinstance(participation, float):
        return check_int("participation", participation, 0, total), delta, 0.0
    if not 0 < participation <= 1:
        raise InvalidInput(
            "participation is a whole number of rounds, or a probability as a float above 0 and "
            f"at most 1; got {participation!r}"
        )
    if delta == 0:
        return total, delta, 0.0
    low, high = -1, total
    while high - low > 1:
        middle = (low + high) // 2
        rare = log_tail(middle + 1, total, participation) <= math.log(delta / 2)
        low, high = (low, middle) if rare else (middle, high)
    return (high, delta / 2, delta / 2) if high < total else (total, delta, 0.0)


def _participation_text(participation: float | None, counted: int) -> str:
    if isinstance(participation, float):
        return f"taking part with probability {participation:g}, {counted} counted"
    return f"{counted} taken part in"


def _plural(unit: str) -> str:
    return {"entry": "entries"}.get(unit, f"{unit}s")


def _number(value: float) -> str:
    return f"{value:.0f}" if 1e4 <= value < 1e15 else f"{value:.4g}"
