"""A tally of accepted ballots only: unmask and count at once, judge, take off who goes."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.errors import InvalidInput
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.robust.filter import Verdict, halves, judge
from hushbit.robust.layers import is_rotated
from hushbit.robust.memory import Memory
from hushbit.robust.pulls import PackedPulls, Vector, unmask
from hushbit.robust.rules import Rule, loaded_coins
from hushbit.rotation import rotation_of
from hushbit.tally import Tally
from hushbit.tuning.norm_vote import COUNTER, NormVote

RULE = Rule()


def filtered_tally(
    mechanism: Mechanism, ballots: Ballots, round_key: RoundKey, rule: Rule | None = None,
    *, histogram: bool = False, memory: Memory | None = None, way: Vector | None = None,
) -> tuple[Tally, Verdict]:  # fmt: skip
    """The tally of the ballots that the filter accepts, and the filter's verdict.

    `memory` is what earlier rounds left, a row for each of these ballots; `way` the way that the
    model has come. Time and memory grow linearly in users: twice K · dim / 8 bytes of ballots.
    """
    tally = mechanism.tally(round_key, histogram)
    # An empty tally refuses illegal ballots exactly as one that counts them would.
    tally._check_header(ballots)
    tally._check_shape(ballots)
    tally._check_voters(ballots.users)
    mechanism.check_payload(ballots.payload)
    _check_earlier(mechanism.dim, len(ballots), memory, way)
    if way is not None and is_rotated(mechanism):
        way = np.asarray(rotation_of(mechanism.dim, round_key.rotation).forward(way[None, :])[0])
    coins = loaded_coins(mechanism, ballots)
    memory = Memory.fresh(len(ballots)) if memory is None else memory
    sides = halves(memory, coins)
    pulls = unmask(mechanism, ballots, round_key, sides)
    verdict = judge(pulls, RULE if rule is None else rule, coins, memory, way, sides)
    counters, accepted = tally.counters, verdict.accepted
    if isinstance(pulls, PackedPulls) and set(counters) <= {"stage 0", COUNTER}:
        pulls.count_into(counters["stage 0"][0], accepted)
        if isinstance(mechanism, NormVote):
            counters[COUNTER] += mechanism.parts(ballots.payload)[1][accepted].sum()
        tally.roll.add(ballots.users[accepted])
    else:
        tally.add_many(accepted_only(ballots, accepted))
    return tally, verdict


def _check_earlier(dim: int, users: int, memory: Memory | None, way: Vector | None) -> None:
    """Refuse what other users, or another model, left: kernels trust the sizes."""
    if memory is not None and len(memory.gone) != users:
        raise InvalidInput(
            f"memory must have a row for each of {users} ballots; got {len(memory.gone)}"
        )
    if way is not None and way.shape != (dim,):
        raise InvalidInput(f"the way of the model must be {dim} numbers; got shape {way.shape}")


def accepted_only(ballots: Ballots, accepted: NDArray[np.bool_]) -> Ballots:
    """The ballots without those that were removed."""
    if accepted.all():
        return ballots
    return dataclasses.replace(
        ballots, users=ballots.users[accepted], payload=ballots.payload[accepted],
        overloaded=ballots.overloaded[accepted],
    )  # fmt: skip
