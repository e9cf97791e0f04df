"""A tally of accepted ballots only: unmask once, judge, count."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.robust.filter import Rule, Verdict, judge
from hushbit.robust.pulls import PackedPulls, sketch_signs, unmask
from hushbit.tally import Tally


def filtered_tally(
    mechanism: Mechanism, ballots: Ballots, round_key: RoundKey, rule: Rule | None = None,
    *, histogram: bool = False,
) -> tuple[Tally, Verdict]:  # fmt: skip
    """The tally of the ballots that the filter accepts, and the filter's verdict.

    Time and memory grow linearly: K · dim / 8 bytes of ballots and K · sketch numbers.
    """
    tally = mechanism.tally(round_key, histogram)
    # An empty tally refuses illegal ballots exactly as one that counts them would.
    tally._check_header(ballots)
    tally._check_voters(ballots.users)
    mechanism.check_payload(ballots.payload)
    pulls = unmask(mechanism, ballots, round_key)
    signs = sketch_signs(round_key, pulls.dim)
    verdict = judge(pulls, signs, Rule() if rule is None else rule)
    if isinstance(pulls, PackedPulls) and list(tally.counters) == ["stage 0"]:
        pulls.count(verdict.accepted, tally.counters["stage 0"][0])
        tally.roll.add(ballots.users[verdict.accepted])
    else:
        tally.add_many(accepted_only(ballots, verdict.accepted))
    return tally, verdict


def accepted_only(ballots: Ballots, accepted: NDArray[np.bool_]) -> Ballots:
    """The ballots without those that were removed."""
    if accepted.all():
        return ballots
    return dataclasses.replace(
        ballots, users=ballots.users[accepted], payload=ballots.payload[accepted],
        overloaded=ballots.overloaded[accepted],
    )  # fmt: skip
