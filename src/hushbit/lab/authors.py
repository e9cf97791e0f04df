"""The published training loop, with the server's sum drawn from its law instead of ballots.

What `hushbit.lab.standings` draws has the law of the mechanisms' preset "authors", so a run tells
the same story in a fraction of the time.
"""

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
from hushbit.lab.standings import Standings, standings


def follows_law(settings: Settings) -> bool:
    """Whether a run is one of the published code that can be drawn as a sum."""
    return standings(settings, (), 1) is not None


def authors_rounds(setup: Setup) -> Iterator[dict[str, Any]]:
    """Run the published code's rounds; one flat row of figures for each."""
    if not follows_law(setup.settings):
        raise InvalidInput("only preset authors of cpa, nested, signsgd and laplace has a law here")
    progress, attackers = start(setup), published_attackers(setup.settings)
    for number in range(setup.settings.rounds):
        yield _round(setup, progress, attackers, number)


def published_attackers(settings: Settings) -> NDArray[np.bool_]:
    """Users drawn with replacement, as the published code does: 18.1 % for a nominal 20 %."""
    marked = np.zeros(settings.users, dtype=np.bool_)
    rng = np.random.default_rng([settings.seed, 0xA77AC])
    marked[rng.integers(0, settings.users, round(settings.attackers * settings.users))] = True
    return marked


def _round(
    setup: Setup, progress: Progress, attackers: NDArray[np.bool_], number: int
) -> dict[str, Any]:
    settings, before = setup.settings, progress.params
    gathered = standings(settings, setup.model.layers, setup.model.dim)
    assert gathered is not None
    mean = _gather(setup, progress, attackers, number, gathered)
    decoded = gathered.decode(np.random.default_rng([settings.seed, number, 0x1A3]))
    progress.params, progress.server = setup.server.step(before, decoded, progress.server)
    figures = distortion(before, mean, decoded, setup.model.layers)
    row: dict[str, Any] = {"round": number + 1, **figures.row()}
    if (number + 1) % settings.evaluate_every == 0 or number + 1 == settings.rounds:
        row |= _scores(setup, progress.params)
    return row


def _gather(
    setup: Setup, progress: Progress, attackers: NDArray[np.bool_], number: int,
    gathered: Standings,
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
        gathered.add(chunk.updates, attackers[chunk.users])
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
