"""Federated learning in one readable loop: sample, train, encode, tally, estimate, step."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.decode import Estimate
from hushbit.engine import Alone, Engine
from hushbit.errors import InvalidInput
from hushbit.fl.metrics import Distortion, distortion
from hushbit.fl.setup import Setup
from hushbit.fl.training import evaluate, fresh_state, keep_rows
from hushbit.fl.votes import Span, cast_votes, merged_votes, spans_of
from hushbit.rest.store import whole_round
from hushbit.robust.poison import TARGET, stamped
from hushbit.robust.round import defence_state, recalled, remembered, robust_estimate
from hushbit.tuning.auto import tuned, tuning_state

MODEL_KEY_BYTES = 80
NO_FIGURES = ("number", "seconds", "cpu_seconds", "distortion", "true_mean", "estimate")


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint must hold."""

    round: int
    params: NDArray[np.float32]
    server: dict[str, NDArray[np.float64]]
    local: dict[str, NDArray[np.float32]]
    average: dict[str, NDArray[np.float64]]
    tuning: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    defence: dict[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass
class Round:
    """What one round brought. The true mean and its estimate are for those who look closer."""

    number: int
    users: int
    bytes_up: int
    bytes_down: int
    overload_rate: float
    training_loss: float
    distortion: Distortion
    true_mean: NDArray[np.float64] = field(repr=False)
    estimate: Estimate = field(repr=False)
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
            if key not in NO_FIGURES
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
        tuning=tuning_state(setup.mechanism),
        defence=defence_state(setup.settings, setup.federation.users, params),
    )


def run_rounds(setup: Setup, progress: Progress, engine: Engine | None = None) -> Iterator[Round]:
    """Go on from `progress`, which is changed in place, to the last round.

    The engine decides where users are computed and nothing else; without one, in this process.
    """
    while progress.round < setup.settings.rounds:
        yield one_round(setup, progress, engine)


def one_round(setup: Setup, progress: Progress, engine: Engine | None = None) -> Round:
    """Sample users; train, encode, tally; estimate, step."""
    settings, number = setup.settings, progress.round
    mechanism = tuned(setup.mechanism, progress.tuning)
    before, state = progress.params, progress.local
    users = sample_users(setup, number)
    # State that users keep would have to travel with them, so it ties them to this process.
    workers = Alone() if engine is None or state else engine
    earlier = recalled(progress.defence, users, before)
    round_ = Span(number, users, before, mechanism, state or None, earlier)
    with whole_round(setup.ballots, number):
        votes = workers.run(cast_votes, setup, spans_of(setup, round_), merged_votes)
    clock = votes.clock
    with clock.phase("estimate"):
        estimate = robust_estimate(settings, mechanism, votes.tally, votes.ballots)
        tuning = tuning_state(mechanism, votes.tally)
    with clock.phase("step"):
        params, server = setup.server.step(before, estimate.mean, progress.server)
        average = setup.average.include(params, progress.average) if setup.average else {}
    true_mean = votes.mean()
    made = Round(
        number=number + 1,
        users=users.size,
        bytes_up=votes.bytes_up,
        bytes_down=users.size * (before.nbytes + MODEL_KEY_BYTES),
        overload_rate=votes.overloaded / (users.size * mechanism.guarantee.groups[0][1]),
        training_loss=votes.loss / users.size,
        distortion=distortion(before, true_mean, estimate.mean, setup.model.layers),
        true_mean=true_mean,
        estimate=estimate,
    )
    if votes.removals is not None:
        made.removed_honest = votes.removals.honest
        made.removed_attackers = votes.removals.attackers
    for chunk in votes.chunks:
        keep_rows(state, chunk)
    progress.params, progress.server, progress.average = params, server, average
    progress.tuning = tuning
    progress.defence = remembered(progress.defence, users, votes.removals)
    progress.round = number + 1
    if made.number % settings.evaluate_every == 0 or made.number == settings.rounds:
        with clock.phase("evaluate"):
            _score(setup, progress, made)
    made.seconds, made.cpu_seconds = clock.wall, clock.cpu
    return made


def sample_users(setup: Setup, number: int) -> NDArray[np.int64]:
    """The users of a round, ascending."""
    count = max(1, round(setup.settings.participation * setup.federation.users))
    if count == setup.federation.users:
        return np.arange(count)
    rng = np.random.default_rng([setup.settings.seed, number, 0x5A3])
    return np.sort(rng.permutation(setup.federation.users)[:count]).astype(np.int64)


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
