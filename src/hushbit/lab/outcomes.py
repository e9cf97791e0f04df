"""One run of an experiment, from settings to the few figures that are kept of it."""

import math
import statistics
import time
from functools import lru_cache
from typing import Any

from hushbit.errors import InvalidInput
from hushbit.fl.data import Dataset, data_folder, load
from hushbit.fl.rounds import Round, run_rounds, start
from hushbit.fl.settings import Settings
from hushbit.fl.setup import Setup, prepare
from hushbit.fl.training import TrainingDiverged
from hushbit.lab.authors import authors_rounds, best_guess, follows_law, guesser
from hushbit.lab.cells import Outcome, guessing
from hushbit.tuning.guess import BestGuess

OUT_OF_RANGE = ("no longer finite", "must stay below", "NaN or infinite", "must be finite")


def run_outcome(settings: Settings, data: str | None = None) -> Outcome:
    """Run the settings: by the law of the sum where there is one, else ballot by ballot."""
    begun = time.process_time()  # says the same however busy the machine is
    setup = prepare(settings, data, _held(settings, data))
    try:
        if follows_law(settings):
            rows = list(authors_rounds(setup))
        else:
            best = guesser(setup)
            rows = [_row(best, made) for made in run_rounds(setup, start(setup))]
    except (TrainingDiverged, InvalidInput) as failure:
        if not isinstance(failure, TrainingDiverged) and not _out_of_range(failure):
            raise
        return guessing(settings, failure, time.process_time() - begun)
    return outcome_of(setup, rows, time.process_time() - begun)


def _held(settings: Settings, data: str | None) -> Dataset:
    """The data set, which the next cells of a process mostly share; nobody writes into it."""
    writers = settings.partition == "writer"
    return _loaded(settings.dataset, str(data_folder(data)), writers)


@lru_cache(maxsize=1)
def _loaded(name: str, folder: str, writers: bool) -> Dataset:
    return load(name, folder, writers=writers)


def _row(best: BestGuess, made: Round) -> dict[str, Any]:
    """A round's figures, and the SNR of the best guess of its mean."""
    noise = float(made.estimate.variance.mean())
    return made.row() | best_guess(best, made.true_mean, made.estimate.mean, noise)


def _out_of_range(failure: InvalidInput) -> bool:
    """Whether numbers ran away: mechanisms and server refuse them in words of their own."""
    return any(words in str(failure) for words in OUT_OF_RANGE)


def outcome_of(setup: Setup, rows: list[dict[str, Any]], seconds: float) -> Outcome:
    """The figures of a run's rows."""
    tested = [row for row in rows if row.get("test_accuracy") is not None]
    curve = tuple(
        (
            int(row["round"]),
            _percent(row.get("validation_accuracy")),
            _percent(row["test_accuracy"]),
        )
        for row in tested
    )
    ratios, best = (
        [10 ** (row[name] / 10) for row in rows if math.isfinite(row.get(name, math.nan))]
        for name in ("snr_db", "snr_wiener_db")
    )
    layers = [row["snr_layers"] for row in rows if math.isfinite(row["snr_layers"])]
    return Outcome(
        accuracy=curve[-1][2],
        validation=curve[-1][1],
        snr_db=_decibel(ratios, statistics.fmean),
        snr_median_db=_decibel(ratios, statistics.median),
        snr_authors_db=_doubled(_decibel(layers, statistics.fmean)),
        rmse=math.sqrt(statistics.fmean(row["mse"] for row in rows)),
        curve=curve,
        privacy=_privacy(setup),
        seconds=seconds,
        removed_honest=_mean_percent(rows, "removed_honest"),
        removed_attackers=_mean_percent(rows, "removed_attackers"),
        snr_wiener_db=_decibel(best, statistics.fmean),
        backdoor=_mean_percent(tested[-1:], "backdoor_rate"),
    )


def _percent(share: float | None) -> float:
    return 0.0 if share is None else round(100 * share, 4)


def _mean_percent(rows: list[dict[str, Any]], name: str) -> float | None:
    """Mean over the rounds that have the figure; None if none has."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return round(100 * statistics.fmean(values), 4) if values else None


def _decibel(ratios: list[float], middle: Any) -> float | None:
    typical = middle(ratios) if ratios else 0.0
    return 10 * math.log10(typical) if typical > 0 else None


def _doubled(value: float | None) -> float | None:
    return None if value is None else 2 * value


def _privacy(setup: Setup) -> tuple[str, str, str]:
    """Pure epsilon per bit (or entry), per message and for a user in all rounds."""
    guarantee, rounds = setup.mechanism.guarantee, setup.settings.rounds
    if math.isinf(guarantee.epsilon_per_bit):
        return "none (eps = inf)", "none (eps = inf)", "none (eps = inf)"
    plural = "entries" if guarantee.unit == "entry" else f"{guarantee.unit}s"
    return (
        f"eps = {guarantee.epsilon_per_bit:.4g} per {guarantee.unit}",
        f"eps = {guarantee.epsilon_per_message():,.4g} (pure, sum over its {plural})",
        f"eps = {guarantee.epsilon_per_run(rounds):,.4g} (pure, all {rounds} rounds)",
    )
