"""The defence of a simulated round: `Defence`, or a robust mean in place of the mean.

The names of all defences are `hushbit.lab.sim.settings.DEFENCES`: none, scores
(`hushbit.defence.defence`) and the robust means of `hushbit.lab.sim.robust_means`. The round loop
calls the functions of this module.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.defence.defence import (
    Defence,
    DefenceResult,
    State,
    model_direction,
)
from hushbit.errors import InvalidInput
from hushbit.kernels import Flags
from hushbit.lab.attacks import CRAFTED
from hushbit.lab.sim.robust_means import ROBUST_MEANS, robust_mean
from hushbit.lab.sim.settings import Settings
from hushbit.mechanism import Mechanism
from hushbit.tally.estimate import FROM_HISTOGRAM, Estimate
from hushbit.tally.tally import Tally
from hushbit.wire.ballot import Ballots
from hushbit.wire.coins import SimulationCoins

FIRST_MODEL, PREVIOUS_MODEL = "first model", "previous model"
MAX_TRIM = 0.49


@dataclass(frozen=True, eq=False)
class RemovalShares:
    """Shares of honest users and of attackers whose ballots were removed, and the result."""

    honest: float
    attackers: float
    result: DefenceResult


@dataclass(frozen=True, eq=False)
class DefenceState:
    """What the defence stores of the users of a round, and the direction of the model.

    `rows` is None without a defence. The direction is also None where the model has not moved.
    """

    rows: State | None = None
    direction: NDArray[np.float64] | None = None


def defence_warnings(settings: Settings) -> list[str]:
    """One line for each reason why the defence protects little with these settings."""
    if settings.defence != "scores":
        return []
    lines = []
    present = max(1, round(settings.participation * settings.users))
    if 2 * Defence().most_with_evidence(present, settings.rounds) >= present:
        lines.append(
            f"{present} users take part in a round: too few for the defence to find pushes over "
            "rounds, because more than half of them would have to push"
        )
    if settings.attackers >= 0.5:
        lines.append("the defence assumes an honest majority: it does not stop half of the users")
    if settings.mechanism in ("cpa", "nested") and settings.clip is None:
        lines.append(
            "without --clip the defence accepts any update within the points, and the noise of a "
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
    if name == "scores":
        mechanism.readable_votes()
    if name not in ROBUST_MEANS:
        return
    from_histogram = name in FROM_HISTOGRAM
    if not mechanism.sends_updates and not (from_histogram and mechanism.keeps_histogram):
        where = "fedavg" + (", and cpa without --rotate" if from_histogram else "")
        raise InvalidInput(f"defence {name} works with {where}; got {kind}: try --defence scores")


def defence_arrays(settings: Settings, users: int, params: NDArray[np.float32]) -> State:
    """The arrays of the defence before the first round; empty for a defence without a state."""
    if settings.defence != "scores":
        return {}
    models = dict.fromkeys((FIRST_MODEL, PREVIOUS_MODEL), params.astype(np.float64))
    return {**Defence().start(users), **models}


def load_state(
    state: State,
    users: NDArray[np.int64],
    params: NDArray[np.float32],
    newcomers: Flags | None = None,
) -> DefenceState:
    """The state of the defence for the users of a round; users marked as newcomers have none."""
    if not state:
        return DefenceState()
    models = {name: state[name] for name in (FIRST_MODEL, PREVIOUS_MODEL)}
    for name, model in models.items():
        if not np.isfinite(model).all():
            raise InvalidInput(f"the {name} of the checkpoint is not finite: start the run anew")
    rows = {name: column[users] for name, column in state.items() if name not in models}
    if newcomers is not None:
        fresh = Defence().start(users.size, enrolled=False)
        rows = {name: np.where(newcomers, fresh[name], column) for name, column in rows.items()}
    now = params.astype(np.float64)
    return DefenceState(rows, model_direction(now, models[PREVIOUS_MODEL], models[FIRST_MODEL]))


def store_state(
    state: State,
    users: NDArray[np.int64],
    removals: RemovalShares | None,
    params: NDArray[np.float32],
) -> State:
    """The arrays of the defence after a round that began with the model `params`."""
    if not state or removals is None:
        return state
    stored = {name: state[name].copy() for name in removals.result.state}
    for name, rows in removals.result.state.items():
        stored[name][users] = rows
    models = {FIRST_MODEL: state[FIRST_MODEL], PREVIOUS_MODEL: params.astype(np.float64)}
    return {**stored, **models}


def count_defended(
    settings: Settings, tally: Tally, ballots: Ballots, attackers: Flags, state: DefenceState
) -> RemovalShares | None:
    """Add the ballots to the tally; with `scores` only those that the defence accepts."""
    if settings.defence != "scores":
        tally.add_many(ballots)
        return None
    counted, result = Defence().count(
        tally.mechanism, ballots, tally.round_key, state.rows, state.direction
    )
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
