"""Signal to noise on the same updates, round by round: CPA.auto beside CPA as published.

What is held to the wanted gain is the server's best guess of each round's mean (`tuning/guess.py`);
the estimate that is trained on, which is not shrunken, is told beside it.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbit.coins import SimulationCoins
from hushbit.decode import Estimate
from hushbit.fl.metrics import distortion
from hushbit.fl.rounds import start
from hushbit.fl.settings import Settings
from hushbit.fl.setup import Setup, prepare
from hushbit.fl.training import LocalChunk, joined, local_updates
from hushbit.keys import RoundKey
from hushbit.lab.experiments.base import Lab
from hushbit.lab.results import Check
from hushbit.lab.standings import standings
from hushbit.mechanism import Mechanism
from hushbit.tally import Tally
from hushbit.tuning.auto import tuned, tuning_state
from hushbit.tuning.guess import BestGuess

OTHER_ROUNDS, PUBLISHED_RADIUS, WANTED = 30, 0.05, 5.0
OTHER_RATES = (1.0, 0.1, 0.03)
RATE_NAMES = {1.0: " (the published code's)", 0.1: " (its earlier revision's)", 0.03: " (default)"}


@dataclass(frozen=True)
class Ratios:
    """One round: decibels of CPA as published, of auto as trained on, and of the best guess."""

    published: float
    auto: float
    guess: float


def ratios(settings: Settings, data: str | None) -> list[Ratios]:
    """Train by auto; decode every round's updates both ways."""
    setup = prepare(settings, data)
    progress = start(setup)
    best = BestGuess([slot.shape for slot in setup.model.shapes], setup.model.input_shape)
    made = []
    for number in range(settings.rounds):
        auto = tuned(setup.mechanism, progress.tuning)
        chunk = joined(list(local_updates(
            setup.model, progress.params, setup.federation, np.arange(settings.users),
            setup.local, round_number=number, seed=settings.seed,
        )))  # fmt: skip
        tally, estimate = _decoded(setup, auto, chunk, number)
        published = _as_published(setup, chunk, number)
        made.append(_ratios(chunk, published, estimate, best))
        progress.params, progress.server = setup.server.step(
            progress.params, estimate.mean, progress.server
        )
        progress.tuning = tuning_state(auto, tally)
    return made


def _decoded(
    setup: Setup, mechanism: Mechanism, chunk: LocalChunk, number: int
) -> tuple[Tally, Estimate]:
    key = RoundKey(setup.secret, number)
    tally = mechanism.tally(key, histogram=False)
    keys = key.users(chunk.users)
    coins = SimulationCoins(setup.settings.seed)
    tally.add_many(mechanism.encode_many(chunk.updates, keys, coins))
    return tally, mechanism.estimate(tally)


def _as_published(setup: Setup, chunk: LocalChunk, number: int) -> NDArray[np.float64]:
    """The published decoder's mean, drawn from its exact law."""
    settings = setup.settings
    authors = Settings(
        mechanism="cpa", preset="authors", radius=PUBLISHED_RADIUS, users=settings.users,
        epsilon_per_bit=settings.epsilon_per_bit,
    )  # fmt: skip
    gathered = standings(authors, setup.model.layers, setup.model.dim)
    assert gathered is not None
    gathered.add(chunk.updates, np.zeros(len(chunk.users), dtype=np.bool_))
    return gathered.decode(np.random.default_rng([settings.seed, number, 0x5E]))


def _ratios(
    chunk: LocalChunk, published: NDArray[np.float64], auto: Estimate, best: BestGuess
) -> Ratios:
    truth = chunk.updates.mean(axis=0, dtype=np.float64)
    assert auto.noise is not None
    means = (published, auto.mean, best.guess(auto.mean, auto.noise))
    return Ratios(*(distortion(truth, truth, mean).snr_db for mean in means))


def snr_beside_authors(lab: Lab, run: Settings) -> list[Check]:
    """Whether the best guess is 5 dB above the published decoder in every round.

    Held for every round of the run as it was tuned. A fixed radius suits one size of updates, so
    what the published decoder loses depends on the rate: it is held for the other rates, too.
    """
    others = () if lab.quick else OTHER_RATES
    rounds = lab.rounds_of(OTHER_ROUNDS)
    told = [
        dataclasses.replace(run, rate=rate, rounds=rounds, evaluate_every=rounds) for rate in others
    ]
    return [_check(lab, settings) for settings in (run, *told)]


def mean_gains(runs: Sequence[Sequence[Ratios]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Decibels above the published decoder by round, mean over runs: guess, and as trained on."""
    best, plain = (
        np.mean([[getattr(one, name) - one.published for one in run] for run in runs], axis=0)
        for name in ("guess", "auto")
    )
    return best, plain


def _check(lab: Lab, settings: Settings) -> Check:
    runs = []
    for number, seed in enumerate(lab.seeds):
        runs.append(ratios(dataclasses.replace(settings, seed=seed), lab.data))
        if lab.watch is not None:
            lab.watch("SNR round by round", number + 1, len(lab.seeds))
    gains, plain = mean_gains(runs)
    worst, rate = int(np.argmin(gains)), settings.local_rate
    return Check(
        f"SNR at least {WANTED:g} dB above the authors preset in every round of "
        f"{settings.rounds}, K = {settings.users}, rate {rate:g}{RATE_NAMES.get(rate, '')}, server "
        f"{settings.server_name}, mean of {len(runs)} seeds",
        float(gains.min()) >= WANTED,
        f"best guess: {gains.min():.1f} dB at the least (round {worst + 1}), median "
        f"{np.median(gains):.1f}; as trained on, not shrunken: {plain.min():.1f} dB at the least, "
        f"median {np.median(plain):.1f}",
    )
