"""The training loop with the server's sum drawn from its law instead of ballots.

What `hushbit.lab.standings` draws has the law of the mechanisms' preset "authors", and of
baselines that add noise to every entry, so a run tells the same story in a fraction of the time.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushbit.errors import InvalidInput
from hushbit.fl.metrics import add_rows, distortion
from hushbit.fl.rounds import Progress, start
from hushbit.fl.settings import Settings
from hushbit.fl.setup import Setup
from hushbit.fl.training import evaluate, keep_rows, local_updates
from hushbit.keys import RoundKey
from hushbit.lab.standings import Standings, standings
from hushbit.rotation import Rotation, rotation_of
from hushbit.tuning.guess import BestGuess


def follows_law(settings: Settings) -> bool:
    """Whether the decoded mean of a run can be drawn as a sum."""
    return standings(settings, (), 1) is not None


def authors_rounds(setup: Setup) -> Iterator[dict[str, Any]]:
    """Run rounds of sums; one flat row of figures for each."""
    if not follows_law(setup.settings):
        raise InvalidInput("these settings have no law here: their ballots must be cast")
    progress, attackers = start(setup), published_attackers(setup.settings)
    best = guesser(setup)
    for number in range(setup.settings.rounds):
        yield _round(setup, progress, attackers, number, best)


def published_attackers(settings: Settings) -> NDArray[np.bool_]:
    """Users drawn with replacement, as the published code does: 18.1 % for a nominal 20 %."""
    marked = np.zeros(settings.users, dtype=np.bool_)
    rng = np.random.default_rng([settings.seed, 0xA77AC])
    marked[rng.integers(0, settings.users, round(settings.attackers * settings.users))] = True
    return marked


def _round(
    setup: Setup, progress: Progress, attackers: NDArray[np.bool_], number: int, best: BestGuess
) -> dict[str, Any]:
    settings, before = setup.settings, progress.params
    gathered = standings(settings, setup.model.layers, setup.model.dim)
    assert gathered is not None
    turn = _rotation(setup, number)
    mean = _gather(setup, progress, attackers, number, gathered, turn)
    decoded = gathered.decode(np.random.default_rng([settings.seed, number, 0x1A3]))
    decoded = decoded if turn is None else turn.back(decoded)
    progress.params, progress.server = setup.server.step(before, decoded, progress.server)
    figures = distortion(before, mean, decoded, setup.model.layers)
    row: dict[str, Any] = {"round": number + 1, **figures.row()}
    row |= best_guess(best, mean, decoded, gathered.noise)
    if (number + 1) % settings.evaluate_every == 0 or number + 1 == settings.rounds:
        row |= _scores(setup, progress.params)
    return row


def _rotation(setup: Setup, number: int) -> Rotation | None:
    if not setup.settings.rotate:
        return None
    return rotation_of(setup.model.dim, RoundKey(setup.secret, number).rotation)


def guesser(setup: Setup) -> BestGuess:
    """What guesses the means of a run's rounds, one after the other."""
    return BestGuess([slot.shape for slot in setup.model.shapes], setup.model.input_shape)


def best_guess(
    best: BestGuess, mean: NDArray[np.float64], decoded: NDArray[np.float64], noise: float | None
) -> dict[str, Any]:
    """The SNR of the best guess of a round's mean, which no step is taken by, if noise is known."""
    if noise is None or noise == 0 or not math.isfinite(noise):
        return {}
    guess = best.guess(decoded, noise)
    return {"snr_wiener_db": distortion(guess, mean, guess).snr_db}


def _gather(
    setup: Setup, progress: Progress, attackers: NDArray[np.bool_], number: int,
    gathered: Standings, turn: Rotation | None,
) -> NDArray[np.float64]:  # fmt: skip
    """Train everyone and add them up; the true mean.

    The published signal to noise ratio counts what attackers should have sent, so all are in it.
    """
    total = np.zeros(setup.model.dim)
    kept = []
    for chunk in local_updates(
        setup.model, progress.params, setup.federation, np.arange(len(attackers)), setup.local,
        round_number=number, seed=setup.settings.seed, state=progress.local or None,
    ):  # fmt: skip
        add_rows(total, chunk.updates, np.ones(len(chunk.users), dtype=np.bool_))
        turned = chunk.updates if turn is None else turn.forward(chunk.updates)
        gathered.add(turned, attackers[chunk.users])
        kept.append(chunk._replace(updates=chunk.updates[:0]))
    for chunk in kept:
        keep_rows(progress.local, chunk)
    return total / len(attackers)


def _scores(setup: Setup, params: NDArray[np.float32]) -> dict[str, Any]:
    data, held = setup.data, setup.validation
    scores = {"test_accuracy": evaluate(setup.model, params, data.test_x, data.test_y).accuracy}
    if held.size:
        shown = evaluate(setup.model, params, data.train_x[held], data.train_y[held])
        scores["validation_accuracy"] = shown.accuracy
    return scores
