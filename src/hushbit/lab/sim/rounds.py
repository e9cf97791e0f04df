"""The round loop of a simulation: train users, aggregate their updates, move the model.

`run_rounds` repeats `one_round`. An aggregator turns the users of a round into an estimate of their
mean update: `ballots`, the default, trains, encodes, tallies and decodes as a deployment does;
`hushbit.lab.sim.aggregate_sampler` has aggregators that draw the estimate from its distribution.

Users are trained in batches of a fixed size, one job of an engine each. Tallies are integers and
merge exactly. Sums of floats, which only the simulation measures, are added in the order of users
within a batch and in a tree of fixed shape between batches, so every engine gives the same bits.
"""

import ctypes
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from hushbit.checks import Floats, Ints
from hushbit.engine import Engine, SerialEngine
from hushbit.errors import InvalidInput, NotFinite
from hushbit.lab.attacks import FORGED_NORMS, FRESH, PUBLISHED
from hushbit.lab.attacks.ballots import (
    attack_ballots,
    attack_updates,
    craft_ballots,
    forge_norm_votes,
    random_payload,
)
from hushbit.lab.sim.defences import (
    DefenceState,
    RemovalShares,
    count_defended,
    defence_arrays,
    load_state,
    needs_full_round,
    robust_estimate,
    store_state,
)
from hushbit.lab.sim.learning_task import layer_slices
from hushbit.lab.sim.metrics import Distortion, add_rows, distortion
from hushbit.lab.sim.server_steps import Params, State, include_model, start_average
from hushbit.lab.sim.setup import Setup
from hushbit.lab.sim.training import (
    LocalChunk,
    StateRows,
    TrainingDiverged,
    concat_chunks,
    fresh_state,
    store_rows,
)
from hushbit.mechanism import Mechanism
from hushbit.store.ballot_files import UNFINISHED, ballot_writer, publish_round
from hushbit.tally.estimate import FROM_HISTOGRAM, Estimate
from hushbit.tally.tally import Tally
from hushbit.wire.ballot import Ballots
from hushbit.wire.coins import SimulationCoins
from hushbit.wire.keys import RoundKey


@dataclass
class PhaseTimer:
    """Wall and CPU seconds by phase, added over workers."""

    wall: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body of the with statement."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.include({name: time.perf_counter() - wall}, {name: time.process_time() - cpu})

    def include(self, wall: Mapping[str, float], cpu: Mapping[str, float]) -> None:
        """Add seconds by phase."""
        for total, more in ((self.wall, wall), (self.cpu, cpu)):
            total |= {name: total.get(name, 0.0) + spent for name, spent in more.items()}


MIN_TRIM_BYTES = 64 << 20
"""Jobs with fewer bytes of updates do not make a process grow."""

MIN_GROWTH = 256 << 20
"""Bytes by which a process may grow before it returns pages: pages in use again cost time."""

_trimmed = {"resident bytes": 0}


def trim_heap(used: int) -> None:
    """Return free pages to the system after a job that used so many bytes, if the process grew.

    torch allocates aligned blocks that glibc before 2.39 often cannot reuse once they are freed:
    without this, training large models grows by some megabytes per round.
    """
    trim = _malloc_trim()
    if trim is None or used < MIN_TRIM_BYTES:
        return
    if resident_bytes() > _trimmed["resident bytes"] + MIN_GROWTH:
        trim(0)
        _trimmed["resident bytes"] = resident_bytes()


def resident_bytes() -> int:
    """Bytes of this process in memory; Linux only."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None on other systems."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


BATCH_USERS = 4096  # fixes the order of float additions, so it depends on nothing else


@dataclass(frozen=True, eq=False)
class UserBatch:
    """One job: users of a round, the model that they train, the mechanism that encodes.

    `local_state` is the optimizer state that users keep, `defence_state` the history of a defence.
    """

    round: int
    users: Ints
    params: Params
    mechanism: Mechanism
    local_state: StateRows | None = None
    defence_state: DefenceState = field(default_factory=DefenceState)


@dataclass
class BatchResult:
    """The tally of a batch of users, and what only the simulation can measure.

    `ballots` and `removals` are set where attackers or a defence need all users at once.
    """

    tally: Tally
    total: Floats
    honest: int = 0
    loss: float = 0.0
    bytes_up: int = 0
    overloaded: int = 0
    removals: RemovalShares | None = None
    ballots: Ballots | None = None
    chunks: list[LocalChunk] = field(default_factory=list)
    clock: PhaseTimer = field(default_factory=PhaseTimer)


def split_users(setup: Setup, whole: UserBatch) -> Iterator[UserBatch]:
    """Split a round into jobs; one job where attackers or a defence need all users at once."""
    size = whole.users.size if needs_full_round(setup.settings) else BATCH_USERS
    for begin in range(0, whole.users.size, size):
        yield replace(whole, users=whole.users[begin : begin + size])


Observer = Callable[[int, LocalChunk], None]
"""Called with the round (from 0) and each chunk of updates, in ascending order of users."""


def train_and_tally(
    setup: Setup, batch: UserBatch, observer: Observer | None = None
) -> BatchResult:
    """Train, encode and tally the users of a batch, as many at once as memory allows."""
    settings = setup.settings
    if setup.task.allocates_by_torch(setup.local):
        trim_heap(4 * setup.task.dim * batch.users.size)  # what torch left of the last job
    key = RoundKey(setup.secret, batch.round, setup.run)
    tally = batch.mechanism.tally(key, histogram=settings.defence in FROM_HISTOGRAM)
    result = BatchResult(tally, np.zeros(setup.task.dim))
    chunks = train_users(setup, batch.round, batch.users, batch.params, batch.local_state)
    with _ballot_sink(setup, batch) as store:
        with result.clock.phase("train"):
            if needs_full_round(settings):
                chunks = iter([concat_chunks(list(chunks))])
            chunk = next(chunks, None)
        while chunk is not None:
            if observer is not None:
                observer(batch.round, chunk)
            store(_encode_chunk(setup, batch, result, chunk))
            del chunk  # frees its updates before the next chunk is computed
            with result.clock.phase("train"):
                chunk = next(chunks, None)
    return result


def train_users(
    setup: Setup, number: int, users: Ints, params: Params, local_state: StateRows | None = None
) -> Iterator[LocalChunk]:
    """The updates of users in round `number` (from 0), chunk by chunk."""
    return setup.task.local_updates(
        params,
        users,
        setup.local,
        round_number=number,
        seed=setup.settings.seed,
        state=local_state,
    )


@contextmanager
def _ballot_sink(setup: Setup, batch: UserBatch) -> Iterator[Callable[[Ballots], None]]:
    """A function that stores ballots if the run keeps them, and does nothing otherwise."""
    if setup.ballots is None:
        yield lambda _: None
        return
    # A job that is run again writes the same bytes to the same file.
    folder, name = setup.ballots / UNFINISHED, f"user-{batch.users[0]:012d}"
    key = RoundKey(setup.secret, batch.round, setup.run)
    with ballot_writer(folder, batch.mechanism, key, name) as write:
        yield lambda ballots: write(ballots.with_macs(key.users(ballots.users)))


def merge_results(left: BatchResult, right: BatchResult) -> BatchResult:
    """The sum of two results, neither of which is changed."""
    tally = left.tally.empty_like()
    tally.merge(left.tally)
    tally.merge(right.tally)
    clock = PhaseTimer(dict(left.clock.wall), dict(left.clock.cpu))
    clock.include(right.clock.wall, right.clock.cpu)
    return BatchResult(
        tally,
        left.total + right.total,
        honest=left.honest + right.honest,
        loss=left.loss + right.loss,
        bytes_up=left.bytes_up + right.bytes_up,
        overloaded=left.overloaded + right.overloaded,
        chunks=left.chunks + right.chunks,
        clock=clock,
    )


def _encode_chunk(
    setup: Setup, batch: UserBatch, result: BatchResult, chunk: LocalChunk
) -> Ballots:
    settings, mechanism, tally = setup.settings, batch.mechanism, result.tally
    users, updates = chunk.users, chunk.updates
    attackers = setup.attackers[users]
    with result.clock.phase("measure"):
        # Users are added in ascending order whatever the chunks, so the sum is reproducible.
        add_rows(result.total, updates, ~attackers)
        result.honest += int((~attackers).sum())
        result.loss = add_losses(result.loss, chunk.losses)
    with result.clock.phase("encode"):
        published = attackers.any() and settings.attack in PUBLISHED
        if published and mechanism.votes is None:
            updates = updates.copy()
            noise = random_payload(
                settings.seed, batch.round, users[attackers], -(-updates.shape[1] // 8)
            )
            updates[attackers] = attack_updates(settings.attack, updates[attackers], noise)
        keys = tally.round_key.users(users)
        try:
            ballots = mechanism.encode_many(updates, keys, SimulationCoins(settings.seed))
        except NotFinite as error:
            raise TrainingDiverged(
                f"round {batch.round + 1}: an update is too large to be sent ({error}): lower "
                "--rate or --server-rate"
            ) from error
        if published:
            ballots = attack_ballots(mechanism, ballots, settings.attack, attackers, settings.seed)
        if settings.attack in FORGED_NORMS:
            ballots = forge_norm_votes(mechanism, ballots, settings.attack, attackers)
        ballots = craft_ballots(
            settings,
            mechanism,
            ballots,
            updates,
            attackers,
            tally.round_key,
            batch.defence_state.direction,
        )
    with result.clock.phase("tally"):
        result.removals = count_defended(settings, tally, ballots, attackers, batch.defence_state)
    result.ballots = ballots if needs_full_round(settings) else None
    result.bytes_up += len(ballots) * len(ballots[0].to_bytes())
    result.overloaded += int(ballots.overloaded.sum())
    if chunk.state:
        result.chunks.append(without_updates(chunk))
    return ballots


def add_losses(total: float, losses: Params) -> float:
    """Add losses to a sum one after the other, so that no grouping changes it."""
    for loss in losses.tolist():
        total += loss
    return total


def without_updates(chunk: LocalChunk) -> LocalChunk:
    """The chunk with its optimizer state alone, for storing it after the round."""
    return chunk._replace(updates=np.empty((0, chunk.updates.shape[1]), np.float32))


@dataclass
class RunState:
    """Everything that changes from round to round, and that a checkpoint must hold."""

    round: int
    params: Params
    server: State
    local: StateRows
    average: State
    tuning: State = field(default_factory=dict)
    defence: State = field(default_factory=dict)


def initial_state(setup: Setup) -> RunState:
    """The state before the first round."""
    params = setup.task.init(setup.settings.seed)
    return RunState(
        round=0,
        params=params,
        server=setup.server.start(setup.task.dim),
        local=fresh_state(setup.task.dim, setup.task.users, setup.local),
        average=start_average(setup.task.dim) if setup.settings.average_weights else {},
        tuning=setup.mechanism.state,
        defence=defence_arrays(setup.settings, setup.task.users, params),
    )


@dataclass
class Aggregate:
    """What an aggregator makes of the users of one round.

    `noise` is the variance of an entry of the estimate as far as the server can state it.
    `chunks` hold the optimizer state that users keep.
    """

    users: Ints
    estimate: Estimate
    noise: float | None
    true_mean: Floats
    loss: float
    chunks: list[LocalChunk]
    tuning: State = field(default_factory=dict)
    bytes_up: int = 0
    overload_rate: float = math.nan
    removals: RemovalShares | None = None
    clock: PhaseTimer = field(default_factory=PhaseTimer)


Aggregator = Callable[[Setup, RunState, Engine | None], Aggregate]


def ballots(
    setup: Setup, state: RunState, engine: Engine | None = None, observer: Observer | None = None
) -> Aggregate:
    """Aggregate by ballots: users train and encode, the server counts and decodes.

    The engine decides where users are computed and changes no result. Optimizer state that users
    keep and observed updates stay in this process, so the engine is then ignored.
    """
    settings, mechanism = setup.settings, setup.mechanism.with_state(state.tuning)
    if settings.copies != 1:
        raise InvalidInput(
            f"ballots are cast by users, not by copies of them; got {settings.copies}"
        )
    users = sample_users(setup, state.round)
    newcomers = setup.attackers[users] if settings.attack == FRESH else None
    history = load_state(state.defence, users, state.params, newcomers)
    whole = UserBatch(state.round, users, state.params, mechanism, state.local, history)
    runner = SerialEngine() if engine is None or state.local or observer else engine
    work = partial(train_and_tally, observer=observer) if observer else train_and_tally
    with publish_round(setup.ballots, state.round, setup.run):
        result = runner.run(work, setup, split_users(setup, whole), merge_results)
    with result.clock.phase("estimate"):
        estimate = robust_estimate(settings, mechanism, result.tally, result.ballots)
        tuning = mechanism.next_round(result.tally).state
    return Aggregate(
        users=users,
        estimate=estimate,
        noise=float(estimate.variance.mean()),
        true_mean=result.total / (result.honest or math.nan),  # NaN without honest users
        loss=result.loss,
        chunks=result.chunks,
        tuning=tuning,
        bytes_up=result.bytes_up,
        overload_rate=result.overloaded / (users.size * mechanism.guarantee.groups[0][1]),
        removals=result.removals,
        clock=result.clock,
    )


def sample_users(setup: Setup, number: int) -> Ints:
    """The users of a round, ascending."""
    count = max(1, round(setup.settings.participation * setup.task.users))
    if count == setup.task.users:
        return np.arange(count)
    rng = np.random.default_rng([setup.settings.seed, number, 0x5A3])
    return np.sort(rng.permutation(setup.task.users)[:count]).astype(np.int64)


MODEL_KEY_BYTES = 80
UNLOGGED_FIELDS = (
    "number",
    "seconds",
    "cpu_seconds",
    "distortion",
    "true_mean",
    "estimate",
    "noise",
    "own_metrics",
    "removed",
)


@dataclass
class RoundResult:
    """The figures of one round.

    The true mean, its estimate and the users whose ballots were removed stay out of the metrics
    file.
    """

    number: int
    users: int
    bytes_up: int
    bytes_down: int
    overload_rate: float
    training_loss: float
    distortion: Distortion
    true_mean: Floats = field(repr=False)
    estimate: Estimate = field(repr=False)
    test_accuracy: float | None = None
    test_loss: float | None = None
    worst_class_accuracy: float | None = None
    validation_accuracy: float | None = None
    removed_honest: float | None = None
    removed_attackers: float | None = None
    backdoor_rate: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    noise: float | None = None
    own_metrics: dict[str, float | None] = field(default_factory=dict)
    removed: Ints | None = field(default=None, repr=False)

    def row(self) -> dict[str, Any]:
        """Flat figures for the metrics file."""
        times = {f"seconds_{phase}": spent for phase, spent in self.seconds.items()}
        times |= {f"cpu_seconds_{phase}": spent for phase, spent in self.cpu_seconds.items()}
        plain = {key: value for key, value in vars(self).items() if key not in UNLOGGED_FIELDS}
        figures = {**plain, **self.own_metrics, **vars(self.distortion)}
        return {"round": self.number, **figures, **times}


def run_rounds(
    setup: Setup, state: RunState, engine: Engine | None = None, aggregator: Aggregator = ballots
) -> Iterator[RoundResult]:
    """Run the rounds after `state`, which is changed in place, up to the last one."""
    while state.round < setup.settings.rounds:
        yield one_round(setup, state, engine, aggregator)


def one_round(
    setup: Setup, state: RunState, engine: Engine | None = None, aggregator: Aggregator = ballots
) -> RoundResult:
    """Aggregate the users of one round and move the model; a failed step changes no state."""
    settings, before = setup.settings, state.params
    made = aggregator(setup, state, engine)
    clock, users = made.clock, made.users.size
    with clock.phase("step"):
        params, server = setup.server.step(before, made.estimate.mean, state.server)
        params = setup.task.corrected(params)
        average = include_model(params, state.average) if state.average else {}
    result = RoundResult(
        number=state.round + 1,
        users=users,
        bytes_up=made.bytes_up,
        bytes_down=users * (before.nbytes + MODEL_KEY_BYTES),
        overload_rate=made.overload_rate,
        training_loss=made.loss / users,
        distortion=distortion(before, made.true_mean, made.estimate.mean, layer_slices(setup.task)),
        true_mean=made.true_mean,
        estimate=made.estimate,
        noise=made.noise,
        own_metrics=dict.fromkeys(setup.task.own_metrics),
    )
    if made.removals is not None:
        result.removed_honest = made.removals.honest
        result.removed_attackers = made.removals.attackers
        result.removed = made.users[~made.removals.result.accepted]
    for chunk in made.chunks:
        store_rows(state.local, chunk)
    state.params, state.server, state.average = params, server, average
    state.tuning = made.tuning
    state.defence = store_state(state.defence, made.users, made.removals, before)
    state.round += 1
    if result.number % settings.evaluate_every == 0 or result.number == settings.rounds:
        with clock.phase("evaluate"):
            _score(setup, state, result)
    result.seconds, result.cpu_seconds = clock.wall, clock.cpu
    return result


def evaluated_params(state: RunState) -> Params:
    """The model that is evaluated: that of the last round, or the average of all rounds."""
    return state.average["average"].astype(np.float32) if state.average else state.params


def _score(setup: Setup, state: RunState, result: RoundResult) -> None:
    params = evaluated_params(state)
    if not np.isfinite(params).all():
        raise NotFinite(
            f"the model is no longer finite after round {result.number}: lower --rate or --radius"
        )
    for name, value in setup.task.scores(params).items():
        if name in result.own_metrics:
            result.own_metrics[name] = value
        else:
            setattr(result, name, value)
