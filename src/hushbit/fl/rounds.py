"""Federated learning in one readable loop: sample, train, encode, tally, estimate, step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.ballot import Ballots
from hushbit.coins import SimulationCoins
from hushbit.errors import InvalidInput
from hushbit.fl.attacks import attack_updates, bit_mask, cast_attacked, random_bytes
from hushbit.fl.metrics import Distortion, add_rows, distortion
from hushbit.fl.setup import Setup
from hushbit.fl.training import evaluate, fresh_state, joined, keep_rows, local_updates
from hushbit.keys import RoundKey
from hushbit.robust.poison import TARGET, stamped
from hushbit.robust.round import (
    FROM_HISTOGRAM,
    Removals,
    attacked_ballots,
    count_defended,
    needs_everyone,
    robust_estimate,
)
from hushbit.tally import Tally

MODEL_KEY_BYTES = 80


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint must hold."""

    round: int
    params: NDArray[np.float32]
    server: dict[str, NDArray[np.float64]]
    local: dict[str, NDArray[np.float32]]
    average: dict[str, NDArray[np.float64]]


@dataclass
class Round:
    """What one round brought."""

    number: int
    users: int
    bytes_up: int
    bytes_down: int
    overload_rate: float
    training_loss: float
    distortion: Distortion
    test_accuracy: float | None = None
    test_loss: float | None = None
    validation_accuracy: float | None = None
    removed_honest: float | None = None
    removed_attackers: float | None = None
    backdoor_rate: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Flat figures for the metrics file."""
        times = {f"seconds_{phase}": spent for phase, spent in self.seconds.items()}
        times |= {f"cpu_seconds_{phase}": spent for phase, spent in self.cpu_seconds.items()}
        plain = {
            key: value for key, value in vars(self).items()
            if key not in ("number", "seconds", "cpu_seconds", "distortion")
        }  # fmt: skip
        return {"round": self.number, **plain, **self.distortion.row(), **times}


def start(setup: Setup) -> Progress:
    """The state before the first round."""
    params = setup.model.init(setup.settings.seed)
    return Progress(
        round=0,
        params=params,
        server=setup.server.start(setup.model.dim),
        local=fresh_state(setup.model, setup.federation, setup.local),
        average=setup.average.start(setup.model.dim) if setup.average else {},
    )


def run_rounds(setup: Setup, progress: Progress) -> Iterator[Round]:
    """Go on from `progress`, which is changed in place, to the last round."""
    while progress.round < setup.settings.rounds:
        yield one_round(setup, progress)


def one_round(setup: Setup, progress: Progress) -> Round:
    """Sample users, train, encode, tally, estimate, step."""
    settings, number = setup.settings, progress.round
    clock = _Clock()
    users = sample_users(setup, number)
    key = RoundKey(setup.secret, number)
    tally = setup.mechanism.tally(key, histogram=settings.defence in FROM_HISTOGRAM)
    seen = _Seen(np.zeros(setup.model.dim))
    chunks = local_updates(
        setup.model, progress.params, setup.federation, users, setup.local,
        round_number=number, seed=settings.seed, state=progress.local or None,
    )  # fmt: skip
    with clock.phase("train"):
        if needs_everyone(settings):
            chunks = iter([joined(list(chunks))])
        chunk = next(chunks, None)
    while chunk is not None:
        _vote(setup, tally, chunk.users, chunk.updates, chunk.losses, seen, clock)
        keep_rows(progress.local, chunk)
        with clock.phase("train"):
            chunk = next(chunks, None)
    with clock.phase("estimate"):
        estimate = robust_estimate(settings, setup.mechanism, tally, seen.ballots)
    with clock.phase("step"):
        before = progress.params
        params, server = setup.server.step(before, estimate.mean, progress.server)
        average = setup.average.include(params, progress.average) if setup.average else {}
    made = Round(
        number=number + 1,
        users=users.size,
        bytes_up=seen.bytes_up,
        bytes_down=users.size * (before.nbytes + MODEL_KEY_BYTES),
        overload_rate=seen.overloaded / (users.size * setup.mechanism.guarantee.groups[0][1]),
        training_loss=float(np.concatenate(seen.losses).mean(dtype=np.float64)),
        distortion=distortion(before, seen.mean(), estimate.mean),
    )
    if seen.removals is not None:
        made.removed_honest = seen.removals.honest
        made.removed_attackers = seen.removals.attackers
    progress.params, progress.server, progress.average = params, server, average
    progress.round = number + 1
    if made.number % settings.evaluate_every == 0 or made.number == settings.rounds:
        with clock.phase("evaluate"):
            _score(setup, progress, made)
    made.seconds, made.cpu_seconds = clock.wall, clock.cpu
    return made


def sample_users(setup: Setup, number: int) -> NDArray[np.int64]:
    """The users of a round, ascending."""
    count = max(1, round(setup.settings.participation * setup.federation.users))
    rng = np.random.default_rng([setup.settings.seed, number, 0x5A3])
    return np.sort(rng.permutation(setup.federation.users)[:count]).astype(np.int64)


@dataclass
class _Seen:
    """What the simulation knows and no server does."""

    total: NDArray[np.float64]
    honest: int = 0
    bytes_up: int = 0
    overloaded: int = 0
    losses: list[NDArray[np.float32]] = field(default_factory=list)
    removals: Removals | None = None
    ballots: Ballots | None = None

    def mean(self) -> NDArray[np.float64]:
        """The true mean update of honest users; NaN in a round that has none."""
        return self.total / self.honest if self.honest else np.full_like(self.total, np.nan)


def _vote(
    setup: Setup, tally: Tally, users: NDArray[np.int64], updates: NDArray[np.float32],
    losses: NDArray[np.float32], seen: _Seen, clock: "_Clock",
) -> None:  # fmt: skip
    settings, number = setup.settings, tally.round_key.round
    attackers = setup.attackers[users]
    with clock.phase("measure"):
        # Users are added in ascending order whatever the chunks, so the sum is reproducible.
        add_rows(seen.total, updates, ~attackers)
        seen.honest += int((~attackers).sum())
        seen.losses.append(losses)
    with clock.phase("encode"):
        published = attackers.any() and settings.attack in ("ones", "flip")
        if published and bit_mask(setup.mechanism) is None:
            updates = updates.copy()
            noise = random_bytes(settings.seed, number, users[attackers], -(-updates.shape[1] // 8))
            updates[attackers] = attack_updates(settings.attack, updates[attackers], noise)
        keys = tally.round_key.users(users)
        ballots = setup.mechanism.encode_many(updates, keys, SimulationCoins(settings.seed))
        if published:
            ballots = cast_attacked(
                setup.mechanism, ballots, settings.attack, attackers, settings.seed
            )
        ballots = attacked_ballots(
            settings, setup.mechanism, ballots, updates, attackers, tally.round_key
        )
    with clock.phase("tally"):
        seen.removals = count_defended(settings, tally, ballots, attackers)
    seen.ballots = ballots if needs_everyone(settings) else None
    seen.bytes_up += len(ballots) * len(ballots[0].to_bytes())
    seen.overloaded += int(ballots.overloaded.sum())


def _score(setup: Setup, progress: Progress, made: Round) -> None:
    params = setup.average.params(progress.average) if setup.average else progress.params
    if not np.isfinite(params).all():
        raise InvalidInput(
            f"the model is no longer finite after round {made.number}: lower --rate or --radius"
        )
    data = setup.data
    test = evaluate(setup.model, params, data.test_x, data.test_y)
    made.test_accuracy, made.test_loss = test.accuracy, test.loss
    if setup.settings.attack == "backdoor":
        others = data.test_y != TARGET
        marked, wanted = stamped(data.test_x[others]), np.full(int(others.sum()), TARGET)
        made.backdoor_rate = evaluate(setup.model, params, marked, wanted).accuracy
    if setup.validation.size:
        held = setup.validation
        score = evaluate(setup.model, params, data.train_x[held], data.train_y[held])
        made.validation_accuracy = score.accuracy


class _Clock:
    """Wall and CPU seconds by phase."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall
        self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu
