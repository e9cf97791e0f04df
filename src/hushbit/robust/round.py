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
from hushbit.robust.attacks import CRAFTED, View, against_clip, craft, directed_bits
from hushbit.robust.comparators import COMPARATORS, robust_mean
from hushbit.robust.filter import Verdict
from hushbit.robust.filtered import filtered_estimate, filtered_tally
from hushbit.tally import Tally

FROM_HISTOGRAM = ("median", "trimmed-mean")
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Removals:
    """Shares of honest users and of attackers whose ballots were removed, and the verdict."""

    honest: float
    attackers: float
    verdict: Verdict


def needs_everyone(settings: Settings) -> bool:
    """Whether a round's updates must be seen at once: colluders and defences look at all."""
    return settings.attack in CRAFTED or settings.defence != "none"


def check_defence(settings: Settings, mechanism: Mechanism) -> None:
    """Refuse a defence that the mechanism's messages cannot serve."""
    name, kind = settings.defence, mechanism.description["mechanism"]
    if name in ("none", "spectral"):
        return
    private = name in FROM_HISTOGRAM and kind in ("CPA", "NestedCPA")
    if kind != "FedAvg" and not private:
        where = "fedavg" + (", and cpa without --rotate" if name in FROM_HISTOGRAM else "")
        raise InvalidInput(f"defence {name} works with {where}; got {kind}: try --defence spectral")


def attacked_ballots(
    settings: Settings, mechanism: Mechanism, ballots: Ballots, updates: NDArray[np.float32],
    attackers: Flags, round_key: RoundKey,
) -> Ballots:  # fmt: skip
    """The ballots with those of colluders who craft theirs replaced."""
    if settings.attack not in CRAFTED or not attackers.any() or attackers.all():
        return ballots
    honest = updates[~attackers]
    view = View(
        honest.mean(axis=0, dtype=np.float64), honest.std(axis=0, dtype=np.float64),
        len(updates), int(attackers.sum()),
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


def count_defended(
    settings: Settings, tally: Tally, ballots: Ballots, attackers: Flags
) -> Removals | None:
    """Count the ballots, with the spectral defence only those that the filter accepts."""
    if settings.defence != "spectral":
        tally.add_many(ballots)
        return None
    counted, verdict = filtered_tally(tally.mechanism, ballots, tally.round_key)
    tally.merge(counted)
    gone = ~verdict.accepted
    return Removals(_share(gone[~attackers]), _share(gone[attackers]), verdict)


def robust_estimate(
    settings: Settings, mechanism: Mechanism, tally: Tally, ballots: Ballots | None,
    removals: Removals | None = None,
) -> Estimate:  # fmt: skip
    """The estimate, its mean replaced where the defence is another way of averaging."""
    if removals is not None:
        return filtered_estimate(mechanism, tally, removals.verdict)
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
