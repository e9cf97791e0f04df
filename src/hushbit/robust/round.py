"""Attack and defence of one round, as the round loop calls them."""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.coins import SimulationCoins
from hushbit.decode import Estimate
from hushbit.errors import InvalidInput
from hushbit.fl.settings import Settings
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.robust.attacks import CRAFTED, craft
from hushbit.robust.comparators import COMPARATORS, robust_mean
from hushbit.robust.filter import Verdict
from hushbit.robust.filtered import filtered_tally
from hushbit.robust.forged import against_clip, directed_bits
from hushbit.robust.layers import bare
from hushbit.robust.memory import Memory, State
from hushbit.robust.pulls import check_readable
from hushbit.robust.view import View, pull_of
from hushbit.tally import Tally

FROM_HISTOGRAM = ("median", "trimmed-mean")
FIRST = "first model"
LEFT_BEHIND = 0.75  # of the first model: as long as the way is short it is little but noise
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Removals:
    """Shares of honest users and of attackers whose ballots were removed, and the verdict."""

    honest: float
    attackers: float
    verdict: Verdict


@dataclass(frozen=True, eq=False)
class Earlier:
    """What earlier rounds tell of some users: their memory, and the way that the model has come.

    `way` is None where there is none: in the first round of a model that starts from zeros.
    """

    memory: Memory
    way: NDArray[np.float64] | None


def defence_state(settings: Settings, users: int, params: NDArray[np.float32]) -> State:
    """What the defence knows before the first round: the model that the run starts from."""
    if settings.defence != "spectral":
        return {}
    return {**Memory.fresh(users).state, FIRST: params.astype(np.float64)}


def recalled(state: State, users: NDArray[np.int64], params: NDArray[np.float32]) -> Earlier | None:
    """What the defence knows of a round's users; nothing without a defence that remembers."""
    if not state:
        return None
    if not np.isfinite(state[FIRST]).all():
        raise InvalidInput(f"the {FIRST} of the checkpoint is not finite: start the run anew")
    way = params - LEFT_BEHIND * state[FIRST]
    return Earlier(_memory(state).of(users), way if way.any() else None)


def remembered(state: State, users: NDArray[np.int64], removals: "Removals | None") -> State:
    """The state after a round."""
    if not state or removals is None:
        return state
    after = _memory(state).with_rows(users, removals.verdict.memory)
    return {**after.state, FIRST: state[FIRST]}


def _memory(state: State) -> Memory:
    return Memory.resumed({name: part for name, part in state.items() if name != FIRST})


def needs_everyone(settings: Settings) -> bool:
    """Whether a round's updates must be seen at once: colluders and defences look at all."""
    return settings.attack in CRAFTED or settings.defence != "none"


def check_defence(settings: Settings, mechanism: Mechanism) -> None:
    """Refuse a defence that the mechanism's messages cannot serve."""
    name, kind = settings.defence, mechanism.description["mechanism"]
    if name == "spectral":
        check_readable(mechanism)
    if name in ("none", "spectral"):
        return
    private = name in FROM_HISTOGRAM and kind in ("CPA", "NestedCPA")
    if kind != "FedAvg" and not private:
        where = "fedavg" + (", and cpa without --rotate" if name in FROM_HISTOGRAM else "")
        raise InvalidInput(f"defence {name} works with {where}; got {kind}: try --defence spectral")


def attacked_ballots(
    settings: Settings, mechanism: Mechanism, ballots: Ballots, updates: NDArray[np.float32],
    attackers: Flags, round_key: RoundKey, earlier: Earlier | None = None,
) -> Ballots:  # fmt: skip
    """The ballots with those of colluders who craft theirs replaced."""
    if settings.attack not in CRAFTED or not attackers.any() or attackers.all():
        return ballots
    honest = updates[~attackers]
    view = View(
        honest.mean(axis=0, dtype=np.float64), spread_of(honest, settings, mechanism),
        len(updates), int(attackers.sum()),
        pull_of(mechanism, honest, round_key) if settings.attack == "adaptive" else None,
        None if earlier is None else earlier.way, round_key.round,
    )  # fmt: skip
    made = craft(settings.attack, updates[attackers], view, mechanism, settings.seed)
    keys = round_key.users(ballots.users[attackers])
    encoder = mechanism if settings.attack == "adaptive" else against_clip(mechanism)
    sent = encoder.encode_many(made, keys, SimulationCoins(settings.seed))
    part = sent.payload
    if settings.attack == "directed" and _sends_bits(mechanism):
        part = directed_bits(mechanism, sent, keys, -view.mean)
    payload = ballots.payload.copy()
    payload[attackers] = part
    return dataclasses.replace(ballots, payload=payload)


def spread_of(
    honest: NDArray[np.float32], settings: Settings, mechanism: Mechanism
) -> NDArray[np.float64]:
    """Spread of each entry over honest users, which takes long, for attacks that look at it."""
    inner = bare(mechanism)
    if settings.attack == "little" or getattr(inner, "clip", None) is None:
        return np.asarray(honest.std(axis=0, dtype=np.float64))
    return np.zeros(honest.shape[1])


def count_defended(
    settings: Settings, tally: Tally, ballots: Ballots, attackers: Flags,
    earlier: Earlier | None = None,
) -> Removals | None:  # fmt: skip
    """Count the ballots, with the spectral defence only those that the filter accepts."""
    if settings.defence != "spectral":
        tally.add_many(ballots)
        return None
    memory, way = (None, None) if earlier is None else (earlier.memory, earlier.way)
    counted, verdict = filtered_tally(
        tally.mechanism, ballots, tally.round_key, memory=memory, way=way
    )
    tally.merge(counted)
    gone = ~verdict.accepted
    return Removals(_share(gone[~attackers]), _share(gone[attackers]), verdict)


def robust_estimate(
    settings: Settings, mechanism: Mechanism, tally: Tally, ballots: Ballots | None
) -> Estimate:
    """The estimate, its mean replaced where the defence is another way of averaging."""
    estimate = mechanism.estimate(tally)
    name = settings.defence
    if name not in COMPARATORS or ballots is None:
        return estimate
    if mechanism.description["mechanism"] == "FedAvg":
        updates = ballots.payload.view("<f4")
        mean = robust_mean(name, updates, round(settings.attackers * len(updates)))
    elif name == "median":
        mean = estimate.median()
    else:
        mean = estimate.trimmed_mean(min(settings.attackers, 0.49))
    return dataclasses.replace(estimate, mean=mean, unbiased=False)


def _sends_bits(mechanism: Mechanism) -> bool:
    from hushbit.fl.attacks import bit_mask

    return bit_mask(mechanism) is not None


def _share(flags: Flags) -> float:
    return float(flags.mean()) if flags.size else 0.0
