"""`Defence`: removes ballots of users who collude, with a stated rate of false positives.

Each ballot is decoded separately to y, in units of the standard deviation of its noise. A score is
the product of y with a direction of length 1: its noise has variance 1, and an honest user has
|E score| <= max_score = largest_norm / sigma. Every ballot has three scores:

    mean    on the sum of the other ballots that are counted
    shared  on one further direction that users have in common: the ballots with high scores of the
            round before minus those with low scores, a step of the power method
    step    on the last step of the model, which is public before the ballots arrive

and the server stores for each user the sums of mean and step scores, faded by `fading` per round,
and the evidence E = max(0, E - step - 1/2), the logarithm of the likelihood ratio of a push of one
noise against the model's steps. Four tests remove ballots:

    bits        their bits are not fair coins, which honest bits are for any data (Hoeffding)
    range       a score is beyond max_score and the noise (Hoeffding)
    asymmetry   a group of users scores on one side of the others (`hushbit.defence.asymmetry`): on
                mean or shared, in this round; or against the others on a sum over rounds
    evidence    E > ln(r (r + 1) / rate) in the user's r-th round; the user is held until E = 0

`false_positive_rate` is divided equally among bits with range, asymmetry, and evidence. Round t of
a run has the share 1 / (t (t + 1)) of each, and these shares sum to 1 over any number of rounds. So
over the whole run

- bits and range remove any honest user with probability of at most a third of the rate (proved);
- asymmetry removes any honest user with at most a third, if all honest users but `natural_share`
  are symmetric about their median;
- evidence ever holds an honest user with at most a third, if the user's expected score on the
  model's steps is not negative.

A test that would remove more than half of the users is not applied. Newcomers, users who were not
enrolled before the first round, count with probability seen / ENROLMENT after `seen` rounds.
"""

import hmac
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hushbit.checks import Floats, check_float, check_int
from hushbit.defence.asymmetry import asymmetric_group
from hushbit.defence.filter import readable_votes
from hushbit.defence.modality import split_at_median
from hushbit.defence.rules import biased_bits
from hushbit.errors import InvalidInput
from hushbit.kernels import Flags
from hushbit.mechanism import Mechanism
from hushbit.tally.decoded_ballots import SingleBallots
from hushbit.tally.tally import Tally
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import RoundKey

State = dict[str, Floats]
COLUMNS = ("mean", "step", "noise", "evidence", "held", "excluded", "shared", "last_round", "seen")
ENROLMENT = 20  # rounds, about as many as evidence needs to find a push of one noise
START_SEED, POWER_STEPS, REPEATS = 0x70, 8, 4
# A ballot that changes the weights of the others within a round has a score variance of up to 2.5.
SHARED_VARIANCE = 3.0
MANY_KINDS = 0.5


@dataclass(frozen=True, eq=False)
class DefenceResult:
    """Which ballots are accepted, how many each test removes, and the new rows of the users.

    A ballot that several tests remove is counted under the first of them.
    """

    accepted: Flags
    removed_by: dict[str, int]
    state: State

    @property
    def removed(self) -> int:
        """Number of removed ballots."""
        return int(np.count_nonzero(~self.accepted))


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
        return math.sqrt(2 * math.log(2 * 6 * REPEATS * users / self.rate_in(number)))

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
        step: Floats | None = None,
        *,
        histogram: bool = False,
    ) -> tuple[Tally, DefenceResult]:
        """The tally of the accepted ballots, and the result.

        `state` has a row for each ballot; `step` is the last step of the model. Without them only
        the tests of one round apply. Time is linear in the number of ballots.
        """
        votes = readable_votes(mechanism)
        tally = mechanism.tally(round_key, histogram)
        tally.check_ballots(ballots)
        tally.check_voters(ballots.users)
        state = self.start(len(ballots)) if state is None else state
        check_state(state, len(ballots))
        if step is not None:
            check_step(step, mechanism.dim)
            step = votes.to_vote_space(step, round_key) if step.any() else None
        number = round_key.round + 1
        biased = biased_bits(mechanism, ballots, self.rate_in(number) / 2)
        waiting = newcomers_waiting(state["seen"], ballots, round_key)
        groups = first_groups(state, biased, waiting)
        decoded = votes.decode_each(ballots, round_key, groups)
        result = self.decide(decoded, state, step, number, biased, waiting, groups)
        if votes.count_decoded(decoded, ballots, result.accepted, tally.counters):
            tally.voters.add(ballots.users[result.accepted])
        else:
            tally.add_many(ballots[result.accepted])
        return tally, result

    def decide(
        self,
        decoded: SingleBallots,
        state: State,
        step: Floats | None,
        number: int,
        biased: Flags,
        waiting: Flags,
        groups: tuple[Flags, Flags],
    ) -> DefenceResult:
        """All tests on decoded ballots; `groups` are those of `first_groups`."""
        counted, voters = groups[0] | groups[1], ~waiting
        if continues(state):
            first = decoded.score(*groups, step)
        else:
            first = power_scores(decoded, counted, step)
        present, scores, outside = self.test_round(decoded, counted, voters, first, step, number)
        state = state | {
            "shared": first[1],
            "last_round": np.full(decoded.users, float(number)),
            "seen": state["seen"] + 1,
            "excluded": np.zeros(decoded.users),
        }
        excluded = held = np.zeros_like(biased)
        if step is not None:
            state = self.remember(state, scores, present, number)
            held = state["held"] > 0
            excluded = self.test_sums(state, present, voters & ~biased, number)
            if not is_minority(held | excluded, voters):
                held = excluded = np.zeros_like(held)
            state["excluded"] = np.asarray(held | excluded, dtype=np.float64)
        accepted = present & ~held & ~excluded
        if not is_minority(~accepted, voters):
            accepted = present
        tests = {"newcomers": waiting, "bits": biased, "range": outside, "evidence": held}
        tests |= {"sums": excluded, "asymmetry": ~present}
        return DefenceResult(accepted, first_reasons(tests, ~accepted), state)

    def test_round(
        self,
        decoded: SingleBallots,
        counted: Flags,
        voters: Flags,
        scores: Floats,
        step: Floats | None,
        number: int,
    ) -> tuple[Flags, Floats, Flags]:
        """The users left by range and asymmetry, their scores, and the users out of range.

        Users are scored again after each removal, because attackers change the directions.
        """
        present, outside = counted, np.zeros_like(counted)
        slack = self.slack(decoded.users, number) * np.array([1, math.sqrt(SHARED_VARIANCE), 1])
        limits = (decoded.max_score + slack)[:, None]
        for _ in range(REPEATS):
            out = present & (np.abs(scores) > limits).any(axis=0)
            group = np.zeros_like(present)
            for row in scores[:2]:
                group |= self._asymmetric(row, present, present, number, both_sides=True)
            rest = present & ~(out | group)
            if not (out | group).any() or not is_minority(~rest, voters):
                break
            again = power_scores(decoded, rest, step)
            # Users of many kinds: the rest differ about as much among themselves as before.
            variance = float(scores[:2, present].var(axis=1).max()) - 1
            if group.any() and float(again[1, rest].var()) - 1 > MANY_KINDS * variance:
                if out.any():
                    present, outside = present & ~out, outside | out
                    scores = power_scores(decoded, present, step)
                break
            present, scores, outside = rest, again, outside | out
        return present, scores, outside

    def remember(self, state: State, scores: Floats, present: Flags, number: int) -> State:
        """The rows with the scores of a round added to sums and evidence."""
        fading = self.fading(present.size)
        sign = 1.0 if np.median(scores[0, present]) >= 0 else -1.0
        evidence = np.maximum(state["evidence"] - scores[2] - 0.5, 0.0)
        found = evidence > -math.log(self.rate_in(number))
        return state | {
            "mean": fading * state["mean"] + sign * scores[0],
            "step": fading * state["step"] + scores[2],
            "noise": fading**2 * state["noise"] + 1,
            "evidence": evidence,
            "held": np.where(found | ((state["held"] > 0) & (evidence > 0)), 1.0, 0.0),
        }

    def test_sums(self, state: State, present: Flags, tested: Flags, number: int) -> Flags:
        """Users who are a group against the others on either sum."""
        noise, found = np.sqrt(state["noise"]), np.zeros_like(present)
        for name in ("mean", "step"):
            found |= self._asymmetric(state[name] / noise, present, tested, number)
        return found

    def _asymmetric(
        self,
        scores: Floats,
        trusted: Flags,
        tested: Flags,
        number: int,
        both_sides: bool = False,
    ) -> Flags:
        """One of the asymmetry tests of a round: two rows with two sides, repeated; two sums."""
        rate = self.rate_in(number) / (4 * REPEATS + 2)
        natural = self.natural_share * np.count_nonzero(tested)
        return asymmetric_group(scores, trusted, tested, natural, rate, both_sides)


def is_minority(flags: Flags, voters: Flags) -> bool:
    """Whether at most half of the voters are marked: the defence assumes that attackers are."""
    return 2 * int(np.count_nonzero(flags & voters)) <= int(np.count_nonzero(voters))


def continues(state: State) -> bool:
    """Whether all these users took part in the same last round, so that `shared` is up to date."""
    last = state["last_round"]
    return bool(last.size and last[0] > 0 and (last == last[0]).all())


def newcomers_waiting(seen: Floats, ballots: Ballots, round_key: RoundKey) -> Flags:
    """Newcomers whose ballot is not counted: with probability 1 - seen / ENROLMENT.

    Nobody but the server can predict it.
    """
    if (seen >= ENROLMENT).all():
        return np.zeros(seen.size, dtype=np.bool_)
    secret = hmac.digest(round_key.secret, b"newcomers", "sha256")
    draws = RoundKey(secret, round_key.round, round_key.run).users(ballots.users).keys[:, 0]
    return np.asarray(draws >= seen / ENROLMENT * 2**32)


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


def power_scores(decoded: SingleBallots, counted: Flags, step: Floats | None) -> Floats:
    """The scores after POWER_STEPS steps of the power method from random scores."""
    shared = random_scores(decoded.users)
    for _ in range(POWER_STEPS):
        above, below = split_at_median(shared, counted)
        scores = decoded.score(above, below, step)
        shared = scores[1]
    return scores


def first_reasons(tests: dict[str, Flags], removed: Flags) -> dict[str, int]:
    """The number of removed ballots under the first test that removes each."""
    counts, left = {}, removed
    for name, flags in tests.items():
        counts[name] = int(np.count_nonzero(left & flags))
        left = left & ~flags
    return counts


def check_state(state: State, users: int) -> None:
    """Refuse a state that is not one row of finite numbers for each ballot."""
    arrays = [np.asarray(state.get(name, ())) for name in COLUMNS]
    shapes = all(array.shape == (users,) and array.dtype.kind == "f" for array in arrays)
    if set(state) != set(COLUMNS) or not shapes or not np.isfinite(arrays).all():
        raise InvalidInput(
            f"the state of the defence has the arrays {', '.join(COLUMNS)}, each with one finite "
            f"number for each of {users} ballots: use Defence.start, or restore the checkpoint"
        )


def check_step(step: Floats, dim: int) -> None:
    """Refuse a step of another model; kernels do not check sizes."""
    if step.shape != (dim,) or not np.isfinite(step).all():
        raise InvalidInput(f"step must have {dim} finite entries; got shape {step.shape}")
