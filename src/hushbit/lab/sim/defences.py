"""The defence of a simulated round: the ballot filter, or a robust mean in place of the mean.

The names of all defences are `hushbit.lab.sim.settings.DEFENCES`: none, scores
(`hushbit.defence.defence`), spectral (the ballot filter before it) and the robust means of
`hushbit.lab.sim.robust_means`. The round loop calls the functions of this module.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.defence.defence import Defence, DefenceResult, model_direction
from hushbit.defence.filter import (
    FilterResult,
    HistoryArrays,
    ScoreHistory,
    filtered_tally,
    readable_votes,
)
from hushbit.defence.rules import MIN_USERS
from hushbit.errors import InvalidInput
from hushbit.lab.attacks import CRAFTED
from hushbit.lab.sim.robust_means import ROBUST_MEANS, robust_mean
from hushbit.lab.sim.settings import Settings
from hushbit.mechanism import Mechanism
from hushbit.tally.estimate import FROM_HISTOGRAM, Estimate
from hushbit.tally.tally import Tally
from hushbit.wire.ballot import Ballots
from hushbit.wire.coins import SimulationCoins

FIRST_MODEL, PREVIOUS_MODEL = "first model", "previous model"
FIRST_MODEL_WEIGHT = 0.75  # below 1, because a short drift of the model is mostly noise
MAX_TRIM = 0.49
BALLOT_DEFENCES = ("scores", "spectral")
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RemovalShares:
    """Shares of honest users and of attackers whose ballots were removed, and the result."""

    honest: float
    attackers: float
    result: FilterResult | DefenceResult


@dataclass(frozen=True, eq=False)
class DefenceState:
    """What a defence stores of the users of a round, and the direction of the model.

    The direction is `model_direction` (scores) or the drift since round 1 (spectral). It is None
    without a defence and where the model has not moved.
    """

    history: ScoreHistory | None = None
    drift_direction: NDArray[np.float64] | None = None
    rows: HistoryArrays | None = None


def filter_warnings(settings: Settings) -> list[str]:
    """One line for each reason why the filter protects little with these settings."""
    if settings.defence not in BALLOT_DEFENCES:
        return []
    lines = []
    present = max(1, round(settings.participation * settings.users))
    if present < MIN_USERS:
        lines.append(
            f"the filter does not compare fewer than {MIN_USERS} users; {present} take part in a "
            "round"
        )
    if settings.attackers >= 0.5:
        lines.append("the filter assumes an honest majority: it does not stop half of the users")
    if settings.mechanism in ("cpa", "nested") and settings.clip is None:
        lines.append(
            "without --clip the filter accepts any update within the points, and the noise of a "
            "large radius hides what users have in common: use --mechanism cpa-auto, which chooses "
            "its points, or cpa with two points and --rotate --clip C --radius C/(2 sqrt(dim)), "
            "where C is about the norm of an update"
        )
    return lines


def needs_full_round(settings: Settings) -> bool:
    """Whether all updates of a round are needed at once, for a coalition or a defence."""
    return settings.attack in CRAFTED or settings.defence != "none"


def check_defence(settings: Settings, mechanism: Mechanism) -> None:
    """Refuse a defence that cannot read the ballots of the mechanism."""
    name, kind = settings.defence, mechanism.description["mechanism"]
    if name in BALLOT_DEFENCES:
        readable_votes(mechanism)
    if name not in ROBUST_MEANS:
        return
    from_histogram = name in FROM_HISTOGRAM
    if not mechanism.sends_updates and not (from_histogram and mechanism.keeps_histogram):
        where = "fedavg" + (", and cpa without --rotate" if from_histogram else "")
        raise InvalidInput(f"defence {name} works with {where}; got {kind}: try --defence spectral")


def defence_arrays(settings: Settings, users: int, params: NDArray[np.float32]) -> HistoryArrays:
    """The arrays of the defence before the first round; empty for a defence without a history."""
    if settings.defence == "scores":
        models = dict.fromkeys((FIRST_MODEL, PREVIOUS_MODEL), params.astype(np.float64))
        return {**Defence().start(users), **models}
    if settings.defence != "spectral":
        return {}
    return {**ScoreHistory.fresh(users).state, FIRST_MODEL: params.astype(np.float64)}


def load_state(
    state: HistoryArrays,
    users: NDArray[np.int64],
    params: NDArray[np.float32],
    newcomers: Flags | None = None,
) -> DefenceState:
    """The state of the defence for the users of a round; users marked as newcomers have none."""
    if not state:
        return DefenceState()
    models = {name: state[name] for name in (FIRST_MODEL, PREVIOUS_MODEL) if name in state}
    for name, model in models.items():
        if not np.isfinite(model).all():
            raise InvalidInput(f"the {name} of the checkpoint is not finite: start the run anew")
    rows = {name: column[users] for name, column in state.items() if name not in models}
    if newcomers is not None:
        rows = {name: np.where(newcomers, 0.0, column) for name, column in rows.items()}
    if PREVIOUS_MODEL in models:
        direction = model_direction(
            params.astype(np.float64), models[PREVIOUS_MODEL], models[FIRST_MODEL]
        )
        return DefenceState(None, direction, rows)
    drift_direction = params - FIRST_MODEL_WEIGHT * state[FIRST_MODEL]
    return DefenceState(
        ScoreHistory.from_state(rows), drift_direction if drift_direction.any() else None
    )


def store_state(
    state: HistoryArrays,
    users: NDArray[np.int64],
    removals: RemovalShares | None,
    params: NDArray[np.float32],
) -> HistoryArrays:
    """The arrays of the defence after a round that began with the model `params`."""
    if not state or removals is None:
        return state
    if isinstance(removals.result, FilterResult):
        after = _history(state).replace_rows(users, removals.result.history)
        return {**after.state, FIRST_MODEL: state[FIRST_MODEL]}
    stored = {name: state[name].copy() for name in removals.result.state}
    for name, rows in removals.result.state.items():
        stored[name][users] = rows
    models = {FIRST_MODEL: state[FIRST_MODEL], PREVIOUS_MODEL: params.astype(np.float64)}
    return {**stored, **models}


def _history(state: HistoryArrays) -> ScoreHistory:
    return ScoreHistory.from_state(
        {name: column for name, column in state.items() if name != FIRST_MODEL}
    )


def count_defended(
    settings: Settings, tally: Tally, ballots: Ballots, attackers: Flags, state: DefenceState
) -> RemovalShares | None:
    """Add the ballots to the tally; with a ballot defence only those that it accepts."""
    result: FilterResult | DefenceResult
    mechanism, key = tally.mechanism, tally.round_key
    if settings.defence == "scores":
        counted, result = Defence().count(
            mechanism, ballots, key, state.rows, state.drift_direction
        )
    elif settings.defence == "spectral":
        counted, result = filtered_tally(
            mechanism,
            ballots,
            key,
            history=state.history,
            drift_direction=state.drift_direction,
        )
    else:
        tally.add_many(ballots)
        return None
    tally.merge(counted)
    removed = ~result.accepted
    return RemovalShares(_share(removed[~attackers]), _share(removed[attackers]), result)


def _share(flags: Flags) -> float:
    return float(flags.mean()) if flags.size else 0.0


def robust_estimate(
    settings: Settings, mechanism: Mechanism, tally: Tally, ballots: Ballots | None
) -> Estimate:
    """The estimate of a round; a robust mean replaces its mean where the defence is one."""
    coins = {"coins": SimulationCoins(settings.seed)} if mechanism.server_noise else {}
    estimate = mechanism.estimate(tally, **coins)
    name = settings.defence
    if name not in ROBUST_MEANS or ballots is None:
        return estimate
    updates = mechanism.plain_updates(ballots)
    if updates is not None:
        mean = robust_mean(name, updates, round(settings.attackers * len(updates)))
    elif name == "median":
        mean = estimate.median()
    else:
        mean = estimate.trimmed_mean(min(settings.attackers, MAX_TRIM))
    return dataclasses.replace(estimate, mean=mean, unbiased=False)
