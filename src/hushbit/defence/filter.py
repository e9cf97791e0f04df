"""The ballot filter: removes ballots of users who collude in a round or over many rounds.

A coalition pushes its ballots in one direction. The filter scores every ballot on a few directions
and removes users whose scores no honest user has (`hushbit.defence.rules` lists the rules):

1. Ballots whose bits are not fair coins are removed.
2. Every ballot is scored on the mean and on the shared direction, its own part excluded. The shared
   direction is one step of the power method in the space of users: the sum of the ballots above the
   median of the last scores, minus the sum of those below. If all users took part in the previous
   round, the step continues from its scores; otherwise POWER_STEPS steps start from random scores.
   Users above the maximum score, and the smaller group of bimodal scores, are removed. This repeats
   until nobody is removed, at most `max_iterations` times.
3. Scores on the mean and on the drift direction d are summed over rounds for each user:

       A <- decay · A + score,      n <- decay² · n + 1,      noise of A / sqrt(n): variance 1

   The drift direction is the direction of model drift since round 1, which is known before the
   ballots arrive. The sums show users who push a little in every round, which one ballot does not.
   The rules over rounds exclude users and readmit them. A readmitted user's ballots count from the
   next round on, where the rules of one round apply to them.

Time is linear in the number of users. Most rounds take two passes over packed ballots: one decodes
and counts them, one scores them on all directions. The server stores six numbers per user. All of
them are computed from ballots, which are already private.
"""

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hushbit.checks import Floats, Ints, check_int
from hushbit.defence.modality import Flags, split_at_median, upper_median
from hushbit.defence.rules import (
    DEFAULT_RULE,
    MAX_VARIANCE_RATIO,
    MIN_USERS,
    FilterRule,
    above_max_score,
    apply_rules_fast,
    biased_bits,
    bimodal_group,
    history_exclusions,
    is_minority,
    remaining,
)
from hushbit.errors import InvalidInput
from hushbit.mechanism import Mechanism, Votes
from hushbit.tally.decoded_ballots import SingleBallots
from hushbit.tally.tally import Tally
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import RoundKey

Groups = tuple[Flags, Flags]
HistoryArrays = dict[str, Floats]

START_SEED, POWER_STEPS = 0x70, 8


@dataclass(frozen=True, eq=False)
class ScoreHistory:
    """What the filter stores of each user from round to round, one row per user.

    mean           sum of scores on the mean
    drift          sum of scores on the drift direction
    rounds         n, the variance of the noise of both sums
    shared         scores on the shared direction in the user's last round
    excluded       whether the rules over rounds exclude the user
    in_last_round  whether the user took part in the last round
    """

    mean: Floats
    drift: Floats
    rounds: Floats
    shared: Floats
    excluded: Flags
    in_last_round: Flags

    @classmethod
    def fresh(cls, users: int) -> "ScoreHistory":
        """The history before the first round."""
        zeros = np.zeros(check_int("users", users, 0))
        return cls(zeros, zeros, zeros, zeros, zeros > 0, zeros > 0)

    @property
    def covers_all(self) -> bool:
        """Whether all these users took part in the last round, so that `shared` is up to date."""
        return bool(self.in_last_round.all())

    def rows(self, users: Ints) -> "ScoreHistory":
        """The rows of some users."""
        return ScoreHistory(*(column[users] for column in vars(self).values()))

    def add_scores(self, mean: Floats, drift: Floats, decay: float) -> "ScoreHistory":
        """The history with the scores of one round added to the sums."""
        return replace(
            self,
            mean=decay * self.mean + mean,
            drift=decay * self.drift + drift,
            rounds=decay**2 * self.rounds + 1,
        )

    def end_round(self, shared: Floats, excluded: Flags) -> "ScoreHistory":
        """The history with the other results of a round in which all these users took part."""
        return replace(self, shared=shared, excluded=excluded, in_last_round=np.ones_like(excluded))

    def replace_rows(self, users: Ints, rows: "ScoreHistory") -> "ScoreHistory":
        """The history of all users after a round of some users, given their rows."""
        columns = {}
        for name, column in vars(self).items():
            columns[name] = np.zeros_like(column) if name == "in_last_round" else column.copy()
            columns[name][users] = getattr(rows, name)
        return ScoreHistory(**columns)

    @property
    def state(self) -> HistoryArrays:
        """The columns as float arrays for a checkpoint."""
        return {name: column.astype(np.float64) for name, column in vars(self).items()}

    @classmethod
    def from_state(cls, state: HistoryArrays) -> "ScoreHistory":
        """The history of which `state` was stored."""
        names = [field.name for field in dataclasses.fields(cls)]
        if set(state) != set(names):
            raise InvalidInput(
                f"a score history has the arrays {', '.join(names)}; got {', '.join(state)}"
            )
        if not _are_finite_columns([state[name] for name in names]):
            raise InvalidInput(
                f"the arrays {', '.join(names)} of a score history must have one finite number per "
                "user: restore the checkpoint, or start the run anew"
            )
        if (state["rounds"] < 0).any():
            raise InvalidInput(
                f"rounds of a score history must not be negative; got {state['rounds'].min()}"
            )
        flags = {name: state[name] > 0 for name in ("excluded", "in_last_round")}
        arrays: dict[str, Any] = {**state, **flags}
        return cls(**arrays)


def _are_finite_columns(columns: list[Floats]) -> bool:
    """Whether all are one-dimensional arrays of finite real numbers, of the same length."""
    real = all(column.ndim == 1 and column.dtype.kind in "fiub" for column in columns)
    same_size = len({column.size for column in columns}) == 1
    return real and same_size and bool(np.isfinite(columns).all())


@dataclass(frozen=True, eq=False)
class FilterResult:
    """Which ballots are accepted, how many each kind of rule removes, and the new history.

    biased               number of ballots whose bits are not fair coins
    excluded_by_round    number removed by their scores in this round
    excluded_by_history  number removed by the rules over rounds
    """

    accepted: Flags
    max_score: float
    biased: int
    excluded_by_round: int
    excluded_by_history: int
    history: ScoreHistory

    @property
    def removed(self) -> int:
        """Number of removed ballots."""
        return int((~self.accepted).sum())


def filtered_tally(
    mechanism: Mechanism,
    ballots: Ballots,
    round_key: RoundKey,
    rule: FilterRule = DEFAULT_RULE,
    *,
    histogram: bool = False,
    history: ScoreHistory | None = None,
    drift_direction: Floats | None = None,
) -> tuple[Tally, FilterResult]:
    """The tally of the ballots that the filter accepts, and the result of the filter.

    `history` has one row for each of these ballots; `drift_direction` is the direction of model
    drift since round 1. Time and memory are linear in the number of users: twice K · dim / 8 bytes
    of ballots.
    """
    votes = readable_votes(mechanism)
    tally = mechanism.tally(round_key, histogram)
    tally.check_ballots(ballots)
    tally.check_voters(ballots.users)
    _check_history(mechanism.dim, len(ballots), history, drift_direction)
    if drift_direction is not None:
        drift_direction = votes.to_vote_space(drift_direction, round_key)
    biased = biased_bits(mechanism, ballots)
    history = ScoreHistory.fresh(len(ballots)) if history is None else history
    groups = score_groups(history, biased)
    decoded = votes.decode_each(ballots, round_key, groups)
    result = filter_scores(decoded, rule, biased, history, drift_direction, groups)
    accepted = result.accepted
    if votes.count_decoded(decoded, ballots, accepted, tally.counters):
        tally.voters.add(ballots.users[accepted])
    else:
        tally.add_many(ballots[accepted])
    return tally, result


def readable_votes(mechanism: Mechanism) -> Votes:
    """The votes of a mechanism; refuses a mechanism whose ballots cannot be decoded one by one."""
    if mechanism.votes is None or not mechanism.votes.readable:
        raise InvalidInput(
            "the spectral filter reads ballots of bits (cpa, nested, signsgd, mvu); "
            f"got {mechanism.description['mechanism']}: choose another defence"
        )
    return mechanism.votes


def _check_history(
    dim: int, users: int, history: ScoreHistory | None, drift_direction: Floats | None
) -> None:
    """Refuse arrays of other users or of another model; kernels do not check sizes."""
    if history is not None and len(history.excluded) != users:
        raise InvalidInput(
            f"history must have a row for each of {users} ballots; got {len(history.excluded)}"
        )
    if drift_direction is not None and drift_direction.shape != (dim,):
        raise InvalidInput(
            f"drift_direction must have {dim} entries; got shape {drift_direction.shape}"
        )


def score_groups(history: ScoreHistory, biased: Flags) -> Groups:
    """The remaining users above and below the median of their last scores.

    If some users did not take part in the last round, random scores replace the last ones.
    """
    scores = history.shared if history.covers_all else _random_scores(biased.size)
    above, below = split_at_median(scores, remaining(biased, history.excluded))
    return above, below


def _random_scores(users: int) -> Floats:
    return np.random.default_rng(START_SEED).normal(size=users)


def filter_scores(
    decoded: SingleBallots,
    rule: FilterRule,
    biased: Flags | None = None,
    history: ScoreHistory | None = None,
    drift_direction: Floats | None = None,
    groups: Groups | None = None,
) -> FilterResult:
    """The filter on decoded ballots; `biased` marks ballots that are removed already.

    `history` has a row for each ballot; `drift_direction` is in the coordinates of the votes;
    `groups` are those of `score_groups`, if their ballots are counted already.
    """
    history = ScoreHistory.fresh(decoded.users) if history is None else history
    biased = np.zeros(decoded.users, dtype=np.bool_) if biased is None else biased
    if decoded.users < MIN_USERS:
        return _filter_result(decoded, biased, remaining(biased, history.excluded), 0, history)
    above, below = score_groups(history, biased) if groups is None else groups
    if not history.covers_all:
        return apply_rules(decoded, rule, biased, history, drift_direction, (above, below), None)
    scores = decoded.score(above, below, drift_direction)
    if drift_direction is not None:
        sums = history.mean, history.drift, history.rounds, history.excluded
        limits = rule.limits(decoded.users, decoded.max_score, decoded.max_entry)
        decision = apply_rules_fast(scores, above, below, *sums, limits)
        if decision.decided:
            columns = decision.mean, decision.drift, decision.rounds, scores[1], decision.excluded
            after = ScoreHistory(*columns, history.in_last_round)
            return _filter_result(decoded, biased, decision.accepted, 0, after)
    return apply_rules(decoded, rule, biased, history, drift_direction, (above, below), scores)


def apply_rules(
    decoded: SingleBallots,
    rule: FilterRule,
    biased: Flags,
    history: ScoreHistory,
    drift_direction: Floats | None,
    groups: Groups,
    scores: Floats | None,
) -> FilterResult:
    """The filter for any round, one rule after the other.

    `scores` are the first scores of the round; None starts from random ones. In a round in which
    the rules of one round remove nobody, `apply_rules_fast` gives the same result.
    """
    counted, excluded = groups[0] | groups[1], np.zeros_like(biased)
    if scores is None:
        scores = power_iteration_scores(decoded, counted, drift_direction)
    present, last, too_many = _round_decision(decoded, counted, scores, rule, drift_direction)
    if too_many and not (counted | biased).all():
        # Users excluded before and users found now are too many: all are scored together.
        released = replace(history, excluded=excluded)
        groups = score_groups(released, biased)
        return apply_rules(decoded, rule, biased, released, drift_direction, groups, None)
    if drift_direction is not None:
        history = history.add_scores(oriented(last[0], present), last[2], rule.decay)
        sums = history.mean, history.drift, history.rounds
        limits = rule.limits(decoded.users, decoded.max_score, decoded.max_entry)
        excluded = history_exclusions(*sums, present, history.excluded, limits)
    accepted = present & ~excluded if is_minority(~present | excluded) else present
    by_round = int(np.count_nonzero(counted & ~present))
    # The next round continues from the first scores, which include the users found in this round.
    after = history.end_round(scores[1], excluded)
    return _filter_result(decoded, biased, accepted, by_round, after)


def _filter_result(
    decoded: SingleBallots, biased: Flags, accepted: Flags, by_round: int, history: ScoreHistory
) -> FilterResult:
    """Ballots removed neither by their bits nor by this round's scores are out by the history."""
    by_bits = int(np.count_nonzero(biased))
    by_history = accepted.size - int(np.count_nonzero(accepted)) - by_bits - by_round
    return FilterResult(accepted, decoded.max_score, by_bits, by_round, by_history, history)


def oriented(scores: Floats, present: Flags) -> Floats:
    """The scores with the sign that makes the median of the present users non-negative."""
    return scores if upper_median(scores, present) >= 0 else -scores


def _round_decision(
    decoded: SingleBallots,
    counted: Flags,
    scores: Floats,
    rule: FilterRule,
    drift_direction: Floats | None,
) -> tuple[Flags, Floats, bool]:
    """The users whom the rules of one round keep, the last scores, and whether a rule was dropped.

    A rule is dropped if it would leave less than half of all users.
    """
    present, too_many = counted, False
    for _ in range(rule.max_iterations):
        group = bimodal_group(scores[:2], present, rule)
        outliers = above_max_score(scores, decoded.max_score, rule)
        found = present & (group | outliers)
        rest = present & ~found
        too_many = not is_minority(~rest)
        if too_many or not found.any():
            break
        variance = float(scores[:2, present].var(axis=1).max()) - 1
        rescored = power_iteration_scores(decoded, rest, drift_direction)
        # If the rest differ about as much among themselves, users are of many kinds: the group is
        # kept, because the mean of one kind gives no information about the others.
        if group.any() and float(rescored[1][rest].var()) - 1 > MAX_VARIANCE_RATIO * variance:
            if (present & outliers).any():
                present = present & ~outliers
                scores = power_iteration_scores(decoded, present, drift_direction)
            break
        present, scores = rest, rescored
    return present, scores, too_many


def power_iteration_scores(
    decoded: SingleBallots, present: Flags, drift_direction: Floats | None
) -> Floats:
    """The scores after POWER_STEPS steps of the power method from random scores."""
    shared = _random_scores(decoded.users)
    for _ in range(POWER_STEPS):
        above, below = split_at_median(shared, present)
        scores = decoded.score(above, below, drift_direction)
        shared = scores[1]
    return scores
