"""Accuracy without each rule of the ballot filter, on development seeds.

    HUSHBIT_DATA=... python tools/ablate_defence.py run ablation.jsonl [--seeds 101 102 ...]
    python tools/ablate_defence.py table ablation.jsonl

Protocol, fixed before the runs:

- MNIST, linear model, K = 1000 users with 5 samples each, 60 rounds, the settings of
  docs/robustness.md; seeds 101 to 105, paired: every variant of a cell has the data, the weights
  and the coins of the present filter. Seeds below 101 are never used here.
- Cells: `CELLS` below. 30 % attackers unless the cell states another share.
- Variants: `VARIANTS` below, one rule or constant at a time, then several rules together.
- Criterion: a rule whose removal costs less than 0.3 points on average over the seeds in every
  cell goes. Cost is the accuracy of the present filter minus that of the variant.

The filter is rewritten here in NumPy with a switch for each rule. Every round of every run compares
the variant "present" with `hushbit.defence.filter`; a difference stops the tool.

Most rules decide nothing in most runs. During the run of the present filter, every variant decides
the same round from the same history. As long as its decisions are the same, so is its run. A
variant is run on its own only from the first round in which it decides otherwise. This is exact.

Each line of the file is one run: a run that is there already is not repeated.
"""

import argparse
import copy
import json
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hushbit.checks import Floats
from hushbit.defence import filter as present_filter
from hushbit.defence.filter import ScoreHistory, oriented, score_groups
from hushbit.defence.modality import (
    NO_SPLIT,
    Flags,
    median_and_quantile,
    split_at_median,
    split_point,
    upper_median,
)
from hushbit.defence.rules import (
    DEFAULT_RULE,
    MAX_VARIANCE_RATIO,
    UPPER_SIGMAS,
    biased_bits,
    is_minority,
)
from hushbit.lab.experiments.robustness import private
from hushbit.lab.sim import defences
from hushbit.lab.sim.rounds import RunState, initial_state, one_round
from hushbit.lab.sim.settings import Settings
from hushbit.lab.sim.setup import Setup, build_setup
from hushbit.lab.sim.training import evaluate
from hushbit.mechanism import Mechanism
from hushbit.tally.decoded_ballots import SingleBallots
from hushbit.tally.tally import Tally
from hushbit.wire.ballot import Ballots
from hushbit.wire.keys import RoundKey

ROUNDS, SHARE = 60, 0.3
SEEDS = (101, 102, 103, 104, 105)
CRITERION = 0.3
DIRICHLET: dict[str, Any] = {"partition": "dirichlet", "alpha": 0.1}
ONE_CLASS: dict[str, Any] = {"partition": "shards", "shards_per_user": 1}


def attack(name: str, share: float = SHARE, **options: Any) -> dict[str, Any]:
    """The options of a cell under attack."""
    return {"attack": name, "attackers": share, **options}


CELLS: dict[str, dict[str, Any]] = {
    "none": {},
    "none, Dirichlet 0.1": DIRICHLET,
    "none, one class": ONE_CLASS,
    "label-flip": attack("label-flip"),
    "inner-product": attack("inner-product"),
    "scaled": attack("scaled"),
    "little": attack("little"),
    "cancel": attack("cancel"),
    "mirror": attack("mirror"),
    "adaptive 20 %": attack("adaptive", 0.2),
    "directed-stealth": attack("directed-stealth"),
    "decoys": attack("decoys"),
    "sybils": attack("sybils"),
    "directed": attack("directed"),
    "ones": attack("ones"),
    "sleepers": attack("sleepers"),
    "two-coalitions": attack("two-coalitions"),
    "label-flip, Dirichlet 0.1": attack("label-flip", **DIRICHLET),
    "inner-product, Dirichlet 0.1": attack("inner-product", **DIRICHLET),
}


@dataclass(frozen=True)
class Switches:
    """One variant of the filter; the defaults are the present filter."""

    biased: bool = True
    max_score: bool = True
    round_mean: bool = True
    round_shared: bool = True
    kinds: bool = True
    sum_splits: tuple[str, ...] = ("mean", "drift", "both")
    split_above: bool = True
    midpoint: bool = True
    mean_tail: bool = True
    drift_tail: bool = True
    hold: bool = True
    readmit: str = "alone or together"
    release: bool = True
    iterations: int = 3
    decay: float = 0.95
    limit: float = 3.0
    natural: float = 0.15
    lagging: float = 0.15
    tolerated: float = 0.03
    min_rounds: float = 3.0
    direction: str = "drift"


PRESENT = Switches()
VARIANTS: dict[str, Switches] = {
    "present": PRESENT,
    "no biased bits": Switches(biased=False),
    "no maximum score": Switches(max_score=False),
    "no split of the round": Switches(round_mean=False, round_shared=False),
    "no split of the round's mean scores": Switches(round_mean=False),
    "no shared direction": Switches(round_shared=False),
    "no exception for many kinds": Switches(kinds=False),
    "no repetition in a round": Switches(iterations=1),
    "no release of excluded users": Switches(release=False),
    "no split of sums": Switches(sum_splits=()),
    "no split of the mean sum": Switches(sum_splits=("drift", "both")),
    "no split of the drift sum": Switches(sum_splits=("mean", "both")),
    "no split of both sums together": Switches(sum_splits=("mean", "drift")),
    "no split above": Switches(split_above=False),
    "no midpoint": Switches(midpoint=False),
    "no tail of the mean sum": Switches(mean_tail=False),
    "no tail of the drift sum": Switches(drift_tail=False),
    "no tails": Switches(mean_tail=False, drift_tail=False),
    "no memory of exclusion": Switches(hold=False),
    "no readmission": Switches(readmit="never"),
    "no readmission together": Switches(readmit="alone"),
    "decay 0.9": Switches(decay=0.9),
    "decay 0.98": Switches(decay=0.98),
    "limit 2 sigmas": Switches(limit=2.0),
    "limit 4 sigmas": Switches(limit=4.0),
    "no natural groups in splits": Switches(natural=0.03),
    "no users left behind": Switches(lagging=0.0),
    "no tolerated share": Switches(tolerated=0.0),
    "no minimum of rounds": Switches(min_rounds=0.0),
    "drift without the first model": Switches(direction="drift alone"),
    "last step for drift": Switches(direction="last step"),
    "no drift": Switches(direction="none"),
}


Scores = dict[tuple[bytes, bytes], Floats]


@dataclass
class RoundScores:
    """Scores of one round on one direction of the model; computed once for all variants."""

    decoded: SingleBallots
    direction: Floats | None
    known: Scores

    def score(self, above: Flags, below: Flags) -> Floats:
        """As `SingleBallots.score`."""
        key = above.tobytes(), below.tobytes()
        if key not in self.known:
            self.known[key] = self.decoded.score(above, below, self.direction)
        return self.known[key]

    def from_random(self, present: Flags) -> Floats:
        """As `power_iteration_scores`."""
        shared = present_filter._random_scores(self.decoded.users)
        for _ in range(present_filter.POWER_STEPS):
            scores = self.score(*split_at_median(shared, present))
            shared = scores[1]
        return scores


@dataclass(frozen=True, eq=False)
class Decision:
    """Accepted users and the history after the round."""

    accepted: Flags
    history: ScoreHistory

    def equals(self, other: "Decision") -> bool:
        """Whether a run continues in the same way."""
        pairs = zip(vars(self.history).values(), vars(other.history).values(), strict=True)
        return bool((self.accepted == other.accepted).all()) and all(
            np.array_equal(one, two) for one, two in pairs
        )


def decide(s: Switches, at: RoundScores, biased: Flags, history: ScoreHistory) -> Decision:
    """One round of the filter."""
    if not s.biased:
        biased = np.zeros_like(biased)
    above, below = score_groups(history, biased)
    counted = above | below
    scores = at.score(above, below) if history.covers_all else at.from_random(counted)
    present, last, too_many = round_rules(s, at, counted, scores)
    if too_many and s.release and not (counted | biased).all():
        released = replace(history, excluded=np.zeros_like(biased))
        return decide(s, at, biased, replace(released, in_last_round=released.excluded))
    excluded = np.zeros_like(biased)
    if at.direction is not None:
        history = history.add_scores(oriented(last[0], present), last[2], s.decay)
        excluded = sum_rules(s, history, present, at.decoded.max_entry)
    accepted = present & ~excluded if is_minority(~present | excluded) else present
    return Decision(accepted, history.end_round(scores[1], excluded))


def round_rules(
    s: Switches, at: RoundScores, counted: Flags, scores: Floats
) -> tuple[Flags, Floats, bool]:
    """The users whom the rules of one round keep, the last scores, and whether it was too many."""
    present, too_many = counted, False
    rows = [row for row, used in enumerate((s.round_mean, s.round_shared)) if used]
    limit = at.decoded.max_score + DEFAULT_RULE.slack(counted.size)
    for _ in range(s.iterations):
        group, users = np.zeros_like(present), int(present.sum())
        for row in scores[rows]:
            split = split_point(
                row, present, int(s.natural * users), DEFAULT_RULE.split_rate, np.inf
            )
            if split < NO_SPLIT:
                below = row < split
                group |= present & (below == (2 * int((below & present).sum()) < users))
        outliers = (np.abs(scores) > limit).any(axis=0) & s.max_score
        rest = present & ~(group | outliers)
        too_many = not is_minority(~rest)
        if too_many or rest.sum() == present.sum():
            break
        variance = float(scores[:2, present].var(axis=1).max()) - 1
        again = at.from_random(rest)
        rest_variance = float(again[1][rest].var()) - 1
        if s.kinds and group.any() and rest_variance > MAX_VARIANCE_RATIO * variance:
            if (present & outliers).any():
                present = present & ~outliers
                scores = at.from_random(present)
            break
        present, scores = rest, again
    return present, scores, too_many


def sum_rules(s: Switches, history: ScoreHistory, present: Flags, max_entry: float) -> Flags:
    """The users whom the rules over rounds exclude."""
    excluded, users = history.excluded, present.size
    noise = np.sqrt(np.maximum(history.rounds, 1.0))
    mean, drift = (
        sums if upper_median(sums, present) >= 0 else -sums
        for sums in (history.mean / noise, history.drift / noise)
    )
    separated = np.zeros_like(present)
    tested = {"mean": (mean, s.limit), "drift": (drift, s.limit)}
    tested["both"] = ((mean + drift) / np.sqrt(2.0), s.limit / 2)
    for name in s.sum_splits:
        separated |= beyond_split(s, *tested[name])
    for sums in (mean, drift):
        if s.midpoint:
            separated |= sums < midpoint(s, sums, present, excluded & ~present)
    found = separated.copy()
    seen, new = history.rounds >= s.min_rounds, ~(separated | excluded)
    max_new = max(s.tolerated * users, DEFAULT_RULE.max_new(users) if s.tolerated else 0)
    lagging = DEFAULT_RULE.max_lagging(users, max_entry) if s.lagging else 0.0
    tails = ((mean, DEFAULT_RULE.tail_sigmas, 0.0, s.mean_tail),)
    tails += ((drift, UPPER_SIGMAS, lagging, s.drift_tail),)
    for sums, depth, natural, used in tails:
        median, spread = median_and_spread(sums, present)
        low = (sums < min(-s.limit, median - depth * spread)) & seen & used
        if (low & new).sum() > max_new and (low & ~separated).sum() > natural:
            found |= low
    held = np.zeros_like(found)
    if s.hold and excluded.any() and not separated.any():
        held = excluded & ~readmitted(s, (mean, drift), present, excluded)
    for out in (found | held, found):
        if is_minority(out):
            return out
    return np.zeros_like(found)


def beyond_split(s: Switches, sums: Floats, min_distance: float) -> Flags:
    """Users beyond a split point whose mode is `min_distance` from zero."""
    everyone, found = np.ones(sums.size, dtype=np.bool_), np.zeros(sums.size, dtype=np.bool_)
    for signed in (sums, -sums) if s.split_above else (sums,):
        natural = int(s.natural * sums.size)
        split = split_point(signed, everyone, natural, DEFAULT_RULE.split_rate, -min_distance)
        if split < NO_SPLIT:
            found |= signed < split
    return found


def midpoint(s: Switches, sums: Floats, present: Flags, absent: Flags) -> float:
    """The midpoint of the medians of present and absent users; -inf where these overlap."""
    if absent.sum() <= s.natural * absent.size:
        return -np.inf
    median, upper = median_and_quantile(sums, present, 0.9)
    half = (median - upper_median(sums, absent)) / 2
    return median - half if half >= s.limit and upper <= median + half else -np.inf


def median_and_spread(sums: Floats, present: Flags) -> tuple[float, float]:
    """The median of the present users, and their spread measured on the upper half."""
    median, upper = median_and_quantile(sums, present, 0.9)
    return median, max(1.0, (upper - median) / UPPER_SIGMAS)


def readmitted(s: Switches, both: tuple[Floats, ...], present: Flags, excluded: Flags) -> Flags:
    """Excluded users in the range of the others who leave the excluded, alone or together."""
    in_range, alone, together, forward = excluded.copy(), np.zeros_like(excluded), True, False
    for sums in both:
        median, spread = median_and_spread(sums, present)
        centre = upper_median(sums, excluded)
        in_range &= sums >= min(s.limit, median)
        in_range &= sums <= max(s.limit, median + DEFAULT_RULE.tail_sigmas * spread)
        alone |= np.abs(sums - centre) >= s.limit
        together &= abs(centre - median) <= spread
        forward |= median >= s.limit
    together &= forward and "together" in s.readmit
    return in_range & (alone | together) & (s.readmit != "never")


@dataclass
class Fork:
    """The run before the round in which a variant first decides otherwise."""

    state: RunState
    previous: Floats | None


@dataclass
class FilterHook:
    """Takes the place of `filtered_tally` in a run of one variant.

    pending   variants whose decisions were the same so far; those that differ move to `found`
    previous  the model before the last step
    """

    setup: Setup
    variant: Switches
    pending: dict[str, Switches]
    found: dict[str, Fork]
    state: RunState
    previous: Floats | None = None

    def direction(self, name: str) -> Floats | None:
        """The direction of the model on which ballots are scored."""
        params = self.state.params.astype(np.float64)
        first = self.state.defence[defences.FIRST_MODEL]
        if name == "none" or (name == "last step" and self.previous is None):
            return None
        if name == "last step":
            step = params - self.previous
        else:
            weight = 1.0 if name == "drift alone" else defences.FIRST_MODEL_WEIGHT
            step = self.state.params - weight * first
        return step if step.any() else None

    def __call__(
        self,
        mechanism: Mechanism,
        ballots: Ballots,
        round_key: RoundKey,
        *,
        history: ScoreHistory,
        drift_direction: Floats | None,
    ) -> tuple[Tally, present_filter.FilterResult]:
        """The tally of the accepted ballots; also lets the pending variants decide."""
        votes = mechanism.votes
        assert votes is not None
        biased = biased_bits(mechanism, ballots)
        decoded = votes.decode_each(ballots, round_key, None)
        known: dict[str, RoundScores] = {}

        def decision(s: Switches) -> Decision:
            if s.direction not in known:
                along = self.direction(s.direction)
                rotated = None if along is None else votes.to_vote_space(along, round_key)
                known[s.direction] = RoundScores(decoded, rotated, {})
            return decide(s, known[s.direction], biased, history)

        made = decision(self.variant)
        if self.variant == PRESENT:
            _, real = present_filter.filtered_tally(
                mechanism, ballots, round_key, history=history, drift_direction=drift_direction
            )
            if not made.equals(Decision(real.accepted, real.history)):
                raise SystemExit(f"round {round_key.round}: the filter differs from its definition")
        for name, other in list(self.pending.items()):
            if not decision(other).equals(made):
                self.found[name] = Fork(copy.deepcopy(self.state), self.previous)
                del self.pending[name]
        tally = mechanism.tally(round_key, histogram=False)
        tally.add_many(ballots[made.accepted])
        result = present_filter.FilterResult(
            made.accepted, decoded.max_score, int(biased.sum()), 0, 0, made.history
        )
        return tally, result


def run_variant(hook: FilterHook, rows: list[dict[str, float]]) -> dict[str, Any]:
    """Run to the last round; `rows` are the shares of users removed in earlier rounds."""
    setup, state = hook.setup, hook.state
    defences.filtered_tally = hook  # type: ignore[assignment]
    while state.round < setup.settings.rounds:
        before = state.params.astype(np.float64)
        made = one_round(setup, state)
        hook.previous = before
        rows.append({"honest": made.removed_honest or 0, "attackers": made.removed_attackers or 0})
    data = setup.task.data
    right = [
        evaluate(setup.task.model, state.params, data.test_x[of], data.test_y[of]).accuracy
        for of in (data.test_y == c for c in range(data.classes))
    ]
    return {
        "accuracy": round(100 * (made.test_accuracy or 0.0), 3),
        "worst_class": round(100 * min(right), 2),
        "removed_honest": round(100 * statistics.fmean(row["honest"] for row in rows), 3),
        "removed_attackers": round(100 * statistics.fmean(row["attackers"] for row in rows), 2),
        "last_honest": round(100 * rows[-1]["honest"], 2),
        "last_attackers": round(100 * rows[-1]["attackers"], 2),
    }


def run_cell(
    settings: Settings, wanted: dict[str, Switches]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The results of the wanted variants in one cell with one seed."""
    setup = build_setup(settings)
    hook = FilterHook(setup, PRESENT, dict(wanted), {}, initial_state(setup))
    begun, rows = time.process_time(), []
    present = run_variant(hook, rows)
    spent = time.process_time() - begun
    for name in hook.pending:
        yield name, {**present, "differs_from": None, "cpu": round(spent, 1)}
    for name, fork in hook.found.items():
        begun, first = time.process_time(), fork.state.round
        other = FilterHook(setup, wanted[name], {}, {}, fork.state, fork.previous)
        result = run_variant(other, rows[:first])
        yield (
            name,
            {
                **result,
                "differs_from": first + 1,
                "cpu": round(time.process_time() - begun, 1),
            },
        )


def run(file: Path, seeds: list[int], cells: list[str], variants: list[str]) -> None:
    """Append the runs that the file does not contain yet."""
    lines = file.read_text().splitlines() if file.exists() else []
    done = {(row["cell"], row["seed"], row["variant"]) for row in map(json.loads, lines)}
    for seed in seeds:
        for cell in cells:
            wanted = {n: VARIANTS[n] for n in variants if (cell, seed, n) not in done}
            if not wanted:
                continue
            settings = private("linear", ROUNDS, seed=seed, defence="spectral", **CELLS[cell])
            for name, result in run_cell(settings, wanted):
                with file.open("a") as out:
                    out.write(
                        json.dumps({"cell": cell, "seed": seed, "variant": name, **result}) + "\n"
                    )


def table(file: Path) -> None:
    """Cost of each variant in points: mean over seeds in the cell where it is largest."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    found = {(row["variant"], row["cell"], row["seed"]): row for row in rows}
    cells = [cell for cell in CELLS if any(row["cell"] == cell for row in rows)]
    print("present filter: accuracy (honest, attackers removed in %)")
    for cell in cells:
        some = [row for row in rows if row["cell"] == cell and row["variant"] == "present"]
        means = [
            statistics.fmean(row[name] for row in some)
            for name in ("accuracy", "removed_honest", "removed_attackers", "worst_class")
        ]
        print(f"{cell:32} {means[0]:.2f} ({means[1]:.1f}, {means[2]:.1f}) worst {means[3]:.1f}")
    for variant in VARIANTS:
        costs = {}
        for cell in cells:
            seeds = [s for v, c, s in found if v == variant and c == cell]
            pairs = [
                (found["present", cell, s]["accuracy"], found[variant, cell, s]["accuracy"])
                for s in seeds
                if ("present", cell, s) in found
            ]
            if pairs:
                lost = [one - two for one, two in pairs]
                error = statistics.stdev(lost) / math.sqrt(len(lost)) if len(lost) > 1 else math.nan
                costs[cell] = (statistics.fmean(lost), error)
        if variant == "present" or not costs:
            continue
        worst = sorted(costs.items(), key=lambda item: -item[1][0])
        shown = [f"{c} {m:+.2f}±{e:.2f}" for c, (m, e) in worst if abs(m) >= 0.05][:6]
        verdict = "stays" if worst[0][1][0] >= CRITERION else "goes"
        print(f"{variant:38} {verdict:6} {'; '.join(shown)}")


def main() -> None:
    """Run, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    if options.command == "run":
        run(options.file, options.seeds, options.cells, options.variants)
    else:
        table(options.file)


if __name__ == "__main__":
    main()
