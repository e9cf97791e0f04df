"""A tally of accepted ballots only: unmask and count at once, judge, take off who goes."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.cpa import CPA
from hushbit.decode import Estimate
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.robust.filter import Verdict, judge
from hushbit.robust.memory import Memory
from hushbit.robust.pulls import PackedPulls, Vector, noise_size, unmask
from hushbit.robust.rules import Rule, loaded_coins
from hushbit.rotation import Rotated, Rotation
from hushbit.subset import Subset
from hushbit.tally import Tally


def filtered_tally(
    mechanism: Mechanism, ballots: Ballots, round_key: RoundKey, rule: Rule | None = None,
    *, histogram: bool = False, memory: Memory | None = None, way: Vector | None = None,
) -> tuple[Tally, Verdict]:  # fmt: skip
    """The tally of the ballots that the filter accepts, and the filter's verdict.

    `memory` is what earlier rounds left, a row for each of these ballots; `way` the model less
    the first round's. Time and memory grow linearly in users: twice K · dim / 8 bytes of ballots.
    """
    tally = mechanism.tally(round_key, histogram)
    # An empty tally refuses illegal ballots exactly as one that counts them would.
    tally._check_header(ballots)
    tally._check_shape(ballots)
    tally._check_voters(ballots.users)
    mechanism.check_payload(ballots.payload)
    if way is not None and isinstance(mechanism, Rotated):
        way = np.asarray(Rotation(mechanism.dim, round_key.rotation).forward(way[None, :])[0])
    pulls = unmask(mechanism, ballots, round_key)
    rule = Rule() if rule is None else rule
    verdict = judge(pulls, rule, loaded_coins(mechanism, ballots), memory, way)
    if isinstance(pulls, PackedPulls) and list(tally.counters) == ["stage 0"]:
        tally.counters["stage 0"][0] += pulls.count(verdict.accepted)
        tally.roll.add(ballots.users[verdict.accepted])
    else:
        tally.add_many(accepted_only(ballots, verdict.accepted))
    return tally, verdict


def filtered_estimate(mechanism: Mechanism, tally: Tally, verdict: Verdict) -> Estimate:
    """The estimate with the median in place of the mean along what users share.

    Named by its tally: the accepted ballots'. Not unbiased where the median has a say.
    """
    estimate = mechanism.estimate(tally)
    inner = mechanism.inner if isinstance(mechanism, Rotated) else mechanism
    if verdict.shift is None or not isinstance(inner, CPA | Subset):
        return estimate
    shift = noise_size(inner) * verdict.shift
    if isinstance(mechanism, Rotated):
        shift = Rotation(mechanism.dim, tally.round_key.rotation).back(shift)
    return dataclasses.replace(estimate, mean=estimate.mean + shift, unbiased=False)


def accepted_only(ballots: Ballots, accepted: NDArray[np.bool_]) -> Ballots:
    """The ballots without those that were removed."""
    if accepted.all():
        return ballots
    return dataclasses.replace(
        ballots, users=ballots.users[accepted], payload=ballots.payload[accepted],
        overloaded=ballots.overloaded[accepted],
    )  # fmt: skip
