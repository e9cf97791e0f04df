"""`Defence`: removes ballots of users who collude, with a stated rate of false positives.

Each ballot is decoded separately to y, in units of the standard deviation of its noise. A score is
the product of y with a direction of length 1: its noise has variance 1, and an honest user has
|E score| <= max_score = largest_norm / sigma. Every ballot has three scores:

    mean    on the sum of the other counted ballots
    shared  on a second direction that users have in common, by a step of the power method
    model   on the direction of the model (`model_direction`), which is public before the ballots

docs/defence.md states the five tests on these scores, their null hypotheses and their error rates.
"""

import hmac
import math
from dataclasses import dataclass

import numpy as np

from hushbit.checks import Floats, check_float, check_int, check_updates
from hushbit.defence.asymmetry import asymmetric_group, is_apart, split_at_median
from hushbit.errors import InvalidInput
from hushbit.kernels import Flags, njit
from hushbit.kernels.scores import biased_rows
from hushbit.mechanism import Mechanism, Votes
from hushbit.tally.decoded_ballots import SingleBallots
from hushbit.tally.tally import Tally
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import RoundKey

State = dict[str, Floats]
COLUMNS = "evidence", "excluded", "sum", "behind", "asymmetric", "shared", "last_round", "seen"
EVIDENCE, EXCLUDED, SUM, BEHIND, ASYMMETRIC, SHARED, LAST_ROUND, SEEN = range(len(COLUMNS))
ENROLMENT = 20  # rounds, about as many as evidence needs for a mean score of -1
SETTLING = 5  # rounds without evidence and sums: early steps mostly reflect differences of users
MEMORY = 5  # rounds: time constant of the mean of a user's marks by asymmetry
SUM_MEMORY = 10  # rounds: time constant of sums (and of server momentum) and of their marks
START = {"asymmetric": 0.5, "behind": 0.3}  # means of marks: at first one mark or four are enough
BIAS_BITS = 1024  # only the first bits are tested
START_SEED, POWER_STEPS, REPEATS = 0x70, 8, 4
TESTS = 2 * REPEATS + 1  # asymmetry tests in a round
# A ballot that changes the weights of the others within a round has a score variance of up to 2.5.
SHARED_VARIANCE = 3.0
LARGEST_GROUP = 0.4  # of the users; larger groups are assumed to be honest users with other data
FIRST_MODEL_WEIGHT = 0.25  # the drift alone is short and mostly noise in the first rounds


@dataclass(frozen=True, eq=False)
class DefenceResult:
    """Which ballots are accepted, why the others are not, and the new rows of the users."""

    accepted: Flags
    marked: dict[str, Flags]
    state: State

    @property
    def removed(self) -> int:
        """Number of removed ballots."""
        return int(np.count_nonzero(~self.accepted))

    @property
    def removed_by(self) -> dict[str, int]:
        """The number of removed ballots by test; each is counted under the first in this order."""
        counts, left = {}, ~self.accepted
        for name, flags in self.marked.items():
            counts[name] = int(np.count_nonzero(left & flags))
            left = left & ~flags
        return counts


@dataclass(frozen=True)
class Defence:
    """The defence of a run.

    false_positive_rate  of all tests in the whole run, under their null hypotheses
    natural_share        largest share of honest users whose data put them on one side of the others
    """

    false_positive_rate: float = 0.01
    natural_share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("false_positive_rate", "natural_share"):
            if not 0 < check_float(name, getattr(self, name)) < 0.5:
                raise InvalidInput(f"{name} must lie in (0, 0.5); got {getattr(self, name)!r}")

    def rate_in(self, number: int) -> float:
        """The rate in a round of each: bits and range, asymmetry and sum, evidence."""
        return self.false_positive_rate / 3 / (number * (number + 1))

    def slack(self, users: int, number: int) -> float:
        """A bound on the noise of all scores of a round, exceeded with probability <= rate / 2."""
        return math.sqrt(2 * math.log(2 * 6 * REPEATS * max(users, 1) / self.rate_in(number)))

    def least_evidence(self, users: int) -> float:
        """ln(users / false_positive_rate): few honest users have more in a round by chance."""
        return math.log(max(users, 1) / self.false_positive_rate)

    def most_with_evidence(self, users: int, number: int) -> float:
        """The largest number of honest users with more than `least_evidence` in a round.

        `natural_share` because of their data, the others by chance (Bernstein's inequality).
        """
        expected, log_rate = self.false_positive_rate, -math.log(self.rate_in(number) / 2)
        chance = expected + math.sqrt(2 * expected * log_rate) + 2 * log_rate / 3
        return self.natural_share * users + chance

    def asymmetry_limits(self, users: int, number: int) -> tuple[float, float]:
        """The number of natural users, and 2 ln(1 / rate) of an asymmetry test in a round."""
        return self.natural_share * users, -2 * math.log(self.rate_in(number) / TESTS)

    def start(self, users: int, *, enrolled: bool = True) -> State:
        """The rows of new users; `enrolled=False` for users who join during the run."""
        state = {name: np.zeros(check_int("users", users, 0)) for name in COLUMNS}
        start = {**START, "seen": float(ENROLMENT * enrolled)}
        return state | {name: np.full(users, value) for name, value in start.items()}

    def count(
        self,
        mechanism: Mechanism,
        ballots: Ballots,
        round_key: RoundKey,
        state: State | None = None,
        direction: Floats | None = None,
        *,
        histogram: bool = False,
    ) -> tuple[Tally, DefenceResult]:
        """The tally of the accepted ballots, and the result.

        `state` has a row for each ballot; `direction` is `model_direction`. Without them only the
        tests of one round apply. Time is linear in the number of ballots.
        """
        votes, users = mechanism.readable_votes(), len(ballots)
        tally = mechanism.tally(round_key, histogram)
        tally.check_ballots(ballots)
        tally.check_voters(ballots.users)
        rows = matrix_of(self.start(users) if state is None else state, users)
        if direction is not None:
            direction = check_updates("direction", direction, mechanism.dim, many=False)[0]
            direction = votes.to_vote_space(direction, round_key)
        number = round_key.round + 1
        biased = biased_bits(votes, ballots, self.rate_in(number) / 2)
        waiting = newcomers_waiting(rows[SEEN], ballots, round_key, self.natural_share)
        groups = first_groups(rows, biased, waiting)
        decoded = votes.decode_each(ballots, round_key, groups)
        result = self.decide(decoded, rows, direction, number, biased, waiting, groups)
        if votes.count_decoded(decoded, ballots, result.accepted, tally.counters):
            tally.voters.add(ballots.users[result.accepted])
        else:
            tally.add_many(ballots[result.accepted])
        return tally, result

    def decide(
        self,
        decoded: SingleBallots,
        rows: Floats,
        direction: Floats | None,
        number: int,
        biased: Flags,
        waiting: Flags,
        groups: tuple[Flags, Flags],
    ) -> DefenceResult:
        """All tests; `rows` holds the state, `groups` come from `first_groups`."""
        counted, last = groups[0] | groups[1], rows[LAST_ROUND]
        if last.size and last[0] > 0 and (last == last[0]).all():
            first = decoded.score(*groups, direction)
        else:  # of some users the shared score of the last round is not known
            first = power_scores(decoded, counted, direction)
        marked, out, scores = self.mark_round(decoded, counted, waiting, first, direction, number)
        users = int(np.count_nonzero(~waiting))
        settled = direction is not None and number > SETTLING
        after, present, accepted = add_round(
            *(rows, scores[2], counted & ~out, marked, ~waiting, settled),
            *(self.least_evidence(users), self.most_with_evidence(users, number)),
            *self.asymmetry_limits(users, number),
        )
        after[SHARED], after[LAST_ROUND], after[SEEN] = first[1], number, rows[SEEN] + 1
        marks = {
            "newcomers": waiting,
            "bits": biased,
            "range": out,
            "evidence": rows[EXCLUDED] + after[EXCLUDED] > 0,
            "sum": np.maximum(rows[BEHIND], after[BEHIND]) > 0.5,
            "asymmetry": ~present,
        }
        return DefenceResult(accepted, marks, dict(zip(COLUMNS, after, strict=True)))

    def mark_round(
        self,
        decoded: SingleBallots,
        counted: Flags,
        waiting: Flags,
        scores: Floats,
        direction: Floats | None,
        number: int,
    ) -> tuple[Flags, Flags, Floats]:
        """The users marked by asymmetry, those out of range, and the scores without them."""
        present, outside, eligible = counted, np.zeros_like(counted), ~waiting
        slack = self.slack(decoded.users, number) * np.sqrt([[1.0], [SHARED_VARIANCE], [1.0]])
        slack[:2] += math.sqrt(decoded.dim) / (np.count_nonzero(counted) or 1)  # own part
        for repeat in range(REPEATS + 1):
            beyond = np.abs(scores) > decoded.max_score + slack
            out = present & beyond.any(axis=0)
            if not is_minority(outside | out, eligible):
                out = present & beyond[2]
            if np.count_nonzero(out) and is_minority(outside | out, eligible):
                present, outside = present & ~out, outside | out
                if repeat < REPEATS:  # attackers have changed the directions
                    scores = power_scores(decoded, present, direction)
                continue
            before, most = present, LARGEST_GROUP * np.count_nonzero(eligible)
            limits = self.asymmetry_limits(int(np.count_nonzero(before)), number)
            for row in (0, 1) if repeat < REPEATS else ():
                group = asymmetric_group(scores[row], before, before, *limits)
                small = np.count_nonzero(group) <= most and is_minority(~before | group, eligible)
                if small and is_apart(scores[row], group, before):
                    present = before & ~group
                    scores = power_scores(decoded, present, direction)
                    break
            if present is before:
                break
        return counted & ~present & ~outside, outside, scores


def biased_bits(votes: Votes, ballots: Ballots, rate: float) -> Flags:
    """Users whose bits are not fair coins; nobody where it would be more than half of the users.

    A ballot is marked if |ones - n / 2| > sqrt(n ln(2 K / rate) / 2) in its first n bits. With
    probability of at most `rate` that marks any of K honest users (Hoeffding).
    """
    users, bits = len(ballots), min(votes.fair_bits, BIAS_BITS)
    if not bits or not users:
        return np.zeros(users, dtype=np.bool_)
    limit, rows = math.sqrt(bits * math.log(2 * users / rate) / 2), ballots.payload
    biased: Flags = biased_rows(np.ascontiguousarray(rows), BIAS_BITS // 8, bits / 2, limit)
    return biased if 2 * np.count_nonzero(biased) <= users else np.zeros_like(biased)


@njit
def excluded_users(rows: Floats) -> Flags:
    """The users whom evidence or the sum excludes."""
    return np.asarray((rows[EXCLUDED] > 0) | (rows[BEHIND] > 0.5))


@njit
def add_round(
    rows: Floats,
    scores: Floats,
    within: Flags,
    marked: Flags,
    eligible: Flags,
    settled: bool,
    least: float,
    most: float,
    natural: float,
    log_rate: float,
) -> tuple[Floats, Flags, Flags]:
    """The rows after a round, the users whom asymmetry keeps, and the accepted users.

    Model scores are added if `settled`, with the sign that makes the median of the present users
    non-negative: if attackers move the model, its direction is reversed, because the majority is
    honest.
    """
    after = rows.copy()
    after[ASYMMETRIC] += (marked - rows[ASYMMETRIC]) / MEMORY
    lasting = eligible & (after[ASYMMETRIC] > 0.5)
    present = within & ~(lasting & is_minority(~within | lasting, eligible))
    trusted = present & ~excluded_users(rows)
    if settled and present.any():
        if np.count_nonzero(present & (scores < 0)) > np.count_nonzero(present) / 2:
            scores = -scores
        # A positive score lowers the evidence of a user only if the ballot is counted.
        against = np.where(present, -scores, np.maximum(-scores, 0.0))
        after[EVIDENCE] = np.maximum(rows[EVIDENCE] + against - 0.5, 0.0)
        strong = eligible & (after[EVIDENCE] > least)
        out = (rows[EXCLUDED] > 0) & (after[EVIDENCE] > 0)
        if np.count_nonzero(strong) > most:
            out |= strong
        after[EXCLUDED] = out & is_minority(out, eligible)
        if trusted.any():  # else there is nothing to compare with
            sums = (1 - 1 / SUM_MEMORY) * rows[SUM] + scores - np.median(scores[trusted])
            group = asymmetric_group(sums, eligible, trusted, natural, log_rate)
            after[SUM], after[BEHIND] = sums, rows[BEHIND] + (group - rows[BEHIND]) / SUM_MEMORY
    excluded = excluded_users(after)
    accepted = present & ~(excluded & is_minority(excluded, eligible))
    if not is_minority(~accepted, eligible):
        accepted = present
    for user in range(eligible.size):  # waiting users keep it; it does not fall if newly excluded
        if not eligible[user]:
            after[EVIDENCE, user] = rows[EVIDENCE, user]
        elif present[user] and not accepted[user]:
            after[EVIDENCE, user] = max(after[EVIDENCE, user], rows[EVIDENCE, user])
    return after, present, accepted


@njit
def is_minority(flags: Flags, eligible: Flags) -> bool:
    """Whether at most half of the eligible users are flagged, as attackers are assumed to be."""
    return bool(2 * np.count_nonzero(flags & eligible) <= np.count_nonzero(eligible))


def newcomers_waiting(seen: Floats, ballots: Ballots, round_key: RoundKey, share: float) -> Flags:
    """Newcomers whose ballots are not counted, drawn with the secret of the server.

    A newcomer is counted with probability seen / ENROLMENT, and at most `share` times as many as
    the other users of the round.
    """
    new = seen < ENROLMENT
    if not new.any():
        return new
    most = share * np.count_nonzero(~new)
    secret = hmac.digest(round_key.secret, b"newcomers", "sha256")
    draws = RoundKey(secret, round_key.round, round_key.run).users(ballots.users).keys[:, 0]
    rank = np.where(new, draws / 2**32 * ENROLMENT - seen, -np.inf)
    waiting = rank >= 0
    counted = np.flatnonzero(new & ~waiting)
    waiting[counted[np.argsort(rank[counted])[int(most) :]]] = True
    return waiting


def first_groups(rows: Floats, biased: Flags, waiting: Flags) -> tuple[Flags, Flags]:
    """The users who are counted at first, above and below the median of their last scores."""
    counted = ~(biased | waiting | excluded_users(rows))
    if not is_minority(~counted, ~waiting):
        counted = ~(biased | waiting)
    above, below = split_at_median(rows[SHARED], counted)
    return above, below


def power_scores(decoded: SingleBallots, counted: Flags, direction: Floats | None) -> Floats:
    """The scores after POWER_STEPS steps of the power method from random scores."""
    shared = np.random.default_rng(START_SEED).normal(size=decoded.users)
    for _ in range(POWER_STEPS):
        above, below = split_at_median(shared, counted)
        scores = decoded.score(above, below, direction)
        shared = scores[1]
    return scores


def matrix_of(state: State, users: int) -> Floats:
    """The columns of a state; refuses one that is not a row of finite numbers for each ballot."""
    columns = [np.asarray(state.get(name, ())) for name in COLUMNS]
    shapes = all(column.shape == (users,) and column.dtype.kind == "f" for column in columns)
    if set(state) != set(COLUMNS) or not shapes or not np.isfinite(rows := np.array(columns)).all():
        raise InvalidInput(
            f"the state of the defence has the arrays {', '.join(COLUMNS)}, each with one finite "
            f"number for each of {users} ballots: use Defence.start, or restore the checkpoint"
        )
    return rows.astype(np.float64, copy=False)


def model_direction(model: Floats, previous: Floats, first: Floats) -> Floats | None:
    """The last step of the model and its drift since the first model, both with length 1, added.

    An update in this direction agrees with the last round and with all rounds. The drift contains a
    part of the first model: a step along the model's own weights makes its predictions more
    confident, which users whose labels the model contradicts do not want. None where the model has
    not moved.
    """
    drift, step = model - (1 - FIRST_MODEL_WEIGHT) * first, model - previous
    if not step.any():
        return None
    return np.asarray(drift / (np.linalg.norm(drift) or 1.0) + step / np.linalg.norm(step))
