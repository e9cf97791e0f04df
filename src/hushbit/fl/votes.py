"""A span of users is one job: train, encode, tally. Spans are fixed, so every engine agrees.

Tallies are integers and merge exactly; the sums of floats that the simulation measures by are
taken within a span in the order of users, and between spans in a tree of fixed shape.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.coins import SimulationCoins
from hushbit.fl import softmax
from hushbit.fl.attacks import attack_updates, bit_mask, cast_attacked, random_bytes
from hushbit.fl.clock import Clock
from hushbit.fl.memory import give_back
from hushbit.fl.metrics import add_rows
from hushbit.fl.setup import Setup
from hushbit.fl.training import LocalChunk, joined, local_updates
from hushbit.keys import RoundKey
from hushbit.mechanism import Mechanism
from hushbit.rest.store import UNFINISHED, ballot_writer
from hushbit.robust.round import (
    FROM_HISTOGRAM,
    Earlier,
    Removals,
    attacked_ballots,
    count_defended,
    needs_everyone,
)
from hushbit.tally import Tally

SPAN = 4096  # neither memory nor workers decide it: it fixes the order in which floats are added


@dataclass(frozen=True, eq=False)
class Span:
    """One job: some users of a round, the model they start from, how they vote.

    `earlier` is what a defence remembers of them.
    """

    round: int
    users: NDArray[np.int64]
    params: NDArray[np.float32]
    mechanism: Mechanism
    state: Mapping[str, NDArray[np.float32]] | None = None
    earlier: Earlier | None = None


@dataclass
class Votes:
    """What a span of users gave: the server's tally, and what only the simulation knows.

    `ballots` and `removals` are kept where attackers or a defence look at everyone at once.
    """

    tally: Tally
    total: NDArray[np.float64]
    honest: int = 0
    loss: float = 0.0
    bytes_up: int = 0
    overloaded: int = 0
    removals: Removals | None = None
    ballots: Ballots | None = None
    chunks: list[LocalChunk] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    def mean(self) -> NDArray[np.float64]:
        """The true mean update of honest users; NaN in a round that has none."""
        return self.total / self.honest if self.honest else np.full_like(self.total, np.nan)


def spans_of(setup: Setup, whole: Span) -> Iterator[Span]:
    """Cut a round into jobs; one job where somebody must see all users at once."""
    size = whole.users.size if needs_everyone(setup.settings) else SPAN
    for begin in range(0, whole.users.size, size):
        users = whole.users[begin : begin + size]
        yield Span(whole.round, users, whole.params, whole.mechanism, whole.state, whole.earlier)


def cast_votes(setup: Setup, span: Span) -> Votes:
    """Train, encode and tally the users of a span, as many at once as memory allows."""
    settings = setup.settings
    if not softmax.fits(setup.model, setup.local.steps, setup.local.optimizer):
        give_back(4 * setup.model.dim * span.users.size)  # what torch left of the job before
    key = RoundKey(setup.secret, span.round)
    tally = span.mechanism.tally(key, histogram=settings.defence in FROM_HISTOGRAM)
    votes = Votes(tally, np.zeros(setup.model.dim))
    chunks = local_updates(
        setup.model, span.params, setup.federation, span.users, setup.local,
        round_number=span.round, seed=settings.seed, state=span.state,
    )  # fmt: skip
    with _keeper(setup, span) as keep:
        with votes.clock.phase("train"):
            if needs_everyone(settings):
                chunks = iter([joined(list(chunks))])
            chunk = next(chunks, None)
        while chunk is not None:
            keep(_vote(setup, span, votes, chunk))
            del chunk  # before the next one is made: one chunk's updates in memory, not two
            with votes.clock.phase("train"):
                chunk = next(chunks, None)
    return votes


def _keeper(setup: Setup, span: Span) -> AbstractContextManager[Callable[[Ballots], None]]:
    """What is done with ballots once they are counted: stored if the run keeps them."""
    if setup.ballots is None:
        return nullcontext(lambda _: None)
    # A job that is done again writes the same bytes to the same place.
    place, name = setup.ballots / UNFINISHED, f"user-{span.users[0]:012d}"
    key = RoundKey(setup.secret, span.round)
    return ballot_writer(place, span.mechanism, span.round, name, key)


def merged_votes(left: Votes, right: Votes) -> Votes:
    """The votes of both, neither of which is changed."""
    tally = left.tally.like()
    tally.merge(left.tally)
    tally.merge(right.tally)
    clock = Clock()
    clock.include(left.clock)
    clock.include(right.clock)
    return Votes(
        tally,
        left.total + right.total,
        honest=left.honest + right.honest,
        loss=left.loss + right.loss,
        bytes_up=left.bytes_up + right.bytes_up,
        overloaded=left.overloaded + right.overloaded,
        chunks=left.chunks + right.chunks,
        clock=clock,
    )


def _vote(setup: Setup, span: Span, votes: Votes, chunk: LocalChunk) -> Ballots:
    settings, mechanism, tally = setup.settings, span.mechanism, votes.tally
    users, updates = chunk.users, chunk.updates
    attackers = setup.attackers[users]
    with votes.clock.phase("measure"):
        # Users are added in ascending order whatever the chunks, so the sum is reproducible.
        add_rows(votes.total, updates, ~attackers)
        votes.honest += int((~attackers).sum())
        votes.loss = _added(votes.loss, chunk.losses)
    with votes.clock.phase("encode"):
        published = attackers.any() and settings.attack in ("ones", "flip")
        if published and bit_mask(mechanism) is None:
            updates = updates.copy()
            noise = random_bytes(
                settings.seed, span.round, users[attackers], -(-updates.shape[1] // 8)
            )
            updates[attackers] = attack_updates(settings.attack, updates[attackers], noise)
        keys = tally.round_key.users(users)
        ballots = mechanism.encode_many(updates, keys, SimulationCoins(settings.seed))
        if published:
            ballots = cast_attacked(mechanism, ballots, settings.attack, attackers, settings.seed)
        ballots = attacked_ballots(
            settings, mechanism, ballots, updates, attackers, tally.round_key, span.earlier
        )
    with votes.clock.phase("tally"):
        votes.removals = count_defended(settings, tally, ballots, attackers, span.earlier)
    votes.ballots = ballots if needs_everyone(settings) else None
    votes.bytes_up += len(ballots) * len(ballots[0].to_bytes())
    votes.overloaded += int(ballots.overloaded.sum())
    if chunk.state:
        votes.chunks.append(chunk._replace(updates=np.empty((0, updates.shape[1]), np.float32)))
    return ballots


def _added(total: float, losses: NDArray[np.float32]) -> float:
    """The sum with losses added one after the other, so that no grouping changes it."""
    for loss in losses.tolist():
        total += loss
    return total
