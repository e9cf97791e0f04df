"""`Defence`: removes ballots of users who collude, with a stated rate of false positives.

Each ballot is decoded separately to y, in units of the standard deviation of its noise. A score is
the product of y with a direction of length 1: its noise has variance 1, and an honest user has
|E score| <= max_score = largest_norm / sigma. Every ballot has three scores:

    mean    on the sum of the other counted ballots
    shared  on one further direction that users have in common: the ballots with high scores of the
            last round minus those with low scores, a step of the power method
    model   on the direction of the model (`model_direction`), which is public before the ballots

From the sixth round on two numbers are kept for each user: the evidence
E = max(0, E - model - 1/2), the logarithm of the likelihood ratio of a mean model score of -1 to
one of 0; and the sum of model scores about their median, faded. Five tests remove
ballots:

    bits       too many ones or zeros; honest bits are fair coins for any data (Hoeffding)
    range      a score beyond max_score + slack (Hoeffding)
    asymmetry  a group that scores on one side of the others, on mean or shared, marked in most of
               the last rounds (`hushbit.defence.asymmetry`)
    sum        the same for the sum, where the group is against the model
    evidence   E > ln(users / false_positive_rate), if more users have it than `most_with_evidence`.
               Excluded while E > 0

Suppose that no user attacks, that scores and sums of all but `natural_share` are independent and
symmetric about a known centre, and that in all rounds the same users, at most `natural_share`,
expect a negative model score. Then any user is removed in a whole run with probability of at most
`false_positive_rate`. Each of bits with range,
asymmetry with sum, and evidence has a third of it; round t of a run has the part 1 / (t (t + 1)),
and these parts sum to 1. A test that would remove more than half of the users is not applied.
"""

import hmac
import math
from dataclasses import dataclass

import numpy as np

from hushbit.checks import Floats, check_float, check_int
from hushbit.defence.asymmetry import asymmetric_group, split_at_median
from hushbit.errors import InvalidInput
from hushbit.kernels import Flags, njit
from hushbit.kernels.scores import biased_rows
from hushbit.mechanism import Mechanism, Votes
from hushbit.tally.decoded_ballots import SingleBallots
from hushbit.tally.tally import Tally
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import RoundKey

State = dict[str, Floats]
MODEL_COLUMNS = ("evidence", "excluded", "sum", "behind")
COLUMNS = (*MODEL_COLUMNS, "asymmetric", "shared", "last_round", "seen")
ENROLMENT = 20  # rounds, about as many as evidence needs for a mean score of -1
SETTLING = 5  # rounds without evidence and sums: early directions mostly reflect user differences
MEMORY = 5  # rounds: time constant of the mean of a user's marks by asymmetry
SUM_MEMORY = 10  # rounds: time constant of sums (and of server momentum) and of their marks
START_SHARE = 0.62  # of marks by asymmetry: in the first three rounds one mark is enough
BIAS_BITS = 1024  # only the first bits are tested
START_SEED, POWER_STEPS, REPEATS = 0x70, 8, 4
TESTS = 2 * REPEATS + 1  # asymmetry tests in a round
# A ballot that changes the weights of the others within a round has a score variance of up to 2.5.
SHARED_VARIANCE = 3.0
VARIANCE_LEFT = 0.5  # a group is marked only if at most this share of the variance remains
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

    false_positive_rate  over the whole run, see above
    natural_share        largest share of honest users whose data put them on one side of the others
    """

    false_positive_rate: float = 0.01
    natural_share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("false_positive_rate", "natural_share"):
            if not 0 < check_float(name, getattr(self, name)) < 0.5:
                raise InvalidInput(f"{name} must lie in (0, 0.5); got {getattr(self, name)!r}")

    @property
    def rate(self) -> float:
        """The rate of one of the three parts over the whole run."""
        return self.false_positive_rate / 3

    def rate_in(self, number: int) -> float:
        """The rate of one part in round `number` (from 1)."""
        return self.rate / (number * (number + 1))

    def slack(self, users: int, number: int) -> float:
        """A bound on the noise of all scores of a round, exceeded with probability <= rate / 2."""
        return math.sqrt(2 * math.log(2 * 6 * REPEATS * max(users, 1) / self.rate_in(number)))

    def least_evidence(self, users: int) -> float:
        """ln(users / false_positive_rate): few honest users have more in a round by chance."""
        return math.log(max(users, 1) / self.false_positive_rate)

    def most_with_evidence(self, users: int, number: int) -> float:
        """The largest number of honest users with more than `least_evidence` in a round.

        `natural_share` may have it for their data. Of the others `false_positive_rate` users have
        it in expectation; Bernstein's inequality bounds their number.
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
        start = {"asymmetric": START_SHARE, "seen": float(ENROLMENT * enrolled)}
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
        votes, users = readable_votes(mechanism), len(ballots)
        tally = mechanism.tally(round_key, histogram)
        tally.check_ballots(ballots)
        tally.check_voters(ballots.users)
        if state is None:  # one round is all that is known
            state = self.start(users) | {"asymmetric": np.ones(users)}
        check_state(state, users)
        if direction is not None:
            check_direction(direction, mechanism.dim)
            direction = votes.to_vote_space(direction, round_key)
        number = round_key.round + 1
        biased = biased_bits(votes, ballots, self.rate_in(number) / 2)
        waiting = newcomers_waiting(state["seen"], ballots, round_key, self.natural_share)
        groups = first_groups(state, biased, waiting)
        decoded = votes.decode_each(ballots, round_key, groups)
        result = self.decide(decoded, state, direction, number, biased, waiting, groups)
        if votes.count_decoded(decoded, ballots, result.accepted, tally.counters):
            tally.voters.add(ballots.users[result.accepted])
        else:
            tally.add_many(ballots[result.accepted])
        return tally, result

    def decide(
        self,
        decoded: SingleBallots,
        state: State,
        direction: Floats | None,
        number: int,
        biased: Flags,
        waiting: Flags,
        groups: tuple[Flags, Flags],
    ) -> DefenceResult:
        """All tests on decoded ballots; `groups` are those of `first_groups`."""
        counted, eligible = groups[0] | groups[1], ~waiting
        if continues(state):
            first = decoded.score(*groups, direction)
        else:
            first = power_scores(decoded, counted, direction)
        unmarked, scores, outside = self.mark_round(
            decoded, counted, eligible, first, direction, number
        )
        asymmetric, present = remove_marked(state["asymmetric"], counted, unmarked, outside)
        after = state | {
            "asymmetric": asymmetric,
            "shared": first[1],
            "last_round": np.full(decoded.users, float(number)),
            "seen": state["seen"] + 1,
        }
        before = state["evidence"]
        if direction is not None and number > SETTLING and present.any():
            after |= self.add_scores(state, scores[2], present, eligible, number)
        evidence = after["evidence"]
        excluded = excluded_users(after["excluded"], after["behind"])
        accepted = present & ~(excluded & is_minority(excluded, eligible))
        if not is_minority(~accepted, eligible):
            accepted = present
        # Evidence does not fall for users newly excluded, nor change for users who wait.
        evidence = np.where(present & ~accepted, np.maximum(evidence, before), evidence)
        after["evidence"] = np.where(waiting, before, evidence)
        marked = {
            "newcomers": waiting,
            "bits": biased,
            "range": outside,
            "evidence": (state["excluded"] > 0) | (after["excluded"] > 0),
            "sum": (state["behind"] > 0.5) | (after["behind"] > 0.5),
            "asymmetry": ~present,
        }
        return DefenceResult(accepted, marked, after)

    def add_scores(
        self,
        state: State,
        scores: Floats,
        present: Flags,
        eligible: Flags,
        number: int,
    ) -> State:
        """The columns of evidence and sums after a round with these scores on the model."""
        users = int(np.count_nonzero(eligible))
        least, most = self.least_evidence(users), self.most_with_evidence(users, number)
        columns, limits = (
            [state[name] for name in MODEL_COLUMNS],
            self.asymmetry_limits(users, number),
        )
        after = add_model_scores(*columns, scores, present, eligible, least, most, *limits)
        return dict(zip(MODEL_COLUMNS, after, strict=True))

    def mark_round(
        self,
        decoded: SingleBallots,
        counted: Flags,
        eligible: Flags,
        scores: Floats,
        direction: Floats | None,
        number: int,
    ) -> tuple[Flags, Floats, Flags]:
        """The users that neither test marks, their scores, and the users out of range.

        Users are scored again after each removal, because attackers change the directions. A group
        on one side is kept if the rest differ on the same score about as much as before: then users
        are of many kinds, and the mean of some says nothing about the rest.
        """
        present, outside = counted, np.zeros_like(counted)
        slack = self.slack(decoded.users, number) * np.array([1, math.sqrt(SHARED_VARIANCE), 1])
        limits = decoded.max_score + slack
        for repeat in range(REPEATS + 1):
            out = out_of_range(scores, limits, present)
            if out.any() and is_minority(outside | out, eligible):
                present, outside = present & ~out, outside | out
                if repeat < REPEATS:
                    scores = power_scores(decoded, present, direction)
                continue
            before, size = present, int(np.count_nonzero(present))
            for row in (0, 1) if repeat < REPEATS else ():
                rates = self.asymmetry_limits(size, number)
                group = asymmetric_group(scores[row], before, before, *rates)
                rest = before & ~group
                if not group.any() or not is_minority(~rest, eligible):
                    continue
                again = power_scores(decoded, rest, direction)
                if again[row, rest].var() - 1 <= VARIANCE_LEFT * (scores[row, before].var() - 1):
                    present, scores = rest, again
                    break
            if present is before:
                break
        return present, scores, outside


def readable_votes(mechanism: Mechanism) -> Votes:
    """The votes of a mechanism; refuses a mechanism whose ballots cannot be decoded one by one."""
    if mechanism.votes is None or not mechanism.votes.readable:
        raise InvalidInput(
            "the defence reads ballots of bits (cpa, nested, signsgd, mvu); "
            f"got {mechanism.description['mechanism']}"
        )
    return mechanism.votes


def biased_bits(votes: Votes, ballots: Ballots, rate: float) -> Flags:
    """Users whose bits are not fair coins; nobody where it would be more than half of the users.

    A ballot is marked if |ones - n / 2| > sqrt(n ln(2 K / rate) / 2) in its first n bits. With
    probability of at most `rate` that marks any of K honest users (Hoeffding).
    """
    users, bits = len(ballots), min(votes.fair_bits, BIAS_BITS)
    if not bits or not users:
        return np.zeros(users, dtype=np.bool_)
    limit = math.sqrt(bits * math.log(2 * users / rate) / 2)
    payload = np.ascontiguousarray(ballots.payload)
    biased = biased_rows(payload, min(BIAS_BITS // 8, payload.shape[1]), bits / 2, limit)
    return biased if is_minority(biased, np.ones_like(biased)) else np.zeros_like(biased)


@njit
def out_of_range(scores: Floats, limits: Floats, present: Flags) -> Flags:
    """present & (np.abs(scores) > limits[:, None]).any(axis=0)."""
    out = np.zeros(present.size, np.bool_)
    for row in range(limits.size):
        for user in range(present.size):
            out[user] |= present[user] & (abs(scores[row, user]) > limits[row])
    return out


@njit
def recent_share(share: Floats, marked: Flags, rounds: int) -> Floats:
    """The exponential mean, over about so many rounds, of whether a user was marked."""
    return share + (marked - share) / rounds


@njit
def remove_marked(
    share: Floats, counted: Flags, unmarked: Flags, outside: Flags
) -> tuple[Floats, Flags]:
    """The shares of marks by asymmetry after a round, and the users left."""
    marked = counted & ~unmarked & ~outside
    share = recent_share(share, marked, MEMORY)
    return share, counted & ~outside & ~(marked & (share > 0.5))


@njit
def excluded_users(excluded: Floats, behind: Floats) -> Flags:
    """The users whom evidence or the sum excludes."""
    return (excluded > 0) | (behind > 0.5)


@njit
def add_model_scores(
    evidence: Floats,
    excluded: Floats,
    sums: Floats,
    behind: Floats,
    scores: Floats,
    present: Flags,
    eligible: Flags,
    least: float,
    most: float,
    natural: float,
    log_rate: float,
) -> tuple[Floats, Floats, Floats, Floats]:
    """The `MODEL_COLUMNS` after a round.

    Scores have the sign that makes the median of the present users non-negative: if attackers move
    the model, its direction is reversed, because the majority is honest.
    """
    if not median_is_nonnegative(scores, present):
        scores = -scores
    evidence = add_evidence(evidence, scores, present)
    out, strong = (excluded > 0) & (evidence > 0), eligible & (evidence > least)
    if np.count_nonzero(strong) > most:
        out |= strong
    if not is_minority(out, eligible):
        out = np.zeros_like(out)
    trusted = present & ~excluded_users(excluded, behind)
    if trusted.any():  # else there is nothing to compare with
        sums = (1 - 1 / SUM_MEMORY) * sums + scores - np.median(scores[trusted])
        group = asymmetric_group(sums, eligible, trusted, natural, log_rate)
        group &= sums < np.median(sums[trusted])
        behind = recent_share(behind, group, SUM_MEMORY)
    return evidence, out.astype(np.float64), sums, behind


@njit
def median_is_nonnegative(scores: Floats, present: Flags) -> bool:
    """Whether at least half of the scores of present users are not negative."""
    sign = 0
    for user in range(present.size):
        if present[user]:
            sign += 1 if scores[user] >= 0 else -1
    return sign >= 0


@njit
def add_evidence(evidence: Floats, scores: Floats, present: Flags) -> Floats:
    """The evidence after a round.

    A positive score of a user who is not present does not lower it: the ballot does not count.
    """
    against = np.where(present, -scores, np.maximum(-scores, 0.0))
    return np.maximum(evidence + against - 0.5, 0.0)


@njit
def is_minority(flags: Flags, eligible: Flags) -> bool:
    """Whether at most half of the eligible users are flagged; attackers are assumed to be."""
    marked, users = 0, 0
    for user in range(eligible.size):
        users += eligible[user]
        marked += eligible[user] & flags[user]
    return 2 * marked <= users


def continues(state: State) -> bool:
    """Whether all these users took part in the same last round, so that `shared` is up to date."""
    last = state["last_round"]
    return bool(last.size and last[0] > 0 and (last == last[0]).all())


def newcomers_waiting(seen: Floats, ballots: Ballots, round_key: RoundKey, share: float) -> Flags:
    """Newcomers whose ballots are not counted; only the server can predict them.

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


def first_groups(state: State, biased: Flags, waiting: Flags) -> tuple[Flags, Flags]:
    """The users who are counted at first, above and below the median of their last scores."""
    counted = ~(biased | waiting | excluded_users(state["excluded"], state["behind"]))
    if not is_minority(~counted, ~waiting):
        counted = ~(biased | waiting)
    scores = state["shared"] if continues(state) else random_scores(biased.size)
    above, below = split_at_median(scores, counted)
    return above, below


def random_scores(users: int) -> Floats:
    """The start of the power method."""
    return np.random.default_rng(START_SEED).normal(size=users)


def power_scores(decoded: SingleBallots, counted: Flags, direction: Floats | None) -> Floats:
    """The scores after POWER_STEPS steps of the power method from random scores."""
    shared = random_scores(decoded.users)
    for _ in range(POWER_STEPS):
        above, below = split_at_median(shared, counted)
        scores = decoded.score(above, below, direction)
        shared = scores[1]
    return scores


def check_state(state: State, users: int) -> None:
    """Refuse a state that is not one row of finite numbers for each ballot."""
    arrays = [np.asarray(state.get(name, ())) for name in COLUMNS]
    shapes = all(array.shape == (users,) and array.dtype.kind == "f" for array in arrays)
    if set(state) != set(COLUMNS) or not shapes or not np.isfinite(arrays).all():
        raise InvalidInput(
            f"the state of the defence has the arrays {', '.join(COLUMNS)}, each with one finite "
            f"number for each of {users} ballots: use Defence.start, or restore the checkpoint"
        )


def check_direction(direction: Floats, dim: int) -> None:
    """Refuse the direction of another model; kernels do not check sizes."""
    if direction.shape != (dim,) or not np.isfinite(direction).all():
        raise InvalidInput(f"direction must have {dim} finite entries; got {direction.shape}")


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
