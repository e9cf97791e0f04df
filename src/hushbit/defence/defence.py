"""`Defence`: removes ballots of users who collude, with a stated rate of false positives.

Each ballot is decoded separately to y, in units of the standard deviation of its noise. A score is
the product of y with a direction of length 1: its noise has variance 1, and an honest user has
|E score| <= max_score = largest_norm / sigma. Every ballot has three scores:

    mean    on the sum of the other counted ballots
    shared  on one further direction that users have in common: the ballots with high scores of the
            last round minus those with low scores, a step of the power method
    model   on the direction of the model (`model_direction`), which is public before the ballots

Two numbers per user are kept from the sixth round on: the evidence E = max(0, E - model - 1/2), the
logarithm of the likelihood ratio of a push of one noise against the model to no push; and the sum S
of mean and model scores, faded, with the variance n of its noise. Four tests remove ballots:

    bits       bits that are not fair coins, which honest bits are for any data (Hoeffding)
    range      a score beyond max_score and the noise (Hoeffding)
    asymmetry  a group that scores on one side of the others (`hushbit.defence.asymmetry`)
    evidence   E > ln(1 / false_positive_rate), if more users have that than half of
               `natural_share` and chance; and the same for S^2 / (2 n) of users with negative S.
               They stay out while E > 0 or S < 0

If the scores of all honest users but `natural_share` are symmetric about their median, and at most
half of `natural_share` have a negative expected score on the model or on both directions together,
the tests remove any honest user in a whole run with probability of at most `false_positive_rate`.
Each of bits with range, asymmetry, and evidence has a third of it; round t of a run has the part
1 / (t (t + 1)), and these parts sum to 1. A test that would remove more than half of the users is
not applied.
"""

import hmac
import math
from dataclasses import dataclass
from functools import cached_property

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
COLUMNS = ("evidence", "sum", "noise", "excluded", "shared", "last_round", "seen")
ENROLMENT = 20  # rounds, about as many as evidence needs to find a push of one noise
SETTLING = 5  # rounds before the first sums: early directions say most about users' differences
BIAS_BITS = 1024  # few bits show a bias
START_SEED, POWER_STEPS, REPEATS = 0x70, 8, 4
TESTS = 2 * REPEATS  # of asymmetry in a round
# A ballot that changes the weights of the others within a round has a score variance of up to 2.5.
SHARED_VARIANCE = 3.0
MANY_KINDS = 0.5
FIRST_MODEL_WEIGHT = 0.25  # the drift alone is short and mostly noise in the first rounds


@dataclass(frozen=True, eq=False)
class DefenceResult:
    """Which ballots are accepted, which each test marks, and the new rows of the users."""

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

    @cached_property
    def rate(self) -> float:
        """The rate of one of the three parts over the whole run."""
        return self.false_positive_rate / 3

    def rate_in(self, number: int) -> float:
        """The rate of one part in round `number` (from 1)."""
        return self.rate / (number * (number + 1))

    def fading(self, users: int) -> float:
        """The factor of the sums per round.

        Their memory is as long as it takes to find a push of one noise among all users.
        """
        return 1 - 1 / (2 * math.log(users / self.rate))

    def slack(self, users: int, number: int) -> float:
        """The largest noise of the honest scores of a round: 3 directions, 2 sides, all repeats."""
        return math.sqrt(2 * math.log(2 * 6 * REPEATS * max(users, 1) / self.rate_in(number)))

    def most_with_evidence(self, users: int, number: int) -> float:
        """The largest number of honest users with E > ln(1 / false_positive_rate) in a round.

        Half of `natural_share` may have it for their data. Each of the others has it with
        probability of at most `false_positive_rate`; Bernstein's inequality bounds their number.
        """
        expected, log_rate = self.false_positive_rate * users, -math.log(self.rate_in(number) / 2)
        chance = expected + math.sqrt(2 * expected * log_rate) + 2 * log_rate / 3
        return self.natural_share / 2 * users + chance

    def asymmetry_limits(self, users: int, number: int) -> tuple[float, float]:
        """Natural users, and 2 ln(1 / rate) of one of the tests of asymmetry in a round."""
        return self.natural_share * users, -2 * math.log(self.rate_in(number) / TESTS)

    def start(self, users: int, *, enrolled: bool = True) -> State:
        """The rows of users before their first round; `enrolled` before the first round of all."""
        state = {name: np.zeros(check_int("users", users, 0)) for name in COLUMNS}
        return state | {"seen": np.full(users, float(ENROLMENT * enrolled))}

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
        state = self.start(users) if state is None else state
        check_state(state, users)
        if direction is not None:
            check_direction(direction, mechanism.dim)
            direction = votes.to_vote_space(direction, round_key)
        number = round_key.round + 1
        biased = biased_bits(votes, ballots, self.rate_in(number) / 2)
        waiting = newcomers_waiting(state["seen"], ballots, round_key, self.natural_share * users)
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
        counted, voters = groups[0] | groups[1], ~waiting
        if continues(state):
            first = decoded.score(*groups, direction)
        else:
            first = power_scores(decoded, counted, direction)
        present, scores, outside = self.test_round(
            decoded, counted, voters, first, direction, number
        )
        held = state["excluded"] > 0
        after = state | {
            "shared": first[1],
            "last_round": np.full(decoded.users, float(number)),
            "seen": state["seen"] + 1,
        }
        evidence = before = state["evidence"]
        if direction is not None and number > SETTLING:
            users, memory = int(np.count_nonzero(voters)), (before, state["sum"], state["noise"])
            evidence, sums, noise = add_scores(*memory, scores, present, self.fading(present.size))
            least, most = (
                -math.log(self.false_positive_rate),
                self.most_with_evidence(users, number),
            )
            held = held_by_evidence(evidence, sums, noise, held, voters, least, most)
            after |= {"sum": sums, "noise": noise, "excluded": held.astype(np.float64)}
        accepted = present & ~held
        if not is_minority(~accepted, voters):
            accepted = present
        # Evidence does not fall where the ballot is removed now, and stays for newcomers.
        evidence = np.where(present & ~accepted, np.maximum(evidence, before), evidence)
        after["evidence"] = np.where(waiting, before, evidence)
        marked = {"newcomers": waiting, "bits": biased, "range": outside, "evidence": held}
        return DefenceResult(accepted, marked | {"asymmetry": ~present}, after)

    def test_round(
        self,
        decoded: SingleBallots,
        counted: Flags,
        voters: Flags,
        scores: Floats,
        direction: Floats | None,
        number: int,
    ) -> tuple[Flags, Floats, Flags]:
        """The users left by range and asymmetry, their scores, and the users out of range.

        Users are scored again after each removal, because attackers change the directions. A group
        on one side is kept if the rest differ on the same score about as much as before: then users
        are of many kinds, and the mean of some says nothing about the rest.
        """
        present, outside = counted, np.zeros_like(counted)
        slack = self.slack(decoded.users, number) * np.array([1, math.sqrt(SHARED_VARIANCE), 1])
        limits = decoded.max_score + slack
        for repeat in range(REPEATS + 1):
            out = out_of_range(scores, limits, present)
            if out.any() and is_minority(outside | out, voters):
                present, outside = present & ~out, outside | out
                if repeat < REPEATS:
                    scores = power_scores(decoded, present, direction)
                continue
            before, size = present, int(np.count_nonzero(present))
            for row in (0, 1) if repeat < REPEATS else ():
                rates = self.asymmetry_limits(size, number)
                group = asymmetric_group(scores[row], before, before, *rates)
                rest = before & ~group
                if not group.any() or not is_minority(~rest, voters):
                    continue
                again = power_scores(decoded, rest, direction)
                if again[row, rest].var() - 1 <= MANY_KINDS * (scores[row, before].var() - 1):
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

    A ballot of n bits is marked if |ones - n / 2| > sqrt(n ln(2 K / rate) / 2). With probability of
    at most `rate` that marks any of K honest users (Hoeffding).
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
def add_scores(
    evidence: Floats, sums: Floats, noise: Floats, scores: Floats, present: Flags, fading: float
) -> tuple[Floats, Floats, Floats]:
    """Evidence, sums of mean and model scores, and the variance of their noise after a round.

    The signs are such that the median of the present users is not negative: if attackers move the
    model, its direction is reversed, because the majority is honest. Positive scores of users who
    are not present do not lower their evidence, because their ballots do not count.
    """
    mean_sign = model_sign = 0
    for user in range(present.size):
        if present[user]:
            mean_sign += 1 if scores[0, user] >= 0 else -1
            model_sign += 1 if scores[2, user] >= 0 else -1
    mean = scores[0] if mean_sign >= 0 else -scores[0]
    model = scores[2] if model_sign >= 0 else -scores[2]
    against = np.where(present, -model, np.maximum(-model, 0.0))
    new_evidence = np.maximum(evidence + against - 0.5, 0.0)
    return new_evidence, fading * sums + mean + model, fading**2 * noise + 2


@njit
def held_by_evidence(
    evidence: Floats,
    sums: Floats,
    noise: Floats,
    held: Flags,
    voters: Flags,
    least: float,
    most: float,
) -> Flags:
    """The users who are held in this round; `held` are those of the round before.

    New are users with more evidence than `least`, if they are more than `most`; and the same with
    the exponent of Hoeffding's inequality for a negative sum.
    """
    behind = np.minimum(sums, 0.0) ** 2 / (2 * np.maximum(noise, 1.0))
    found = held & ((evidence > 0) | (behind > 0))
    for strength in (evidence, behind):
        group = voters & (strength > least)
        if np.count_nonzero(group) > most:
            found |= group
    return found if is_minority(found, voters) else np.zeros_like(found)


@njit
def is_minority(flags: Flags, voters: Flags) -> bool:
    """Whether at most half of the voters are marked: the defence assumes that attackers are."""
    marked, users = 0, 0
    for user in range(voters.size):
        users += voters[user]
        marked += voters[user] & flags[user]
    return 2 * marked <= users


def continues(state: State) -> bool:
    """Whether all these users took part in the same last round, so that `shared` is up to date."""
    last = state["last_round"]
    return bool(last.size and last[0] > 0 and (last == last[0]).all())


def newcomers_waiting(seen: Floats, ballots: Ballots, round_key: RoundKey, most: float) -> Flags:
    """Newcomers whose ballots are not counted; nobody but the server can predict whose are.

    A newcomer is counted with probability seen / ENROLMENT, and at most `most` are in one round.
    """
    new = seen < ENROLMENT
    if not new.any():
        return new
    secret = hmac.digest(round_key.secret, b"newcomers", "sha256")
    draws = RoundKey(secret, round_key.round, round_key.run).users(ballots.users).keys[:, 0]
    rank = np.where(new, draws / 2**32 * ENROLMENT - seen, -np.inf)
    waiting = rank >= 0
    counted = np.flatnonzero(new & ~waiting)
    waiting[counted[np.argsort(rank[counted])[int(most) :]]] = True
    return waiting


def first_groups(state: State, biased: Flags, waiting: Flags) -> tuple[Flags, Flags]:
    """The users who are counted at first, above and below the median of their last scores."""
    counted = ~(biased | waiting | (state["excluded"] > 0))
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
